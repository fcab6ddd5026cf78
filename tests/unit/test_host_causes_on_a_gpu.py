"""Causes on the host's side before a GPU, through the whole engine: one answer, the right one."""

from __future__ import annotations

import pytest
from synthetic_windows import MS, intervals_of, make_steps, probe, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.evidence import totals_of

FUSED = [{"id": 1, "cls": "AdamW", "fused": True, "tensors": 20}]
GUARD = ["forward", "/home/ann/train.py", 28, "tensor 'ids' size mismatch", 36]


def state(**more):
    return probe(True, optimizers=FUSED, **more)


def previews():
    """A GAN that writes a compressed grid every 5 steps."""
    often = {"checkpoint": 350, "sync": 15, "eval": 6, "other": 30}
    steps = make_steps(
        160,
        {"forward": 6, "backward": 8, "optimizer": 3},
        extra=lambda i: often if i % 5 == 0 else {},
        dry=0.9,
    )
    sites = (
        site("sample", 59, label="checkpoint", call="np.savez_compressed(path, g=g)", count=200),
        site("sync", 58, call="grid.cpu()", count=40, total_ns=600 * MS),
        site("nograd", 56, call="with torch.no_grad():", total_ns=240 * MS),
    )
    return window(steps, on_gpu=True, util=8, sites=sites, probe=state())


def anomaly():
    steps = make_steps(400, {"forward": 3, "backward": 8, "optimizer": 1}, dry=0.9)
    looks = {"looked": 300, "anomaly": [300, 0], "profiler": [0, None], "at": {}}
    return window(steps, on_gpu=True, util=20, probe=state(flags={"anomaly": True}, modes=looks))


def recompiling():
    slow = make_steps(10, {"forward": 5}, extra=lambda i: {"compile": 8000})
    steps = make_steps(110, {"forward": 8, "backward": 10, "optimizer": 2}, dry=0.6)
    told = {"recompiles": 8, "unique_graphs": 8, "graph_breaks": 0, "reasons": [GUARD]}
    return window(
        steps, on_gpu=True, util=45, whole=totals_of(slow + steps), probe=state(dynamo=told)
    )


def reads():
    """4,096 reads a step in a Python loop."""
    steps = make_steps(
        240,
        {"sync": 9, "gpu_wait": 2, "forward": 1, "backward": 1, "other": 6},
        exposed={"sync": 7, "data_wait": 0},
        dry=0.9,
        syncs=4096,
    )
    sites = (
        site("sync", 49, call="hits[k].item()", count=240 * 4096, total_ns=2500 * MS),
        site("sample", 48, label="host_compute", call="for k in range(n):", count=200),
    )
    return window(steps, on_gpu=True, util=14.5, sites=sites, probe=state())


def loop_over_time():
    steps = make_steps(400, {"forward": 10, "backward": 12, "optimizer": 0.5}, dry=0.97)
    return window(steps, on_gpu=True, util=17, probe=state())


def pauses(label, **more):
    steps = make_steps(
        400,
        {"forward": 10, "backward": 12, "optimizer": 2, "gpu_wait": 6},
        extra=lambda i: {label: 150} if i % 20 == 0 else {},
        dry=0.1,
    )
    made = {"intervals": tuple(intervals_of(steps, label))} if label == "gc" else {}
    return window(steps, on_gpu=True, util=75, probe=state(), **made, **more)


METRIC = site("sample", 77, label="host_compute", func="auc", count=100)
WINDOWS = {
    "logging-stall": previews(),
    "anomaly-mode": anomaly(),
    "recompilation": recompiling(),
    "host-sync-stall": reads(),
    "launch-bound": loop_over_time(),
    "gc-pause": pauses("gc"),
    "host-compute": pauses("other", sites=(METRIC,)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_cause_is_the_verdict(name):
    told = diagnose(WINDOWS[name])
    assert (told.status, told.verdict.id) == ("verdict", name)


@pytest.mark.parametrize("name", WINDOWS)
def test_nothing_else_is_blamed_but_what_a_mode_or_eager_code_brings_with_it(name):
    told = diagnose(WINDOWS[name])
    effects = {"launch-bound"} if name in ("anomaly-mode", "recompilation") else set()
    assert {f.id for f in told.also} <= effects


@pytest.mark.parametrize("name", WINDOWS)
def test_no_time_is_lost_twice(name):
    told = diagnose(WINDOWS[name])
    assert told.verdict.lost_share + sum(f.lost_share for f in told.also) <= 1.0
