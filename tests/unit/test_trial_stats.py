"""Pairs of legs become a speed-up, an interval that covers, and a verdict that is never bold."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_train.trial import stats
from gputop_train.trial.leg_checks import leg_error, losses_agree
from gputop_train.trial.record import Compared, LegResult
from gputop_train.trial.student import student_cdf, student_quantile

MS = 1_000_000


def leg(ms: float, arm: str = "baseline", steps: int = 30, **more: object) -> LegResult:
    return LegResult(
        arm,
        "measured",
        step_ns=(round(ms * MS),) * steps,
        samples_per_step=more.pop("samples", 64),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


def both(before: list[float], after: list[float], **more: object) -> Compared:
    return stats.compare(
        [leg(ms) for ms in before],
        [leg(ms, "num_workers=4") for ms in after],
        **more,  # type: ignore[arg-type]
    )


def trial(effect: float, sd: float, pairs: int, seed: int) -> Compared:
    """A made trial: ``effect`` is the true speed-up, ``sd`` what one leg is off by, as a part."""
    rng = random.Random(seed)
    before = [100 * math.exp(rng.gauss(0, sd)) for _ in range(pairs)]
    after = [100 / effect * math.exp(rng.gauss(0, sd)) for _ in range(pairs)]
    return both(before, after)


@pytest.mark.parametrize(
    ("probability", "freedom", "table"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.99, 2, 6.9646),
        (0.975, 3, 3.1824),
        (0.99, 7, 2.9980),
        (0.975, 30, 2.0423),
        (0.75, 1, 1.0),
    ],
)
def test_students_quantiles_are_those_of_the_tables(
    probability: float, freedom: int, table: float
) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(table, abs=6e-5)


def test_a_quantile_undoes_the_distribution() -> None:
    for freedom in range(1, 12):
        assert student_cdf(student_quantile(0.97, freedom), freedom) == pytest.approx(0.97)


def test_three_pairs_that_agree_are_faster() -> None:
    found = both([100, 101, 99], [40, 40.2, 39.8])
    assert found.verdict == "faster"
    assert found.speedup == pytest.approx(2.5, rel=0.01)
    assert found.interval is not None and found.interval[0] > 2.3
    assert found.pairs == 3


def test_the_same_legs_exchanged_are_slower_by_as_much() -> None:
    there = both([100, 101, 99, 103], [90, 92, 88, 91])
    back = both([90, 92, 88, 91], [100, 101, 99, 103])
    assert (there.verdict, back.verdict) == ("faster", "slower")
    assert there.interval is not None and back.interval is not None
    assert there.interval == pytest.approx((1 / back.interval[1], 1 / back.interval[0]))


def test_a_drift_of_the_host_that_both_legs_of_a_pair_share_costs_nothing() -> None:
    steady = both([100, 100, 100], [90, 90.9, 89.1])
    drifting = both([100, 150, 80], [90, 150 * 0.909, 80 * 0.891])
    assert drifting.interval == pytest.approx(steady.interval)


def test_one_pair_proves_nothing_and_says_so() -> None:
    found = both([100], [50])
    assert found.verdict == "inconclusive"
    assert found.speedup == pytest.approx(2.0)
    assert found.interval is None
    assert "One pair" in found.why


def test_no_pair_says_why_the_leg_did_not_count() -> None:
    broken = LegResult("num_workers=4", "failed", "The script ended with exit code 1.")
    found = stats.compare([leg(100)], [broken])
    assert found == Compared(None, None, "inconclusive", 0, "The script ended with exit code 1.")


def test_a_pair_counts_only_when_both_legs_were_measured() -> None:
    lost = LegResult("baseline", "stopped", "It was stopped.")
    found = stats.compare([leg(100), lost, leg(100)], [leg(50), leg(1), leg(50)])
    assert found.pairs == 2
    assert found.speedup == pytest.approx(2.0)


def test_without_counted_samples_only_steps_can_be_compared() -> None:
    before = [leg(100, samples=None)] * 3
    after = [leg(80, samples=None)] * 3
    assert "DataLoader" in stats.compare(before, after).why
    assert stats.compare(before, after, by_sample=False).verdict == "faster"


def test_a_larger_batch_is_judged_by_the_sample() -> None:
    found = stats.compare([leg(100, samples=64)] * 3, [leg(150, samples=128)] * 3)
    assert found.speedup == pytest.approx(128 / 150 / (64 / 100))


def test_stalls_count_although_most_steps_are_as_fast() -> None:
    stalled = LegResult(
        "a", "measured", step_ns=(*(10 * MS,) * 9, 110 * MS) * 3, samples_per_step=1
    )
    found = stats.compare([stalled] * 3, [leg(10, samples=1)] * 3)
    assert found.speedup == pytest.approx(2.0)


def test_too_few_steps_are_inconclusive() -> None:
    found = stats.compare([leg(100, steps=4)] * 3, [leg(50, steps=4)] * 3)
    assert found.verdict == "inconclusive"
    assert "12 steps" in found.why
    assert found.speedup == pytest.approx(2.0)


def test_a_loss_that_becomes_nan_with_the_change_is_inconclusive() -> None:
    sick = leg(50, "bf16=true", loss_finite=False)
    assert "NaN" in stats.compare([leg(100)] * 3, [sick] * 3).why
    assert stats.compare([leg(100, loss_finite=False)] * 3, [sick] * 3).verdict == "faster"


def test_other_first_losses_matter_only_to_a_change_that_claims_the_same() -> None:
    before = [leg(100, first_losses=(2.3, 2.2))] * 3
    after = [leg(50, first_losses=(2.9, 2.2))] * 3
    assert stats.compare(before, after).verdict == "faster"
    found = stats.compare(before, after, same_losses=True)
    assert found.verdict == "inconclusive"
    assert "loss of step 1" in found.why


def test_losses_of_a_script_that_draws_anew_each_time_are_no_argument() -> None:
    before = [leg(100, first_losses=(loss,)) for loss in (2.3, 2.9, 2.5)]
    after = [leg(50, first_losses=(2.1,))] * 3
    assert stats.compare(before, after, same_losses=True).verdict == "faster"


def test_no_difference_is_said_only_where_even_one_percent_is_excluded() -> None:
    assert both([100.0, 100.1, 99.9], [100.1, 100.1, 99.9]).verdict == "no difference"
    found = both([100, 101, 99, 100, 100, 101], [100, 100, 100, 101, 99, 101])
    assert found.verdict == "inconclusive"
    assert found.why.startswith("Any difference is under 3%")
    assert stats.below_worth(found)


def test_a_wide_interval_says_how_many_pairs_would_tell() -> None:
    found = both([100, 103, 98], [97, 104, 95])
    assert found.verdict == "inconclusive"
    assert "pairs would tell" in found.why


def test_where_the_steps_scatter_longer_legs_are_advised() -> None:
    rng = random.Random(3)
    made = [
        LegResult(
            "a",
            "measured",
            step_ns=tuple(round(100 * MS * math.exp(rng.gauss(0, 0.4))) for _ in range(40)),
            samples_per_step=1,
        )
        for _ in range(8)
    ]
    found = stats.compare(made[:4], made[4:])
    assert "--steps" in found.why


def test_the_same_legs_give_the_same_numbers() -> None:
    assert trial(1.1, 0.02, 5, seed=4) == trial(1.1, 0.02, 5, seed=4)


def test_fixed_rounds_give_a_narrower_interval() -> None:
    stopped = both([100, 101, 99, 102], [90, 92, 88, 93])
    fixed = both([100, 101, 99, 102], [90, 92, 88, 93], peeked=False)
    assert stopped.interval is not None and fixed.interval is not None
    assert stopped.interval[0] < fixed.interval[0] < fixed.interval[1] < stopped.interval[1]


def test_two_pairs_were_not_chosen_by_looking() -> None:
    assert both([100, 101], [90, 92]) == both([100, 101], [90, 92], peeked=False)


def test_one_odd_pair_of_seven_does_not_spoil_the_rest() -> None:
    before = [100.0, 101, 99, 100, 101, 99, 100]
    odd = both(before, [90, 91, 89, 90, 91, 89, 130])
    assert odd.verdict == "faster"
    assert odd.speedup == pytest.approx(1.11, abs=0.01)


@pytest.mark.parametrize("pairs", [3, 5, 8])
def test_the_interval_of_a_null_trial_covers_one(pairs: int) -> None:
    found = [trial(1.0, 0.02, pairs, seed) for seed in range(400)]
    covered = sum(c.interval[0] <= 1 <= c.interval[1] for c in found if c.interval)
    assert covered >= 380  # 98% by design; 95% of these very draws is well below it


def test_a_planted_five_percent_is_found_and_one_percent_never_reversed() -> None:
    five = [trial(1 / 1.05, 0.01, 6, seed) for seed in range(200)]
    assert sum(c.verdict == "slower" for c in five) >= 195
    one = [trial(1 / 1.01, 0.01, 6, seed) for seed in range(200)]
    assert not any(c.verdict == "faster" for c in one)
    assert sum(c.verdict == "no difference" for c in one) <= 4


def test_it_goes_on_until_the_interval_is_tight() -> None:
    assert not stats.tight_enough(Compared(2.0, (1.9, 2.1), "faster", 2))
    assert stats.tight_enough(Compared(2.0, (1.9, 2.1), "faster", 3))
    assert not stats.tight_enough(Compared(1.05, (1.01, 1.09), "faster", 5))
    assert stats.tight_enough(Compared(1.05, (1.035, 1.065), "faster", 6))
    assert stats.tight_enough(Compared(1.0, (0.975, 1.029), "inconclusive", 4))
    assert not stats.tight_enough(Compared(None, None, "inconclusive", 0))


@given(
    st.lists(st.floats(min_value=-2, max_value=2), min_size=2, max_size=12),
    st.floats(min_value=-3, max_value=3),
)
def test_an_interval_holds_its_median_and_moves_with_the_data(
    logs: list[float], shift: float
) -> None:
    found = stats.log_interval(logs, 0.95)
    moved = stats.log_interval([x + shift for x in logs], 0.95)
    assert found is not None and moved is not None
    middle = sorted(logs)[len(logs) // 2]
    assert found[0] <= middle + 1e-9 or len(logs) % 2 == 0
    assert found[0] <= found[1]
    assert moved == pytest.approx((found[0] + shift, found[1] + shift), abs=1e-6)


@given(
    st.lists(st.floats(min_value=1, max_value=1e4), min_size=1, max_size=10),
    st.lists(st.floats(min_value=1, max_value=1e4), min_size=1, max_size=10),
)
def test_a_verdict_never_contradicts_its_interval(before: list[float], after: list[float]) -> None:
    found = both(before, after)
    assert found.pairs == min(len(before), len(after))
    if found.verdict == "inconclusive":
        assert found.why
        return
    assert found.interval is not None and found.speedup is not None
    low, high = found.interval
    assert low <= found.speedup <= high
    if found.verdict == "faster":
        assert low > 1
    elif found.verdict == "slower":
        assert high < 1
    else:
        assert 0.99 <= low <= high <= 1.011


def test_a_legs_error_is_that_of_independent_steps_where_they_are() -> None:
    rng = random.Random(1)
    found = [
        leg_error([round(MS * (1 + rng.gauss(0, 0.1))) for _ in range(60)]) or 0.0
        for _ in range(200)
    ]
    assert sum(found) / len(found) == pytest.approx(0.1 / math.sqrt(60), rel=0.1)


def test_a_save_every_twenty_steps_is_no_chance() -> None:
    rng = random.Random(1)
    steps = [MS * (1 + rng.gauss(0, 0.02)) + (10 * MS if i % 20 == 19 else 0) for i in range(60)]
    found = leg_error([round(s) for s in steps])
    assert found is not None and found < 0.01


def test_few_steps_have_no_error() -> None:
    assert leg_error([MS] * 9) is None
    assert leg_error([MS] * 10) == 0.0


def test_losses_agree_within_the_coarsest_precision() -> None:
    a = leg(1, first_losses=(2.300, 2.20))
    assert losses_agree(a, leg(1, "bf16=true", first_losses=(2.31, 2.25))) is None
    said = losses_agree(a, leg(1, "bf16=true", first_losses=(2.40, 2.2)))
    assert said == ("The loss of step 1 differs by 4.2%: 2.3 with baseline, 2.4 with bf16=true.")
    assert losses_agree(a, leg(1)) is None
    assert losses_agree(leg(1, first_losses=(0.0,)), leg(1, first_losses=(1e-6,))) is None
    said = losses_agree(a, leg(1, "x", first_losses=(math.nan,)))
    assert said == "The loss of step 1 is not finite on one side."
