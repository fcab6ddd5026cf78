from __future__ import annotations

import bisect

import numpy as np
import pytest
from synthetic_windows import loader, make_steps, probe, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import memory_leak
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding

MB = 1_000_000
N = 240


def judge(memory, *, steps=400, **more):
    return memory_leak.judge(window(make_steps(steps, {"forward": 50}), memory=memory, **more))


def noisy(base, seed=0, amplitude=20 * MB):
    """Allocations that come and go on top of what is held."""
    spikes = np.random.default_rng(seed).exponential(amplitude, N)
    return list(np.asarray(base, dtype=float) + spikes)


def rising(mb_in_all, start=300):
    return np.linspace(start * MB, (start + mb_in_all) * MB, N)


def test_memory_that_grows_without_end_is_a_leak():
    found = judge(noisy(rising(200)))
    assert isinstance(found, Finding)
    assert found.id == "memory-leak"
    assert found.severity in ("warn", "critical")
    assert found.gain is None
    assert found.where == () and found.where_missing
    values = {e.what: e.value for e in found.evidence}
    assert values["basis"] == "rss-anon"
    assert values["growth over the steady part"] == pytest.approx(200, rel=0.1)
    assert values["growth of the low-water marks"] == pytest.approx(500, rel=0.1)
    assert "RssAnon" in found.summary


def test_on_a_gpu_the_allocator_is_the_basis():
    found = judge(noisy(rising(4000, 2000)), on_gpu=True, util=90, device_bytes=140_000 * MB)
    assert isinstance(found, Finding)
    assert {e.what: e.value for e in found.evidence}["basis"] == "cuda-allocator"
    assert found.confidence == "high"


@pytest.mark.parametrize("seed", range(20))
def test_noise_around_a_level_is_no_leak(seed):
    assert isinstance(judge(noisy(np.full(N, 300 * MB), seed, 80 * MB)), RuledOut)


@pytest.mark.parametrize("tau", [0.02, 0.08, 0.15])
def test_growth_that_flattens_is_no_leak(tau):
    x = np.linspace(0, 1, N)
    found = judge(noisy(300 * MB + 400 * MB * (1 - np.exp(-x / tau)), amplitude=2 * MB))
    assert isinstance(found, RuledOut)


def test_a_cache_that_fills_for_half_the_run_is_no_leak():
    x = np.linspace(0, 1, N)
    assert isinstance(judge(noisy(300 * MB + 600 * MB * np.minimum(x, 0.5))), RuledOut)


def test_a_step_when_the_optimizer_state_is_built_is_no_leak():
    base = np.where(np.arange(N) < 30, 300 * MB, 900 * MB)
    assert isinstance(judge(noisy(base)), RuledOut)


def test_a_saw_tooth_whose_low_marks_stay_is_no_leak():
    x = np.arange(N)
    assert isinstance(judge(list(300 * MB + 300 * MB * (x % 9) / 9)), RuledOut)


def test_a_leak_of_a_few_megabytes_is_too_little_to_matter():
    found = judge(list(rising(10)))
    assert isinstance(found, RuledOut)
    assert "too little" in found.why


def test_two_hundred_steps_are_needed():
    assert isinstance(judge(noisy(rising(200)), steps=180), RuledOut)
    assert isinstance(judge(noisy(rising(200)), steps=220), Finding)


def test_without_samples_it_abstains():
    found = judge([], missing={"memory": "the trainer's memory could not be read"})
    assert isinstance(found, Abstention)
    assert found.missing == "the trainer's memory could not be read"


def test_memory_that_shrinks_is_no_leak():
    assert isinstance(judge(noisy(rising(200)[::-1])), RuledOut)


def test_on_a_cpu_plain_numbers_are_advised_not_detached_tensors():
    found = judge(list(rising(200)))
    assert ".item()" in found.advice[0].text
    assert "A kept .detach() still" in found.advice[0].text


def test_growth_is_told_in_units_a_person_would_use():
    values = {e.what: (e.value, e.unit) for e in judge(list(rising(200))).evidence}
    assert values["growth over the steady part"][1] == "MB"
    assert values["Mann-Kendall p"] == ("< 0.001", "")


def test_a_first_epoch_that_may_fill_a_cache_is_not_called_a_leak():
    first = loader(epochs=1, length=500, batches=300)
    assert isinstance(judge(list(rising(200)), loaders=(first,)), RuledOut)
    for other in (
        loader(epochs=2, length=200, batches=300),
        loader(epochs=1, length=500, batches=300, num_workers=2),
        loader(epochs=1, length=500, batches=300, dataset="TensorDataset"),
    ):
        assert isinstance(judge(list(rising(200)), loaders=(other,)), Finding)


def test_the_time_left_follows_from_the_rate():
    # 200 MB in 20 s of steps, 12 GB available: 1,200 s.
    found = judge(list(rising(200)))
    values = {e.what: (e.value, e.unit) for e in found.evidence}
    assert values["time until memory runs out"] == (pytest.approx(20, rel=0.05), "min")
    assert found.severity == "critical"
    assert "20 min" in found.summary


@pytest.mark.parametrize(
    ("on_gpu", "grown", "first"),
    [
        (False, 200, "memory-leak"),  # out of memory in 20 minutes
        (False, 20, "input-bound"),  # in hours: a replay buffer grows just so until it is full
        (True, 2000, "memory-leak"),  # in hours, of a card that is the run's own
    ],
)
def test_host_memory_that_lasts_for_hours_yields_to_what_costs_time_now(on_gpu, grown, first):
    waits = make_steps(400, {"data_wait": 9, "forward": 41}, exposed={"data_wait": 9})
    told = diagnose(
        window(
            waits,
            memory=list(rising(grown, 60 if grown == 20 else 2000 if on_gpu else 300)),
            on_gpu=on_gpu,
            loaders=(loader(num_workers=0, epochs=3, length=100, batches=300),),
            **({"util": 80, "device_bytes": 140_000 * MB} if on_gpu else {}),
        )
    )
    assert told.verdict.id == first


@pytest.mark.parametrize("samples", [14, 20, 40, 2000])
def test_few_samples_of_a_fast_run_are_enough_and_many_too(samples):
    assert isinstance(judge(list(np.linspace(300 * MB, 500 * MB, samples))), Finding)


def test_a_handful_of_samples_is_no_trend():
    assert isinstance(judge(list(np.linspace(300 * MB, 500 * MB, 8))), RuledOut)


def test_memory_that_is_given_back_every_epoch_is_no_leak():
    # Rises within each quarter and falls back to where it was.
    x = np.arange(N)
    for length in (30, 50, 60, 75, 110):
        found = judge(list(300 * MB + 800 * MB * (x % length) / length))
        assert isinstance(found, RuledOut)


def test_marks_that_wander_without_direction_are_no_trend():
    walk = np.cumsum(np.random.default_rng(5).normal(0, 1, N))
    steps = np.sort(walk[: N // 2])  # rises for half the run...
    held = 300 * MB + 40 * MB * np.concatenate([steps, steps[::-1]])  # ...and falls again
    found = judge(list(held))
    assert isinstance(found, RuledOut)
    assert "no rising trend" in found.why


def test_what_a_profiler_keeps_is_not_called_a_leak():
    # torch.profiler around 800 steps on a CPU: RssAnon grew by 188 kB a step, as measured.
    state = probe(False, modes={"looked": 500, "profiler": [500, 0], "anomaly": [0, None]})
    assert isinstance(judge(noisy(rising(200)), probe=state), Abstention)


def test_a_minute_in_one_step_does_not_halve_what_a_step_leaves():
    """Beside another program 30 of 840 steps took half of the time: 28 kB a step for 680 kB."""
    steps = make_steps(400, {"forward": 50}, extra=lambda i: {"forward": 600} if i < 33 else {})
    begin, end = steps[0].t0_ns, steps[-1].t1_ns
    ends = [s.t1_ns for s in steps]
    held = [
        300 * MB + 0.7 * MB * bisect.bisect(ends, begin + (end - begin) * k // (N - 1))
        for k in range(N)
    ]
    found = memory_leak.judge(window(steps, memory=held))
    assert isinstance(found, Finding)
    values = {e.what: e.value for e in found.evidence}
    assert values["growth of the low-water marks"] == pytest.approx(700, rel=0.1)
