"""Where a trial's standing is kept and told: ``trial.json``, and lines for the person who waits."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputop_train.launch import identity
from gputop_train.launch.secrets import mask_arguments
from gputop_train.trial import judging, store, words
from gputop_train.trial.leg import Phase
from gputop_train.trial.plan import Extent, Plan, first_extent, script_of
from gputop_train.trial.record import Arm, LegResult
from gputop_train.trial.standing import Candidate, Standing
from gputop_train.trial.store import TrialPaths

#: Pairs of legs within which a result is usually clear: the least, and twice that.
USUAL_ROUNDS = (3, 6)
#: ``trial.json`` is not rewritten more often than this for progress alone.
_TOLD_S = 1.0


class Desk:
    """Keeps the books of one trial.

    Args:
        asked: What the trial does.
        trial: Its directory.
        tell: Shown to a person, one line each.

    Attributes:
        extent: How long legs are, as far as that is known.
        guard: How files are kept, and why so.
        closing: Sentences for below the table.
    """

    def __init__(self, asked: Plan, trial: TrialPaths, tell: Callable[[str], None]) -> None:
        self._plan = asked
        self._trial = trial
        self._tell = tell
        self._began = time.monotonic()
        self._told_at = 0.0
        self.extent = first_extent(asked)
        self.guard: tuple[str, str] = ("overlay", "")
        self.closing: list[str] = []
        self.standing = Standing(
            _head(asked, trial), asked.baseline, price_per_hour=asked.price_per_hour
        )

    @property
    def end(self) -> float:
        """``time.monotonic()`` when the trial's time is up."""
        return self._began + self._plan.max_minutes * 60

    def usual_s(self, arm: Arm | None = None) -> float | None:
        """What a leg takes: the newest of this arm, else of the baseline."""
        for wanted in (arm or self._plan.baseline, self._plan.baseline):
            took = [leg.duration_s for _, leg in self.standing.legs if leg.arm == wanted.name]
            known = [seconds for seconds in took if seconds is not None]
            if known:
                return known[-1]
        return None

    def say(self, sentence: str, *, keep: bool = False) -> None:
        """Tell the person, and remember it where it belongs to the result."""
        self._tell(sentence)
        if keep and sentence not in self.standing.sentences:
            self.standing.sentences.append(sentence)

    def conclude(self, *sentences: str) -> None:
        """Keep what belongs below the table."""
        self.closing += sentences
        self.standing.sentences += sentences

    def estimate(self) -> None:
        """Say how long it will take, from the first leg."""
        count = len(self.standing.candidates)
        rounds = self._plan.rounds
        pairs = (rounds, rounds) if rounds is not None else USUAL_ROUNDS
        usual = self.usual_s() or 0.0
        known = 0 if self._plan.search is not None else count
        self.say(words.estimate(usual, known, pairs, self._plan.max_minutes))

    def starting(self, arm: Arm) -> None:
        """A leg begins."""
        self._told_at = 0.0
        self.progress(arm, "starting", 0)

    def progress(self, arm: Arm, phase: Phase, step: int) -> None:
        """A leg is at this step."""
        now = time.monotonic()
        if now - self._told_at < _TOLD_S:
            return
        self._told_at = now
        n, total = len(self.standing.legs) + 1, self.extent.warmup + self.extent.steps
        self.standing.progress = {
            "leg": n,
            "arm": arm.name,
            "phase": phase,
            "step": min(step, total),
            "steps": total,
            "elapsed_s": now - self._began,
            "left_s": self._left_s(now),
        }
        at = f", step {min(step, total)} of {total}" if step else ""
        self.save(f"Leg {n}, {arm.name}: {phase}{at}.")

    def leg_ended(self, found: LegResult, one: Candidate | None) -> None:
        """A leg is over; its candidate stands as it now does."""
        line = words.leg_line(len(self.standing.legs), found, one)
        self._tell(line)
        self.save(line)

    def sum_up(self) -> None:
        """Say what everything came to, as far as it came. Never raises for a full disk."""
        standing = self.standing
        baseline = standing.body()["baseline"]
        for one in standing.candidates:
            if one.status in ("waiting", "running"):
                one.status = "measured" if one.pairs else "stopped"
                one.why = one.why or ("" if one.pairs else "There was no time for it.")
            one.sentence = words.outcome(one, baseline)
        standing.progress = None
        standing.ended_wall_ns = time.time_ns()
        ends = {"done": "The trial is over.", "stopped": "The trial was stopped."}
        with contextlib.suppress(store.TrialStoreError):
            self.save(ends.get(standing.state) or standing.problem or "The trial failed.")

    def save(self, now: str) -> None:
        """Rewrite ``trial.json``.

        Raises:
            TrialStoreError: The disk is full.
        """
        self.standing.now = now
        self.standing.head["plan"] |= {
            "warmup": self.extent.warmup,
            "steps": self.extent.steps,
            "guard": self.guard[0],
            "guard_why": self.guard[1],
        }
        store.write(self._trial, self.standing.body())

    def _left_s(self, now: float) -> list[float] | None:
        """Least and most seconds that are left, from what legs took so far."""
        usual = self.usual_s()
        if usual is None or self._plan.search is not None:
            return None
        rounds = self._plan.rounds
        least, most = (rounds, rounds) if rounds is not None else USUAL_ROUNDS
        bound = max(0.0, self.end - now)
        pairs = [0, 0]
        for one in self.standing.candidates:
            if one.is_open and (rounds is not None or not judging.is_decided(one.compared)):
                pairs[0] += max(0, least - len(one.pairs))
                pairs[1] += max(1, most - len(one.pairs))
        per_pair = 2.0 if len(self.standing.candidates) == 1 else 1.5
        return [min(bound, n * per_pair * usual) for n in pairs]


def _head(asked: Plan, trial: TrialPaths) -> dict[str, Any]:
    me = os.getpid()
    return {
        "schema": store.SCHEMA,
        "id": trial.id,
        "pid": me,
        "start_ticks": identity.start_ticks(me),
        "boot_id": identity.boot_id(),
        "host": os.uname().nodename,
        "started_wall_ns": time.time_ns(),
        "command": mask_arguments(_command(asked)),
        "mode": asked.target.mode,
        "cwd": _here(),
        "script": script_of(asked.target),
        "name": asked.name,
        "plan": {
            "rounds": asked.rounds,
            "max_minutes": asked.max_minutes,
            "seed": asked.seed,
            "search": asked.search,
            "price_per_hour": asked.price_per_hour,
        },
    }


def _command(asked: Plan) -> list[str]:
    typed = list(asked.target.arguments)
    return ["-m", *typed] if asked.target.mode == "module" else typed


def _here() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None


__all__ = ["Desk", "Extent"]
