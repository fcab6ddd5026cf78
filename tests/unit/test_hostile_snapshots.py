"""A snapshot is a file that the training process writes: whatever it holds, rules go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import gpm, loader, make_steps, probe, readings, site, window

from gputop_train.diagnose.rules import all_rules
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding, MemorySample

JUNK = (None, 0, -1, 7.5, 1e300, "text", True, [], {}, [1], ["a"], [None], [[]], [[1, "x", {}]])
INNER = {
    "cuda": ("capability", "total", "uuid", "device"),
    "flags": ("tf32", "cudnn_tf32", "data_parallel", "threads"),
    "amp": ("autocast",),
    "oom": ("count", "steps_after", "stack", "lines", "requested"),
    "held": ("optimizer_state", "other"),
    "dynamo": ("unique_graphs",),
    "optimizers": ("cls", "fused", "dtypes"),
    "ddp": ("exposed_ns", "per_step", "samples", "bucket_bytes", "world_size", "device", "backend"),
    "shapes": (),
    "world_size": (),
    "empty_cache": (),
}
GPU_STEPS = make_steps(
    400, {"h2d": 4, "gpu_wait": 10, "forward": 3, "backward": 3}, exposed={"h2d": 4}, dry=0.02
)
WINDOWS = [
    window(
        GPU_STEPS,
        on_gpu=True,
        util=96,
        gpu=readings(GPU_STEPS),
        gpm=gpm(sm=20.0, tensor=0.0, dram=75.0),
        sites=(site("h2d", 3, bytes=9_000_000_000, unpinned_bytes=9_000_000_000),),
        loaders=(loader(),),
        memory=[2e9 + 4e8 * k for k in range(240)],
        exit_code=1,
    ),
    window(make_steps(400, {"forward": 5, "backward": 5}), memory=[1e9] * 240),
]


def states():
    for key, inner in INNER.items():
        for junk in JUNK:
            yield key, {key: junk}
            for name in inner:
                value = {name: junk, "count": 1} if key == "oom" else {name: junk}
                yield f"{key}.{name}", {key: [value] if key in ("optimizers", "ddp") else value}


@pytest.mark.parametrize("made", WINDOWS, ids=["gpu", "cpu"])
def test_no_value_of_a_snapshot_stops_a_rule(made):
    good = probe(made.on_gpu)
    for place, changed in states():
        told = replace(made, probe={**good, **changed}, probe_states={0: {**good, **changed}})
        for rule in all_rules():
            if rule.judge is None:
                continue
            try:
                said = rule.judge(told)
            except Exception as error:
                pytest.fail(f"{rule.id}: {place} = {changed}: {error!r}")
            assert isinstance(said, (Finding, Abstention, RuledOut))


def test_counters_of_an_allocator_that_make_no_sense_are_survived():
    rows = tuple(
        MemorySample(0, GPU_STEPS[0].t0_ns + k, None, "cuda-allocator", -5, 0, None, 0, 3 - k, 0, 9)
        for k in range(3)
    )
    for rule in all_rules():
        if rule.judge is not None:
            said = rule.judge(replace(WINDOWS[0], memory=rows))
            assert isinstance(said, (Finding, Abstention, RuledOut))
