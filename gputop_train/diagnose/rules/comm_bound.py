"""``comm-bound``: gradients take longer to exchange than backward can hide.

Looks for: exposed communication >= 10% of a step (kineto's plugin 10, gpuprof 20/40, practitioners
20; XProf collectives 3/15): DDP's communication less its overlap with backward, and blocking
collectives (catalogue 44). Of all ranks the *least* counts: what a rank waits beyond it is waiting
for another rank, and that is ``straggler-rank``.
Differential: communication hidden behind backward costs nothing; waiting for a slower rank; a
single process.
Fix: no_sync() in accumulation; larger batch per GPU; compressed gradients; buckets; the network.
Probe: no_sync() for 20 steps: what T falls by is exposed communication. Gain: T / (T - E).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.comm import modules, wait_shares, world_size
from gputop_train.diagnose.rules.base import (
    CRITICAL,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    ceiling,
    ms,
    name,
    number,
    percent,
    plain,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Where

ID = "comm-bound"
#: DDP communicates in so many iterations a step when every micro-batch does.
EACH = 1.5
#: DDP's bucket: gradients of less are one message, whose latency no smaller type shortens.
BUCKET = 25_000_000


def judge(window: Window) -> Judgement:
    """Judge one window."""
    world = world_size(window)
    if world < 2:
        return RuledOut(ID, "a single process has nobody to talk to")
    shares = wait_shares(window)
    if not shares:
        if modules(window.probe):
            return Abstention(ID, "enough iterations that DDP timed, of every module")
        return Abstention(ID, "communication times: DistributedDataParallel is not in use")
    lost = min(shares.values())
    if lost < WARN:
        return RuledOut(ID, f"{percent(lost)} of a step is communication that nothing hides")
    if len(shares) < 2:
        return Abstention(
            ID, f"the waits of the other ranks: {percent(lost)} may be waiting for a slow one"
        )
    return _finding(window, shares, lost, world)


def _finding(window: Window, shares: dict[int, float], lost: float, world: int) -> Finding:
    acc = account(window)
    told = modules(window.probe)
    buckets = [m.get("bucket_bytes") for m in told]
    sizes = [sum(b for b in row if isinstance(b, int)) for row in buckets if isinstance(row, list)]
    places = tuple(
        where(s)
        for s in top_sites(
            s for s in window.sites if s.kind == "backward" and s.rank == window.rank
        )
    )
    return Finding(
        id=ID,
        summary=(
            f"Exchanging gradients costs {percent(lost)} of every step that backward does not hide"
            f": {ms(acc.ms(lost))} of {ms(acc.step_ms or 0.0)}, on every one of {world} ranks."
        ),
        severity=severity(lost, window.totals.steps),
        confidence="high" if len(shares) == world else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                number("exposed communication, least of the ranks", lost, "of wall"),
                number("exposed communication, most of the ranks", max(shares.values()), "of wall"),
                number("ranks that told", len(shares)),
                amount("gradients", sum(sizes), " an exchange") if sum(sizes) else None,
                Evidence(
                    "backend", ", ".join(sorted({str(m.get("backend")) for m in told})) or None
                ),
                number("exchanges", _per_step(told), "a step"),
            )
            if row is not None and row.value is not None
        ),
        where=places,
        where_missing=None if places else "it happens inside backward, in C++",
        advice=_advice(window, told, sum(sizes), places),
        gain=_gain(told, lost),
    )


def _per_step(told: list[Mapping[str, Any]]) -> float | None:
    known = [m.get("per_step") for m in told]
    rates = [float(n) for n in known if isinstance(n, (int, float))]
    return max(rates, default=None)


def _gain(told: list[Mapping[str, Any]], lost: float) -> Gain:
    most = ceiling(lost)
    rate = _per_step(told)
    if rate is None or rate < EACH or most is None:
        return Gain(most, None, "T / (T - E)")
    left = lost / rate
    return Gain(
        most,
        (1 / (1 - lost + left), most),
        f"T / (T - E + E / k): k = {plain(rate)} exchanges a step become one",
    )


def _advice(
    window: Window, told: list[Mapping[str, Any]], size: int, places: tuple[Where, ...]
) -> tuple[Advice, ...]:
    line = f" ({name(places[0])})" if places else ""
    steps = []
    slow = [m for m in told if m.get("device") == "cuda" and m.get("backend") not in (None, "nccl")]
    if slow:
        steps.append(
            Advice(
                f'init_process_group("{slow[0].get("backend")}" -> "nccl"): gradients on the GPU '
                "now go through host memory."
            )
        )
    rate = _per_step(told)
    if rate is not None and rate >= EACH:
        steps.append(
            Advice(
                f"with model.no_sync(): around the first {plain(rate - 1)} of {plain(rate)} "
                f"backwards of a step{line}: gradients are exchanged {plain(rate)} times, once is "
                "enough."
            )
        )
    if any(m.get("find_unused_parameters") is True for m in told) and not any(
        m.get("unused_parameter_size") for m in told
    ):
        steps.append(
            Advice(
                "find_unused_parameters=True -> False: no unused parameter was found, and every "
                "step searches for them before it can begin to exchange."
            )
        )
    if size >= BUCKET and not any(m.get("comm_hook") for m in told):
        exchanged, half = amount("", size), amount("", size / 2)
        steps.append(
            Advice(
                "model.register_comm_hook(None, bf16_compress_hook): "
                f"{exchanged.value} {exchanged.unit} of gradients become {half.value} {half.unit}, "
                "rounded to 8 bits of mantissa: compare the loss."
            )
        )
    sizes = [ld.batch_size for ld in window.feeding_loaders if ld.batch_size]
    batch = (
        f"batch_size {sizes[0]} -> {2 * sizes[0]} per rank"
        if sizes
        else "A batch 2 times as large a rank"
    )
    sent = amount("", size)
    small = (
        f", and {sent.value} {sent.unit} cost latency rather than bytes" if size < BUCKET else ""
    )
    steps.append(
        Advice(
            f"{batch}, or accumulation under no_sync(): half as many exchanges a sample{small}. "
            "Either makes the global batch larger: revisit the learning rate."
        )
    )
    nccl = any(m.get("backend") == "nccl" for m in told)
    which = "NCCL_DEBUG=INFO" if nccl else "GLOO_SOCKET_IFNAME"
    does = "says which one is used" if nccl else "chooses the network interface"
    steps.append(
        Advice(
            f"If {sent.value} {sent.unit} a step still cost as much, look at the link: {which} "
            f"{does}."
        )
    )
    return tuple(steps[:3])


RULE = Rule(
    ID,
    55,
    judge,
    probe="no_sync() for 20 steps: what T falls by",
    page=Page(
        number=44,
        title="Bound by communication",
        meaning=(
            "Ranks exchange gradients during backward; what takes longer than backward holds every "
            "rank at its end. On a GPU the driver reads busy meanwhile, for NCCL's kernels wait."
        ),
        looks_at=(
            "DDP's own timing of communication and of its overlap with backward, of every rank",
            "blocking collectives of the script",
            "bucket sizes, backend, hook, find_unused_parameters",
        ),
        thresholds=(
            Threshold(
                "exposed communication, least of the ranks",
                f">= {percent(WARN)} warn, {percent(CRITICAL)} critical",
                "kineto's plugin 10; gpuprof 20/40; practitioners' articles 20",
            ),
            Threshold("exchanges a step", f">= {EACH:g}: no_sync() is advised", "proposed"),
        ),
        mistaken_for=(
            "straggler-rank: waiting for a slow rank, which the least of the ranks leaves out",
            "communication that backward hides: it costs nothing",
        ),
        mend=(
            "no_sync() in gradient accumulation",
            "a larger batch per GPU",
            "bf16_compress_hook, buckets, static_graph, find_unused_parameters=False",
            "NVLink or InfiniBand in place of what NCCL chose",
        ),
        test="no_sync() for 20 steps: what T falls by is exposed communication",
        gain="T / (T - E); T / (T - E + E / k) where k exchanges become one",
    ),
)
