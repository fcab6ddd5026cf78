"""Keep a run watched while somebody looks at it: a supervisor may die under an open screen."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from gputop_train.launch import attach, runfile
from gputop_train.launch.runs import run_state

_EVERY_S = 2.0
#: One that keeps dying has a reason that another one meets as well.
_MOST = 3
#: Looks that must agree: the next supervisor needs a moment to say that it is there.
_LOOKS = 3


@contextlib.contextmanager
def repeated(keep: Callable[[], object], every_s: float = _EVERY_S) -> Iterator[None]:
    """Call ``keep`` now and then beside what is done meanwhile; its failures are its own."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(every_s):
            with contextlib.suppress(Exception):
                keep()

    thread = threading.Thread(target=work, name="keeping", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=1.0)


class Replacement:
    """Starts another supervisor for a run that has lost its own; call it now and then."""

    def __init__(self, run_dir: Path) -> None:
        self._dir = run_dir
        self._left = _MOST
        self._orphaned = 0

    def __call__(self) -> None:
        """Look, and act once the run was found orphaned a few times in a row."""
        if not self._left:
            return
        run = runfile.read_json(self._dir / "run.json")
        ended = runfile.read_json(self._dir / "exit.json")
        orphaned = run is not None and run_state(self._dir, run, ended) == "orphaned"
        self._orphaned = self._orphaned + 1 if orphaned else 0
        if self._orphaned >= _LOOKS:
            self._orphaned = 0
            self._left -= 1
            attach.ensure_supervised(self._dir)
