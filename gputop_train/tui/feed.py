"""The one thread that reads: asks the source for snapshots and hands them to the screen.

It never waits for the screen and the screen never waits for it: a terminal that takes no output
stops the event loop, so a new snapshot is made only after the previous one was taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from gputop_train.store.errors import StoreError
from gputop_train.tui.snapshot import Snapshot, View


class Source(Protocol):
    """Makes snapshots. `read` may take a while and may raise `StoreError`."""

    def read(self, view: View) -> Snapshot:
        """The run as it stands, seen through ``view``."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class Later:
    """A source that is made by its first read, and thus on the reading thread.

    What reads a store takes as long to load as all that draws; meanwhile the screen can appear.
    """

    def __init__(self, make: Callable[[], Source]) -> None:
        self._make = make
        self._source: Source | None = None

    def read(self, view: View) -> Snapshot:
        """As the source."""
        if self._source is None:
            self._source = self._make()
        return self._source.read(view)

    def close(self) -> None:
        """As the source, where there is one."""
        if self._source is not None:
            self._source.close()


class Feed:
    """Reads at a steady pace until stopped.

    Args:
        source: What is read.
        period_s: From one read to the next.
        ready: Takes a snapshot.
        failed: Takes the words of why there is none.
        afterwards: Done once, when a snapshot was taken and nobody asks for anything.
    """

    def __init__(
        self,
        source: Source,
        *,
        period_s: float,
        ready: Callable[[Snapshot], object],
        failed: Callable[[str], object],
        afterwards: Callable[[], object] | None = None,
    ) -> None:
        self._source = source
        self._period_s = period_s
        self._ready = ready
        self._failed = failed
        self._afterwards = afterwards
        self._lock = threading.Lock()
        self._view = View()
        self._taken = True
        self._seen = False
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
        self._taken = self._seen = True

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
                asked = self._wake.wait(self._period_s)
                self._wake.clear()
                if self._seen and not asked and self._afterwards is not None and not self._stop:
                    self._afterwards()
                    self._afterwards = None
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
