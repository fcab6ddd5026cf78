"""Frozen snapshots for the screen's tests: made of arithmetic, no clock, no run behind them."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

from gputop_train.model import (
    Abstention,
    Advice,
    Diagnosis,
    Evidence,
    Finding,
    Gain,
    Where,
)
from gputop_train.tui.snapshot import (
    Axis,
    Chart,
    HostView,
    Lane,
    LoaderView,
    Mark,
    MemoryView,
    ReplayView,
    RunView,
    Series,
    SettingGroup,
    SettingSeen,
    Snapshot,
    StepView,
    View,
)

GIB = 1 << 30
NOW = 10_000_000_000_000
#: ``run.json`` of the run these snapshots are of.
RUN = {
    "id": "3f2a",
    "command": ["python", "train.py"],
    "mode": "script",
    "script": "train.py",
    "overrides": {},
}

STARVED = Finding(
    id="input-bound",
    refined="prep-stall",
    summary="The GPU waits for data in 64% of every step: 171 of 268 ms.",
    severity="critical",
    confidence="high",
    lost_share=0.64,
    evidence=(
        Evidence("exposed data wait", 171.0, "ms"),
        Evidence("queue empty at", 97, "% of steps"),
        Evidence("workers at", 99, "% CPU"),
        Evidence("idle cores", 12),
    ),
    where=(
        Where("/home/me/proj/train.py", 41, "DataLoader(train_set, batch_size=64, num_workers=2)"),
    ),
    advice=(
        Advice("Raise num_workers from 2 to 7: 12 of 16 cores are idle.", {"num_workers": 7}),
        Advice("Then move the augmentation to the GPU (torchvision.transforms.v2)."),
    ),
    gain=Gain(2.8, (2.1, 2.7), "rate model over 7 usable cores"),
)

EVALUATION = Finding(
    id="eval-stall",
    summary="An evaluation of 2.1 s every 200 steps.",
    severity="info",
    confidence="medium",
    lost_share=0.06,
    where=(Where("train.py", 88, "evaluate(model)"),),
)

LOG = (
    "loading 1,281,167 images from /data/imagenet",
    "epoch 1: train loss 3.112, val acc 0.412",
    "epoch 2:  26%|██▌       | 334/1284 [01:29<04:12,  3.73it/s, loss=2.31]",
)


SETTINGS = (
    SettingGroup(
        "loader train.py:41",
        "ImageFolder, feeds training",
        None,
        (
            SettingSeen("num_workers", 2, suggested=7, gain="2.1 to 2.7x", changes_results=True),
            SettingSeen("batch_size", 64, changes_results=True),
            SettingSeen("prefetch_factor", 2),
            SettingSeen("pin_memory", False, suggested=True),
            SettingSeen("persistent_workers", False, changes_results=True),
        ),
    ),
    SettingGroup(
        "loader train.py:58",
        "Streamed",
        "train.py:58",
        (
            SettingSeen(
                "num_workers",
                0,
                changes_results=True,
                cannot="an IterableDataset would deliver every sample once per worker",
            ),
            SettingSeen(
                "batch_size",
                None,
                changes_results=True,
                cannot="its batches come from a sampler of the script's own",
            ),
            SettingSeen("prefetch_factor", None),
            SettingSeen("pin_memory", False),
            SettingSeen("persistent_workers", False, changes_results=True),
        ),
    ),
    SettingGroup(
        "this run",
        "",
        None,
        (
            SettingSeen("non_blocking", None, known=False),
            SettingSeen("tf32", False, changes_results=True),
            SettingSeen("bf16", True, changes_results=True, cannot="the script does it itself"),
            SettingSeen("cudnn_benchmark", False, changes_results=True),
            SettingSeen("compile", False, changes_results=True),
            SettingSeen("fused", False, changes_results=True),
            SettingSeen("expandable_segments", None, known=False),
            SettingSeen("omp_threads", 16, changes_results=True),
        ),
    ),
)


def axis_of(view: View, end_ns: int = NOW) -> Axis:
    return Axis(end_ns - int(view.window_s * 1e9), end_ns, view.columns)


def wave(
    columns: int, low: float, high: float, period: float, shift: float = 0.0
) -> tuple[float, ...]:
    return tuple(
        low + (high - low) * (0.5 + 0.5 * math.sin(2 * math.pi * (i + shift) / period))
        for i in range(columns)
    )


def starved(view: View, tick: int = 0) -> Snapshot:
    n = view.columns
    util = wave(n, 22, 44, 9, tick)
    wait = wave(n, 0.52, 0.74, 9, tick + 4)
    return Snapshot(
        run=RunView("3f2a", "train.py", device="GPU 0 H200"),
        state="live",
        axis=axis_of(view),
        elapsed_s=252 + tick / 2,
        diagnosis=Diagnosis("verdict", False, STARVED, (EVALUATION,)),
        chart=Chart(
            "GPU 0 H200 utilisation",
            "gpu",
            Series("util", util, tuple(min(100.0, u + 31) for u in util)),
            Series("SM active", tuple(u * 0.6 for u in util)),
            (
                f"{util[-1]:.0f}% now",
                "34% mean",
                "shape periodic, 268 ms (step)",
                "SM active 20%",
                "228 of 700 W",
                "41 C",
            ),
        ),
        lanes=(
            Lane("data_wait", 0.64, wait),
            Lane("h2d", 0.02, tuple(0.02 for _ in wait)),
            Lane("forward", 0.11, tuple((1 - w) * 0.32 for w in wait)),
            Lane("backward", 0.17, tuple((1 - w) * 0.5 for w in wait)),
            Lane("optimizer", 0.04, tuple((1 - w) * 0.12 for w in wait)),
            Lane("checkpoint", 0.01, tuple(0.9 if i == n // 4 else 0.0 for i in range(n))),
            Lane("other", 0.01, tuple(0.01 for _ in wait)),
        ),
        marks=(Mark("checkpoint", n // 4), Mark("eval", n // 2)),
        step=StepView(
            1284 + tick,
            5000,
            223,
            268.0,
            291.0,
            (
                ("data_wait", 171.2),
                ("h2d", 5.4),
                ("forward", 29.1),
                ("backward", 46.0),
                ("optimizer", 10.6),
                ("checkpoint", 2.9),
                ("other", 2.1),
            ),
            238.8,
        ),
        memory=MemoryView(
            "cuda-allocator", int(41.2 * GIB), int(58 * GIB), int(61.3 * GIB), int(139.8 * GIB)
        ),
        loader=LoaderView(
            2, "train.py:41", (0.99, 0.98), 0, 4, (0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0)
        ),
        host=HostView(4.1, 16, 16.0, 9.4 * (1 << 20)),
        log=(*LOG[:-1], LOG[-1].replace("334", str(334 + tick))),
        settings=SETTINGS,
    )


def healthy(view: View) -> Snapshot:
    n = view.columns
    util = wave(n, 95, 99, 13)
    return replace(
        starved(view),
        diagnosis=Diagnosis(
            "healthy", True, note="The GPU is busy 97% of the time and no wait costs 5% of a step."
        ),
        chart=Chart(
            "GPU 0 H200 utilisation",
            "gpu",
            Series("util", util, util),
            Series("SM active", tuple(u * 0.88 for u in util)),
            ("98% now", "97% mean", "SM active 85%", "688 of 700 W", "63 C"),
        ),
        lanes=(
            Lane("forward", 0.31, (0.31,) * n),
            Lane("backward", 0.52, (0.52,) * n),
            Lane("optimizer", 0.09, (0.09,) * n),
            Lane("gpu_wait", 0.07, (0.07,) * n),
        ),
        marks=(),
        step=StepView(
            9120,
            None,
            610,
            98.2,
            99.9,
            (("forward", 30.6), ("backward", 51.2), ("optimizer", 8.9), ("gpu_wait", 7.0)),
            652.0,
        ),
        loader=LoaderView(
            8, "train.py:41", (0.5, 0.4, 0.6, 0.5, 0.45, 0.5, 0.4, 0.55), 14, 16, (13, 14) * 6
        ),
        host=HostView(5.2, 16, 16.0, 96 * (1 << 20)),
    )


def too_early(view: View) -> Snapshot:
    n = view.columns
    gap = (None,) * (n - 12)
    return replace(
        starved(view),
        elapsed_s=9.0,
        diagnosis=Diagnosis("too-early", None, note="12 of 20 steps seen."),
        chart=Chart(
            "GPU 0 H200 utilisation",
            "gpu",
            Series("util", (*gap, *wave(12, 20, 80, 6))),
            None,
            ("61% now",),
        ),
        lanes=(
            Lane("forward", 0.4, (*gap, *(0.4,) * 12)),
            Lane("backward", 0.6, (*gap, *(0.6,) * 12)),
        ),
        marks=(),
        step=StepView(12, None, 12, 702.0, None, (("forward", 280.8), ("backward", 421.2)), None),
        loader=None,
        log=LOG[:1],
    )


def no_gpu(view: View) -> Snapshot:
    n = view.columns
    busy = wave(n, 48, 53, 7)
    loading = replace(
        STARVED,
        refined="main-process-loading",
        summary="The training process prepares every batch itself: 58% of each step, 61 of 105 ms.",
        evidence=(
            Evidence("data wait", 61.2, "ms"),
            Evidence("num_workers", 0),
            Evidence("cores allowed", 2),
        ),
        where=(Where("demos/starved.py", 57, "DataLoader(Pictures(), batch_size=32)"),),
        advice=(Advice("Load in worker processes: num_workers=1.", {"num_workers": 1}),),
        gain=Gain(2.4, (1.3, 1.7), "rate model on 2 cores shared with training"),
    )
    return replace(
        starved(view),
        run=RunView("a81c", "starved.py"),
        elapsed_s=41.0,
        diagnosis=Diagnosis("verdict", False, loading),
        chart=Chart(
            "CPU of this run",
            "cpu",
            Series("cpu", busy, busy),
            None,
            ("1.0 of 2 cores now", "50% mean"),
        ),
        lanes=(
            Lane("data_wait", 0.58, wave(n, 0.55, 0.61, 9)),
            Lane("forward", 0.14, (0.14,) * n),
            Lane("backward", 0.24, (0.24,) * n),
            Lane("optimizer", 0.03, (0.03,) * n),
        ),
        marks=(),
        step=StepView(
            371,
            None,
            371,
            105.3,
            118.0,
            (
                ("data_wait", 61.2),
                ("forward", 14.9),
                ("backward", 25.1),
                ("optimizer", 3.4),
                ("other", 0.7),
            ),
            303.9,
        ),
        memory=MemoryView("rss-anon", int(0.41 * GIB), None, None, int(7.8 * GIB)),
        loader=LoaderView(0, "starved.py:57"),
        host=HostView(1.1, 2, 2.0),
        notes=("no NVIDIA driver: the CPU is the device here",),
        log=("step 350 loss 1.912", "step 360 loss 1.887", "step 370 loss 1.871"),
    )


def ended(view: View) -> Snapshot:
    return replace(starved(view), state="ended", exit_code=0, exit_text="exit code 0")


def failed(view: View) -> Snapshot:
    return replace(
        starved(view),
        state="ended",
        exit_code=139,
        exit_text="killed by SIGSEGV (139)",
        log=(*LOG, "Fatal Python error: Segmentation fault"),
    )


def abstained(view: View) -> Snapshot:
    return replace(
        healthy(view),
        diagnosis=Diagnosis(
            "abstained",
            None,
            note="Two causes could not be judged, so this run is not called healthy.",
            abstained=(
                Abstention("host-sync-stall", "no GPU event pairs"),
                Abstention("launch-bound", "no GPU event pairs"),
            ),
        ),
    )


def replay(view: View) -> Snapshot:
    return replace(
        starved(view),
        state="replay",
        elapsed_s=130.0,
        replay=ReplayView(130.0, 300.0, 4.0, True),
        log_note="as it was at the end: lines carry no time",
    )


def starting(view: View) -> Snapshot:
    return Snapshot(
        run=RunView("3f2a", "train.py"), state="starting", axis=axis_of(view), elapsed_s=2.0
    )


def leaking(view: View) -> Snapshot:
    n = view.columns
    leak = Finding(
        id="memory-leak",
        summary="GPU memory held after each step grows by 44 MB a step: 40.7 GB over 948 steps.",
        severity="critical",
        confidence="high",
        lost_share=0.0,
        evidence=(
            Evidence("growth of the low-water marks", 44_000.0, "kB a step"),
            Evidence("time until memory runs out", 48.2, "s"),
            Evidence("low-water mark at its start", 9_790.0, "MB"),
        ),
        where_missing="allocations are not recorded by line in this release",
        advice=(Advice("Store loss.item(), or clear the list."),),
    )
    held = tuple(GIB * 60 * i / n if i > n // 5 else None for i in range(n))
    return replace(
        healthy(view),
        diagnosis=Diagnosis("verdict", False, leak),
        memory=MemoryView(
            "cuda-allocator", 58 * GIB, 60 * GIB, 60 * GIB, int(139.8 * GIB), history=held
        ),
    )


STATES = {
    "leaking": leaking,
    "starved": starved,
    "healthy": healthy,
    "too_early": too_early,
    "no_gpu": no_gpu,
    "ended": ended,
    "failed": failed,
    "abstained": abstained,
    "replay": replay,
    "starting": starting,
}


class FakeSource:
    """Gives the same snapshot for the same view, or the next tick of a changing one."""

    def __init__(self, state: str, *, changing: bool = False) -> None:
        self.make = STATES[state]
        self.changing = changing
        self.reads = 0
        self.closing = threading.Event()

    def read(self, view: View) -> Snapshot:
        self.reads += 1
        snapshot = starved(view, self.reads) if self.changing else self.make(view)
        return replace(snapshot, page=view.page)

    def close(self) -> None:
        self.closing.set()

    @property
    def closed(self) -> bool:
        return self.closing.is_set()
