"""Runs a trial: the baseline and every candidate, leg by leg, next to each other in time.

A host's speed drifts by half between minutes, so a candidate is only ever compared with the leg of
the baseline that ran right before or after it (ABBA...).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gputop_train.launch.interpreter import CommandProblem
from gputop_train.launch.runfile import read_exit
from gputop_train.launch.spawn import LaunchError
from gputop_train.store.errors import StoreError
from gputop_train.trial import judging, leg, measure, plan, predict, seeking, store, words
from gputop_train.trial.desk import Desk
from gputop_train.trial.interrupts import Interrupts
from gputop_train.trial.leg import LegPlan, Phase
from gputop_train.trial.measure import FirstLook
from gputop_train.trial.overlay import Guard
from gputop_train.trial.plan import Plan
from gputop_train.trial.predict import Forecast
from gputop_train.trial.record import Arm, LegResult
from gputop_train.trial.rounds import blocks
from gputop_train.trial.scratch import Scratch, ScratchError, guard_available, sweep
from gputop_train.trial.search import Done, stop_hint
from gputop_train.trial.standing import Candidate, Standing
from gputop_train.trial.store import TrialPaths

#: More pairs than this only wait for a quieter host.
MAX_ROUNDS = 12
#: A search has more to try than one candidate's last percent.
SEARCH_ROUNDS = 5
#: A candidate's leg that takes so many times as long as the baseline's hangs, or is not worth it.
_HANGS, _HANGS_S = 5.0, 60.0
#: Legs of the baseline that may fail after its first one did not.
_MAY_FAIL = 2


class TrialProblem(Exception):
    """The trial cannot go on; the message says why and what to do, ``code`` is our exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class Runner:
    """One trial, from its first leg to its table.

    Args:
        asked: What to do.
        trial: Its directory.
        environ: Of the script.
        interrupts: Entered already; ends the trial.
        tell: Shown to a person, one line each.

    Attributes:
        desk: Its books; ``desk.standing`` is the result, whatever happened.
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
        self._root = trial.trial_dir.parent.parent
        self._scratch: Scratch
        self._guard: Guard = "overlay"
        self._forecast: Forecast | None = None
        self._look: FirstLook | None = None
        self.desk = Desk(asked, trial, tell)

    @property
    def standing(self) -> Standing:
        """How the trial stands."""
        return self.desk.standing

    def run(self) -> int:
        """Run all legs; however it ends, ``trial.json`` says so.

        Returns:
            Our exit code: 0, or 1 where the script fails as it is, or of what kept it from running;
            128 + the signal that ended the trial.
        """
        standing, code = self.standing, 0
        try:
            self.desk.save("The first leg of the baseline starts.")
            sweep(self._root)
            self._choose_guard()
            with Scratch(self._root) as self._scratch:
                first = self._first_leg()
                if not self._interrupts.stopped:
                    self._try_all(first)
            standing.state = "done"
        except ScratchError as problem:
            standing.state, standing.problem, code = "failed", str(problem), 125
        except (TrialProblem, CommandProblem, LaunchError) as problem:
            standing.state, standing.problem, code = "failed", str(problem), problem.code
        except store.TrialStoreError as problem:
            standing.state, standing.problem, code = "failed", str(problem), 125
        except BaseException as problem:
            standing.state, standing.problem = "failed", f"{type(problem).__name__}: {problem}"
            raise
        finally:
            if self._interrupts.stopped:
                standing.state, standing.problem = "stopped", None
                code = self._interrupts.exit_code
            self.desk.sum_up()
        return code

    def _choose_guard(self) -> None:
        """Divert what legs write where the kernel can; else end them before they change a file."""
        asked, why = self._plan.guard, ""
        if asked == "refuse":
            self._guard = "refuse"
        else:
            self._guard, why = guard_available(self._plan.baseline.cwd or ".", self._root)
        if asked == "overlay" and self._guard != "overlay":
            raise TrialProblem(
                f"What a leg writes cannot be diverted here: {why}. Leave --guard out, and a leg "
                "is ended before it changes a file that exists.",
            )
        self.desk.guard = (self._guard, why)
        if why:
            self.desk.say(
                f"What legs write cannot be diverted here ({why}): a leg is ended before it "
                "changes a file that exists."
            )

    # -- legs -------------------------------------------------------------------------------------

    def _first_leg(self) -> LegResult | None:
        """The baseline's first leg, which sets how long legs are.

        Returns:
            ``None`` where it was too short to count.
        """
        found = self._leg(self._plan.baseline, 1)
        if self._interrupts.stopped:
            return None
        if found.status in ("failed", "refused") or found.cut_short or found.run is None:
            raise TrialProblem(self._no_baseline(found))
        run_dir = self._trial.runs / found.run
        try:
            look = measure.first_look(run_dir, found.report)
        except StoreError as problem:
            raise TrialProblem(f"Nothing was recorded of the first leg. {problem}") from None
        self._look = look
        self.desk.extent = extent = plan.extent(
            self._plan,
            self._plan.arms,
            step_ns=look.step_ns,
            ended_by_itself=look.ended_by_itself,
            loaders=look.loaders,
            batches_per_step=look.batches_per_step,
        )
        found = self._cut_again(run_dir, found)
        if found.status != "measured":
            raise TrialProblem(self._no_baseline(found))
        self._forecast = predict.forecast(run_dir, found)
        self.desk.leg_ended(found, None)
        for sentence in extent.why:
            self.desk.say(sentence, keep=True)
        if not extent.remeasure:
            return found
        why = "It was too short to count, and showed how long legs have to be."
        short = dataclasses.replace(found, status="inconclusive", why=why)
        self.standing.legs[-1] = (1, short)
        return None

    def _cut_again(self, run_dir: Path, found: LegResult) -> LegResult:
        """Read the first leg with the extent it led to."""
        extent = self.desk.extent
        cut = measure.Cut(0 if extent.remeasure else extent.warmup, extent.steps)
        again = measure.read_leg(run_dir, self._plan.baseline, cut, read_exit(run_dir))
        again = dataclasses.replace(again, duration_s=found.duration_s)
        self.standing.legs[-1] = (1, again)
        return again

    def _no_baseline(self, found: LegResult) -> str:
        if found.status == "inconclusive":
            more = " --max-minutes allows more." if time.monotonic() >= self.desk.end else ""
            return f"The script cannot be measured as it is. {found.why}{more}"
        if found.status == "refused":
            return f"The script cannot be tried as it is. {found.why}"
        output = self._trial.runs / (found.run or "") / "output.log"
        return (
            "The script fails as it is, so there is nothing to compare with. "
            f"{found.why} Its output: {output}"
        )

    def _leg(self, arm: Arm, at: int) -> LegResult:
        """Run one leg and write it down."""
        self.desk.starting(arm)
        wanted = LegPlan(
            arm=arm,
            target=self._plan.target,
            runs=self._trial.runs,
            warmup=self._warmup(arm),
            steps=self.desk.extent.steps,
            guard=self._guard,
            seed=self._plan.seed,
            python=self._plan.python,
            burst=self._plan.burst,
            deadline=self._deadline(),
        )

        def progress(phase: Phase, step: int) -> None:
            self.desk.progress(arm, phase, step)

        try:
            with self._scratch.leg() as scratch:
                found = leg.run_leg(wanted, scratch, self._environ, self._interrupts, progress)
        except LaunchError:
            # What kept one leg from starting may be gone: no reason to lose those before it.
            if self._interrupts.stopped or not self.standing.legs:
                raise
            with self._scratch.leg() as scratch:
                found = leg.run_leg(wanted, scratch, self._environ, self._interrupts, progress)
        self.standing.legs.append((at, found))
        return found

    def _warmup(self, arm: Arm) -> int:
        extent, look = self.desk.extent, self._look
        if look is None:
            return extent.warmup
        return plan.warmup_of(self._plan, arm, extent, look.loaders, look.batches_per_step)

    def _deadline(self) -> float:
        usual = self.desk.usual_s()
        if usual is None:
            return self.desk.end
        return min(self.desk.end + usual, time.monotonic() + _HANGS * usual + _HANGS_S)

    # -- rounds -----------------------------------------------------------------------------------

    def _try_all(self, first: LegResult | None) -> None:
        arms = plan.named(self._plan.arms, [self._plan.baseline.name])
        candidates = self._take_up(arms)
        self.desk.estimate()
        if candidates:
            self._prove(candidates, first)
        elif self._plan.search is not None:
            self._search(self._plan.search, first)
        self.standing.stop_hint = stop_hint(seeking.history(self.standing.candidates))

    def _search(self, kind: plan.Search, first: LegResult | None) -> None:
        """Try what a search proposes until it is done or time is up."""
        leg_, look, forecast = self.standing.legs[0][1], self._look, self._forecast
        if look is None or forecast is None:
            return
        search, why = seeking.begin(kind, leg_, look, forecast)
        if search is None:
            self.desk.conclude(why)
            return
        while True:
            found = search.propose(seeking.history(self.standing.candidates))
            if isinstance(found, Done):
                self._conclude(found)
                break
            taken = {self._plan.baseline.name, *(c.arm.name for c in self.standing.candidates)}
            if not self._prove(self._take_up(plan.named(found, taken)), first):
                return
            first = self._just_ended()
        if kind == "suggestions" and seeking.accuses_loader(leg_.report):
            self._prove(self._take_up([seeking.REPLAY]), first)

    def _conclude(self, found: Done) -> None:
        """Say what a search came to, and whether its best is proven."""
        name = found.best.name if found.best is not None else None
        best = next((c for c in self.standing.candidates if c.arm.name == name), None)
        doubt = words.not_proven(best) if best is not None else None
        self.standing.best = name if doubt is None else None
        self.desk.conclude(found.reason, *([doubt] if doubt else []), *found.notes)

    def _just_ended(self) -> LegResult | None:
        """The newest leg where it is one of the baseline's that counts: it may begin a round."""
        newest = self.standing.legs[-1][1]
        own = newest.arm == self._plan.baseline.name and newest.status == "measured"
        return newest if own else None

    def _take_up(self, arms: Sequence[Arm]) -> list[Candidate]:
        """Enter candidates, each with what is expected of it."""
        taken = [Candidate(arm) for arm in arms]
        for one in taken:
            one.prediction = self._forecast.of(one.arm) if self._forecast else None
        self.standing.candidates += taken
        return taken

    def _prove(self, candidates: Sequence[Candidate], first: LegResult | None) -> bool:
        """Run rounds until every candidate is decided.

        Args:
            candidates: What to prove.
            first: A leg of the baseline that has just ended and begins the first round.

        Returns:
            ``False`` where time was up or the trial was stopped.
        """
        most = MAX_ROUNDS if self._plan.search is None else SEARCH_ROUNDS
        for at in range(1, (self._plan.rounds or most) + 1):
            wanted = [c for c in candidates if self._is_wanted(c)]
            opening = first if at == 1 else None
            for block in blocks(wanted, at, opens=opening is not None):
                if not self._block(block, at, opening):
                    return False
                opening = None
        return True

    def _is_wanted(self, one: Candidate) -> bool:
        if not one.is_open:
            return False
        return self._plan.rounds is not None or not judging.is_decided(one.compared)

    def _block(self, block: Sequence[Candidate | None], at: int, opening: LegResult | None) -> bool:
        """Run a few legs around one of the baseline; ``False`` when the trial is over."""
        base, waiting = opening, list[tuple[Candidate, LegResult]]()
        for one in block:
            if one is None and base is not None:
                continue
            arm = self._plan.baseline if one is None else one.arm
            if self._interrupts.stopped or not self._has_time(arm):
                return False
            if one is not None:
                one.status = "running"
            found = self._leg(arm, at)
            if one is None:
                base = found
                self._check_baseline(found)
            else:
                self._place(one, found)
                waiting.append((one, found))
            if base is not None:
                self._pair(base, waiting)
                waiting.clear()
            self.desk.leg_ended(found, one)
        return not self._interrupts.stopped

    def _has_time(self, arm: Arm) -> bool:
        if time.monotonic() + (self.desk.usual_s(arm) or 0.0) <= self.desk.end:
            return True
        sentence = f"The {self._plan.max_minutes:g} min are spent; --max-minutes allows more."
        self.desk.say(sentence, keep=True)
        return False

    def _check_baseline(self, found: LegResult) -> None:
        name = self._plan.baseline.name
        bad = [x for _, x in self.standing.legs if x.arm == name and x.status == "failed"]
        if len(bad) > _MAY_FAIL:
            raise TrialProblem(f"The script failed {len(bad)} times as it is. {found.why}")

    @staticmethod
    def _place(one: Candidate, found: LegResult) -> None:
        """Set a candidate's status by its newest leg; one that failed runs no more.

        A leg that was cut short takes nothing from those before it.
        """
        one.legs.append(found)
        if found.status in ("stopped", "inconclusive") and one.pairs:
            one.status = "measured"
            return
        one.status, one.why, one.refused = found.status, found.why, found.refused

    def _pair(self, base: LegResult, ran: Sequence[tuple[Candidate, LegResult]]) -> None:
        """Pair what ran with the baseline's leg beside it."""
        fixed = self._plan.rounds is not None
        for one, found in ran:
            if found.status == base.status == "measured":
                one.pairs.append((base, found))
                one.compared = judging.judge(
                    one.arm, one.pairs, rounds_fixed=fixed, same_code=self._plan.same_code
                )
                one.losses = judging.losses(one.arm, one.pairs)


__all__ = ["Runner", "TrialProblem"]
