"""Searches end, find what there is to find, and say why they stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_train.trial.record import Arm
from gputop_train.trial.search import (
    Done,
    Search,
    Tried,
    WorkerSearch,
    frugal,
    idle_tail,
    stop_hint,
)
from gputop_train.trial.search_advice import AdviceSearch, advised, together
from gputop_train.trial.search_batch import BatchSearch, knee

GIB = 1 << 30


def value(arm: Arm) -> int:
    found = arm.settings[0].value
    assert isinstance(found, int)
    return found


def run(
    search: Search, measure: Callable[[Arm], Tried], most: int = 40
) -> tuple[Done, list[Tried]]:
    """Drive a search to its end; it must never ask for the same arm twice."""
    history: list[Tried] = []
    for _ in range(most):
        asked = search.propose(history)
        if isinstance(asked, Done):
            return asked, history
        for arm in asked:
            assert arm.name not in {one.arm.name for one in history}
            history.append(measure(arm))
    raise AssertionError(f"no end after {most}: {[one.arm.name for one in history]}")


def workers(
    search: WorkerSearch,
    time_of: Callable[[int], float],
    busy: Callable[[int], float] | None = None,
) -> tuple[Done, list[int]]:
    base = time_of(search.current)

    def measure(arm: Arm) -> Tried:
        n = value(arm)
        return Tried(arm, base / time_of(n), cpu_busy=busy(n) if busy else None)

    done, history = run(search, measure)
    return done, [value(one.arm) for one in history]


def test_workers_start_at_four_and_double_until_the_loader_keeps_up() -> None:
    """Loading 12 batches' worth against a model of 1: twelve workers are enough, eight are not."""
    done, tried = workers(WorkerSearch(current=0, cores=32), lambda n: max(1.0, 12 / max(n, 1)))
    assert tried[:5] == [4, 1, 8, 16, 32]
    assert done.best is not None and value(done.best) == 12
    assert "num_workers=12 is best: 12.00x" in done.reason


def test_a_plateau_takes_the_fewest_workers_on_it() -> None:
    done, tried = workers(WorkerSearch(current=1, cores=64), lambda n: 1.0 if n >= 4 else 3.0)
    assert tried[:3] == [4, 0, 8]
    assert done.best is not None and value(done.best) == 4


def test_data_in_memory_stays_without_workers() -> None:
    done, tried = workers(WorkerSearch(current=0, cores=16), lambda n: 1.0 + 0.1 * n)
    assert tried == [4, 1]
    assert done.best is None
    assert "num_workers=0, as it is, is best" in done.reason


def test_one_worker_too_many_is_taken_back() -> None:
    done, _ = workers(WorkerSearch(current=1, cores=16), lambda n: 1.0 + 0.1 * n)
    assert done.best is not None and value(done.best) == 0


def test_one_core_allows_one_worker() -> None:
    done, tried = workers(WorkerSearch(current=0, cores=1.0), lambda n: 1.0 if n else 2.0)
    assert tried == [1]
    assert done.best is not None and value(done.best) == 1
    assert "There is 1 usable core" in done.reason


def test_two_cores_are_not_given_four_workers() -> None:
    done, tried = workers(WorkerSearch(current=0, cores=2), lambda n: 2.0 / max(n, 1))
    assert set(tried) == {1, 2}
    assert done.best is not None and value(done.best) == 2
    assert "There are 2 usable cores" in done.reason


def test_idle_cores_at_the_end_of_the_rule_are_told() -> None:
    done, _ = workers(
        WorkerSearch(current=0, cores=2), lambda n: 2.0 / max(n, 1), busy=lambda n: 0.1
    )
    assert "--set num_workers=4" in done.reason


def test_a_saturated_host_ends_the_doubling() -> None:
    done, tried = workers(
        WorkerSearch(current=0, cores=64),
        lambda n: 100.0 / max(n, 1),
        busy=lambda n: min(1.0, n / 8),
    )
    assert max(tried) == 8
    assert "usable cores are 100% busy" in done.reason


def test_more_workers_than_cores_are_judged_from_both_sides() -> None:
    done, tried = workers(WorkerSearch(current=16, cores=8), lambda n: 1.0 + abs(n - 4) / 10)
    assert max(tried) <= 8
    assert done.best is not None and value(done.best) == 4


def test_a_refused_change_ends_the_search_with_its_reason() -> None:
    done, history = run(
        WorkerSearch(current=0, cores=8),
        lambda arm: Tried(arm, None, "refused", "It is an IterableDataset."),
    )
    assert done == Done("The number of workers cannot be changed. It is an IterableDataset.")
    assert len(history) == 2


def test_a_count_that_fails_is_no_longer_climbed_past() -> None:
    def measure(arm: Arm) -> Tried:
        n = value(arm)
        if n >= 8:
            return Tried(arm, None, "failed", "unable to mmap: no space left on device.")
        return Tried(arm, 0.5 + n)

    done, history = run(WorkerSearch(current=0, cores=64), measure)
    assert max(value(one.arm) for one in history) == 8
    assert done.best is not None and value(done.best) == 4
    assert "no space left" in done.notes[0]


def test_a_named_loader_is_the_one_that_is_set() -> None:
    asked = WorkerSearch(current=2, cores=8, loader="train.py:41").propose([])
    assert not isinstance(asked, Done)
    assert asked[0].name == "num_workers@train.py:41=4"
    assert asked[0].settings[0].loader == "train.py:41"


@given(
    current=st.integers(0, 40),
    cores=st.floats(0.5, 200),
    need=st.floats(0.1, 100),
    noise=st.lists(st.floats(0.97, 1.03), min_size=64, max_size=64),
    failing=st.one_of(st.none(), st.integers(0, 64)),
)
def test_every_search_for_workers_ends_within_bounds(
    current: int, cores: float, need: float, noise: list[float], failing: int | None
) -> None:
    search = WorkerSearch(current, cores)

    def time_of(n: int) -> float:
        return max(1.0, need / max(n, 1)) * noise[n % 64]

    def measure(arm: Arm) -> Tried:
        n = value(arm)
        if failing is not None and n >= failing:
            return Tried(arm, None, "failed", "It failed.")
        return Tried(arm, time_of(current) / time_of(n))

    done, history = run(search, measure)
    counts = [value(one.arm) for one in history]
    assert all(0 <= n <= max(search.most, current) for n in counts)
    assert len(counts) <= 14
    speeds = [one.speedup for one in history if one.speedup is not None]
    best = next((o.speedup for o in history if o.arm == done.best), None)
    reached = best if best is not None else 1.0
    assert reached * 1.03 >= max([1.0, *speeds]) - 1e-6


@given(need=st.floats(1.0, 60.0))
def test_what_is_found_is_as_good_as_the_best_there_is(need: float) -> None:
    """Noise-free, 64 cores: within 10% of the best number of workers (the issue asks for 0.9x)."""
    done, _ = workers(WorkerSearch(0, 64), lambda n: max(1.0, need / max(n, 1)))
    found = value(done.best) if done.best else 0
    assert max(1.0, need / max(found, 1)) <= 1.0 / 0.9


def test_three_in_a_row_under_three_percent_stop() -> None:
    arm = Arm("x")
    assert stop_hint([Tried(arm, 1.02), Tried(arm, 1.01)]) is None
    assert stop_hint([Tried(arm, 1.02), Tried(arm, 0.9), Tried(arm, None, "failed")]) is not None
    assert idle_tail([Tried(arm, 1.0), Tried(arm, 1.0), Tried(arm, 1.04)]) == 0
    assert idle_tail([Tried(arm, 2.0), Tried(arm, 2.05), Tried(arm, 1.5)]) == 2


def test_the_smallest_within_three_percent_is_taken() -> None:
    assert frugal({0: 1.0, 4: 2.0, 8: 2.05, 16: 2.07}) == 8
    assert frugal({0: 1.0, 4: 2.02, 8: 2.05}) == 4


def batches(
    search: BatchSearch,
    step_of: Callable[[int], float],
    peak_of: Callable[[int], int] | None = None,
    fails_from: int | None = None,
) -> tuple[Done, list[int]]:
    base = step_of(search.current) / search.current

    def measure(arm: Arm) -> Tried:
        n = value(arm)
        if fails_from is not None and n >= fails_from:
            return Tried(arm, None, "failed", "torch.OutOfMemoryError: CUDA out of memory.")
        return Tried(
            arm,
            base / (step_of(n) / n),
            step_ms=step_of(n),
            peak_bytes=peak_of(n) if peak_of else None,
        )

    done, history = run(search, measure)
    return done, [value(one.arm) for one in history]


def affine(fixed: float, per_sample: float) -> Callable[[int], float]:
    return lambda batch: fixed + per_sample * batch


def test_a_batch_doubles_until_the_time_per_sample_is_flat() -> None:
    step = affine(10.0, 0.05)
    done, tried = batches(BatchSearch(32, step_ms=step(32)), step)
    assert tried == [64, 128, 256, 512, 1024, 2048]
    assert done.best is not None
    assert any("knee is near a batch of" in note for note in done.notes)
    assert any("learning rate" in note for note in done.notes)


def test_the_knee_is_where_half_of_the_step_is_fixed() -> None:
    step = affine(10.0, 0.05)
    found = knee([(b, step(b)) for b in (32, 64, 128, 256, 512, 1024)])
    assert found is not None and found.batch == pytest.approx(200, rel=0.1)
    assert "launch overhead fills it; it ends there, at about 20" in found.text


def test_without_overhead_there_is_no_knee_to_find() -> None:
    found = knee([(32, 3.2), (64, 6.4), (128, 12.8)])
    assert found is not None and found.batch is None
    assert "does not fill the step" in found.text


def test_overhead_to_the_end_is_said() -> None:
    found = knee([(32, 10.0), (64, 10.1), (128, 10.3)])
    assert found is not None and found.batch is None
    assert "still makes most of it" in found.text
    assert knee([(32, 10.0)]) is None


def test_a_compute_bound_model_keeps_its_batch() -> None:
    done, tried = batches(BatchSearch(64, step_ms=64.0), lambda b: float(b))
    assert tried == [128]
    assert done.best is None
    assert "as it is, is best" in done.reason


def test_a_batch_that_would_not_fit_is_not_tried() -> None:
    done, tried = batches(
        BatchSearch(64, step_ms=10, peak_bytes=10 * GIB, device_bytes=80 * GIB),
        lambda b: 10.0,
        lambda b: 2 * GIB + b * GIB // 8,
    )
    assert tried == [128, 256]  # 512 would take 66 of 80 GiB
    assert "20% is kept free" in done.reason
    assert done.best is not None and value(done.best) == 256


def test_where_twice_the_peak_does_not_fit_half_the_batch_tells_weights_from_activations() -> None:
    done, tried = batches(
        BatchSearch(64, step_ms=10, peak_bytes=50 * GIB, device_bytes=80 * GIB),
        lambda b: 10.0,
        lambda b: 42 * GIB + b * GIB // 8,
    )
    assert tried == [32, 128]  # 58 GiB; 256 would take 74
    assert done.best is not None and value(done.best) == 128


def test_out_of_memory_ends_the_search_at_what_worked() -> None:
    done, tried = batches(BatchSearch(64, step_ms=10.0), lambda b: 10.0, fails_from=256)
    assert tried == [128, 256]
    assert done.best is not None and value(done.best) == 128
    assert "out of memory" in done.reason


def test_a_batch_that_cannot_be_set_says_why() -> None:
    done, _ = run(
        BatchSearch(64), lambda arm: Tried(arm, None, "refused", "It has a batch_sampler.")
    )
    assert done == Done("The batch size cannot be changed. It has a batch_sampler.")


@given(
    current=st.integers(1, 512),
    fixed=st.floats(0, 100),
    per_sample=st.floats(0.001, 1),
    weights=st.integers(0, 60),
    activations=st.floats(0.001, 0.5),
    fails_from=st.one_of(st.none(), st.integers(1, 4096)),
)
def test_every_search_for_a_batch_ends_and_never_plans_beyond_the_margin(
    current: int,
    fixed: float,
    per_sample: float,
    weights: int,
    activations: float,
    fails_from: int | None,
) -> None:
    step = affine(fixed, per_sample)

    def peak(batch: int) -> int:
        return round((weights + activations * batch) * GIB)

    search = BatchSearch(current, step(current), peak(current), 80 * GIB)
    done, tried = batches(search, step, peak, fails_from)
    assert len(tried) <= 8
    assert all(peak(n) <= 0.8 * 80 * GIB + 2 for n in tried if n > current)
    assert done.best is None or value(done.best) in tried
    assert done.best is None or value(done.best) > current


def report(*settings: dict[str, object] | None) -> dict[str, object]:
    advice = [{"text": "", "setting": setting} for setting in settings]
    return {
        "verdict": {"id": "x", "advice": advice[:2]},
        "also": [{"id": "y", "advice": advice[2:]}],
    }


def test_advice_becomes_arms_once_each_and_what_cannot_be_set_is_left_out() -> None:
    found = advised(
        report(
            {"num_workers": 4, "persistent_workers": True},
            None,
            {"pin_memory": True},
            {"no_such_setting": 1},
            {"pin_memory": True},
        )
    )
    assert [arm.name for arm in found] == [
        "num_workers=4, persistent_workers=true",
        "pin_memory=true",
    ]
    assert advised({"verdict": None, "also": []}) == ()


ADVISED = advised(report({"num_workers": 4}, {"pin_memory": True}, {"num_workers": 8}))


def by_name(speeds: dict[str, float]) -> Callable[[Arm], Tried]:
    return lambda arm: Tried(arm, speeds[arm.name])


def test_suggestions_go_one_by_one_then_together() -> None:
    done, history = run(
        AdviceSearch(ADVISED),
        by_name(
            {
                "num_workers=4": 1.5,
                "pin_memory=true": 1.1,
                "num_workers=8": 1.8,
                "num_workers=8, pin_memory=true": 2.0,
            }
        ),
    )
    assert [one.arm.name for one in history] == [
        "num_workers=4",
        "pin_memory=true",
        "num_workers=8",
        "num_workers=8, pin_memory=true",
    ]
    assert done.best is not None and done.best.name == "num_workers=8, pin_memory=true"


def test_what_did_not_help_alone_is_not_joined() -> None:
    done, history = run(
        AdviceSearch(ADVISED),
        by_name({"num_workers=4": 1.5, "pin_memory=true": 1.0, "num_workers=8": 1.2}),
    )
    assert len(history) == 3
    assert done.best is not None and done.best.name == "num_workers=4"


def test_together_must_beat_the_best_alone() -> None:
    done, _ = run(
        AdviceSearch(ADVISED[:2]),
        by_name(
            {
                "num_workers=4": 1.5,
                "pin_memory=true": 1.2,
                "num_workers=4, pin_memory=true": 1.51,
            }
        ),
    )
    assert done.best is not None and done.best.name == "num_workers=4"
    assert "no more than num_workers=4 alone" in done.notes[0]


def test_three_suggestions_without_effect_end_it() -> None:
    arms = tuple(Arm(f"a{n}") for n in range(6))
    done, history = run(AdviceSearch(arms), lambda arm: Tried(arm, 1.01))
    assert len(history) == 3
    assert done.best is None
    assert "the rest was not tried" in done.reason


def test_a_report_without_settings_is_said_to_have_none() -> None:
    assert AdviceSearch(()).propose([]) == Done(
        "The report of the script as it is advises no setting that can be tried."
    )


def test_two_values_of_one_setting_are_never_joined() -> None:
    four, pin, eight = ADVISED
    joined = together([eight, pin, four])
    assert joined is not None and joined.name == "num_workers=8, pin_memory=true"
    assert together([eight, four]) is None
