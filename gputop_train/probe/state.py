"""What the hooks share. One instance per process; hot names are module globals on purpose.

The hot path of every hook is one append of an integer to ``log``; everything else happens in the
helper thread or, once in a while, on the slow path of a hook.
"""

from __future__ import annotations

import collections
import json
import os
import threading
import time
from typing import Any, Callable

LOG_CAPACITY = 1 << 16
MAX_FAILURES = 32  # of hooks; a probe that fails more often is switched off

#: Words waiting for the helper thread, and the ticks of ``quiet.py``, which are floats. Bounded: an
#: overrun drops the oldest and is counted.
log: collections.deque[Any] = collections.deque(maxlen=LOG_CAPACITY)
append = log.append
now: Callable[[], int] = time.monotonic_ns
ident = threading.get_ident


class ProbeState:
    """The probe's state in this process."""

    # In slots: hooks read one line of memory for a name in place of the three of a dictionary.
    __slots__ = (
        "armed", "backward_ran", "burst", "compile_seen", "config", "dead", "detail", "errors",
        "failures", "feeding_loader", "forks", "gc_count", "gc_ns", "gpu", "helper", "hook_ns",
        "hooks", "iterators", "loaders", "loop_known", "nests", "optimizer_depth", "optimizers",
        "overrides", "param_device", "pid", "quiet_until_ns", "set_eval_frame", "stepped", "steps",
        "steps_at_update", "thread", "thread_id", "timing", "torch", "trial", "whole",
    )  # fmt: skip

    def __init__(self) -> None:
        self.torch: Any = None
        # Dynamo's frame evaluator of this thread. Inside a compiled region it would try to compile
        # what our slow paths call; they switch it off and back on.
        self.set_eval_frame: Callable[[Any], Any] = lambda callback: None
        self.config: dict[str, Any] = {}
        self.pid = os.getpid()
        # Thread whose edges are written: the main one until a trainer shows itself; 0 = nobody.
        self.thread_id = threading.main_thread().ident or 0
        self.thread: Any = None  # its Thread object, which tells when it has ended
        self.armed = False
        self.loop_known = False
        # Whether the hooks record what they see (budget.py); interruptions always are recorded.
        self.detail = True
        # Whether they did from the current step's begin on; if not, it ends in a STEP_TICK.
        self.whole = True
        self.quiet_until_ns = 0  # until when steps are not
        # Whether this step's hooks add up their own time, and what they added up.
        self.timing = False
        self.hook_ns = 0
        self.forks = 0
        self.failures = 0
        self.dead = False
        self.helper: Any = None
        self.gpu: Any = None
        self.burst: Any = None  # a profiler burst that is wanted or runs; told of step ends
        self.iterators: Any = None
        self.hooks: dict[str, bool] = {}
        self.errors: list[str] = []
        self.overrides: list[dict[str, Any]] = []
        self.trial: Any = None  # what makes this process part of a leg of a trial; None elsewhere
        self.param_device: str | None = None
        self.optimizers: dict[int, dict[str, Any]] = {}
        self.compile_seen = False
        self.gc_count = 0
        self.gc_ns = 0
        self.steps = 0
        self.optimizer_depth = 0
        self.nests = False  # some optimizer's step() calls that of its base class
        self.stepped = 0  # id() of the optimizer that ended its step last
        # In unrecorded steps: whether a backward ran since GradScaler.update, and steps by then.
        self.backward_ran = False
        self.steps_at_update = 0
        self.loaders: dict[int, dict[str, Any]] = {}
        self.feeding_loader = 0

    def failed(self, where: str, error: Exception) -> None:
        """A hook failed, and the training must not notice. Too often, and no hook does anything."""
        note_error(where, error)
        self.failures += 1
        if self.failures >= MAX_FAILURES:
            self.dead = True
            self.armed = False
            self.thread_id = 0


S = ProbeState()


def load_config() -> dict[str, Any]:
    """The run's configuration, from the file beside this package; empty when unreadable."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        with open(os.path.join(here, "config.json"), encoding="utf-8") as stream:
            loaded = json.load(stream)
        return loaded if isinstance(loaded, dict) else {}
    except (OSError, ValueError):
        return {}


def leave_mark(name: str) -> None:
    """Leave an empty file in this package's directory: how far the probe got without a ring.

    Not in the one above, which is on ``sys.path``: a directory that has changed is listed anew by
    the script's next import, and fails it where no descriptor is left.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seen-" + name)
    try:
        if not os.path.exists(path):
            try:
                os.mknod(path, 0o600)  # a file without a descriptor: the script may have none left
            except OSError:  # a file system that makes none this way
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        pass


def note_error(where: str, error: BaseException) -> None:
    """Remember a failure of ours, bounded, for the snapshot. Never prints."""
    try:
        if len(S.errors) < 32:
            S.errors.append("%s: %s: %s" % (where, type(error).__name__, str(error)[:160]))
        if S.config.get("debug"):
            import traceback

            traceback.print_exception(type(error), error, error.__traceback__)
    except Exception:  # an error that cannot be told
        pass
