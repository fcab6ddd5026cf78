"""``gpu-contention``: another program uses the same GPU.

Looks for: foreign compute processes in at least half of the readings, holding > 1 GiB or busy for
> 5% of the time (catalogue 41). Busy is what the driver tells by process; else, at least, what its
utilisation shows beyond all the time in which this run's own events left the GPU idle; or, where
the neighbour comes and goes, what it adds to the steps taken beside it.
Differential: our own children and other ranks are not foreign; a neighbour that holds a little
memory and computes nothing costs nothing; a PID namespace in which none of ours is recognised says
nothing.
Fix: another card, MIG, CUDA_VISIBLE_DEVICES. Probe: the same steps on a card of their own.
Gain: of steps beside it against steps without it, where the run had both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from gputop_train.diagnose.accounting import account, undisturbed
from gputop_train.diagnose.cards import mean
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    ceiling,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.stats import Contrast, contrast
from gputop_train.diagnose.told import part
from gputop_train.diagnose.window import Window, once
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, GpuSample

ID = "gpu-contention"
MIN_BUSY = 0.05
MIN_BYTES = 1 << 30
#: A process seen in fewer readings came by.
MOST_READINGS = 0.5
MIN_READINGS = 3


def present(window: Window) -> bool:
    """Whether another program computes on this card for a good part of the window."""
    told = [g.foreign_processes for g in window.gpu if g.foreign_processes is not None]
    return len(told) >= MIN_READINGS and sum(n > 0 for n in told) >= MOST_READINGS * len(told)


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    told = [g for g in window.gpu if g.foreign_processes is not None]
    if not told:
        why = window.missing.get("processes", "which processes use the card")
        return Abstention(ID, why)
    beside = beside_others(window)
    if not present(window) and beside is None:
        return RuledOut(ID, "no other program computes on this card")
    busy, held = busy_elsewhere(window), _held(told)
    worth = (busy or 0.0) >= MIN_BUSY or (held or 0.0) >= MIN_BYTES or beside is not None
    if not worth:
        if busy is None and held is None:
            return Abstention(ID, "how much the other processes on this card use")
        return RuledOut(ID, "the other processes on this card hold little and hardly compute")
    return _finding(window, told, busy, held, beside)


def unsure(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with low confidence where a busy neighbour makes GPU time unreliable.

    Events and utilisation include the neighbour's time slices.
    """
    if not any(f.id == ID and f.severity != "info" for f in findings):
        return list(findings)
    return [
        replace(f, confidence="low") if f.id != ID and f.lost_share > 0 else f for f in findings
    ]


def busy_elsewhere(window: Window) -> float | None:
    """Wall share others kept the card busy; ``None`` where nothing tells.

    By the driver's word on each process; without it a lower bound.
    """
    told = _by_process(window)
    if told is not None:
        return told
    exposed = [share for share in account(window).exposed.values() if share is not None]
    if window.util_mean is None or not exposed:
        return None
    return max(0.0, window.util_mean / 100 + sum(exposed) - 1.0)


def _by_process(window: Window) -> float | None:
    told = [g.foreign_util for g in window.gpu if g.foreign_util is not None]
    share = mean(told) if len(told) >= MIN_READINGS else None
    return None if share is None else share / 100


def _held(told: list[GpuSample]) -> float | None:
    """Bytes of the card that others hold."""
    others = [
        float(g.memory_used - g.memory_ours)
        for g in told
        if g.memory_used is not None and g.memory_ours is not None and g.foreign_processes
    ]
    return mean(others)


@once
def beside_others(window: Window) -> Contrast | None:
    """Steps (ms) taken beside another process against those without; ``None`` if not longer."""
    told = [g for g in window.gpu if g.foreign_processes is not None]
    times = [g.t_ns for g in told]
    with_others: list[float] = []
    alone: list[float] = []
    for step in undisturbed(window.steps):
        at = bisect_right(times, step.t1_ns) - 1
        if at < 0:
            continue
        (with_others if told[at].foreign_processes else alone).append(step.wall_ns / 1e6)
    found = contrast(with_others, alone)
    return found if found is not None and found.low > 0 else None


def _finding(
    window: Window,
    told: list[GpuSample],
    busy: float | None,
    held: float | None,
    beside: Contrast | None,
) -> Finding:
    most = max(g.foreign_processes or 0 for g in told)
    part = sum(1 for g in told if g.foreign_processes) / len(told)
    lost = _lost(window, beside)
    active = (busy or 0.0) >= MIN_BUSY or beside is not None
    others = f"{most} other process{'es' if most > 1 else ''}"
    size = amount("", held) if held is not None else None
    says = [f"hold {size.value} {size.unit}"] if size is not None else []
    if busy is not None and busy >= MIN_BUSY:
        least = "" if _by_process(window) is not None else "at least "
        says.append(f"keep it busy {least}{percent(busy)} of the time")
    if beside is not None:
        says.append(f"make a step {beside.difference:.3g} ms longer")
    verbs = " and ".join(says) if most > 1 else " and ".join(_singular(s) for s in says)
    return Finding(
        id=ID,
        summary=f"This GPU is shared: {others} {verbs or 'computes there'}.",
        severity=severity(max(lost, 0.10), window.totals.steps) if active else "info",
        confidence="high" if beside is not None or _by_process(window) is not None else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                number("other processes on the card, most", most),
                number("readings with another process", part, "of readings"),
                amount("GPU memory others hold", held) if held is not None else None,
                number(
                    "busy with others, by the driver's word on each process"
                    if _by_process(window) is not None
                    else "busy with others, at least",
                    busy,
                    "of wall",
                ),
                number("GPU utilisation, mean", window.util_mean, "%"),
                _contrast_row(beside),
            )
            if row is not None and row.value is not None
        ),
        where_missing="it is another program",
        advice=_advice(window, most, active),
        gain=Gain(
            ceiling(lost) if lost else None,
            None,
            "steps alone against steps beside it"
            if lost
            else "no steps without the neighbour to compare with",
        ),
    )


def _singular(verb: str) -> str:
    first, rest = verb.split(" ", 1)
    return f"{first}s {rest}"


def _contrast_row(beside: Contrast | None) -> Evidence | None:
    if beside is None:
        return None
    return number(
        f"{beside.n_with} steps beside it are longer than {beside.n_without} without by",
        beside.difference,
        "ms",
    )


def _lost(window: Window, beside: Contrast | None) -> float:
    if beside is None or not window.totals.wall_ns:
        return 0.0
    return min(1.0, beside.n_with * beside.difference * 1e6 / window.totals.wall_ns)


def _advice(window: Window, most: int, active: bool) -> tuple[Advice, ...]:
    device = part(window.probe, "cuda").get("device")
    here = f"cuda:{device}" if isinstance(device, int) else "this card"
    whose = f"whose the {most} other processes are" if most > 1 else "whose the 1 other process is"
    steps = [
        Advice(
            f"See {whose}: nvidia-smi lists those on {here} ({window.gpu_uuid}). If it is yours (a "
            "notebook, an evaluation, a run that did not end), end it."
        ),
        Advice(
            f"Else take another card than {here} now: CUDA_VISIBLE_DEVICES=<one that is free>, or "
            "a MIG slice of one's own."
        ),
    ]
    if active:
        steps.append(
            Advice(
                f"Until then other verdicts on GPU time are unsure: {window.util_mean or 0.0:.0f}% "
                "utilisation and the waits include the neighbour's."
            )
        )
    return tuple(steps)


RULE = Rule(
    ID,
    130,
    judge,
    probe="the same steps on a card of their own",
    page=Page(
        number=41,
        title="A GPU shared with another program",
        meaning=(
            "Another program computes on the card this run trains on, or holds its memory. Two "
            "programs take turns: both become slower, and neither sees why."
        ),
        looks_at=(
            "compute processes the driver lists on the card, less those of this run",
            "memory of the card less this run's",
            "utilisation by process; else the card's beyond what this run's GPU events leave",
            "steps beside a neighbour against steps without one",
        ),
        thresholds=(
            Threshold("others busy", f">= {percent(MIN_BUSY)} of the time", "proposed"),
            Threshold("or memory they hold", f">= {MIN_BYTES >> 30} GiB (information)", "proposed"),
            Threshold("readings with them", f">= {percent(MOST_READINGS)}", "proposed"),
        ),
        mistaken_for=(
            "this run's own workers, children and other ranks",
            "a display server or an idle notebook that holds little",
            "a container in which the driver lists process ids of the host: then it abstains",
        ),
        mend=("end it if it is one's own", "another card, or a MIG slice"),
        test="the same steps on a card of their own",
        gain="T beside / T alone, where the run had both; else none",
    ),
)
