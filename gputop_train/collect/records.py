"""Puts together the records that take several words: spans, samples, GPU steps, memory."""

from __future__ import annotations

from typing import NamedTuple

from gputop_train.collect.gpu_edges import MAX_EDGES, GpuStep
from gputop_train.collect.stretch import Span
from gputop_train.collect.words import (
    ARG_DUR,
    ARG_SITE,
    CODE_MASK,
    GPU_EDGE,
    GPU_END,
    GPU_STEP,
    MEM_ALLOCATED,
    MEM_AT,
    MEM_RESERVED,
    SAMPLE,
    SAMPLE_LABELS,
    SPAN_COMPILE,
    SPAN_SYNC,
    split_site,
)


class Sample(NamedTuple):
    """One look at the training thread's stack."""

    t_ns: int
    label: int


class Held(NamedTuple):
    """What the allocator held."""

    t_ns: int
    allocated: int
    reserved: int


Record = Span | Sample | GpuStep | Held


class Records:
    """Assembles words of one stream; kinds may interleave, their words may not.

    Attributes:
        awaits_argument: The next ``ARG_SITE`` belongs to a span or sample, not to an edge.
        bad: Words out of place.
    """

    def __init__(self) -> None:
        self.awaits_argument = False
        self.bad = 0
        self._code = 0
        self._begin = 0
        self._duration: int | None = None
        self._gpu: GpuStep | None = None
        self._memory_at: int | None = None
        self._allocated: int | None = None

    def restart(self) -> None:
        """Forget what is half put together."""
        self.awaits_argument = False
        self._gpu = None
        self._memory_at = None

    def take(self, code: int, value: int) -> Record | None:
        """One word that is no edge; the record it completes, if any."""
        if SPAN_SYNC <= code <= SPAN_COMPILE or code == SAMPLE:
            self._code, self._begin, self._duration = code, value, None
            self.awaits_argument = True
        elif code == ARG_DUR and self.awaits_argument and self._code != SAMPLE:
            self._duration = value
        elif code == ARG_SITE and self.awaits_argument:
            return self._argument(value)
        elif GPU_STEP <= code <= GPU_END:
            return self._gpu_word(code, value)
        elif MEM_AT <= code <= MEM_RESERVED:
            return self._memory_word(code, value)
        else:
            self.bad += 1
        return None

    def _argument(self, value: int) -> Record | None:
        self.awaits_argument = False
        amount, site = split_site(value)
        if self._code == SAMPLE:
            if amount < len(SAMPLE_LABELS):
                return Sample(self._begin, SAMPLE_LABELS[amount])
        elif self._duration is not None:
            return Span(self._code, self._begin, self._begin + self._duration, amount, site)
        self.bad += 1
        return None

    def _gpu_word(self, code: int, value: int) -> Record | None:
        if code == GPU_STEP:
            self._gpu = GpuStep(value)
            return None
        gpu = self._gpu
        if gpu is None:
            self.bad += 1
        elif code == GPU_EDGE:
            if len(gpu.edges) < MAX_EDGES:
                gpu.edges.append((value >> 12, value >> 6 & CODE_MASK, value & CODE_MASK))
        else:
            self._gpu = None
            gpu.dropped = value
            return gpu
        return None

    def _memory_word(self, code: int, value: int) -> Record | None:
        if code == MEM_AT:
            self._memory_at, self._allocated = value, None
        elif code == MEM_ALLOCATED:
            self._allocated = value
        elif self._memory_at is not None and self._allocated is not None:
            held = Held(self._memory_at, self._allocated, value)
            self._memory_at = None
            return held
        return None
