"""``checkpoint-stall``: training stops while a checkpoint is written.

Looks for: save intervals with sum / wall >= 3% (warn) and >= 10% (critical) (catalogue 25,
proposed; ICSE'24 reports checkpointing in 16.43% of low-utilisation issues and 1.02 to 1.52x from
writing in the background), seen at least twice so that a single final save is not a pattern. On a
GPU the idle time in them counts where events or the steps beside tell it.
Differential: an evaluation at the same boundary has its own label; a save in another thread leaves
no interval on the training thread; arrays written by numpy are previews (``logging-stall``).
Fix: rarer; asynchronous; no optimizer state in "best" copies. Probe: skip the next save.
Gain: (nT + c) / (nT + c').
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.advice import checkpoint_advice, periodic, periodic_gain
from gputop_train.diagnose.pausing import pause_cost
from gputop_train.diagnose.recurring import accompanies, recurring
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    hook_missing,
    name,
    occurrences,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.rules.logging_stall import MIN_SAMPLES, MOSTLY, previews
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Evidence, Finding, Site, Where

ID = "checkpoint-stall"
WARN, CRITICAL = 0.03, 0.10


def judge(window: Window) -> Judgement:
    """Judge one window."""
    missing = hook_missing(window, "save")
    if missing:
        return Abstention(ID, missing)
    host = account(window).shares.get("checkpoint", 0.0)
    around: tuple[Site, ...] = ()
    if host < WARN and accompanies(window, "other", "checkpoint"):
        around = _around(window)
    if host < WARN and not around:
        return RuledOut(ID, f"saving takes {percent(host)} of the time")
    written = previews(window)
    if written:
        return RuledOut(ID, f"what {name(where(written[0]))} writes is no checkpoint of the model")
    lost, _ = pause_cost(window, "checkpoint")
    # The training thread makes no step meanwhile: without a measure of the GPU, all of it.
    share = host if lost is None else lost
    if accompanies(window, "other", "checkpoint"):
        whole = recurring(window, ("checkpoint",), ("checkpoint", "other"))
        share = max(share, whole.share if whole is not None else 0.0)
    if share < WARN:
        return RuledOut(
            ID, f"saving takes {percent(host)} of the time, the GPU is idle for {percent(share)}"
        )
    pattern = periodic(window, "checkpoint", share)
    once = pattern.count < 2
    places = tuple(dict.fromkeys((*(where(s) for s in around), *_places(window))))[:3]
    size = _size(window, pattern.count)
    return Finding(
        id=ID,
        summary=pattern.summary("Saving checkpoints"),
        severity=(
            "info" if once else severity(share, window.totals.steps, warn=WARN, critical=CRITICAL)
        ),
        confidence="medium" if once or lost is None else "high",
        lost_share=share,
        evidence=(*pattern.evidence("saving", "save", "saves"), *_size_row(size)),
        where=places,
        where_missing=None if places else "no line was recorded for the save",
        advice=checkpoint_advice(pattern, places, size),
        gain=periodic_gain(pattern, "saving"),
    )


def _around(window: Window) -> tuple[Site, ...]:
    """Lines of host code in the functions that save, such as packing what ``torch.save`` made.

    Empty unless they hold most of what the sampler saw of host code: an evaluation's metrics may
    come at the same boundary. The function with the training loop is no sign.
    """
    mine = [s for s in window.sites if s.rank == window.rank]
    loops = {(s.file, s.func) for s in mine if s.label in ("backward", "optimizer")}
    saving = {(s.file, s.func) for s in mine if s.kind == "save"} - loops
    sampled = [s for s in mine if s.kind == "sample" and s.label in ("host_compute", "other")]
    there = [s for s in sampled if (s.file, s.func) in saving]
    if sum(s.count for s in there) < max(MIN_SAMPLES, MOSTLY * sum(s.count for s in sampled)):
        return ()
    return tuple(top_sites(there, limit=1, by_count=True))


def _places(window: Window) -> tuple[Where, ...]:
    ids = {i.site_id for i in occurrences(window, "checkpoint") if i.site_id}
    mine = [s for s in window.sites if s.rank == window.rank]
    saves = [s for s in mine if s.kind == "save"]
    named = [s for s in saves if s.id in ids] or saves
    if named:
        return tuple(where(s) for s in top_sites(named))
    sampled = [s for s in mine if s.kind == "sample" and s.label == "checkpoint"]
    return tuple(where(s) for s in top_sites(sampled, by_count=True))


def _size(window: Window, count: int) -> float | None:
    """Bytes of one of ``count`` pauses, mean: best and last, written by two calls, are one."""
    written = sum(i.bytes or 0 for i in occurrences(window, "checkpoint"))
    return written / count if written else None


def _size_row(size: float | None) -> tuple[Evidence, ...]:
    return () if size is None else (amount("one save, size", size),)


RULE = Rule(
    ID,
    10,
    judge,
    probe="skip the next save",
    page=Page(
        number=25,
        title="Training stops while a checkpoint is written",
        meaning=(
            "The training thread writes a checkpoint itself, so no step runs until it is on disk. "
            "A person sees the GPU at 0% for seconds, at a regular distance."
        ),
        looks_at=(
            "time inside `torch.save`, safetensors, distributed checkpoints, Accelerate, pickle",
            "on a GPU: idle time between events around the save, else steps with a save beside "
            "those without",
            "bytes written, and the steps from one save to the next",
        ),
        thresholds=(
            Threshold("time lost to saves, warn", f">= {percent(WARN)} of wall", "proposed"),
            Threshold(
                "time lost to saves, critical", f">= {percent(CRITICAL)} of wall", "proposed"
            ),
            Threshold("saves", ">= 2; a single one is information", "proposed"),
        ),
        mistaken_for=(
            "`eval-stall`: an evaluation at the same boundary has a label of its own",
            "an asynchronous save: the thread that writes is not the training thread",
            "`logging-stall`: sample grids and arrays that numpy writes are no checkpoint",
            "a save at the end of a run: seen once, it is information",
        ),
        mend=(
            "Save less often.",
            "Write in the background: `torch.distributed.checkpoint.async_save`, or a copy of the "
            "state_dict saved by a thread.",
            "Leave the optimizer's state out of copies nobody resumes from.",
        ),
        test="Skip the next save and compare the step behind it",
        gain=(
            "ceiling `T / (T - E)`; forecast `(nT + c) / (nT + c')` for a save of `c` every `n` "
            "steps. 1.02 to 1.52x was measured from saving in the background (ICSE'24)"
        ),
    ),
)
