"""What the process's other threads run: Python takes turns, so they can keep training waiting.

Looked at from the helper thread with the sampler's own ``sys._current_frames()``, a few times a
second. A thread that waits for something, or runs no line of the person's, is left out.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

from . import sites
from .state import S

#: One of so many samples looks at the other threads too; so many of them; so deep.
EVERY, MOST, DEPTH = 4, 16, 24
#: Where a thread waits rather than works, by the function it stands in ...
_WAITING = frozenset(
    (
        *("wait", "_wait_for_tstate_lock", "get", "put", "acquire", "join", "sleep"),
        *("select", "poll", "recv", "recv_bytes", "_recv", "accept", "readline", "readinto"),
        *("serve_forever", "run_forever", "_worker", "__enter__", "__exit__"),
    )
)
#: ... or by the call a line of the person's makes.
_WAITS = re.compile(
    r"\.(?:wait|get|put|acquire|join|recv\w*|select|poll|accept|read(?:line)?|result)\s*\("
    r"|\b(?:sleep|input|communicate)\s*\(|\bstd(?:out|err|in)\b"
)
_HANDS_OVER = frozenset(("put", "put_nowait"))


def look(frames: dict[int, Any], own: int, text_of: Callable[[Any], str]) -> None:
    """Count the lines at which other threads run code of the person's.

    Args:
        frames: The innermost frame of each thread.
        own: The thread that looks.
        text_of: The call under way in a frame.

    Nothing is counted where a thread trains that is not the first: what the kernel accounts to the
    first is all that tells waiting from computing.
    """
    if S.thread_id != threading.main_thread().ident:
        return
    for number, (thread, leaf) in enumerate(frames.items()):
        if number >= MOST:
            break
        if thread not in (own, S.thread_id):
            _count(leaf, text_of)


def _count(leaf: Any, text_of: Callable[[Any], str]) -> None:
    code = leaf.f_code
    if sites.is_library(code) and code.co_name in _WAITING:
        return
    place, hands_over = None, False
    frame = leaf
    for _ in range(DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if not sites.is_library(code):
            place = frame if place is None else place
            hands_over = hands_over or not _HANDS_OVER.isdisjoint(code.co_names)
        frame = frame.f_back
    if place is None:
        return
    text = text_of(place)
    if place is leaf and _WAITS.search(text):
        return
    label = "feeds" if hands_over else None
    site = sites.register(place.f_code, place.f_lineno, "thread", text, label)
    sites.stats[site][0] += 1
