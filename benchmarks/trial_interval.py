"""How often a trial's interval covers, and what it finds: python benchmarks/trial_interval.py

Made trials whose truth is known, judged by the product's own ``trial.stats``: legs of every pair
differ by chance (``sd`` of a single leg), the host's speed walks at random from leg to leg, and one
leg in ten may be hit by a neighbour. No process runs. Five minutes on one core;
``--trials 200`` takes half a minute. Writes Markdown to stdout.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

import numpy as np

from gputop_train.trial import stats
from gputop_train.trial.record import Compared, LegResult
from gputop_train.trial.student import student_quantile

SDS = (0.005, 0.01, 0.02, 0.05)
EFFECTS = (0.0, 0.01, 0.02, 0.05, 0.10, 0.50)
MOST = 12
BASE_NS = 100_000_000
#: Random walk of the host from leg to leg: 1.5x (log 0.405) within thirty legs.
WALK = 0.405 / math.sqrt(30)
NOISES: dict[str, tuple[float, str]] = {
    "normal": (0.0, "normal"),
    "host drifts": (WALK, "normal"),
    "heavy tails (t, 3 degrees)": (0.0, "t3"),
    "one leg in ten hit": (0.0, "hit"),
}
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def legs(rng: np.random.Generator, trials: int, pairs: int, sd: float, noise: str) -> Floats:
    """Log times, shape (trials, pairs, 2): baseline and arm, in the order ABBA."""
    walk, kind = NOISES[noise]
    shape = (trials, 2 * pairs)
    off = rng.standard_t(3, shape) / math.sqrt(3) if kind == "t3" else rng.normal(size=shape)
    if kind == "hit":
        off = off + (rng.random(shape) < 0.1) * np.abs(rng.normal(size=shape)) * 8
    ran = sd * off + np.cumsum(rng.normal(size=shape) * walk, axis=1)
    pairwise = ran.reshape(trials, pairs, 2).copy()
    pairwise[:, 1::2] = pairwise[:, 1::2, ::-1]
    return pairwise


def leg(arm: str, log_time: float) -> LegResult:
    return LegResult(
        arm,
        "measured",
        step_ns=(round(BASE_NS * math.exp(log_time)),) * stats.MIN_STEPS,
        samples_per_step=1.0,
    )


def significant(found: Compared) -> bool:
    """The rule that is not taken: stop at the first look that finds something."""
    return found.verdict in ("faster", "slower") or stats.tight_enough(found)


def judged(
    times: Floats,
    effect: float,
    *,
    stop: bool,
    pairs: int = MOST,
    rule: Callable[[Compared], bool] = stats.tight_enough,
) -> Compared:
    """One trial: looked at after every pair from the third, or only at its end."""
    before = [leg("baseline", float(t)) for t in times[:pairs, 0]]
    # A planted slowdown: the arm takes 1 + effect times as long.
    after = [leg("arm", float(t) + math.log1p(effect)) for t in times[:pairs, 1]]
    if not stop:
        return stats.compare(before, after, peeked=False)
    found = None
    for n in range(stats.MIN_PAIRS, pairs + 1):
        found = stats.compare(before[:n], after[:n])
        if rule(found):
            break
    assert found is not None
    return found


def covers(found: Compared, effect: float) -> bool:
    truth = 1 / (1 + effect)
    return found.interval is not None and found.interval[0] <= truth <= found.interval[1]


def share(hits: Sequence[bool]) -> str:
    return f"{100 * sum(hits) / len(hits):.1f}"


Interval = Callable[[Floats, np.random.Generator], tuple[Floats, Floats]]


def resampled(logs: Floats, rng: np.random.Generator) -> Floats:
    """Resamples of each row's pairs, shape (trials, 400, pairs)."""
    n = logs.shape[1]
    return logs[:, rng.integers(0, n, (400, n))]


def percentile(logs: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    ends = np.quantile(np.median(resampled(logs, rng), axis=2), [0.025, 0.975], axis=1)
    return ends[0], ends[1]


def expanded(logs: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    n = logs.shape[1]
    reach = math.sqrt(n / (n - 1)) * student_quantile(0.975, n - 1)
    tail = 0.5 * math.erfc(reach / math.sqrt(2))
    ends = np.quantile(resampled(logs, rng).mean(axis=2), [tail, 1 - tail], axis=1)
    return ends[0], ends[1]


def bootstrap_t(logs: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    n = logs.shape[1]
    drawn = resampled(logs, rng)
    centre, error = logs.mean(axis=1), logs.std(axis=1, ddof=1) / math.sqrt(n)
    errors = np.maximum(drawn.std(axis=2, ddof=1) / math.sqrt(n), 1e-12)
    ends = np.quantile((drawn.mean(axis=2) - centre[:, None]) / errors, [0.025, 0.975], axis=1)
    return centre - ends[1] * error, centre - ends[0] * error


def ours(logs: Floats, _rng: np.random.Generator) -> tuple[Floats, Floats]:
    found = [stats.log_interval(list(row), stats.FIXED_LEVEL) or (0.0, 0.0) for row in logs]
    ends = np.array(found)
    return ends[:, 0], ends[:, 1]


METHODS: dict[str, Interval] = {
    "percentiles of the median": percentile,
    "expanded percentiles of the mean": expanded,
    "bootstrap-t of the mean": bootstrap_t,
    "trial.stats, rounds fixed": ours,
}


def methods_table(trials: int) -> None:
    print("\n## Why this interval: coverage of nominal 95%, rounds fixed, sd of a leg 2%\n")
    print(
        "Each cell: share of trials (%) whose interval holds the truth, and the median half-width."
    )
    counts = (3, 4, 5, 6, 7, 8, 12)
    for noise in ("normal", "one leg in ten hit"):
        print(f"\n| {noise} | " + " | ".join(f"{n} pairs" for n in counts) + " |")
        print("|---" * (len(counts) + 1) + "|")
        for name, method in METHODS.items():
            cells = []
            for n in counts:
                rng = np.random.default_rng(n)
                times = legs(rng, trials, n, 0.02, noise)
                low, high = method(times[:, :, 0] - times[:, :, 1], rng)
                half = 50 * float(np.median(high - low))
                width = f"{half:.1f}%" if half < 100 else "> 100%"
                cells.append(f"{share(list((low <= 0) & (high >= 0)))} / {width}")
            print(f"| {name} | " + " | ".join(cells) + " |")


def stopping_table(trials: int, most: int) -> tuple[float, float]:
    """The trial as it runs. Returns the worst coverage and the worst share of reversals."""
    print(f"\n## The trial as it runs: looked at after every pair, 3 to {most} pairs\n")
    print(
        "Planted slowdown against the sd of a leg. Each cell: the interval holds the truth (%) / "
        "called slower / called faster / called no difference (%) / mean pairs."
    )
    worst, reversed_ = 100.0, 0.0
    for noise in NOISES:
        print(f"\n| {noise} | " + " | ".join(f"sd {sd:.1%}" for sd in SDS) + " |")
        print("|---" * (len(SDS) + 1) + "|")
        for effect in EFFECTS:
            cells = []
            for sd in SDS:
                rng = np.random.default_rng(round(1e4 * sd))
                found = [
                    judged(row, effect, stop=True, pairs=most)
                    for row in legs(rng, trials, most, sd, noise)
                ]
                held = 100 * sum(covers(f, effect) for f in found) / trials
                slower = share([f.verdict == "slower" for f in found])
                faster = share([f.verdict == "faster" for f in found])
                same = share([f.verdict == "no difference" for f in found])
                worst = min(worst, held)
                if effect:
                    reversed_ = max(reversed_, float(faster))
                pairs = np.mean([f.pairs for f in found])
                cells.append(f"{held:.1f} / {slower} / {faster} / {same} / {pairs:.1f}")
            name = "none" if not effect else f"{effect:.0%}"
            print(f"| {name} | " + " | ".join(cells) + " |")
    return worst, reversed_


def rules_table(trials: int) -> None:
    print("\n## Why it stops by the interval's width: null trials, 3 to 12 pairs\n")
    print("Each cell: the interval holds 1.0 (%) / a difference is called (%) / mean pairs.\n")
    print("| stops when | " + " | ".join(f"sd {sd:.1%}" for sd in SDS) + " |")
    print("|---" * (len(SDS) + 1) + "|")
    for name, rule in (
        ("the interval is tight (trial.stats)", stats.tight_enough),
        ("the interval is tight or excludes 1", significant),
    ):
        cells = []
        for sd in SDS:
            rng = np.random.default_rng(round(1e4 * sd) + 1)
            rows = legs(rng, trials, MOST, sd, "normal")
            found = [judged(row, 0.0, stop=True, rule=rule) for row in rows]
            called = share([f.verdict in ("faster", "slower") for f in found])
            pairs = np.mean([f.pairs for f in found])
            cells.append(f"{share([covers(f, 0.0) for f in found])} / {called} / {pairs:.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def null_trials(trials: int) -> None:
    """What ten null trials in a row show, since that is what is asked of a real machine."""
    rng = np.random.default_rng(10)
    nine = 0
    for _ in range(max(1, trials // 10)):
        found = [judged(row, 0.0, stop=True) for row in legs(rng, 10, MOST, 0.02, "host drifts")]
        nine += sum(covers(f, 0.0) for f in found) >= 9
    print(
        f"\nTen null trials (sd 2%, drifting host): at least nine intervals hold 1.0 in "
        f"{100 * nine / max(1, trials // 10):.0f}% of {max(1, trials // 10)} series."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    trials = parser.parse_args().trials
    print("# What a trial's interval covers\n")
    print(
        f"`python benchmarks/trial_interval.py --trials {trials}`: made trials, judged by "
        "`gputop_train.trial.stats`; a share of "
        f"95% is known to {196 * math.sqrt(0.95 * 0.05 / trials):.1f} points."
    )
    methods_table(trials)
    rules_table(trials)
    worst, reversed_ = stopping_table(trials, MOST)
    print(
        f"\nWorst coverage of all cells: {worst:.1f}%. Most reversals of a planted slowdown: "
        f"{reversed_:.1f}%."
    )
    null_trials(trials)
    return 0


if __name__ == "__main__":
    sys.exit(main())
