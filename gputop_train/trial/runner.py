"""Runs a trial: the baseline and every candidate, leg by leg, next to each other in time.

A host's speed drifts by half between minutes, so a candidate is only ever compared with the leg of
the baseline that ran right before or after it (ABBA...).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gputop_train.launch import identity
from gputop_train.launch.interpreter import CommandProblem
from gputop_train.launch.runfile import read_exit
from gputop_train.launch.secrets import mask_arguments
from gputop_train.launch.spawn import LaunchError
from gputop_train.store.errors import StoreError
from gputop_train.trial import judging, leg, measure, plan, store, words
from gputop_train.trial.interrupts import Interrupts
from gputop_train.trial.leg import LegPlan, Phase
from gputop_train.trial.plan import Extent, Plan
from gputop_train.trial.record import Arm, LegResult
from gputop_train.trial.standing import Candidate, Standing
from gputop_train.trial.store import TrialPaths

#: More pairs than this only wait for a quieter host.
MAX_ROUNDS = 12
MIN_ROUNDS = 3
#: A candidate's leg that takes so many times as long as the baseline's hangs, or is not worth it.
_HANGS, _HANGS_S = 5.0, 60.0
#: ``trial.json`` is not rewritten more often than this for progress alone.
_TOLD_S = 1.0


class TrialProblem(Exception):
    """The trial cannot go on; the message says why and what to do."""


class Runner:
    """One trial, from its first leg to its table.

    Args:
        asked: What to do.
        trial: Its directory.
        environ: Of the script.
        interrupts: Entered already; ends the trial.
        tell: Shown to a person, one line each.

    Attributes:
        standing: How it stands; the result, at the end.
    """

    def __init__(
        self,
        asked: Plan,
        trial: TrialPaths,
        environ: Mapping[str, str],
        interrupts: Interrupts,
        tell: Callable[[str], None],
    ) -> None:
        self._plan = asked
        self._trial = trial
        self._environ = environ
        self._interrupts = interrupts
        self._tell = tell
        self._began = time.monotonic()
        self._extent = plan.first_extent(asked)
        self._guard: Literal["overlay", "refuse"] = "overlay"
        self._told_at = 0.0
        self.standing = Standing(self._head(), asked.baseline, price_per_hour=asked.price_per_hour)

    def run(self) -> Standing:
        """Run all legs; however it ends, ``trial.json`` says so.

        Raises:
            CommandProblem: There is nothing to run.
            LaunchError: A leg could not be set up.
            TrialStoreError: The disk is full.
        """
        standing = self.standing
        try:
            self._save("The first leg of the baseline starts.")
            first = self._first_leg()
            if not self._interrupts.stopped:
                self._take_up(plan.named(self._plan.arms, [self._plan.baseline.name]), first)
                self._rounds(first)
            standing.state = "stopped" if self._interrupts.stopped else "done"
        except TrialProblem as problem:
            standing.state, standing.problem = "failed", str(problem)
        except (CommandProblem, LaunchError, store.TrialStoreError) as problem:
            standing.state, standing.problem = "failed", str(problem)
            raise
        except BaseException as problem:
            standing.state, standing.problem = "failed", f"{type(problem).__name__}: {problem}"
            raise
        finally:
            self._sum_up()
        return standing

    # -- legs -------------------------------------------------------------------------------------

    def _first_leg(self) -> LegResult | None:
        """The baseline's first leg, which sets how long legs are.

        Returns:
            ``None`` where it was too short to count.
        """
        while True:
            found = self._leg(self._plan.baseline, 1)
            if found.status in ("failed", "refused", "stopped") or found.run is None:
                break
            run_dir = self._trial.runs / found.run
            try:
                look = measure.first_look(run_dir, found.report)
            except StoreError as problem:
                raise TrialProblem(f"Nothing was recorded of the first leg. {problem}") from None
            self._extent = plan.extent(
                self._plan,
                self._plan.arms,
                step_ns=look.step_ns,
                ended_by_itself=look.ended_by_itself,
                loaders=look.loaders,
                batches_per_step=look.batches_per_step,
            )
            found = self._cut_again(run_dir, found)
            break
        if found.status != "measured" and not self._interrupts.stopped:
            raise TrialProblem(self._no_baseline(found))
        self._say_extent(found)
        return None if self._extent.remeasure else found

    def _cut_again(self, run_dir: Path, found: LegResult) -> LegResult:
        """Read the first leg with the extent it led to."""
        cut = measure.Cut(self._extent.warmup, self._extent.steps)
        again = measure.read_leg(run_dir, self._plan.baseline, cut, read_exit(run_dir))
        again = dataclasses.replace(again, duration_s=found.duration_s)
        if self._extent.remeasure:
            why = "It was too short to count and showed how long legs have to be."
            again = dataclasses.replace(again, status="inconclusive", why=why)
        self.standing.legs[-1] = (1, again)
        return dataclasses.replace(again, status="measured") if self._extent.remeasure else again

    def _no_baseline(self, found: LegResult) -> str:
        if found.status == "inconclusive":
            return f"The script cannot be measured as it is. {found.why}"
        output = self._trial.runs / (found.run or "") / "output.log"
        return (
            f"The script fails as it is, so there is nothing to compare with. {found.why} "
            f"Its output: {output}"
        )

    def _leg(self, arm: Arm, at: int) -> LegResult:
        """Run one leg and write it down."""
        self._starting(arm)
        scratch = self._trial.trial_dir / f"leg-{len(self.standing.legs) + 1}"
        scratch.mkdir(mode=0o700)
        wanted = LegPlan(
            arm=arm,
            target=self._plan.target,
            runs=self._trial.runs,
            warmup=self._extent.warmup,
            steps=self._extent.steps,
            guard=self._guard,
            seed=self._plan.seed,
            python=self._plan.python,
            burst=self._plan.burst,
            deadline=self._deadline(),
        )

        def progress(phase: Phase, step: int) -> None:
            self._progress(arm, phase, step)

        found = leg.run_leg(wanted, scratch, self._environ, self._interrupts, progress)
        self.standing.legs.append((at, found))
        return found

    def _deadline(self) -> float:
        end = self._began + self._plan.max_minutes * 60
        usual = self._usual_s()
        if usual is None:
            return end
        return min(end + usual, time.monotonic() + _HANGS * usual + _HANGS_S)

    def _usual_s(self, arm: Arm | None = None) -> float | None:
        """What a leg takes: the newest of this arm, else of the baseline."""
        for wanted in (arm or self._plan.baseline, self._plan.baseline):
            took = [x.duration_s for _, x in self.standing.legs if x.arm == wanted.name]
            known = [t for t in took if t is not None]
            if known:
                return known[-1]
        return None

    def _has_time(self, arm: Arm) -> bool:
        left = self._began + self._plan.max_minutes * 60 - time.monotonic()
        return left >= (self._usual_s(arm) or 0.0)

    # -- rounds -----------------------------------------------------------------------------------

    def _take_up(self, arms: Sequence[Arm], first: LegResult | None) -> list[Candidate]:
        """Enter candidates."""
        taken = [Candidate(arm) for arm in arms]
        self.standing.candidates += taken
        return taken

    def _rounds(self, first: LegResult | None) -> None:
        self._tell(self._estimate(len(self.standing.candidates)))
        self._prove(self.standing.candidates, first)

    def _prove(self, candidates: Sequence[Candidate], first: LegResult | None) -> None:
        """Run rounds until every candidate is decided, or time is up.

        Args:
            candidates: What to prove.
            first: A leg of the baseline that has just ended and begins the first round.
        """
        most = self._plan.rounds or MAX_ROUNDS
        for at in range(1, most + 1):
            wanted = [c for c in candidates if self._is_wanted(c)]
            opening = first if at == 1 else None
            for block in blocks(wanted, at, opens=opening is not None):
                if not self._block(block, at, opening):
                    return
                opening = None

    def _is_wanted(self, one: Candidate) -> bool:
        if not one.is_open:
            return False
        return self._plan.rounds is not None or not judging.is_decided(one.compared)

    def _block(self, block: Sequence[Candidate | None], at: int, opening: LegResult | None) -> bool:
        """Run a few legs around one of the baseline; ``False`` when the trial is over."""
        base = opening
        ran: list[tuple[Candidate, LegResult]] = []
        for one in block:
            if one is None and base is not None:
                continue
            arm = self._plan.baseline if one is None else one.arm
            if self._interrupts.stopped:
                return False
            if not self._has_time(arm):
                self.standing.sentences.append(
                    f"Stopped after {self._plan.max_minutes:g} min; --max-minutes allows more."
                )
                return False
            if one is not None:
                one.status = "running"
            found = self._leg(arm, at)
            if one is None:
                base = found
            else:
                one.legs.append(found)
                self._place(one, found)
                ran.append((one, found))
            self._pair(base, ran)
            self._report_leg(found, one)
        return not self._interrupts.stopped

    def _place(self, one: Candidate, found: LegResult) -> None:
        """Set a candidate's status by its newest leg."""
        if found.status == "measured":
            one.status = "measured"
            return
        one.status, one.why = found.status, found.why
        one.refused = found.refused

    def _pair(self, base: LegResult | None, ran: list[tuple[Candidate, LegResult]]) -> None:
        """Pair what ran with the baseline's leg beside it."""
        if base is None:
            return
        for one, found in ran:
            if found.status == "measured" and base.status == "measured":
                one.pairs.append((base, found))
                one.compared = judging.judge(one.arm, one.pairs)
        ran.clear()

    # -- telling ----------------------------------------------------------------------------------

    def _estimate(self, candidates: int) -> str:
        least = self._plan.rounds or MIN_ROUNDS
        most = self._plan.rounds or 2 * MIN_ROUNDS
        usual = self._usual_s() or 0.0
        return words.estimate(usual, candidates, (least, most), self._plan.max_minutes)

    def _say_extent(self, first: LegResult) -> None:
        self._tell(words.leg_line(len(self.standing.legs), first, None))
        for sentence in self._extent.why:
            self._tell(sentence)
            self.standing.sentences.append(sentence)

    def _report_leg(self, found: LegResult, one: Candidate | None) -> None:
        line = words.leg_line(len(self.standing.legs), found, one)
        self._tell(line)
        self._save(line)

    def _starting(self, arm: Arm) -> None:
        self._told_at = 0.0
        self._progress(arm, "starting", 0)

    def _progress(self, arm: Arm, phase: Phase, step: int) -> None:
        now = time.monotonic()
        if now - self._told_at < _TOLD_S:
            return
        self._told_at = now
        n, total = len(self.standing.legs) + 1, self._extent.warmup + self._extent.steps
        self.standing.progress = {
            "leg": n,
            "arm": arm.name,
            "phase": phase,
            "step": step,
            "steps": total,
            "elapsed_s": now - self._began,
            "left_s": None,
        }
        at = f", step {min(step, total)} of {total}" if step else ""
        self._save(f"Leg {n}, {arm.name}: {phase}{at}.")

    def _sum_up(self) -> None:
        """Say what everything came to, as far as it came."""
        standing = self.standing
        baseline = standing.body()["baseline"]
        for one in standing.candidates:
            if one.status in ("waiting", "running"):
                one.status = "stopped"
                one.why = one.why or "There was no time for it."
            one.sentence = words.outcome(one, baseline)
        standing.progress = None
        standing.ended_wall_ns = time.time_ns()
        ends = {"done": "The trial is over.", "stopped": "The trial was stopped."}
        with contextlib.suppress(store.TrialStoreError):
            self._save(ends.get(standing.state) or standing.problem or "The trial failed.")

    def _save(self, now: str) -> None:
        self.standing.now = now
        self.standing.head["plan"] |= {
            "warmup": self._extent.warmup,
            "steps": self._extent.steps,
        }
        store.write(self._trial, self.standing.body())

    def _head(self) -> dict[str, Any]:
        asked, me = self._plan, os.getpid()
        return {
            "schema": store.SCHEMA,
            "id": self._trial.id,
            "pid": me,
            "start_ticks": identity.start_ticks(me),
            "boot_id": identity.boot_id(),
            "host": os.uname().nodename,
            "started_wall_ns": time.time_ns(),
            "command": mask_arguments(_command(asked)),
            "cwd": _here(),
            "script": asked.target.name,
            "name": asked.name,
            "plan": {
                "warmup": self._extent.warmup,
                "steps": self._extent.steps,
                "rounds": asked.rounds,
                "max_minutes": asked.max_minutes,
                "seed": asked.seed,
                "guard": self._guard,
                "guard_why": "",
                "search": asked.search,
                "price_per_hour": asked.price_per_hour,
            },
        }


def blocks(
    candidates: Sequence[Candidate], at: int, *, opens: bool
) -> Iterator[list[Candidate | None]]:
    """The legs of one round, cut into blocks around one leg of the baseline (``None``).

    Every candidate runs right before or right after the baseline, and changes sides from round to
    round, so that a drift of the host favours neither.

    Args:
        candidates: Those still wanted.
        at: The round, from 1.
        opens: A leg of the baseline has just ended and begins the round.
    """
    turn = (at - 1) % len(candidates) if candidates else 0
    rest = [*candidates[turn:], *candidates[:turn]]
    if opens and rest:
        yield [None, rest.pop(0)]
    while len(rest) >= 2:
        yield [rest.pop(0), None, rest.pop(0)]
    if rest:
        yield [None, rest[0]] if at % 2 else [rest[0], None]


def _command(asked: Plan) -> list[str]:
    words_ = list(asked.target.arguments)
    return ["-m", *words_] if asked.target.mode == "module" else words_


def _here() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None


__all__ = ["Extent", "Runner", "TrialProblem", "blocks"]
