"""The one thread that reads: asks the source for snapshots and hands them to the screen.

It never waits for the screen and the screen never waits for it: a terminal that takes no output
stops the event loop, so a new snapshot is made only after the previous one was taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from gputop_train.store.errors import StoreError
from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.source import Source


class Feed:
    """Reads at a steady pace until stopped."""

    def __init__(
        self,
        source: Source,
        *,
        period_s: float,
        ready: Callable[[Snapshot], object],
        failed: Callable[[str], object],
    ) -> None:
        self._source = source
        self._period_s = period_s
        self._ready = ready
        self._failed = failed
        self._lock = threading.Lock()
        self._view = View()
        self._taken = True
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="gputop-read", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def look_at(self, view: View) -> None:
        """Ask for another view; read at once."""
        with self._lock:
            if view == self._view:
                return
            self._view = view
        self._wake.set()

    @property
    def view(self) -> View:
        """What is asked for now."""
        with self._lock:
            return self._view

    def took(self) -> None:
        """The screen has taken the last snapshot."""
        self._taken = True

    def now(self) -> None:
        """Read at once instead of at the next tick."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; does not wait for a read in progress."""
        self._stop = True
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stop:
                if self._taken:
                    self._read()
                self._wake.wait(self._period_s)
                self._wake.clear()
        finally:
            self._source.close()

    def _read(self) -> None:
        try:
            snapshot = self._source.read(self.view)
        except StoreError as error:
            self._failed(str(error))
        except Exception as error:  # a fault of ours must cost a frame, not the screen
            self._failed(f"The screen could not read the run ({type(error).__name__}: {error}).")
        else:
            if not self._stop:
                self._taken = False
                self._ready(snapshot)
