"""``pcie-bandwidth-bound``: copies to the GPU use up the PCIe link.

Looks for: mean received traffic >= 70% of what the link carries (catalogue 16, proposed; gpuprof
>= 20 GB/s peak), in at least half of the readings too, with this script's copies making up half of
it. NVML's own counter is a snapshot of 20 ms; GPM's is a mean, and is taken where there is one.
Differential: single snapshots; traffic that is not the script's copies (NCCL over PCIe, another
program); copies that are slow for being pageable.
Fix: send fewer bytes. Probe: halve the bytes of a batch. Gain: what the GPU waits for copies.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.cards import mean
from gputop_train.diagnose.copies import MOSTLY, best_link, copy_cost, copy_sites, costly
from gputop_train.diagnose.rules.base import (
    INFO,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    ms,
    name,
    number,
    percent,
    where,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Gain

ID = "pcie-bandwidth-bound"
FULL, SUSTAINED, OURS = 0.70, 0.50, 0.50
MIN_READINGS = 10
MIB = 1 << 20


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    link = best_link(window)
    if link is None:
        return Abstention(ID, "generation and width of the PCIe link")
    rates = _received(window)
    if len(rates) < MIN_READINGS:
        return Abstention(ID, "PCIe traffic")
    full = (mean(rates) or 0.0) / link
    sustained = sum(1 for r in rates if r >= FULL * link) / len(rates)
    if full < FULL or sustained < SUSTAINED:
        return RuledOut(ID, f"{percent(full)} of the link is used on average")
    cost = copy_cost(window)
    step_ms = account(window).step_ms
    if cost is None or cost.bytes_per_step is None or not step_ms:
        return Abstention(ID, "whether the traffic is of this script's copies")
    ours = cost.bytes_per_step / (step_ms / 1e3) / (full * link)
    if ours < OURS:
        return RuledOut(ID, f"the script's copies are only {percent(ours)} of the traffic")
    if cost.pageable is not None and cost.pageable >= MOSTLY:
        return RuledOut(ID, "the copies are pageable: that comes first")
    sites = costly(copy_sites(window))
    line = f" ({name(where(sites[0]))})" if sites else ""
    size, half = amount("", cost.bytes_per_step), amount("", cost.bytes_per_step / 2)
    least = cost.bytes_per_step / link * 1e3
    return Finding(
        id=ID,
        summary=(
            f"Copies use {percent(full)} of the PCIe link: {size.value} {size.unit} a step take "
            f"{ms(least)} of {ms(step_ms)} at the link's full rate."
        ),
        severity="warn" if max(cost.lost, _unexplained(window)) >= INFO else "info",
        confidence="medium",
        lost_share=0.0,  # what the GPU waits for copies is claimed by unoverlapped-h2d
        evidence=(
            number("received, mean", (mean(rates) or 0.0) / 1e9, "GB/s"),
            number("PCIe link, one direction", link / 1e9, "GB/s"),
            number("readings at the limit", sustained, "of readings"),
            number("of it this script's copies", min(1.0, ours), "of traffic"),
            amount("copied", cost.bytes_per_step, " a step"),
        ),
        where=tuple(where(s) for s in sites),
        where_missing=None if sites else "the copies were made where the probe takes no line",
        advice=(
            Advice(
                f"Send fewer bytes{line}: half of them (float16 in place of float32) are "
                f"{half.value} {half.unit} a step, {ms(least / 2)}; as uint8, {ms(least / 4)}. "
                "Convert on the GPU."
            ),
            Advice(
                f"Or keep on the GPU what of the {size.value} {size.unit} does not change from "
                "step to step, and augment there: then the data travels before it grows."
            ),
        ),
        gain=Gain(None, None, "T is at least bytes / link: it falls with the bytes"),
    )


def _received(window: Window) -> list[float]:
    """Bytes/s received: means by GPM, else snapshots of NVML's counter."""
    gpm = [g.pcie_rx_mib_per_s * MIB for g in window.gpm if g.pcie_rx_mib_per_s is not None]
    if len(gpm) >= MIN_READINGS:
        return gpm
    return [g.pcie_rx_bytes_per_s for g in window.gpu if g.pcie_rx_bytes_per_s is not None]


def _unexplained(window: Window) -> float:
    """GPU idle time without a cause: what a batch copied on a stream of its own is waited for."""
    return account(window).exposed.get("unattributed") or 0.0


RULE = Rule(
    ID,
    122,
    judge,
    probe="halve the bytes of a batch",
    page=Page(
        number=16,
        title="The PCIe link is the limit",
        meaning=(
            "Batches use up what the link between host and GPU carries. Neither more workers nor "
            "pinned memory makes it wider: only fewer bytes help."
        ),
        looks_at=(
            "received PCIe traffic by GPM, else NVML's snapshots of 20 ms",
            "generation and width of the link",
            "bytes this script's lines copied",
        ),
        thresholds=(
            Threshold(
                "mean traffic", f">= {percent(FULL)} of the link", "proposed; gpuprof: >= 20 GB/s"
            ),
            Threshold("readings at it", f">= {percent(SUSTAINED)}", "proposed"),
            Threshold("of it the script's copies", f">= {percent(OURS)}", "proposed"),
        ),
        mistaken_for=(
            "single snapshots of a counter that sees 20 ms",
            "NCCL over PCIe, or another program: not this script's copies",
            "pageable-h2d: slow for want of pinned memory",
        ),
        mend=(
            "a smaller dtype, converted on the GPU",
            "decode or augment on the GPU",
            "keep static data on the GPU",
        ),
        test="halve the bytes of a batch",
        gain="T >= bytes / link",
    ),
)
