"""Words of one training process in, records out: a pure stream, no clock, no files.

The cutter here only finds where steps begin and end and sorts late words into the step they belong
to; what a step's time was spent on is read by ``stretch.Interpreter`` once its late words are in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gputop_train.collect.boundaries import Boundaries, Cut, body_start, fold_point
from gputop_train.collect.gpu_edges import MAX_EDGES, GpuStep
from gputop_train.collect.snapshots import loaders_from_snapshot, sites_from_snapshot
from gputop_train.collect.stretch import Interpreter, Reading, Span, Stretch, joined, step_of
from gputop_train.collect.words import (
    ARG_DUR,
    ARG_SITE,
    BACKWARD,
    CODE_BITS,
    CODE_MASK,
    COLLECTIVE,
    DATA,
    EMPTY_CACHE,
    EVAL,
    FIRST_NON_EDGE,
    FORK,
    GPU_EDGE,
    GPU_END,
    GPU_STEP,
    MEM_ALLOCATED,
    MEM_AT,
    MEM_RESERVED,
    OPTIMIZER,
    SAMPLE,
    SAMPLE_LABELS,
    SCALER_UPDATE,
    SPAN_COMPILE,
    SPAN_SYNC,
    split_site,
)
from gputop_train.model import LABELS, Interval, MemorySample, Step

__all__ = ["Batch", "Timeline", "loaders_from_snapshot", "sites_from_snapshot"]

#: A closed step is kept this long (stream time) for samples and spans that arrive after it.
HOLD_NS: Final = 300_000_000
#: Once the process writes GPU events, which are read back later than the step ends.
GPU_HOLD_NS: Final = 1_000_000_000
#: A step still without its events is kept while fewer than this many later steps have ended.
GPU_HOLD_STEPS: Final = 3
GPU_HOLD_MOST_NS: Final = 10_000_000_000
#: Never more steps than this are kept back.
MAX_PENDING: Final = 256
#: A step with more words, spans or samples than this is interpreted in parts.
MAX_STRETCH: Final = 1 << 15
#: Edge times that fall back further than this are another clock, not jitter: start anew.
BACKWARDS_NS: Final = 1_000_000_000

_DATA_BEGIN: Final = DATA << 1
_BACKWARD_BEGIN: Final = BACKWARD << 1
_OPTIMIZER_BEGIN: Final = OPTIMIZER << 1
_OPTIMIZER_END: Final = OPTIMIZER << 1 | 1

#: Codes the hot loop only has to keep: edges that cannot end a step.
_PLAIN: Final = bytes(
    1 if code >> 1 <= COLLECTIVE and code >> 1 not in (BACKWARD, OPTIMIZER) else 0
    for code in range(64)
)
#: The same before the first optimizer step, where a batch or eval mode may matter to the cutter.
_PLAIN_BARE: Final = bytes(
    flag and code >> 1 not in (DATA, EVAL) for code, flag in enumerate(_PLAIN)
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What became certain since the last one.

    Attributes:
        steps: In order, without gaps in their indices.
        intervals: Interruptions; those before the first step are left out.
        memory: Allocator readings.
        events: One-off facts as ``(t_ns, kind)``: ``fork``, ``empty_cache``, ``words_lost``.
        eval_sub: Nanoseconds of evaluation by part (``data_wait``, ``h2d``, ``forward``, ``sync``,
            ``other``), summed over this batch.
        tail: Only from ``finish``: nanoseconds by label after the last step, ``None`` where no step
            was seen.
        tail_ns: Begin and end of that tail.
    """

    steps: tuple[Step, ...] = ()
    intervals: tuple[Interval, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    events: tuple[tuple[int, str], ...] = ()
    eval_sub: Mapping[str, int] | None = None
    tail: Mapping[str, int] | None = None
    tail_ns: tuple[int, int] | None = None


class Timeline:
    """Streaming reader of one process's words.

    Attributes:
        bad: Words that made no sense and were skipped.
        late: Spans, samples and GPU events that came after their step had been handed out.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.late = 0
        self._bad = 0
        self._interpreter = Interpreter(rank)
        self._index = 0
        self._pending: deque[Stretch] = deque()
        self._front: Reading | None = None
        self._gpu_seen_ns: int | None = None
        self._now_ns = 0
        self._memory_at: int | None = None
        self._memory_allocated: int | None = None
        self._steps: list[Step] = []
        self._intervals: list[Interval] = []
        self._memory: list[MemorySample] = []
        self._events: list[tuple[int, str]] = []
        self._eval_tally: list[int] = [0] * len(LABELS)
        self._boundaries = Boundaries()
        self._open = Stretch(t0_ns=0)
        self._started = False
        self._waits_for_boundary = False
        self._record: tuple[int, int, int | None] | None = None
        self._argument_of = ARG_SITE
        self._gpu: GpuStep | None = None

    @property
    def bad(self) -> int:
        """Words that made no sense and were skipped, in all."""
        return self._bad + self._boundaries.bad

    # -- the public stream -----------------------------------------------------------------------

    def feed(self, words: Sequence[int], now_ns: int | None = None) -> Batch:
        """Take the words that came since the last call; return what they made certain.

        Args:
            words: In stream order. Never raises on any content.
            now_ns: ``CLOCK_MONOTONIC``, if the caller likes: lets steps out that wait for late
                words while the training thread is silent.
        """
        plain = _PLAIN if self._boundaries.optimizer_seen else _PLAIN_BARE
        put = self._open.words.append
        for word in words:
            code = word & CODE_MASK
            if plain[code]:
                put(word)
                self._argument_of = code
            elif code == ARG_SITE and self._record is None:
                if self._argument_of == ARG_SITE:
                    continue
                put(word)
                if self._argument_of == _OPTIMIZER_BEGIN:
                    self._optimizer_begins(split_site(word >> CODE_BITS)[0])
                    put = self._open.words.append
                self._argument_of = ARG_SITE
            else:
                self._special(code, word)
                put = self._open.words.append
                plain = _PLAIN if self._boundaries.optimizer_seen else _PLAIN_BARE
        self._advance(words)
        self._fold_if_long()
        self._release(max(self._now_ns, now_ns or 0))
        return self._batch()

    def finish(self) -> Batch:
        """No more words will come: flush the last step, and what followed it as the tail."""
        if self._started:
            self._close_all(self._boundaries.finish())
        self._release(self._now_ns, everything=True)
        tail: Mapping[str, int] | None = None
        tail_ns = None
        rest = self._open
        if self._started and self._index and self._now_ns >= rest.t0_ns:
            rest.t1_ns = self._now_ns
            reading = self._interpreter.read(rest)
            if self._front is not None:
                reading = joined(self._front, reading)
            self._keep(reading)
            tail = {label: ns for label, ns in zip(LABELS, reading.tally, strict=True) if ns}
            tail_ns = (reading.t0_ns, reading.t1_ns)
        self._restart()
        return self._batch(tail, tail_ns)

    def lost(self) -> None:
        """Words were lost (``Ring.lost`` grew): drop the open step, begin anew at the next one."""
        self._events.append((self._now_ns, "words_lost"))
        self._restart(mid_step=True)

    # -- edges that may end a step ---------------------------------------------------------------

    def _special(self, code: int, word: int) -> None:
        value = word >> CODE_BITS
        if code < FIRST_NON_EDGE:
            self._argument_of = code
            self._edge(code, word, value)
        elif code == ARG_SITE:
            self._argument(value)
        elif code == ARG_DUR:
            if self._record is not None and self._record[0] <= SPAN_COMPILE:
                self._record = (self._record[0], self._record[1], value)
            else:
                self._bad += 1
        elif SPAN_SYNC <= code <= SPAN_COMPILE or code == SAMPLE:
            self._record = (code, value, None)
        elif code == SCALER_UPDATE:
            self._scaler_update(value)
        elif GPU_STEP <= code <= GPU_END:
            self._gpu_word(code, value)
        elif MEM_AT <= code <= MEM_RESERVED:
            self._memory_word(code, value)
        elif code == EMPTY_CACHE:
            self._events.append((value, "empty_cache"))
        elif code == FORK:
            self._events.append((value, "fork"))
            self._restart()
        else:
            self._bad += 1

    def _edge(self, code: int, word: int, t: int) -> None:
        if code >> 1 > COLLECTIVE:
            self._bad += 1
            return
        boundaries = self._boundaries
        if t + BACKWARDS_NS < boundaries.last_ns:
            self._bad += 1
            self._restart(mid_step=True)
        if not self._started and code in (_BACKWARD_BEGIN, _OPTIMIZER_BEGIN):
            self._start(t)
        if code == _DATA_BEGIN and self._started:
            cut = boundaries.batch_begins(t, len(self._open.words))
            if cut is not None:
                self._close(*cut)
        self._open.words.append(word)
        cuts = boundaries.edge(code, t, len(self._open.words))
        if cuts and self._started:
            self._close_all(cuts)
        if self._waits_for_boundary and code == _OPTIMIZER_END and boundaries.ends_cycle():
            self._begin_after_loss(t)

    def _optimizer_begins(self, optimizer_id: int) -> None:
        cut = self._boundaries.optimizer_id(optimizer_id, self._open.words)
        if cut is not None and self._started:
            self._close(*cut)

    def _scaler_update(self, t: int) -> None:
        cuts = self._boundaries.scaler_update(t, len(self._open.words))
        if self._started:
            self._close_all(cuts)

    # -- beginning and closing a stretch ---------------------------------------------------------

    def _restart(self, *, mid_step: bool = False) -> None:
        """Forget the open step. After a loss the next one begins at the next boundary."""
        if self._started and self._boundaries.candidate_ns is not None:
            self._close(*self._boundaries.take_candidate())
        self._open = Stretch(t0_ns=0)
        self._started = False
        self._waits_for_boundary = mid_step and self._boundaries.optimizer_seen
        self._record = None
        self._argument_of = ARG_SITE
        self._gpu = None
        while self._pending and self._pending[-1].partial:
            self._pending.pop()
        if not self._pending:
            self._front = None  # the front of the step that is dropped
        self._boundaries.restart()

    def _start(self, t: int) -> None:
        """The first backward or optimizer: the first step began with the batch that led here."""
        if self._waits_for_boundary:
            return
        self._started = True
        start, position = body_start(self._open.words, t)
        stretch = self._open
        stretch.t0_ns = start
        del stretch.words[:position]
        stretch.spans = [span for span in stretch.spans if span.t0_ns >= start]
        stretch.samples = [sample for sample in stretch.samples if sample[0] >= start]
        self._boundaries.rebase(position)

    def _begin_after_loss(self, t: int) -> None:
        self._waits_for_boundary = False
        self._started = True
        self._boundaries.restart()
        self._open = Stretch(t0_ns=t)

    def _close_all(self, cuts: Sequence[Cut]) -> None:
        """Make several cuts; each moves the positions of those after it."""
        taken = 0
        for t, position in cuts:
            self._close(t, position - taken)
            taken = position

    def _close(self, t: int, position: int, *, partial: bool = False) -> None:
        """Cut the open stretch at ``t``; words from ``position`` on belong to the next one."""
        done = self._open
        t = max(t, done.t0_ns)
        done.t1_ns = t
        rest = Stretch(t0_ns=t, words=done.words[position:])
        del done.words[position:]
        if done.spans:
            rest.spans = [span for span in done.spans if span.t1_ns > t]
            done.spans = [span for span in done.spans if span.t0_ns < t]
        if done.samples:
            rest.samples = [sample for sample in done.samples if sample[0] >= t]
            done.samples = [sample for sample in done.samples if sample[0] < t]
        if done.gpu is not None and done.gpu.t_ns >= t:
            rest.gpu, done.gpu = done.gpu, None
        done.partial = partial
        self._open = rest
        self._boundaries.rebase(position)
        self._pending.append(done)
        self._interpreter.note_closed(done)
        if len(self._pending) > MAX_PENDING:
            self._emit(self._pending.popleft())

    def _fold_if_long(self) -> None:
        """Interpret the front of a step that grows without end, to bound memory."""
        stretch = self._open
        if max(len(stretch.words), len(stretch.spans), len(stretch.samples)) <= MAX_STRETCH:
            return
        if not self._started:
            # Nothing trains yet: only the newest words can belong to the first step.
            del stretch.words[: -MAX_STRETCH // 2]
            stretch.spans.clear()
            stretch.samples.clear()
            return
        if self._boundaries.candidate_ns is not None:
            self._close(*self._boundaries.take_candidate())
            return
        cut = fold_point(stretch.words, max(self._now_ns, stretch.t0_ns))
        if cut is None:
            self._bad += 1
            self.lost()
            return
        self._close(*cut, partial=True)

    # -- words that arrive on the side -----------------------------------------------------------

    def _argument(self, value: int) -> None:
        record = self._record
        self._record = None
        if record is None:
            return
        code, begin, duration = record
        amount, site = split_site(value)
        if code == SAMPLE:
            if amount < len(SAMPLE_LABELS):
                self._place_sample(begin, SAMPLE_LABELS[amount])
            else:
                self._bad += 1
        elif duration is not None:
            self._place_span(Span(code, begin, begin + duration, amount, site))
        else:
            self._bad += 1

    def _stretch_at(self, t: int) -> Stretch | None:
        """The stretch that ``t`` lies in; ``None`` when it has been handed out already."""
        if t >= self._open.t0_ns or not self._started:
            return self._open
        pending = self._pending
        if not pending or t < pending[0].t0_ns:
            self.late += 1
            return None
        return pending[max(0, bisect_right(pending, t, key=_begin) - 1)]

    def _place_sample(self, t: int, label: int) -> None:
        self._interpreter.note_sample(t)
        self._now_ns = max(self._now_ns, t)
        stretch = self._stretch_at(t)
        if stretch is not None:
            stretch.samples.append((t, label))

    def _place_span(self, span: Span) -> None:
        open_ = self._open
        if span.t0_ns >= open_.t0_ns or not self._started:
            open_.spans.append(span)
            return
        found = False
        for stretch in reversed(self._pending):
            if stretch.t0_ns < span.t1_ns and stretch.t1_ns > span.t0_ns:
                stretch.spans.append(span)
                found = True
            if stretch.t0_ns <= span.t0_ns:
                break
        if span.t1_ns > open_.t0_ns:
            open_.spans.append(span)
            found = True
        if not found:
            self.late += 1

    def _gpu_word(self, code: int, value: int) -> None:
        if code == GPU_STEP:
            self._gpu = GpuStep(value)
            self._gpu_seen_ns = max(self._gpu_seen_ns or 0, value)
            return
        gpu = self._gpu
        if gpu is None:
            self._bad += 1
        elif code == GPU_EDGE:
            if len(gpu.edges) < MAX_EDGES:
                gpu.edges.append((value >> 12, value >> 6 & CODE_MASK, value & CODE_MASK))
            self._argument_of = ARG_SITE
        else:
            self._gpu = None
            gpu.dropped = value
            stretch = self._stretch_at(gpu.t_ns)
            if stretch is not None:
                stretch.gpu = gpu

    def _memory_word(self, code: int, value: int) -> None:
        if code == MEM_AT:
            self._memory_at, self._memory_allocated = value, None
        elif code == MEM_ALLOCATED:
            self._memory_allocated = value
        elif self._memory_at is not None and self._memory_allocated is not None:
            self._memory.append(
                MemorySample(
                    rank=self.rank,
                    t_ns=self._memory_at,
                    step=self._last_ended(self._memory_at),
                    basis="cuda-allocator",
                    allocated=self._memory_allocated,
                    reserved=value,
                )
            )
            self._memory_at = None

    def _last_ended(self, t: int) -> int | None:
        """Index of the last step that had ended at ``t``."""
        cut = [stretch for stretch in self._pending if not stretch.partial]
        index = self._index + len(cut) - 1
        boundary = self._boundaries.candidate_ns
        if boundary is not None and boundary <= t:
            index += 1
        return index if index >= 0 else None

    # -- handing out -----------------------------------------------------------------------------

    def _advance(self, words: Sequence[int]) -> None:
        """Move the stream's own clock to its newest edge."""
        for word in reversed(words):
            if word & CODE_MASK < FIRST_NON_EDGE:
                self._now_ns = max(self._now_ns, word >> CODE_BITS)
                return

    def _release(self, now_ns: int, *, everything: bool = False) -> None:
        pending = self._pending
        while pending and (everything or self._is_ripe(pending[0], now_ns)):
            self._emit(pending.popleft())

    def _is_ripe(self, stretch: Stretch, now_ns: int) -> bool:
        age = now_ns - stretch.t1_ns
        if self._gpu_seen_ns is None:
            return age >= HOLD_NS
        if age < GPU_HOLD_NS:
            return False
        return (
            stretch.gpu is not None
            or self._gpu_seen_ns >= stretch.t1_ns
            or len(self._pending) > GPU_HOLD_STEPS
            or age >= GPU_HOLD_MOST_NS
        )

    def _emit(self, stretch: Stretch) -> None:
        reading = self._interpreter.read(stretch)
        if self._front is not None:
            reading = joined(self._front, reading)
            self._front = None
        if stretch.partial:
            self._front = reading
            return
        self._keep(reading)
        self._steps.append(step_of(reading, self.rank, self._index))
        self._index += 1

    def _keep(self, reading: Reading) -> None:
        self._bad += reading.bad
        self._intervals += reading.intervals
        if reading.eval_tally is not None:
            self._eval_tally = [
                a + b for a, b in zip(self._eval_tally, reading.eval_tally, strict=True)
            ]

    def _batch(
        self, tail: Mapping[str, int] | None = None, tail_ns: tuple[int, int] | None = None
    ) -> Batch:
        batch = Batch(
            steps=tuple(self._steps),
            intervals=tuple(self._intervals),
            memory=tuple(self._memory),
            events=tuple(self._events),
            eval_sub={label: ns for label, ns in zip(LABELS, self._eval_tally, strict=True) if ns},
            tail=tail,
            tail_ns=tail_ns,
        )
        self._steps, self._intervals, self._memory, self._events = [], [], [], []
        self._eval_tally = [0] * len(LABELS)
        return batch


def _begin(stretch: Stretch) -> int:
    return stretch.t0_ns
