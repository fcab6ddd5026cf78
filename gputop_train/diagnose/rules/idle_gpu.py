"""``idle-gpu``: cards the run may use, and no rank does.

Looks for: more visible cards than the ranks of a DistributedDataParallel run train on (catalogue
43; ICSE'24: oversubscription 0.85%, API misuse 2.27% of jobs, such as 4 processes for 8 GPUs).
Differential: one process may spread a model over several cards, which no rank's own device shows:
a run without DDP is not judged. A card with another program on it is taken, not idle.
Fix: as many processes as cards; or ask for fewer. Probe: start them all. Gain: at most the number
of cards over those in use, for the same batch per card.
"""

from __future__ import annotations

from gputop_train.diagnose.comm import modules
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    number,
)
from gputop_train.diagnose.told import part, whole
from gputop_train.diagnose.window import Window, bare_uuid
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain

ID = "idle-gpu"
#: A card on which nobody holds more than this is free.
FREE_BYTES = 1 << 30


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    if len(window.cards) < 2:
        return RuledOut(ID, "the run may use one card only, as far as was seen")
    if not modules(window.probe):
        return Abstention(ID, "use of other cards: only that of each rank's own device is watched")
    taken = {bare_uuid(u) for u in map(_uuid, window.probe_states.values()) if u}
    ranks = len(window.probe_states)
    if len(taken) < ranks or (whole(window.probe, "world_size") or 0) > ranks:
        return Abstention(ID, "the device of every rank")
    others = [g for g in window.cards if bare_uuid(g.uuid) not in taken]
    told = [g for g in others if g.memory_used is not None or g.foreign_processes is not None]
    if others and not told:
        return Abstention(ID, "memory in use on the other cards, and the processes on them")
    free = [
        g
        for g in told
        if not g.foreign_processes and (g.memory_used is None or g.memory_used < FREE_BYTES)
    ]
    if not free:
        return RuledOut(ID, "every card the run may use is taken")
    total = len(taken) + len(free)
    return Finding(
        id=ID,
        summary=(
            f"{len(free)} of {total} GPUs this run may use stand idle: {ranks} rank"
            f"{'s train' if ranks > 1 else ' trains'}, one card each."
        ),
        severity="warn",
        confidence="medium",
        lost_share=0.0,
        evidence=(
            number("cards the run may use", total),
            number("cards its ranks train on", len(taken)),
            Evidence("free", ", ".join(g.uuid for g in free[:4])),
        ),
        where_missing="it is how the run was started",
        advice=(
            Advice(
                f"Start one process per card: torchrun --nproc-per-node {ranks} -> {total}. The "
                f"global batch grows by {total / len(taken):.3g} times, so revisit the learning "
                "rate."
            ),
            Advice(
                f"If {len(taken)} are enough, set CUDA_VISIBLE_DEVICES to them (or ask the "
                "scheduler for fewer), so that others can use the rest."
            ),
        ),
        gain=Gain(
            total / len(taken),
            None,
            f"{total} cards instead of {len(taken)}, in samples/s at the same batch per card",
        ),
    )


def _uuid(state: object) -> str | None:
    uuid = part(state, "cuda").get("uuid")
    return uuid if isinstance(uuid, str) else None


RULE = Rule(
    ID,
    131,
    judge,
    probe="start one process per card",
    page=Page(
        number=43,
        title="GPUs that no rank uses",
        meaning=(
            "The run may use more cards than it has processes for. Those without one stand idle, "
            "and belong to nobody else meanwhile."
        ),
        looks_at=(
            "cards CUDA_VISIBLE_DEVICES leaves, as the run began",
            "the device of every rank",
            "processes and memory on the others",
        ),
        thresholds=(
            Threshold("cards in use", "fewer than visible, under DDP", "ICSE'24 names the fault"),
            Threshold("a free card", f"< {FREE_BYTES >> 30} GiB held, no process", "proposed"),
        ),
        mistaken_for=(
            "one process that spreads a model over several cards: not judged",
            "cards that another program uses",
        ),
        mend=("one process per card", "or fewer visible cards"),
        test="start one process per card",
        gain="cards / cards in use, in samples/s",
    ),
)
