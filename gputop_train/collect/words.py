"""The probe's 64-bit words (docs/wire-format.md, version 1): codes, fields and label tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gputop_train.model import LABELS

# Phases of edges: ``code = phase << 1 | is_end``.
DATA: Final = 0
DATA_NOGRAD: Final = 1
ITER: Final = 2
BACKWARD: Final = 3
OPTIMIZER: Final = 4
SAVE: Final = 5
EVAL: Final = 6
COMPILE: Final = 7
LOGGING: Final = 8
COLLECTIVE: Final = 9
SYNC: Final = 12
H2D: Final = 13

#: Codes below this one are edges.
FIRST_NON_EDGE: Final = 32

SPAN_SYNC: Final = 32
SPAN_H2D: Final = 33
SPAN_NOGRAD: Final = 34
SPAN_GC: Final = 35
SPAN_LOGGING: Final = 36
SPAN_COMPILE: Final = 37

MEM_AT: Final = 40
MEM_ALLOCATED: Final = 41
MEM_RESERVED: Final = 42
SAMPLE: Final = 44
SCALER_UPDATE: Final = 45
EMPTY_CACHE: Final = 46
FORK: Final = 47
GPU_STEP: Final = 48
GPU_EDGE: Final = 49
GPU_END: Final = 50
UNRECORDED: Final = 51
STEP_TICK: Final = 52
TICK_OPTIMIZER: Final = 53
STEP_SKIPPED: Final = 54
#: A wait for data this long is told in every step (the probe's ``budget.LONG_WAIT_NS``).
LONG_WAIT_NS: Final = 2_000_000
ARG_DUR: Final = 62
ARG_SITE: Final = 63

CODE_BITS: Final = 6
CODE_MASK: Final = 63
SITE_BITS: Final = 16
SITE_MASK: Final = 0xFFFF
VALUE_MASK: Final = (1 << 58) - 1

#: Index of each label in ``model.LABELS``; records are tallied in lists of this order.
LABEL_INDEX: Final = {label: index for index, label in enumerate(LABELS)}
L_DATA_WAIT: Final = LABEL_INDEX["data_wait"]
L_H2D: Final = LABEL_INDEX["h2d"]
L_FORWARD: Final = LABEL_INDEX["forward"]
L_BACKWARD: Final = LABEL_INDEX["backward"]
L_OPTIMIZER: Final = LABEL_INDEX["optimizer"]
L_GPU_WAIT: Final = LABEL_INDEX["gpu_wait"]
L_SYNC: Final = LABEL_INDEX["sync"]
L_COMM: Final = LABEL_INDEX["comm"]
L_CHECKPOINT: Final = LABEL_INDEX["checkpoint"]
L_EVAL: Final = LABEL_INDEX["eval"]
L_LOGGING: Final = LABEL_INDEX["logging"]
L_GC: Final = LABEL_INDEX["gc"]
L_COMPILE: Final = LABEL_INDEX["compile"]
L_OTHER: Final = LABEL_INDEX["other"]

#: The sampler's class of a thread that waits for what the person does next: no part of a step.
IDLE: Final = -1
#: The sampler's classes (``LABELS_WIRE``), as labels. User Python between phases is ``other``.
SAMPLE_LABELS: Final[tuple[int, ...]] = (
    L_OTHER,
    L_FORWARD,
    L_DATA_WAIT,
    L_H2D,
    L_BACKWARD,
    L_OPTIMIZER,
    L_SYNC,
    L_CHECKPOINT,
    L_EVAL,
    L_LOGGING,
    L_COMM,
    L_COMPILE,
    L_GC,
    L_OTHER,
    IDLE,
)

#: Which label wins where two overlap (design.md, "Shares"); a blocking collective hides the
#: device synchronisation inside it, so ``comm`` sits just above ``sync``.
PRECEDENCE: Final[tuple[int, ...]] = (
    L_COMPILE,
    L_CHECKPOINT,
    L_EVAL,
    L_GC,
    L_LOGGING,
    L_DATA_WAIT,
    L_H2D,
    L_COMM,
    L_SYNC,
    L_BACKWARD,
    L_OPTIMIZER,
    L_FORWARD,
    L_OTHER,
)
#: ``RANK[label]``: higher wins. Labels that never come from an edge or a span rank lowest.
RANK: Final[tuple[int, ...]] = tuple(
    len(PRECEDENCE) - PRECEDENCE.index(index) if index in PRECEDENCE else 0
    for index in range(len(LABELS))
)

#: Label of the time inside an edge pair, by phase; ``None`` for phases that are no nesting edge.
PHASE_LABEL: Final[dict[int, int]] = {
    DATA: L_DATA_WAIT,
    DATA_NOGRAD: L_DATA_WAIT,
    ITER: L_DATA_WAIT,
    BACKWARD: L_BACKWARD,
    OPTIMIZER: L_OPTIMIZER,
    SAVE: L_CHECKPOINT,
    COMPILE: L_COMPILE,
    LOGGING: L_LOGGING,
    COLLECTIVE: L_COMM,
}

#: Label of a span's time. ``SPAN_NOGRAD`` is missing: what it is depends on what surrounds it.
SPAN_LABEL: Final[dict[int, int]] = {
    SPAN_SYNC: L_SYNC,
    SPAN_H2D: L_H2D,
    SPAN_GC: L_GC,
    SPAN_LOGGING: L_LOGGING,
    SPAN_COMPILE: L_COMPILE,
}


#: Codes a stream's reader only has to keep: edges that cannot end a step.
PLAIN: Final = bytes(
    1 if code >> 1 <= COLLECTIVE and code >> 1 not in (BACKWARD, OPTIMIZER) else 0
    for code in range(64)
)
#: The same before the first optimizer step, where a batch or eval mode may matter to the cutter.
PLAIN_BARE: Final = bytes(flag and code >> 1 not in (DATA, EVAL) for code, flag in enumerate(PLAIN))
#: Words that begin or go on with a record and never complete one.
PARTS: Final = bytes(
    SPAN_SYNC <= code <= SPAN_COMPILE or code in (SAMPLE, ARG_DUR) for code in range(64)
)


#: Words whose value is a time.
_TIMED: Final = bytes(
    code < FIRST_NON_EDGE
    or SPAN_SYNC <= code <= SPAN_COMPILE
    or code in (MEM_AT, SAMPLE, SCALER_UPDATE, EMPTY_CACHE, FORK, GPU_STEP, STEP_TICK, STEP_SKIPPED)
    for code in range(64)
)


def never_written(words: Sequence[int], until_ns: int) -> int:
    """How many words no probe wrote: empty ones, and those of a time that has yet to come.

    Args:
        words: In stream order.
        until_ns: ``CLOCK_MONOTONIC``; nothing can be later.
    """
    found = sum(word == 0 for word in words) if 0 in words else 0
    # The largest word first, at the speed of C: few are larger than the time.
    if words and max(words) >> CODE_BITS > until_ns:
        found += sum(_TIMED[word & CODE_MASK] and word >> CODE_BITS > until_ns for word in words)
    return found


def newest_edge_ns(words: Sequence[int]) -> int:
    """Time of the last edge or tick among these words; 0 without one."""
    for word in reversed(words):
        code = word & CODE_MASK
        if code < FIRST_NON_EDGE or code == STEP_TICK:
            return word >> CODE_BITS
    return 0


def begin(phase: int) -> int:
    """Code of a phase's begin edge."""
    return phase << 1


def end(phase: int) -> int:
    """Code of a phase's end edge."""
    return phase << 1 | 1


def word(code: int, value: int) -> int:
    """Pack one word. ``value`` keeps its low 58 bits."""
    return (value & VALUE_MASK) << CODE_BITS | code


def site_argument(amount: int, site: int) -> int:
    """Pack an ``ARG_SITE`` word."""
    return word(ARG_SITE, amount << SITE_BITS | (site & SITE_MASK))


def split_site(value: int) -> tuple[int, int]:
    """``(amount, site id)`` of an ``ARG_SITE`` value."""
    return value >> SITE_BITS, value & SITE_MASK
