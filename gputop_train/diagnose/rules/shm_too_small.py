"""``shm-too-small``: /dev/shm, through which workers hand over batches, is nearly full.

Looks for: /dev/shm >= 90% used (pytorch #5040) in at least two samples while a loader with workers
feeds the loop. When it is full a worker dies of a bus error, in the middle of a run.
Differential: no workers; enough room.
Fix: a larger /dev/shm (containers give 64 MB), fewer batches in flight. Gain: none in time.
"""

from __future__ import annotations

from gputop_train.diagnose.loading_advice import loader_at, loader_line
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    percent,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding

ID = "shm-too-small"
FULL = 0.90
MIN_SAMPLES = 2


def judge(window: Window) -> Judgement:
    """Judge one window."""
    loaders = [ld for ld in window.feeding_loaders if ld.num_workers]
    if not loaders:
        return RuledOut(ID, "no worker hands batches over in /dev/shm")
    seen = [(h.shm_used, h.shm_total) for h in window.host if h.shm_used is not None]
    known = [(used, total) for used, total in seen if used is not None and total]
    if not known:
        return Abstention(ID, "use of /dev/shm")
    full = [(used, total) for used, total in known if used >= FULL * total]
    if len(full) < MIN_SAMPLES:
        most = max(used / total for used, total in known)
        return RuledOut(ID, f"/dev/shm was at most {percent(most)} full")
    used, total = max(full)
    loader = loaders[0]
    depth = loader.prefetch_factor or 2
    flight = loader.num_workers * depth
    wanted = max(1, round(4 * used / 1e9))
    died = window.exit_code not in (None, 0)
    fewer = max(1, loader.num_workers // 2)
    steps = [
        Advice(
            f"Give it more room: /dev/shm has {total / 1e6:,.0f} MB, {used / 1e6:,.0f} in use for "
            f"up to {flight} batches in flight{loader_at(loader)}. docker run --shm-size={wanted}g "
            "(or --ipc=host), a memory-backed emptyDir on Kubernetes."
        )
    ]
    if fewer < loader.num_workers:
        steps.append(
            Advice(
                f"If it cannot be larger: num_workers {loader.num_workers} -> {fewer} leaves "
                f"{fewer * depth} batches in flight instead of {flight}.",
                {"num_workers": fewer},
            )
        )
    return Finding(
        id=ID,
        summary=(
            f"/dev/shm is {percent(used / total)} full ({used / 1e6:,.0f} of "
            f"{total / 1e6:,.0f} MB)"
            + (
                ": a worker that finds no room dies of a bus error."
                if not died
                else ", and the run ended with an error: look for a bus error of a worker above."
            )
        ),
        severity="warn",
        confidence="medium",
        lost_share=0.0,
        evidence=(
            amount("/dev/shm in use", used),
            amount("size of /dev/shm", total),
            Evidence("samples in which it was nearly full", len(full), f"of {len(known)}"),
        ),
        where=(loader_line(loader),),
        advice=tuple(steps),
        gain=None,
    )


PAGE = Page(
    number=55,
    title="/dev/shm is nearly full",
    meaning=(
        "Workers put batches into shared memory. Containers often give it 64 MB; when it is full a "
        "worker is killed by a bus error, and the traceback only says that it exited."
    ),
    looks_at=("use and size of /dev/shm", "workers and prefetch_factor of the loader"),
    thresholds=(
        Threshold(
            "/dev/shm in use",
            f">= {percent(FULL)} in >= {MIN_SAMPLES} samples",
            "pytorch #5040; how many is proposed",
        ),
    ),
    mistaken_for=("host-memory-pressure: the machine's memory, not the mount's size",),
    mend=("--shm-size, --ipc=host, a memory-backed emptyDir", "fewer batches in flight"),
    test="df -h /dev/shm while it runs",
    gain="none in time: it keeps the run alive",
)
RULE = Rule(ID, 103, judge, probe="df -h /dev/shm while it runs", page=PAGE)
