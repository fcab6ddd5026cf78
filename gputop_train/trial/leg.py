"""One leg: an ordinary run of the script, bounded in steps, waited for, measured, cleaned up after.

Launched like every run (``launch/spawn.py``), with a supervisor that ends it after its steps, so
that a leg whose trial is killed -9 still ends by itself. Nothing of it reaches the terminal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gputop_train import paths
from gputop_train.launch import conclude, identity, spawn
from gputop_train.launch.identity import ProcessId
from gputop_train.launch.options import Options, Target, TrialLeg
from gputop_train.launch.runfile import Exit
from gputop_train.launch.runs import store_path
from gputop_train.launch.spawn import Launched
from gputop_train.launch.stop import ladder
from gputop_train.launch.watch import ExitWatch
from gputop_train.store.reader import RunReader, StoreError
from gputop_train.trial import measure
from gputop_train.trial.interrupts import Waiting
from gputop_train.trial.record import Arm, LegResult
from gputop_train.trial.scratch import LegScratch

#: What a leg gets to leave after SIGINT and after SIGTERM: nothing it could save would be kept.
GRACE_S = (5.0, 3.0)
_AT_ONCE = (0.0, 0.0)
#: Looking costs the leg a little of a core; its end wakes us at once.
_TICK_S = 1.0
#: The supervisor's last diagnosis and report; longer where somebody waits for them.
_REPORT_S, _HURRIED_S = 30.0, 10.0

Phase = Literal["starting", "warm-up", "measuring", "ending"]
Progress = Callable[[Phase, int], None]


@dataclass(frozen=True, slots=True)
class LegPlan:
    """What one leg runs.

    Attributes:
        target: The script; an arm may name another.
        runs: Run root of the trial's legs.
        warmup, steps: Optimizer steps that are cut off, and that count.
        guard: How the person's files are kept; see ``TrialLeg``.
        seed: Given to every generator before the script sets its own.
        python: The interpreter; ``None`` = as a launch chooses it.
        burst: Whether three steps may be traced by themselves, which costs time.
        deadline: ``time.monotonic()`` at which the leg is ended; ``None`` = never.
    """

    arm: Arm
    target: Target
    runs: Path
    warmup: int
    steps: int
    guard: Literal["overlay", "refuse"] = "overlay"
    seed: int = 0
    python: str | None = None
    burst: bool = False
    deadline: float | None = None

    def options(self, scratch: LegScratch) -> Options:
        """The launch this leg is.

        Legs that are compiled for the trial share their caches, else each would take the minutes
        again. One whose own script compiles keeps the person's, which may be warm.
        """
        compiled = any(setting.key == "compile" for setting in self.arm.settings)
        return Options(
            target=self.arm.target or self.target,
            steps=self.warmup + self.steps,
            settings=self.arm.settings,
            run_root=str(self.runs),
            python=self.python,
            burst=self.burst,
            trial=TrialLeg(
                warmup=self.warmup,
                steps=self.steps,
                scratch=str(scratch.path),
                guard=self.guard,
                what_if=self.arm.what_if,
                seed=self.seed,
                over=self.arm.over,
                caches=str(scratch.caches) if compiled and self.guard == "overlay" else None,
            ),
        )


def run_leg(
    plan: LegPlan,
    scratch: LegScratch,
    environ: Mapping[str, str],
    waiting: Waiting,
    progress: Progress = lambda _phase, _step: None,
) -> LegResult:
    """Run one leg to its end and measure it.

    Args:
        plan: What to run.
        scratch: Its private directory; whoever gave it ends what is left of the leg.
        environ: Of the script, before what its arm changes.
        waiting: Every wait goes through it; once ``stopped``, the leg is ended.
        progress: Told where the leg is, about once a second.

    Raises:
        CommandProblem: There is nothing to run.
        LaunchError: The leg could not be set up.
    """
    began = time.monotonic()
    environ = {**environ, **dict(plan.arm.environ)}
    options = plan.options(scratch)
    with _working_in(plan.arm.cwd):
        command = spawn.resolve_command(options, environ)
        launched = spawn.launch(options, command, environ)
    leg = _Leg(launched, plan, scratch, waiting, progress)
    try:
        ended = leg.follow()
    finally:
        leg.clear_away()
    refusal = measure.read_refusal(scratch.path)
    cut = measure.Cut(plan.warmup, plan.steps)
    found = measure.read_leg(launched.run_dir, plan.arm, cut, ended, refusal=refusal)
    if leg.ended_for is not None and found.status != "refused":
        status: Literal["stopped", "inconclusive"] = (
            "stopped" if waiting.stopped else "inconclusive"
        )
        found = dataclasses.replace(found, status=status, why=leg.ended_for, cut_short=True)
    found = without_room(found, plan.guard)
    return dataclasses.replace(found, duration_s=time.monotonic() - began)


def without_room(found: LegResult, guard: Literal["overlay", "refuse"]) -> LegResult:
    """A script that failed since its diverted files found no room has not failed by itself."""
    if found.status != "failed" or guard != "overlay" or os.strerror(errno.ENOSPC) not in found.why:
        return found
    why = (
        f"{found.why.rstrip('.')}. What a leg changes is kept apart, a changed file as a whole "
        "copy, and there was no room for it; --run-root names another disk."
    )
    return dataclasses.replace(found, status="inconclusive", why=why)


class _Leg:
    """A launched leg, to its end."""

    def __init__(
        self,
        launched: Launched,
        plan: LegPlan,
        scratch: LegScratch,
        waiting: Waiting,
        progress: Progress,
    ) -> None:
        self.ended_for: str | None = None
        self._launched = launched
        self._plan = plan
        self._scratch = scratch
        self._waiting = waiting
        self._progress = progress
        self._watch = ExitWatch(launched)
        self._seen = 0

    def follow(self) -> Exit | None:
        """Wait for the script's end, or bring it about; then for its report."""
        ended = self._until_end()
        self._progress("ending", self._seen)
        self._until_report()
        return ended

    def clear_away(self) -> None:
        """See to it that the leg has ended, and that nothing is left that only runs need."""
        if identity.is_alive(self._launched.child):
            self._end(_AT_ONCE)
        if not self._watch.supervisor_gone():
            self._dismiss_supervisor()
        shutil.rmtree(paths.RunPaths(self._launched.run_dir).probe_dir, ignore_errors=True)
        conclude.remove_ring_dir(self._launched.run)

    def _until_end(self) -> Exit | None:
        while True:
            ended = self._watch.poll()
            if ended is not None:
                return ended
            why = self._why_end()
            if why is not None:
                self.ended_for = why
                self._end(GRACE_S)
                return self._watch.poll()
            self._tell()
            self._waiting.wait(_TICK_S)

    def _why_end(self) -> str | None:
        if self._waiting.stopped:
            return "The trial was stopped."
        if self._plan.deadline is not None and time.monotonic() >= self._plan.deadline:
            return f"Its time was up after {self._seen} steps."
        if self._watch.supervisor_failed():
            return "Nobody was left to count its steps: its supervisor has ended."
        return self._scratch.short_of_room()

    def _tell(self) -> None:
        store = store_path(self._launched.run_dir, self._launched.run)
        with contextlib.suppress(StoreError), RunReader(store) as reader:
            self._seen = reader.steps_counted(min(reader.ranks(), default=0))
        if self._seen == 0:
            self._progress("starting", 0)
        else:
            warm = self._seen < self._plan.warmup
            self._progress("warm-up" if warm else "measuring", self._seen)

    def _end(self, grace_s: tuple[float, float]) -> None:
        """Climb the ladder; a second wish of the person's to end it jumps to the top."""
        child = self._launched.child
        urgency = self._waiting.urgency
        climbers = [_climb(child, grace_s)]
        while any(climber.is_alive() for climber in climbers):
            self._waiting.wait(0.1)
            if self._waiting.urgency > max(1, urgency) and len(climbers) == 1:
                climbers.append(_climb(child, _AT_ONCE))

    def _until_report(self) -> None:
        """The supervisor writes the report and leaves; whatever it lacks, the store may hold."""
        hurried = self._waiting.stopped
        deadline = time.monotonic() + (_HURRIED_S if hurried else _REPORT_S)
        while not self._watch.supervisor_gone() and time.monotonic() < deadline:
            if self._waiting.urgency > 1:
                return
            self._waiting.wait(_TICK_S)
        report = paths.RunPaths(self._launched.run_dir).report_json
        if not report.exists() and self._watch.supervisor_gone() and not hurried:
            with contextlib.suppress(conclude.ConcludeError, StoreError, OSError):
                conclude.finalize(self._launched.run_dir, wait_s=0)

    def _dismiss_supervisor(self) -> None:
        """Not reaped yet, so its number cannot be anybody else's."""
        pid = self._launched.supervisor_pid
        for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            if pid is None or self._watch.supervisor_gone():
                return
            with contextlib.suppress(OSError):
                os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while not self._watch.supervisor_gone() and time.monotonic() < deadline:
                self._waiting.wait(0.05)


def _climb(child: ProcessId, grace_s: tuple[float, float]) -> threading.Thread:
    climber = threading.Thread(target=ladder, args=(child,), kwargs={"grace_s": grace_s})
    climber.start()
    return climber


@contextlib.contextmanager
def _working_in(directory: str | None) -> Iterator[None]:
    """Launch from another directory: a launch starts the script where we are."""
    if directory is None:
        yield
        return
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(directory)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
