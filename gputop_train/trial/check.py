"""Runs a check: the newer code beside the older one, or by itself against a stored baseline.

The newer code is the trial's baseline, so that a script that fails says so at its first leg; the
older one is its candidate, leg by leg beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train.launch import runfile
from gputop_train.launch.options import Target
from gputop_train.launch.runs import store_path
from gputop_train.store.reader import RunReader, StoreError
from gputop_train.trial import check_judge, store, versions, yardstick
from gputop_train.trial.baseline import Stored
from gputop_train.trial.check_record import Check, Limits, Side
from gputop_train.trial.fingerprint import differences, fingerprint
from gputop_train.trial.interrupts import Interrupts
from gputop_train.trial.plan import Plan
from gputop_train.trial.record import Arm, LegResult
from gputop_train.trial.runner import Runner
from gputop_train.trial.scratch import guard_available, remove_tree
from gputop_train.trial.standing import Candidate
from gputop_train.trial.store import TrialPaths
from gputop_train.trial.versions import Older

NOW = "now"
#: Legs of one side that is measured by itself, unless rounds say otherwise.
LEGS = 3
_OLDER_DIR = "older"


@dataclass(frozen=True, slots=True)
class Measured:
    """The newer code, measured by itself.

    Attributes:
        machine: Fingerprint of the machine.
        warmup: Steps that were cut off each leg.
    """

    side: Side
    machine: Mapping[str, Any]
    warmup: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a check ended.

    Attributes:
        check: The result; ``None`` where there is none.
        measured: What ``--save-baseline`` keeps.
        code: Exit code where there is no result.
        problem: Why there is none.
    """

    check: Check | None = None
    measured: Measured | None = None
    code: int = 0
    problem: str | None = None


class Checker:
    """One check.

    Args:
        target: What to check.
        plan: How its legs are run; arms are filled in here.
        limits: What may get worse.
        trial: Where legs are kept.
        environ: Of the script.
        interrupts: Entered already.
        tell: Shown to a person, one line each.
    """

    def __init__(
        self,
        target: Target,
        plan: Plan,
        limits: Limits,
        trial: TrialPaths,
        environ: Mapping[str, str],
        interrupts: Interrupts,
        tell: Callable[[str], None],
    ) -> None:
        self._target = target
        self._plan = dataclasses.replace(plan, baseline=Arm(NOW), same_code=False)
        self._limits = limits
        self._trial = trial
        self._environ = environ
        self._interrupts = interrupts
        self._tell = tell

    def against_code(self, named: str) -> Outcome:
        """Hold the newer code against an older version of it, leg beside leg.

        Raises:
            VersionProblem: There is no such version.
        """
        own = self._trial.trial_dir / _OLDER_DIR
        own.mkdir(mode=0o700)
        try:
            older = self._prepare(named, own)
            for note in older.notes:
                self._tell(note)
            plan = dataclasses.replace(self._plan, arms=(older.arm,))
            runner = _Pairs(
                plan, self._limits, self._trial, self._environ, self._interrupts, self._tell
            )
            code = runner.run()
            return self._judge_code(runner, older, code)
        finally:
            remove_tree(own)

    def _prepare(self, named: str, own: Path) -> Older:
        """Make the older version ready; elsewhere, where it cannot be laid over its place."""
        root = self._trial.trial_dir.parent.parent
        wanted = self._plan.guard != "refuse"
        overlay = wanted and guard_available(".", root)[0] == "overlay"
        older = versions.older(named, self._target, own, self._environ, overlay=overlay)
        if older.arm.over and guard_available(".", root, older.arm.over)[0] != "overlay":
            remove_tree(own)
            own.mkdir(mode=0o700)
            older = versions.older(named, self._target, own, self._environ, overlay=False)
        return older

    def against_stored(self, stored: Stored) -> Outcome:
        """Hold the newer code against a stored baseline."""
        runner, code = self._alone()
        failed = self._without_result(runner, stored.side.title, code)
        if failed is not None:
            return failed
        measured = runner.measured()
        foreign = differences(stored.machine, measured.machine)
        timing = check_judge.time_of_stored(stored.side, measured.side, foreign, self._limits)
        return Outcome(
            check_judge.judge(
                stored.side,
                measured.side,
                timing,
                self._limits,
                notes=stored.notes,
                trial=str(self._trial.trial_dir),
            ),
            measured,
        )

    def by_itself(self) -> Outcome:
        """Measure the newer code, to keep it as a baseline."""
        runner, code = self._alone()
        failed = self._without_result(runner, "", code)
        return failed or Outcome(measured=runner.measured())

    def _alone(self) -> tuple[_Alone, int]:
        runner = _Alone(self._plan, self._trial, self._environ, self._interrupts, self._tell)
        return runner, runner.run()

    def _judge_code(self, runner: _Pairs, older: Older, code: int) -> Outcome:
        failed = self._without_result(runner, older.title, code)
        if failed is not None:
            return failed
        one = runner.standing.candidates[0]
        pairs = runner.pairs
        newer_legs = [newer for _, newer in pairs]
        older_legs = [was for was, _ in pairs]
        if not pairs:
            reason = f"{older.title} could not be measured. {one.why}".strip()
            return Outcome(self._no_result("inconclusive", older, reason))
        foreign = self._foreign(older, older_legs)
        if foreign is not None:
            reason = (
                f"The older side ran {foreign}, which is of the newer code, so nothing was "
                "compared. An editable install or an absolute path leads there: name a directory "
                "with an environment of its own, or run where overlay mounts are possible."
            )
            return Outcome(self._no_result("inconclusive", older, reason))
        timing = check_judge.time_of_pairs(
            older_legs, newer_legs, self._limits, rounds_fixed=self._plan.rounds is not None
        )
        notes = [*older.notes]
        if one.status != "measured" and one.why:
            notes.append(f"A leg of {older.title} did not count. {one.why}")
        found = check_judge.judge(
            Side.of(older.title, older_legs),
            Side.of(NOW, newer_legs),
            timing,
            self._limits,
            notes=notes,
            trial=str(self._trial.trial_dir),
        )
        return Outcome(found)

    def _without_result(self, runner: Runner, title: str, code: int) -> Outcome | None:
        """What came of legs that cannot be judged; ``None`` where they can."""
        standing = runner.standing
        if code == 0 and runner.standing.baseline_legs:
            return None
        if standing.state == "stopped":
            return Outcome(code=code, problem="The check was stopped, and there is no result.")
        problem = standing.problem or "No leg of it was measured."
        legs = [leg for _, leg in standing.legs if leg.arm == NOW]
        if code not in (0, 1) or not legs:
            return Outcome(code=code if code > 1 else 125, problem=problem)
        result = "failed" if legs[-1].status == "failed" else "inconclusive"
        trial = str(self._trial.trial_dir)
        if result == "failed":
            return Outcome(Check("failed", title, (problem,), limits=self._limits, trial=trial))
        return Outcome(Check("inconclusive", title, (problem,), limits=self._limits, trial=trial))

    def _no_result(self, result: Any, older: Older, reason: str) -> Check:
        return Check(
            result,
            older.title,
            (reason,),
            limits=self._limits,
            notes=older.notes,
            trial=str(self._trial.trial_dir),
        )

    def _foreign(self, older: Older, legs: Sequence[LegResult]) -> str | None:
        """A file of the newer code that a leg of the older one ran."""
        for leg in legs[:1]:
            for file in _files(self._trial.runs / (leg.run or "")):
                if older.foreign(file):
                    return file
        return None


class _Pairs(Runner):
    """A trial of one candidate, the older code, until its time is judged."""

    def __init__(
        self,
        asked: Plan,
        limits: Limits,
        trial: TrialPaths,
        environ: Mapping[str, str],
        interrupts: Interrupts,
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(asked, trial, environ, interrupts, tell)
        self._limits = limits

    @property
    def pairs(self) -> list[tuple[LegResult, LegResult]]:
        """Measured legs beside each other: the older code's, the newer code's."""
        return [(was, now) for one in self.standing.candidates for now, was in one.pairs]

    def _is_wanted(self, one: Candidate) -> bool:
        if not one.is_open or self._plan.rounds is not None:
            return one.is_open
        if not self._limits.time:
            return not one.pairs
        older, newer = [was for was, _ in self.pairs], [now for _, now in self.pairs]
        timing = check_judge.time_of_pairs(older, newer, self._limits)
        return not check_judge.is_decided(timing, self._limits)


class _Alone(Runner):
    """Legs of the newer code with nothing beside them, a yardstick of the host before each."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._yardstick: dict[str, list[float]] = {}

    def measured(self) -> Measured:
        """What was measured."""
        legs = self.standing.baseline_legs
        readings = {kind: tuple(values) for kind, values in self._yardstick.items()}
        report = next((leg.report for leg in reversed(legs) if leg.report is not None), {})
        side = Side.of(NOW, legs, readings)
        return Measured(side, fingerprint(report), self.desk.extent.warmup)

    def _leg(self, arm: Arm, at: int) -> LegResult:
        for kind, value in yardstick.read().items():
            self._yardstick.setdefault(kind, []).append(value)
        return super()._leg(arm, at)

    def _try_all(self, first: LegResult | None) -> None:
        wanted = self._plan.rounds or LEGS
        for at in range(2 if first is not None else 1, wanted + 1):
            if self._interrupts.stopped or not self._has_time(self._plan.baseline):
                return
            found = self._leg(self._plan.baseline, at)
            self._check_baseline(found)
            self.desk.leg_ended(found, None)


def sweep(root: Path) -> None:
    """Remove older code that checks left whose process was killed."""
    for trial in store.trials(root):
        left = trial.trial_dir / _OLDER_DIR
        if os.path.lexists(left) and not store.is_running(store.read(trial.trial_dir) or {}):
            remove_tree(left)


def _files(run_dir: Path) -> list[str]:
    """Files of the person's code that a run was seen in."""
    run = runfile.read_json(run_dir / "run.json") or {}
    with contextlib.suppress(StoreError), RunReader(store_path(run_dir, run)) as reader:
        return sorted({s.file for s in reader.sites()} | {ld.file for ld in reader.loaders()})
    return []
