"""Queues that a thread or a process of the script fills with batches.

While batches are replayed nothing is taken from the queue, so what fills it has to come to rest by
itself, and must not keep the script from its end.
"""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any

#: From this size on ``multiprocessing``'s bound is that of its semaphore: none.
UNBOUNDED = 1 << 15
_WAITS = (
    "the queue %s may be filled by the %s %s, which is no daemon: left waiting, it would keep the "
    "script from its end"
)


def is_queue(value: Any) -> bool:
    """Whether this is a queue of the standard library."""
    if isinstance(value, (queue.Queue, queue.SimpleQueue)):
        return True
    module: Any = sys.modules.get("multiprocessing.queues")
    return module is not None and isinstance(value, (module.Queue, module.SimpleQueue))


def trouble(value: Any, name: str) -> str | None:
    """Why a queue cannot be left full; None if nothing speaks against it.

    Args:
        value: The queue.
        name: What the script calls it.
    """
    size = getattr(value, "maxsize", None) or getattr(value, "_maxsize", None) or 0
    if not 0 < size < UNBOUNDED:
        return "the queue %s has no bound: what fills it would go on loading" % name
    for thread in threading.enumerate():
        if thread is threading.main_thread() or thread.daemon or _is_librarys(thread):
            continue
        return _WAITS % (name, "thread", thread.name)
    module: Any = sys.modules.get("multiprocessing.process")
    for process in list(getattr(module, "_children", ())):
        if not process.daemon:
            return _WAITS % (name, "process", process.name)
    return None


def _is_librarys(thread: Any) -> bool:
    """A thread of an installed package or of Python itself does not fill the script's queue."""
    from .. import sites

    work = getattr(thread, "_target", None) or type(thread).run
    code = getattr(work, "__code__", None)
    return code is not None and type(thread) is not threading.Thread and sites.is_library(code)


def reports_done(value: Any, taken: int) -> bool:
    """Whether ``task_done()`` is called for what was taken: then it has to be taken.

    Args:
        value: The queue.
        taken: Items that were seen taken from it.
    """
    unfinished = getattr(value, "unfinished_tasks", None)
    if type(unfinished) is not int:
        return False
    return bool(unfinished - value.qsize() < taken)
