"""``dataparallel-used``: ``nn.DataParallel`` over several GPUs in one process.

Looks for: DataParallel having copied the model to more than one GPU in this run (catalogue 42;
kineto's plugin warns of the same).
Differential: with one device it replicates nothing, and is not seen.
Fix: DistributedDataParallel by torchrun. Probe: the same batch with DDP. Gain: none forecast: what
one thread loses by serving all GPUs shows as launch idle on each.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    number,
)
from gputop_train.diagnose.told import part
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Gain

ID = "dataparallel-used"


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    used = part(window.probe, "flags").get("data_parallel")
    if used is None:
        return Abstention(ID, "whether nn.DataParallel is used")
    if not used:
        return RuledOut(ID, "nn.DataParallel copied no model")
    acc = account(window)
    sizes = [ld.batch_size for ld in window.feeding_loaders if ld.batch_size]
    batch = f"; batch_size={sizes[0]} becomes that of all ranks together" if sizes else ""
    feeding = window.feeding_loaders
    workers = f"{feeding[0].num_workers} workers" if feeding else "workers"
    return Finding(
        id=ID,
        summary=(
            "nn.DataParallel copies the model to every GPU in each forward, and one Python thread "
            "launches the work of all of them."
        ),
        severity="warn",
        confidence="high",
        lost_share=0.0,
        evidence=tuple(
            row
            for row in (
                number("forward, host time", acc.shares.get("forward"), "of wall"),
                number("GPU utilisation of the first card, mean", acc.util_mean, "%"),
                number("queue found empty at a phase edge", acc.dry, "of edges"),
            )
            if row.value is not None
        ),
        where_missing="where the model was wrapped is not recorded",
        advice=(
            Advice(
                "nn.DataParallel(model) -> nn.parallel.DistributedDataParallel(model.to(rank), "
                f"device_ids=[rank]), one process per GPU by torchrun{batch}."
            ),
            Advice(
                f"Give the loader a DistributedSampler and divide its {workers}, which feed all "
                "GPUs now, by the ranks. If samples/s are no better than on one GPU alone, stay "
                "on one."
            ),
        ),
        gain=Gain(None, None, "what one thread loses by serving all GPUs is not measured apart"),
    )


RULE = Rule(
    ID,
    56,
    judge,
    probe="the same global batch with DistributedDataParallel",
    page=Page(
        number=42,
        title="nn.DataParallel",
        meaning=(
            "One process drives several GPUs: it copies the model to each in every forward, "
            "gathers the outputs on the first, and its one thread launches everything."
        ),
        looks_at=("DataParallel's copying of the model, which happens with two GPUs or more",),
        thresholds=(Threshold("GPUs copied to", "> 1", "kineto's plugin (tb_plugin)"),),
        mistaken_for=("DataParallel around one device, which copies nothing",),
        mend=("DistributedDataParallel, one process per GPU, by torchrun",),
        test="the same global batch with DistributedDataParallel",
        gain="none forecast",
    ),
)
