"""What a check decides: time by its interval, what does not drift by itself, doubt as doubt."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from gputop_train.trial import check_judge, check_words
from gputop_train.trial.check_record import Check, Limits, Side, Timing
from gputop_train.trial.record import LegResult

LIMITS = Limits()
#: How far legs of the same lie from each other: half a percent.
QUIET = (1.0, 1.004, 0.997, 1.002, 0.999)


def legs(ms: float, wobble: Sequence[float] = QUIET, **more: object) -> list[LegResult]:
    steps = int(more.pop("steps", 60))  # type: ignore[call-overload]
    given = {"samples_per_step": 8.0} | more
    return [
        LegResult("x", "measured", step_ns=(round(ms * w * 1e6),) * steps, **given) for w in wobble
    ]  # type: ignore[arg-type]


def checked(
    older: list[LegResult], newer: list[LegResult], limits: Limits = LIMITS
) -> tuple[Check, Timing]:
    timing = check_judge.time_of_pairs(older, newer, limits)
    found = check_judge.judge(
        Side.of("main (1a2b3c4)", older), Side.of("now", newer), timing, limits
    )
    return found, timing


def test_a_fifth_slower_is_a_regression() -> None:
    found, timing = checked(legs(50), legs(60, QUIET[::-1]))
    assert (found.result, found.exit_code) == ("regression", 4)
    assert timing.ratio == pytest.approx(1.2, rel=0.01)
    assert timing.interval is not None and timing.interval[0] > 1.05
    assert "1.05x is allowed" in found.reasons[0]


def test_the_same_passes() -> None:
    found, timing = checked(legs(50), legs(50, QUIET[::-1]))
    assert (found.result, found.exit_code) == ("pass", 0)
    assert check_judge.is_decided(timing, LIMITS)


def test_faster_passes() -> None:
    assert checked(legs(50), legs(30, QUIET[::-1]))[0].result == "pass"


def test_what_lies_across_the_limit_is_inconclusive_and_says_how_many_pairs_would_tell() -> None:
    noisy = (1.0, 1.05, 0.96, 1.03, 0.97)
    found, timing = checked(legs(50), legs(52, noisy))
    assert (found.result, found.exit_code) == ("inconclusive", 3)
    assert "reaches across" in found.reasons[0]
    assert "pairs of legs of 60 steps would tell" in found.reasons[0]
    assert not check_judge.is_decided(timing, LIMITS)


def test_one_pair_decides_nothing() -> None:
    found, timing = checked(legs(50, (1.0,)), legs(90, (1.0,)))
    assert found.result == "inconclusive"
    assert timing.interval is None and timing.ratio == pytest.approx(1.8)


def test_too_few_steps_are_inconclusive_and_the_number_needed_is_told() -> None:
    found, _ = checked(legs(50, QUIET[:3], steps=5), legs(90, QUIET[:3], steps=5))
    assert found.result == "inconclusive"
    assert "Only 15 steps" in found.reasons[0] and "20" in found.reasons[0]


def test_another_batch_size_is_judged_per_sample() -> None:
    found, timing = checked(legs(50), legs(100, QUIET, samples_per_step=16.0))
    assert found.result == "pass" and timing.ratio == pytest.approx(1)


def test_uncounted_samples_are_judged_per_step() -> None:
    found, _ = checked(legs(50, samples_per_step=None), legs(60, samples_per_step=None))
    assert found.result == "regression"
    assert found.reasons[0].startswith("A step takes")


def test_a_loss_that_became_no_number_makes_time_mean_nothing() -> None:
    found, _ = checked(legs(50, loss_finite=True), legs(20, loss_finite=False))
    assert found.result == "inconclusive" and "NaN" in found.reasons[0]


def test_the_limit_is_the_persons() -> None:
    assert checked(legs(50), legs(60), Limits(slowdown=0.3))[0].result == "pass"
    assert checked(legs(50), legs(50.9), Limits(slowdown=0.0))[0].result == "regression"


# -- what does not drift ----------------------------------------------------------------------------


def gate(name: str, before: float, now: float, **limits: float) -> Check:
    older = legs(50, invariants={name: before}, peak_allocated=10**9)
    newer = legs(50, QUIET[::-1], invariants={name: now}, peak_allocated=10**9)
    return checked(older, newer, Limits(**limits))[0]


@pytest.mark.parametrize(
    ("name", "before", "worse", "fine"),
    [
        ("syncs_per_step", 1.0, 2.0, 1.04),
        ("syncs_per_step", 0.0, 1.0, 0.03),
        ("h2d_bytes_per_step", 1e6, 1.2e6, 1.03e6),
        ("kernels_per_step", 400.0, 440.0, 404.0),
        ("recompiles", 0.0, 1.0, 0.0),
        ("graph_breaks", 2.0, 3.0, 2.0),
    ],
)
def test_more_of_what_does_not_drift_is_a_regression_though_time_passes(
    name: str, before: float, worse: float, fine: float
) -> None:
    found = gate(name, before, worse)
    assert found.timing is not None and found.timing.verdict == "pass"
    assert found.result == "regression"
    assert found.reasons[0].startswith("More ")
    assert gate(name, before, fine).result == "pass"
    assert gate(name, worse, before).result == "pass"


def test_one_odd_leg_is_no_regression_of_a_count() -> None:
    older = legs(50, QUIET[:3], invariants={"syncs_per_step": 1.0})
    newer = legs(50, QUIET[:2], invariants={"syncs_per_step": 5.0})
    newer += legs(50, QUIET[2:3], invariants={"syncs_per_step": 1.0})
    assert checked(older, newer)[0].result == "pass"


def test_peak_memory_is_gated_by_its_own_limit() -> None:
    older = legs(50, peak_allocated=40_000_000_000)
    assert checked(older, legs(50, peak_allocated=40_500_000_000))[0].result == "pass"
    found = checked(older, legs(50, peak_allocated=42_000_000_000))[0]
    assert found.result == "regression" and "peak memory" in found.reasons[0]
    told = check_words.as_json(found)
    assert told["memory_ratio"] == pytest.approx(1.05)
    wide = Limits(memory=0.1)
    assert checked(older, legs(50, peak_allocated=42_000_000_000), wide)[0].result == "pass"


def test_what_was_measured_on_one_side_alone_is_not_judged() -> None:
    older = legs(50, invariants={"kernels_per_step": 400.0})
    found = checked(older, legs(50, peak_allocated=10**9))[0]
    assert found.result == "pass"
    assert {g.name: g.ok for g in found.gates} == {"peak_allocated": None, "kernels_per_step": None}


def test_without_time_only_what_does_not_drift_is_judged() -> None:
    limits = Limits(time=False)
    older = legs(50, peak_allocated=10**9)
    assert checked(older, legs(500, peak_allocated=10**9), limits)[0].result == "pass"
    assert checked(older, legs(500, peak_allocated=2 * 10**9), limits)[0].result == "regression"
    nothing = checked(legs(50), legs(500), limits)[0]
    assert nothing.result == "inconclusive" and "Nothing" in nothing.reasons[-1]


# -- a stored baseline -------------------------------------------------------------------------------


def stored(ms: float, yard: float = 1.0, **more: object) -> Side:
    return Side.of("base.json", legs(ms, **more), {"interpreter": (yard, yard, yard)})


def against(older: Side, newer: Side, foreign: Sequence[str] = ()) -> Check:
    timing = check_judge.time_of_stored(older, newer, foreign, LIMITS)
    return check_judge.judge(older, newer, timing, LIMITS)


def test_the_same_machine_judges_time() -> None:
    assert against(stored(50), stored(50)).result == "pass"
    assert against(stored(50), stored(60)).result == "regression"


def test_another_machine_makes_time_inconclusive_and_still_gates_memory() -> None:
    foreign = ["another machine id", "usable cores 8.0 then, 2.0 now"]
    found = against(stored(50, peak_allocated=10**9), stored(60, peak_allocated=10**9), foreign)
    assert found.result == "inconclusive"
    assert "usable cores 8.0 then, 2.0 now" in found.reasons[0]
    worse = against(stored(50, peak_allocated=10**9), stored(40, peak_allocated=2 * 10**9), foreign)
    assert worse.result == "regression" and "peak memory" in worse.reasons[0]


def test_a_slower_host_is_nobodys_regression() -> None:
    found = against(stored(50), stored(60, yard=1.2))
    assert found.result == "inconclusive"
    assert "the host itself" in found.reasons[0] and "--baseline-ref" in found.reasons[0]


def test_a_faster_host_hides_no_regression() -> None:
    assert against(stored(50), stored(50, yard=0.8)).result == "inconclusive"


def test_one_leg_is_too_few_to_judge_time() -> None:
    one = Side.of("base.json", legs(50, (1.0,)))
    assert against(one, stored(80)).result == "inconclusive"


def test_a_baseline_without_times_judges_none() -> None:
    found = against(Side("report.json", peak_allocated=10), stored(50, peak_allocated=10))
    assert found.result == "inconclusive" and found.timing is not None
    assert found.timing.ratio is None


# -- how it is told ----------------------------------------------------------------------------------


def test_json_has_the_keys_of_the_design_and_nothing_but_numbers() -> None:
    told = check_words.as_json(checked(legs(50), legs(60))[0])
    again = json.loads(json.dumps(told, allow_nan=False))
    keys = ("schema", "result", "step_ratio", "interval", "memory_ratio", "invariants", "baseline")
    assert list(again)[:7] == list(keys) and "reasons" in again
    assert again["schema"] == 1 and len(again["interval"]) == 2 and again["memory_ratio"] is None
    assert all(math.isfinite(x) for x in again["interval"])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_text_fits_every_width(width: int) -> None:
    found = gate("h2d_bytes_per_step", 1e6, 2e6)
    for ascii_only in (False, True):
        told = check_words.lines(found, width, ascii_only=ascii_only)
        assert max(map(len, told)) <= width
        assert any("regression" in line for line in told)
        assert not ascii_only or all(line.isascii() for line in told)


def test_markdown_is_a_heading_reasons_and_a_table() -> None:
    told = check_words.markdown(gate("recompiles", 0.0, 3.0)).splitlines()
    assert told[0] == "### gputop-train check: regression against main (1a2b3c4)"
    assert any(line.startswith("- More recompilations than allowed") for line in told)
    assert len({line.count("|") for line in told if line.startswith("|")}) == 1


def test_says_by_phase_where_a_regression_came_from_and_nothing_where_there_is_none() -> None:
    older = legs(50, phases_ms={"forward": 20.0, "other": 30.0})
    newer = legs(60, phases_ms={"forward": 30.0, "other": 30.0})
    assert "forward +10.0 ms (100%)" in checked(older, newer)[0].where
    assert checked(older, legs(50, QUIET[::-1], phases_ms={"forward": 20.0}))[0].where == ""
