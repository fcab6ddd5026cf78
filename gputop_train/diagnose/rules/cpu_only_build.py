"""``cpu-only-build``: there is an NVIDIA GPU, and this torch was built without CUDA.

Looks for: a card that NVML shows to this run and that nobody uses, while ``torch.version.cuda`` is
``None`` (catalogue 52). Configuration alone never fires a rule: the card must read idle.
Differential: no card; a card another program uses; a build for another accelerator.
Fix: install the CUDA wheel. Probe: ``torch.cuda.is_available()`` in that environment.
Gain: not forecast.
"""

from __future__ import annotations

from collections.abc import Mapping

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.rules.cpu_training import FLAT_ZERO, FLAT_ZERO_PEAK, model_lines
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding

ID = "cpu-only-build"
#: A card on which nobody holds more than this is free (``idle-gpu``).
FREE_BYTES = 1 << 30


def judge(window: Window) -> Judgement:
    """Judge one window."""
    cuda = window.probe.get("cuda")
    built = cuda.get("built") if isinstance(cuda, Mapping) else None
    if built is True:
        return RuledOut(ID, "this torch can use CUDA")
    if built is None:
        return Abstention(ID, "how torch was built")
    cards = window.cards or window.gpu[-1:]
    if not cards:
        return RuledOut(ID, "no NVIDIA GPU is visible to this run")
    if not str(window.probe.get("param_device", "cpu")).startswith("cpu"):
        return RuledOut(ID, "the model trains on another accelerator")
    told = [c for c in cards if c.memory_used is not None or c.foreign_processes is not None]
    if not told:
        return Abstention(ID, "memory in use on the GPUs, and the processes on them")
    free = [
        card
        for card in told
        if not card.foreign_processes
        and (card.memory_used is None or card.memory_used < FREE_BYTES)
    ]
    if not free:
        return RuledOut(ID, "every GPU is taken by another program")
    util = [s.util for s in window.util]
    if util and (sum(util) / len(util) > FLAT_ZERO or max(util) > FLAT_ZERO_PEAK):
        return RuledOut(ID, f"the GPU is in use ({sum(util) / len(util):.0f}% on average)")
    acc = account(window)
    compute = sum(acc.shares.get(label, 0.0) for label in ("forward", "backward", "optimizer"))
    places = model_lines(window)
    version = str(window.probe.get("torch") or "of an unknown version")
    return Finding(
        id=ID,
        summary=(
            f"This torch ({version}) was built without CUDA while {len(free)} NVIDIA "
            f"GPU{'s stand' if len(free) > 1 else ' stands'} idle: {percent(compute)} of the time "
            "is computation a GPU could do."
        ),
        severity=severity(max(compute, 0.1), window.totals.steps),
        confidence="high" if util else "medium",
        lost_share=compute,
        evidence=(
            Evidence("torch.version.cuda", "None"),
            number("GPUs that nobody uses", len(free)),
            number("forward, backward and optimizer on the CPU", compute, "of wall"),
        ),
        where=places,
        where_missing=None if places else "it is the installation, not a line of the script",
        advice=(
            Advice(
                f"Replace torch {version} (torch.version.cuda is None now) by its CUDA wheel in "
                f"this environment ({window.run.get('python') or 'python'}): pip uninstall torch, "
                "then pip install torch from the CUDA index that pytorch.org names for your driver."
            ),
            Advice(
                'Then move the model: model.to("cuda") and each batch too. If '
                "torch.cuda.is_available() stays False, gputop-train doctor says what the "
                f"{len(free)} GPU{'s' if len(free) > 1 else ''} lack{'' if len(free) > 1 else 's'}."
            ),
        ),
    )


RULE = Rule(
    ID,
    6,
    judge,
    probe="torch.cuda.is_available()",
    page=Page(
        number=52,
        title="This torch cannot use the GPU that is there",
        meaning=(
            "The machine has an NVIDIA GPU, and the torch of this environment was built without "
            "CUDA. A person sees a flat 0% and `torch.cuda.is_available()` False."
        ),
        looks_at=(
            "`torch.version.cuda`",
            "the cards NVML shows to this run, who uses them, and their utilisation",
        ),
        thresholds=(
            Threshold("a free card", "no other process, < 1 GiB held", "proposed"),
            Threshold("GPU utilisation, mean", f"<= {FLAT_ZERO:.0f}%", "proposed"),
        ),
        mistaken_for=(
            "`cpu-training`: torch could use the GPU, the model was not moved",
            "a card that another program uses",
            "a build for another accelerator",
        ),
        mend=("Install the CUDA wheel of the same version.", "Move the model and every batch."),
        test="`torch.cuda.is_available()` in that environment",
        gain="not forecast",
    ),
)
