"""The thread that pages through and searches a log: nothing of it may hold up the event loop.

Requests are carried out in their order and answered once all that have come are done. A search
ends early when the next request comes, and no answer is given before the last one was taken.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gputop_train.launch.logpages import LogFile, LogLine


@dataclass(frozen=True, slots=True)
class Scroll:
    """Move by lines, towards newer output if positive."""

    lines: int


@dataclass(frozen=True, slots=True)
class Top:
    """Go to the oldest output that is still there."""


@dataclass(frozen=True, slots=True)
class Search:
    """Go to the nearest line that shows ``pattern``; ``back`` looks at older output."""

    pattern: str
    back: bool = False


Request = Scroll | Top | Search


@dataclass(frozen=True, slots=True)
class LogShown:
    """A page of the log.

    Attributes:
        lines: From the top.
        hit: Where the line begins that the last search found; ``None`` = none.
        share: How far into what is still there the page ends, 0..1.
        size: Bytes that are still there.
        follow: Whether the page went past the newest line, and should follow it.
        note: What is to be said, such as that nothing was found.
    """

    lines: tuple[LogLine, ...] = ()
    hit: int | None = None
    share: float = 1.0
    size: int = 0
    follow: bool = False
    note: str = ""


class LogReader:
    """Reads for one page at a time.

    Args:
        path: The log.
        ready: Takes an answer and this reader; called from the reading thread.
    """

    def __init__(self, path: Path, ready: Callable[[LogShown, LogReader], object]) -> None:
        self._file = LogFile(path)
        self._ready = ready
        self._requests: queue.SimpleQueue[tuple[Request, int] | None] = queue.SimpleQueue()
        self._taken = threading.Event()
        self._taken.set()
        self._stop = False
        self._top: int | None = None
        self._hit: tuple[int, int] | None = None
        self._rows = 1
        self._thread = threading.Thread(target=self._run, name="gputop-log", daemon=True)
        self._thread.start()

    def ask(self, request: Request, rows: int) -> None:
        """Have a request carried out for a page of ``rows`` lines."""
        self._requests.put((request, max(1, rows)))

    def took(self) -> None:
        """The last answer was shown."""
        self._taken.set()

    def close(self) -> None:
        """End the thread; does not wait for a read in progress."""
        self._stop = True
        self._taken.set()
        self._requests.put(None)

    def _run(self) -> None:
        try:
            while True:
                wish = self._requests.get()
                shown = LogShown()
                while wish is not None:
                    request, self._rows = wish
                    shown = self._done(request)
                    if self._requests.empty():
                        break
                    wish = self._requests.get()
                if wish is None or not self._wait():
                    return
                self._taken.clear()
                self._ready(shown, self)
        finally:
            self._file.close()

    def _wait(self) -> bool:
        """Wait until the last answer was taken; whether there is anything left to do."""
        while not self._taken.wait(1.0):
            pass
        return not self._stop

    def _done(self, request: Request) -> LogShown:
        try:
            return self._carried_out(request)
        except Exception as error:  # a fault of ours must cost a key press, not the page
            self._top = self._hit = None
            note = f"The log could not be read ({type(error).__name__}: {error})."
            return LogShown(follow=True, note=note)

    def _carried_out(self, request: Request) -> LogShown:
        if isinstance(request, Scroll):
            return self._scroll(request.lines)
        if isinstance(request, Top):
            self._top = self._file.first()
            return self._page()
        return self._search(request)

    def _scroll(self, lines: int) -> LogShown:
        top = self._top if self._top is not None else self._file.last(self._rows)
        if lines < 0:
            self._top = self._file.before(top, -lines)
            return self._page()
        page = self._file.page(top, lines + 1)
        top = page.lines[lines].start if len(page.lines) > lines else page.end
        if page.at_end and top >= self._file.last(self._rows):
            self._top = self._hit = None
            return LogShown(follow=True)
        self._top = top
        return self._page()

    def _search(self, request: Search) -> LogShown:
        top, hit = self._top, self._hit
        if hit is not None:
            start = hit[0] if request.back else hit[1]
        elif request.back:
            start = self._file.size() if top is None else top
        else:
            start = self._file.last(self._rows) if top is None else top
        found, note = self._find(request, start), ""
        if found is None and not self._called_off():
            start = self._file.size() if request.back else self._file.first()
            found = self._find(request, start)
            where = "newest output" if request.back else "beginning"
            note = f"Went on from the {where}."
        if found is None:
            note = "" if self._called_off() else f"No line shows {request.pattern!r}."
            return (
                replace(self._page(), note=note)
                if top is not None
                else LogShown(follow=True, note=note)
            )
        self._hit = found
        self._top = self._file.before(found[0], self._rows // 3)
        return replace(self._page(), note=note)

    def _find(self, request: Search, start: int) -> tuple[int, int] | None:
        return self._file.find(
            request.pattern, start, back=request.back, cancelled=self._called_off
        )

    def _called_off(self) -> bool:
        return self._stop or not self._requests.empty()

    def _page(self) -> LogShown:
        page = self._file.page(self._top or 0, self._rows)
        self._top = page.lines[0].start if page.lines else page.end
        there = max(1, page.size - page.first)
        return LogShown(
            lines=page.lines,
            hit=self._hit[0] if self._hit is not None else None,
            share=min(1.0, max(0.0, (page.end - page.first) / there)),
            size=page.size - page.first,
        )
