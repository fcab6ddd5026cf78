"""A line when the verdict changes, read from the store like any other reader."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from gputop_train.launch.streams import Voice, speaks_utf8

#: The supervisor diagnoses about this often; asking more often would show nothing more.
_EVERY_S = 2.0


class VerdictLines(threading.Thread):
    """Prints each new verdict of a run. A thread: a slow disk must not delay a signal."""

    def __init__(self, store: Path, voice: Voice, *, ascii_only: bool = False) -> None:
        super().__init__(name="verdicts", daemon=True)
        self._store = store
        self._voice = voice
        self._ascii_only = ascii_only or not speaks_utf8()
        self._ending = threading.Event()
        self._last = ""

    def finish(self) -> None:
        """Print no more."""
        self._ending.set()

    def run(self) -> None:
        """Look every two seconds; whatever cannot be read now is read the next time."""
        while not self._ending.wait(_EVERY_S):
            with contextlib.suppress(Exception):
                self._look()

    def _look(self) -> None:
        if not self._store.exists():
            return
        line, key = latest_line(self._store, ascii_only=self._ascii_only)
        if line and key != self._last and not self._ending.is_set():
            self._last = key
            self._voice.say(line)


def latest_line(store: Path, *, ascii_only: bool = False) -> tuple[str, str]:
    """Return the newest diagnosis in a store as one line, and what makes it another verdict.

    The line is empty when there is none yet. Its numbers waver; the key stays until the cause or
    its place in the code changes.

    Raises:
        StoreError: The store cannot be read now.
    """
    import msgspec

    from gputop_train.model import Diagnosis
    from gputop_train.report import text
    from gputop_train.store.reader import RunReader

    with RunReader(store) as reader:
        found = reader.latest_finding()
    if found is None:
        return "", ""
    diagnosis = msgspec.convert(found[1], Diagnosis, strict=False)
    return text.live_line(diagnosis, ascii_only=ascii_only), text.live_key(diagnosis)
