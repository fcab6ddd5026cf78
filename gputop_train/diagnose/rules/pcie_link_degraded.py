"""``pcie-link-degraded``: the card's PCIe link is narrower or slower than card and slot allow.

Looks for: width or generation below its maximum while the card is loaded (utilisation >= 50% around
the reading, or copies that cost 10%), for >= 10 s and in nine of ten such readings (catalogue 15:
width < max while busy for >= 10 s; proposed). NVML's maximum is that of card and slot together.
Replay counters (KempnerPulse: > 0/s) are not read.
Differential: an idle card turns its link down to generation 1 by itself; a dip is no fault.
Fix: reseat, slot, riser, BIOS. Probe: a pinned copy, timed. Gain: the ratio of the links, on the
time of copies alone.
"""

from __future__ import annotations

from gputop_train.diagnose.cards import LOADED, loaded, span_s
from gputop_train.diagnose.copies import copy_cost, link_rate
from gputop_train.diagnose.rules.base import (
    INFO,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    ceiling,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, GpuSample

ID = "pcie-link-degraded"
MIN_S, MOST = 10.0, 0.90


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    told = [g for g in window.gpu if _rates(g) is not None]
    if not told:
        return Abstention(ID, window.missing.get("nvml", "generation and width of the PCIe link"))
    cost = copy_cost(window)
    copies = cost is not None and cost.lost >= WARN
    busy = told if copies else [g for g in loaded(window) if _rates(g) is not None]
    if span_s(busy) < MIN_S:
        return RuledOut(
            ID, "the card was loaded too briefly; at rest it turns its link down itself"
        )
    slow = [g for g in busy if (rates := _rates(g)) is not None and rates[0] < rates[1]]
    if len(slow) < MOST * len(busy):
        return RuledOut(ID, "under load the link ran as wide and as fast as card and slot allow")
    return _finding(window, slow, cost.lost if cost is not None else None)


def _rates(sample: GpuSample) -> tuple[float, float] | None:
    """Bytes/s of the link now and at its best."""
    now, best = link_rate(sample), link_rate(sample, best=True)
    return None if now is None or best is None else (now, best)


def _finding(window: Window, slow: list[GpuSample], copies: float | None) -> Finding:
    last = slow[-1]
    now, best = _rates(last) or (1.0, 1.0)
    part = 1 - now / best
    lost = part * copies if copies is not None and copies * part >= INFO else 0.0
    is_now = f"generation {last.pcie_gen} x{last.pcie_width}"
    could = f"generation {last.pcie_gen_max} x{last.pcie_width_max}"
    return Finding(
        id=ID,
        summary=(
            f"The card's PCIe link runs at {is_now} under load, where card and slot allow {could}: "
            f"{now / 1e9:.3g} GB/s instead of {best / 1e9:.3g}."
        ),
        severity=severity(lost, window.totals.steps),
        confidence="high" if last.pcie_width != last.pcie_width_max else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                Evidence("link under load", is_now),
                Evidence("link at its best", could),
                number("seen so for", span_s(slow), "s"),
                number("copies to the GPU cost", copies, "of wall"),
            )
            if row.value is not None
        ),
        where_missing="it is the machine, not the script",
        advice=(
            Advice(
                f"Let whoever runs the machine look at the card's seat, slot, riser and BIOS: x"
                f"{last.pcie_width} of x{last.pcie_width_max} lanes, generation {last.pcie_gen} of "
                f"{last.pcie_gen_max} (nvidia-smi -q shows both). Another card meanwhile."
            ),
            Advice(
                f"It only lengthens copies, which cost {percent(copies)} of the time here."
                if copies is not None
                else "It only lengthens copies; what those cost was not measured here."
            ),
        ),
        gain=Gain(
            ceiling(lost) if lost else None,
            None,
            f"copies alone: E (1 - {now / 1e9:.3g} / {best / 1e9:.3g})",
        ),
    )


RULE = Rule(
    ID,
    121,
    judge,
    probe="time a copy of 256 MB from pinned memory",
    page=Page(
        number=15,
        title="A PCIe link below its rate",
        meaning=(
            "The card sits on fewer lanes, or an older generation, than it and its slot can have: "
            "a bad seat, a riser, a setting. Copies take longer by as much, nothing else does."
        ),
        looks_at=(
            "generation and width of the link, now and at most",
            "utilisation around each reading: only loaded ones count",
            "what copies cost",
        ),
        thresholds=(
            Threshold(
                "link below its maximum",
                f"in >= {percent(MOST)} of loaded readings, over >= {MIN_S:g} s",
                "proposed",
            ),
            Threshold(
                "loaded",
                f"utilisation >= {LOADED:g}%, or copies cost >= {percent(WARN)}",
                "proposed",
            ),
        ),
        mistaken_for=(
            "an idle card, which turns its link down by itself",
            "a slot that has no more: the maximum is that of card and slot together",
        ),
        mend=("seat, slot, riser, BIOS", "another card"),
        test="time a copy of 256 MB from pinned memory",
        gain="E_h2d (1 - rate / best rate)",
    ),
)
