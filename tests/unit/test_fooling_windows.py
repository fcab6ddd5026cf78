"""What demos/fooling asks on a GPU, asked of windows with numbers of an H200: they guard CI.

The series of utilisation are recorded ones (tests/data/h200_util_shapes.json), durations are those
of the recorded demos (demos/recordings): the scripts themselves run in tests/gpu.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_windows import intervals_of, loader, make_steps, probe, readings, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.shape import shape_of

RECORDED = json.loads(
    (Path(__file__).parents[1] / "data" / "h200_util_shapes.json").read_text(encoding="utf-8")
)["shapes"]
#: Exposed idle of a loop that never waits, as the event pairs of the healthy demo read it.
NO_IDLE = {"data_wait": 0.05, "sync": 0.01, "h2d": 0.02, "checkpoint": 0.0, "eval": 0.0}


def driver(name):
    return [util for _, util in RECORDED[name]["samples"]]


def named(found):
    """Every id and refinement, verdict and also."""
    findings = [f for f in (found.verdict, *found.also) if f]
    return {word for f in findings for word in (f.id, f.refined) if word}


def warned(found):
    return [f.id for f in (found.verdict, *found.also) if f and f.severity != "info"]


def test_gpu_bound_with_a_read_every_step_is_healthy():
    steps = make_steps(
        1000,
        {"forward": 1.1, "backward": 1.3, "optimizer": 0.6, "gpu_wait": 15.4, "sync": 0.2},
        exposed=NO_IDLE | {"sync": 0.1},
        dry=0.04,
        syncs=1,
    )
    read = site(
        "sync", 47, call="loss.item()", count=1000, total_ns=15_600_000_000,
        seen=1000, pairs=200, pair_ns=4_000_000, after_ns=16_000_000,
    )  # fmt: skip
    found = diagnose(window(steps, on_gpu=True, util=driver("steady"), sites=(read,)))
    assert found.status == "healthy"
    assert warned(found) == []
    assert "host-sync-stall" not in named(found)


def test_the_same_reads_beside_a_gpu_that_ran_dry_are_no_longer_harmless():
    steps = make_steps(
        1000,
        {"forward": 0.6, "backward": 1.2, "gpu_wait": 6.1, "sync": 6.9, "other": 13.7},
        exposed=NO_IDLE | {"sync": 11.0},
        dry=0.82,
        syncs=128,
    )
    read = site(
        "sync", 48, call="predicted[i].item()", count=128_000, total_ns=13_000_000_000,
        seen=12_800, pairs=12_800, pair_ns=700_000_000, after_ns=400_000_000,
    )  # fmt: skip
    found = diagnose(window(steps, on_gpu=True, util=12.5, sites=(read,)))
    assert found.verdict.id == "host-sync-stall"


def test_a_10_ms_step_starved_half_the_time_reads_a_flat_50_and_is_still_starved():
    steps = make_steps(
        780,
        {"data_wait": 5.1, "forward": 1.5, "backward": 2.6, "optimizer": 1.1},
        exposed=NO_IDLE | {"data_wait": 5.0},
        dry=0.5,
    )
    held = window(
        steps, on_gpu=True, util=driver("saw_5_5"), loaders=(loader(wait_ns=4_000_000_000),)
    )
    assert shape_of(held).label == "flat-low"
    found = diagnose(held)
    assert (found.verdict.id, found.verdict.refined) == ("input-bound", "main-process-loading")
    assert found.verdict.gain.ceiling == pytest.approx(10.3 / (10.3 - 5.0), rel=0.1)


def test_a_flat_low_reading_of_tiny_kernels_is_not_starved():
    steps = make_steps(
        300,
        {"data_wait": 0.7, "forward": 30.7, "backward": 75.2, "optimizer": 1.2, "other": 2.9},
        exposed=NO_IDLE | {"data_wait": 0.7},
        dry=1.0,
    )
    found = diagnose(
        window(steps, on_gpu=True, util=driver("launch"), loaders=(loader(num_workers=4),))
    )
    assert found.verdict.id == "launch-bound"
    assert "input-bound" not in named(found)


def test_an_evaluation_and_a_checkpoint_at_one_epoch_end_are_two_causes():
    def pause(i):
        return {"eval": 500.0, "checkpoint": 390.0, "data_wait": 3.0} if i % 50 == 49 else {}

    steps = make_steps(
        1000,
        {"gpu_wait": 12.0, "forward": 2.0, "backward": 2.2},
        extra=pause,
        exposed=NO_IDLE | {"checkpoint": 7.7, "eval": 6.0},
    )
    found = diagnose(
        window(
            steps,
            on_gpu=True,
            util=[95.0] * 40 + [40.0] * 22 + [2.0] * 18,
            intervals=(
                *intervals_of(steps, "eval", site_id=61),
                *intervals_of(steps, "checkpoint", site_id=62),
            ),
            sites=(
                site("eval", 61, func="evaluate", count=0, total_ns=0),
                site("save", 62, bytes=1_000_000_000),
            ),
            loaders=(loader(epochs=20, length=50),),
        )
    )
    assert [found.verdict.id, *(f.id for f in found.also)][:2] == ["eval-stall", "checkpoint-stall"]
    assert [w.line for w in found.verdict.where] == [61]
    assert [w.line for w in found.also[0].where] == [62]
    assert not named(found) & {"input-bound", "worker-respawn", "bursty-prefetch"}


def test_a_loader_that_mostly_keeps_up_is_still_told_by_its_bursts():
    steps = make_steps(
        600,
        {"data_wait": 0.05, "gpu_wait": 6.0, "forward": 2.0, "backward": 2.0},
        extra=lambda i: {"data_wait": 260.0} if i % 24 == 23 else {},
        exposed=NO_IDLE | {"data_wait": 10.8},
    )
    found = diagnose(
        window(
            steps,
            on_gpu=True,
            util=[95.0, 94.0, 20.0, 0.0] * 15,
            loaders=(loader(num_workers=2, prefetch_factor=2, ready=3),),
            workers=(0.5, 0.1),
            depths=[4, 3, 4, 0] * 10,
        )
    )
    assert found.verdict.id == "input-bound"
    assert found.verdict.refined in ("bursty-prefetch", "slow-worker", None)
    assert not [a for a in found.verdict.advice if (a.setting or {}).get("num_workers", 0) > 2]


def test_a_busy_neighbour_is_told_and_the_card_not_called_well_used():
    steps = make_steps(
        400,
        {"forward": 1.5, "backward": 2.5, "optimizer": 0.5, "gpu_wait": 36.0},
        exposed=NO_IDLE | {"data_wait": 4.0},
    )
    shared = readings(
        steps, foreign_processes=1, memory_used=9_000_000_000, memory_ours=2_000_000_000
    )
    found = diagnose(window(steps, on_gpu=True, util=100.0, gpu=shared))
    assert "gpu-contention" in named(found)
    assert found.status != "healthy"


def test_steps_as_long_as_their_sentences_are_healthy():
    lengths = [(7 * i) % 32 / 31 for i in range(400)]
    steps = make_steps(
        400,
        {"forward": 4.0, "backward": 6.0, "optimizer": 1.0},
        extra=lambda i: {"gpu_wait": 60 * lengths[i]},
        exposed=NO_IDLE,
        dry=0.02,
    )
    found = diagnose(
        window(
            steps,
            on_gpu=True,
            util=driver("steady"),
            memory=[2e9 + 1e8 * max(lengths[: i + 1]) for i in range(400)],
            device_bytes=141_000_000_000,
        )
    )
    assert (found.status, warned(found)) == ("healthy", [])


def test_two_optimizers_or_accumulated_passes_are_no_fault():
    for micro in (4, 8):
        steps = [
            s.__class__(**{name: getattr(s, name) for name in s.__slots__} | {"micro": micro})
            for s in make_steps(
                200,
                {"gpu_wait": 80.0, "forward": 8.0, "backward": 16.0, "optimizer": 2.0},
                exposed=NO_IDLE,
                dry=0.01,
            )
        ]
        found = diagnose(window(steps, on_gpu=True, util=driver("steady")))
        assert (found.status, warned(found)) == ("healthy", [])


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_third_of_almost_nothing_is_no_warning(on_gpu):
    steps = make_steps(
        140,
        {"data_wait": 0.3, "forward": 0.2, "backward": 0.3, "optimizer": 0.1},
        exposed=NO_IDLE | {"data_wait": 0.3} if on_gpu else None,
        dry=0.5 if on_gpu else None,
    )
    util = 60 if on_gpu else None
    found = diagnose(window(steps, on_gpu=on_gpu, util=util, loaders=(loader(),)))
    assert warned(found) == []


def test_two_causes_of_half_each_are_both_named_with_the_gain_of_their_part():
    steps = make_steps(
        400,
        {"data_wait": 10.0, "gpu_wait": 6.0, "forward": 2.0, "backward": 2.0},
        extra=lambda i: {"checkpoint": 100.0} if i % 10 == 9 else {},
        exposed=NO_IDLE | {"data_wait": 9.8, "checkpoint": 10.0},
    )
    found = diagnose(
        window(
            steps,
            on_gpu=True,
            util=33.0,
            loaders=(loader(),),
            intervals=intervals_of(steps, "checkpoint", site_id=62),
            sites=(site("save", 62),),
        )
    )
    both = (found.verdict, *found.also)
    assert {"input-bound", "checkpoint-stall"} <= {f.id for f in both}
    for one in both:
        if one.id in ("input-bound", "checkpoint-stall"):
            assert one.lost_share == pytest.approx(1 / 3, abs=0.04)
            assert one.gain.ceiling == pytest.approx(1.5, abs=0.1)


def test_the_probe_of_these_windows_misses_nothing():
    assert all(probe(True)["hooks"].values())
