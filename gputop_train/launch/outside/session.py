"""One attachment from outside: sample until told to leave, say how it stands, leave no trace.

Nothing is written to a file and nothing is left running: the one child there is, py-spy, lives two
seconds at a time and is ended with us.
"""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gputop_train.launch import ending, identity
from gputop_train.launch.outside import facts, judging, spying, stacks
from gputop_train.launch.outside.around import Surroundings
from gputop_train.launch.outside.observed import Observed
from gputop_train.launch.outside.spying import Piece, Spy
from gputop_train.launch.outside.target import Refused, Target
from gputop_train.launch.streams import Voice, speaks_utf8, write_all
from gputop_train.model import Diagnosis

#: How often the processes and GPUs are read, and how often plain lines tell how it stands.
_LOOK_S, _TELL_S = 1.0, 10.0
_JOIN_S = 5.0
_MAX_FAILURES = 3
#: So much of a piece in imports is a script that still starts.
_STARTING = 0.1


class Session:
    """Watches one process from outside.

    Args:
        target: The process, as `target.look_at` found it.
        program: The py-spy to call.
        nvml: A module to call in place of ``pynvml``, for tests.
    """

    def __init__(self, target: Target, program: str, *, nvml: Any = None) -> None:
        self._target = target
        self._spy = Spy(target.pid, program, directory=target.directory)
        self._around = Surroundings(target, nvml)
        self._classifier = stacks.Classifier(on_gpu=target.on_gpu, root=target.root)
        self._lock = threading.Lock()
        self._seen = Observed(on_gpu=target.on_gpu, root=target.root)
        self._trained = False
        self._refused: Refused | None = None
        self._done = threading.Event()
        self._began = time.monotonic()

    def watch(self, seconds: float | None, leave: threading.Event, tell: Any) -> None:
        """Sample for so long, until the process ends, or until ``leave`` is set.

        Args:
            seconds: ``None`` = without an end of its own.
            leave: Ends it at once.
            tell: Called about once a second.

        Raises:
            Refused: The stacks cannot be read.
        """
        self._began = time.monotonic()
        sampler = threading.Thread(target=self._sample, name="stacks", daemon=True)
        sampler.start()
        try:
            while not leave.is_set() and not self._done.is_set():
                self._around.look()
                tell()
                left = _LOOK_S
                if seconds is not None:
                    left = min(left, self._began + seconds - time.monotonic())
                    if left <= 0:
                        break
                leave.wait(left)
        finally:
            self._spy.close()
            sampler.join(_JOIN_S)
            self._around.look()
            self._around.close()
        if self._refused is not None and not self._seen.samples:
            raise self._refused

    def _sample(self) -> None:
        failures = 0
        try:
            while True:
                try:
                    piece = self._spy.take()
                except Refused as refused:
                    # What could be read once can be read again, unless it goes on failing.
                    failures += 1
                    if not self._seen.samples or failures >= _MAX_FAILURES:
                        self._refused = refused
                        return
                    continue
                if piece is None:
                    return
                failures = 0
                self._add(piece)
        except Exception as failure:  # what was seen before it is told all the same
            self._refused = Refused(f"Sampling stopped ({failure!r}). Please report that.")
        finally:
            self._done.set()

    def _add(self, piece: Piece) -> None:
        sights = self._classifier.look(piece.stacks)
        with self._lock:
            if not self._trained:
                # A script that starts is no training yet, nor is the piece in which it began.
                whole = sum(piece.stacks.values())
                starting = sum(n for (_, s), n in piece.stacks.items() if stacks.starts_up(s))
                self._trained = bool(sights) and starting < _STARTING * whole
                if not self._trained:
                    return
            if not sights:
                sights = self._classifier.rest(piece.stacks)
            self._seen.add(sights, piece.errors)

    def seen(self) -> Observed:
        """What was seen so far."""
        with self._lock:
            seen = copy.deepcopy(self._seen)
        around = self._around
        seen.seconds = time.monotonic() - self._began
        seen.workers, seen.cards = around.workers(), around.cards()
        trainer = around.trainer()
        seen.trainer_cpu, seen.trainer_denied = trainer.cpu, trainer.run_delay
        seen.cores, seen.cores_free = around.cores(), around.cores_free()
        seen.missing = dict(around.missing)
        if self._refused is not None:
            seen.missing["stacks"] = str(self._refused)
        return seen

    def judged(self) -> tuple[Observed, Diagnosis]:
        """What was seen, and what it allows to be said."""
        seen = self.seen()
        return seen, judging.judge(seen)


class Teller:
    """Says how it stands: one line drawn over on a terminal, else a line when it changes."""

    def __init__(self, session: Session, voice: Voice, *, ascii_only: bool) -> None:
        self._session = session
        self._voice = voice
        self._ascii = ascii_only
        self._on_terminal = os.isatty(2)
        self._due = time.monotonic() + (0 if self._on_terminal else _TELL_S)
        self._said: str | None = None

    def __call__(self) -> None:
        """Say it if it is due."""
        now = time.monotonic()
        if now < self._due:
            return
        seen, found = self._session.judged()
        line = facts.live_line(seen, found, ascii_only=self._ascii)
        if self._on_terminal:
            self._due = now + _LOOK_S
            self._draw(line)
            return
        self._due = now + _TELL_S
        key = f"{found.status} {found.verdict.id if found.verdict else ''}"
        if key != self._said:
            self._said = key
            self._voice.say(line)

    def clear(self) -> None:
        """Take the line away again."""
        if self._on_terminal:
            write_all(2, b"\r\x1b[K")

    def _draw(self, line: str) -> None:
        try:
            width = os.get_terminal_size(2).columns
        except OSError:
            width = 80
        write_all(2, f"\r\x1b[K{line[: max(1, width - 1)]}".encode("utf-8", "backslashreplace"))


def attach(
    target: Target,
    *,
    duration_s: float | None = None,
    json_path: str | None = None,
    ascii_only: bool = False,
) -> int:
    """Watch a process from outside and say what it shows.

    Args:
        target: The process.
        duration_s: Leave after so long; ``None`` = at its end or when told to.
        json_path: Where the report goes; ``-`` is stdout.
        ascii_only: Say nothing beyond ASCII.

    Returns:
        0; 1 where the process ended before anything was seen of it.

    Raises:
        Refused: Its stacks cannot be read; nothing is left behind.
    """
    voice = Voice()
    ascii_only = ascii_only or not speaks_utf8()
    session = Session(target, spying.find())
    until = "Ctrl-C leaves it running"
    voice.say(f"looking at process {target.pid} from outside; {until}")
    leave = threading.Event()
    teller = Teller(session, voice, ascii_only=ascii_only)
    started_wall_ns = time.time_ns()
    with _signals_set(leave):
        try:
            session.watch(duration_s, leave, teller)
        finally:
            teller.clear()
    seen, found = session.judged()
    ended = not identity.is_alive(target.process)
    report = facts.build(target, seen, found, ended=ended, started_wall_ns=started_wall_ns)
    try:
        width = os.get_terminal_size(2).columns or 100
    except OSError:
        width = 100
    voice.lines(facts.summary(report, width, ascii_only=ascii_only))
    if json_path is not None:
        ending.deliver(report, json_path, voice)
    if "stacks" in seen.missing and not ended:
        voice.say(seen.missing["stacks"])
    voice.say(f"Process {target.pid} has ended." if ended else "Left; training goes on.")
    return 1 if ended and not seen.samples else 0


@contextmanager
def _signals_set(leave: threading.Event) -> Iterator[None]:
    """No signal to us is meant for the process."""

    def note(_number: int, _frame: FrameType | None) -> None:
        leave.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup asked for that
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
