"""The terminal itself: can it show the screen, how often, and what if it goes away."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

#: The smallest terminal in which header, verdict and one line still make sense.
MIN_COLUMNS, MIN_ROWS = 40, 10
#: Repaints a second: local terminals, and over SSH where every cell is paid for.
LOCAL_HZ, SSH_HZ = 4.0, 2.0
#: Seconds a regular exit may take after a signal or a hang-up before the process just leaves.
GRACE_S = 3.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Ignored by default and used by nobody here: fit to interrupt a system call.
_NUDGE = signal.SIGURG

# Leave the alternate screen, show the cursor, end bracketed paste, mouse and Kitty keys; reset.
_RESTORE = (
    b"\x1b[?1049l\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[<u\x1b[0m"
)


def can_run(environ: Mapping[str, str] | None = None) -> str | None:
    """Why the live screen cannot be shown here, in words; ``None`` when it can."""
    env = os.environ if environ is None else environ
    try:
        if not (os.isatty(0) and os.isatty(1)):
            return "stdin or stdout is not a terminal"
    except OSError:
        return "there is no terminal"
    term = env.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        return f"TERM={term or 'unset'} cannot position the cursor"
    columns, rows = shutil.get_terminal_size((80, 24))
    if columns < MIN_COLUMNS or rows < MIN_ROWS:
        return f"the terminal is {columns}x{rows}, the screen needs {MIN_COLUMNS}x{MIN_ROWS}"
    return None


def repaint_hz(environ: Mapping[str, str] | None = None) -> float:
    """Repaints a second that suit this terminal."""
    env = os.environ if environ is None else environ
    return SSH_HZ if env.get("SSH_CONNECTION") or env.get("SSH_TTY") else LOCAL_HZ


def needs_ascii(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the terminal's encoding or type rules out box and block characters."""
    env = os.environ if environ is None else environ
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return encoding not in ("utf8", "utf_8") or env.get("TERM", "") in ("linux", "vt100", "vt220")


class Guard:
    """Watches over the terminal while the screen is up.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT ask the screen to leave with 128+n; Ctrl-C is a key there.
    Plain signal handlers and not the event loop's: with a terminal that takes no output the loop
    stands still, while a handler still runs. Should a regular exit take longer than `GRACE_S`,
    pending output is thrown away, and as a last resort the process leaves. A terminal that hung up
    without a signal is noticed by polling.
    """

    def __init__(self, leave: Callable[[int], object], fd: int = 0) -> None:
        self._leave = leave
        self._fd = fd
        self._handlers: dict[int, Any] = {}
        self._settings: list[Any] | None = None
        self._done = threading.Event()
        self._leaving = False
        self._flushed = False
        self._ender: threading.Thread | None = None

    def __enter__(self) -> Guard:
        """Begin watching."""
        with contextlib.suppress(termios.error, OSError):
            self._settings = termios.tcgetattr(self._fd)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._handlers[number] = signal.signal(number, self._on_signal)
            self._handlers[_NUDGE] = signal.signal(_NUDGE, lambda *_: None)
            # Textual takes these two and keeps them; whoever comes after wants them back.
            for number in (signal.SIGTSTP, signal.SIGCONT):
                self._handlers[number] = signal.getsignal(number)
        threading.Thread(target=self._watch, name="gputop-terminal", daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Put the handlers back."""
        self._done.set()
        if self._ender is not None:
            self._ender.join(GRACE_S)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._flushed:  # the screen's own farewell may have been thrown away with the rest
            self._restore()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._go(128 + number)

    def _go(self, code: int) -> None:
        if self._leaving:
            return
        self._leaving = True
        # From a thread: only then does a sleeping event loop wake up for it.
        self._ender = threading.Thread(target=self._end, args=(code,), daemon=True)
        self._ender.start()

    def _end(self, code: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone already
            self._leave(code)
        if self._done.wait(GRACE_S):
            return
        # The terminal takes no output, so neither the loop nor its writing thread gets any further.
        # Throwing the pending output away lets both go on, and the caller still gets its result.
        self._flushed = True
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(termios.error, OSError):
                termios.tcflow(1, termios.TCOON)
                termios.tcflush(1, termios.TCOFLUSH)
            _interrupt_writer()
            if self._done.wait(0.002):
                return
        self._restore()
        os._exit(code)

    def _restore(self) -> None:
        with contextlib.suppress(OSError):
            os.set_blocking(1, False)
            os.write(1, _RESTORE)
        with contextlib.suppress(OSError):
            os.set_blocking(1, True)
        if self._settings is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._fd, termios.TCSANOW, self._settings)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._fd, 0)  # POLLHUP and POLLERR are always reported
        while not self._done.wait(1.0):
            if any(mask & (select.POLLHUP | select.POLLNVAL) for _, mask in poller.poll(0)):
                self._go(128 + signal.SIGHUP)
                return


def resume_only_when_suspended(repaint: Callable[[], object]) -> None:
    """Let SIGCONT take the terminal again only after SIGTSTP gave it back.

    Textual takes it at every SIGCONT: with one that nobody stopped it for, as a scheduler sends,
    two threads would read keys and the settings to restore at the end would be the screen's own.
    To be called in the main thread once Textual's handlers are in place.

    Args:
        repaint: Called after either, since somebody else may have drawn meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    stop, resume = signal.getsignal(signal.SIGTSTP), signal.getsignal(signal.SIGCONT)
    if not callable(stop) or not callable(resume):
        return
    suspended = False

    def on_stop(number: int, frame: FrameType | None) -> None:
        nonlocal suspended
        suspended = True
        stop(number, frame)

    def on_continue(number: int, frame: FrameType | None) -> None:
        nonlocal suspended
        if suspended:
            suspended = False
            resume(number, frame)
        threading.Thread(target=repaint, daemon=True).start()

    signal.signal(signal.SIGTSTP, on_stop)
    signal.signal(signal.SIGCONT, on_continue)


def _interrupt_writer() -> None:
    """Make Textual's output thread try its blocked write again; flushing alone does not wake it."""
    for thread in threading.enumerate():
        if thread.name == "textual-output" and thread.ident is not None:
            with contextlib.suppress(OSError):
                signal.pthread_kill(thread.ident, _NUDGE)
