"""Words of one training process in, records out: a pure stream, no clock, no files.

The cutter here only finds where steps begin and end and sorts late words into the step they belong
to; what a step's time was spent on is read by ``stretch.Interpreter`` once its late words are in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gputop_train.collect.batch import Batch
from gputop_train.collect.boundaries import Boundaries, Cut, body_start, fold_point
from gputop_train.collect.gpu_edges import GpuStep
from gputop_train.collect.pending import Pending
from gputop_train.collect.reading import Reading, joined, step_of
from gputop_train.collect.records import Records, Sample
from gputop_train.collect.snapshots import loaders_from_snapshot, sites_from_snapshot
from gputop_train.collect.stretch import Interpreter, Span, Stretch
from gputop_train.collect.words import (
    ARG_SITE,
    BACKWARD,
    CODE_BITS,
    CODE_MASK,
    COLLECTIVE,
    DATA,
    EMPTY_CACHE,
    FIRST_NON_EDGE,
    FORK,
    IDLE,
    OPTIMIZER,
    PARTS,
    PLAIN,
    PLAIN_BARE,
    SCALER_UPDATE,
    STEP_SKIPPED,
    STEP_TICK,
    TICK_OPTIMIZER,
    UNRECORDED,
    newest_edge_ns,
    split_site,
)
from gputop_train.model import LABELS, Interval, MemorySample, Step

__all__ = ["Batch", "Timeline", "loaders_from_snapshot", "sites_from_snapshot"]

#: More reads than this in one step is a broken word.
MAX_UNRECORDED: Final = 1 << 24
#: A step with more words, spans or samples than this is interpreted in parts.
MAX_STRETCH: Final = 1 << 15
#: Edge times that fall back further than this are another clock, not jitter: start anew.
BACKWARDS_NS: Final = 1_000_000_000
#: A notebook's kernel that waits this long for the next cell is between two trainings.
IDLE_NS: Final = 1_000_000_000

_DATA_BEGIN: Final = DATA << 1
_BACKWARD_BEGIN: Final = BACKWARD << 1
_OPTIMIZER_BEGIN: Final = OPTIMIZER << 1
_OPTIMIZER_END: Final = OPTIMIZER << 1 | 1


class Timeline:
    """Streaming reader of one process's words."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._bad = 0
        self._interpreter = Interpreter(rank)
        self._boundaries = Boundaries()
        self._records = Records()
        self._pending = Pending()
        self._front: Reading | None = None
        self._index = 0
        self._now_ns = 0
        self._started = False
        self._waits_for_boundary = False
        self._idle: tuple[int, int] | None = None  # since when, and the open step's words by then
        self._tick_optimizer: int | None = None
        self._argument_of = ARG_SITE
        self._steps: list[Step] = []
        self._intervals: list[Interval] = []
        self._memory: list[MemorySample] = []
        self._events: list[tuple[int, str]] = []
        self._eval_tally: list[int] = [0] * len(LABELS)

    @property
    def bad(self) -> int:
        """Words that made no sense and were skipped."""
        return self._bad + self._boundaries.bad + self._records.bad

    @property
    def late(self) -> int:
        """Spans, samples and GPU steps that came after their step had been handed out."""
        return self._pending.late

    # -- the public stream -----------------------------------------------------------------------

    def feed(self, words: Sequence[int], now_ns: int | None = None) -> Batch:
        """Take the words that came since the last call; return what they made certain.

        Args:
            words: In stream order. Never raises on any content.
            now_ns: ``CLOCK_MONOTONIC``, if the caller likes: lets steps out that wait for late
                words while the training thread is silent.
        """
        records = self._records
        plain = self._plain()
        put = self._pending.open.words.append
        for word in words:
            code = word & CODE_MASK
            if plain[code]:
                put(word)
                self._argument_of = code
            elif code == ARG_SITE and not records.awaits_argument:
                if self._argument_of == ARG_SITE:
                    continue
                put(word)
                if self._argument_of == _OPTIMIZER_BEGIN:
                    self._optimizer_begins(split_site(word >> CODE_BITS)[0])
                    put = self._pending.open.words.append
                self._argument_of = ARG_SITE
            elif PARTS[code]:
                records.take(code, word >> CODE_BITS)
            else:
                self._special(code, word)
                put = self._pending.open.words.append
                plain = self._plain()
        self._now_ns = max(self._now_ns, newest_edge_ns(words))
        self._fold_if_long()
        for stretch in self._pending.ripe(max(self._now_ns, now_ns or 0), everything=False):
            self._emit(stretch)
        return self._batch()

    def finish(self) -> Batch:
        """No more words will come: flush the last step, and what followed it as the tail."""
        if self._started:
            self._close_all(self._boundaries.finish())
        for stretch in self._pending.ripe(self._now_ns, everything=True):
            self._emit(stretch)
        tail: Mapping[str, int] | None = None
        tail_ns = None
        rest = self._pending.open
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

    # -- words that are no plain edge ------------------------------------------------------------

    def _plain(self) -> bytes:
        return PLAIN if self._boundaries.optimizer_seen else PLAIN_BARE

    def _special(self, code: int, word: int) -> None:
        value = word >> CODE_BITS
        if code < FIRST_NON_EDGE:
            self._argument_of = code
            self._edge(code, word, value)
        elif code == SCALER_UPDATE:
            cuts = self._boundaries.scaler_update(value, len(self._pending.open.words))
            if self._started:
                self._close_all(cuts)
        elif code == STEP_TICK:
            self._tick(value)
        elif code == TICK_OPTIMIZER:
            self._tick_optimizer = value
        elif code == STEP_SKIPPED:
            self._skipped(value)
        elif code == UNRECORDED:
            self._pending.open.unrecorded += min(value, MAX_UNRECORDED)
        elif code == EMPTY_CACHE:
            self._events.append((value, "empty_cache"))
        elif code == FORK:
            self._events.append((value, "fork"))
            self._restart()
        else:
            self._record(code, value)

    def _record(self, code: int, value: int) -> None:
        record = self._records.take(code, value)
        if record is None:
            return
        if isinstance(record, Sample):
            self._interpreter.note_sample(record.t_ns)
            self._now_ns = max(self._now_ns, record.t_ns)
            if record.label == IDLE:
                self._note_idle(record.t_ns)
            else:
                self._pending.place_sample(record.t_ns, record.label)
        elif isinstance(record, Span):
            self._pending.place_span(record)
        elif isinstance(record, GpuStep):
            self._argument_of = ARG_SITE
            self._pending.place_gpu(record)
        else:
            step = self._last_ended(record.t_ns)
            held = MemorySample(self.rank, record.t_ns, step, "cuda-allocator", *record[1:])
            self._memory.append(held)

    def _note_idle(self, t: int) -> None:
        """What comes after a long idle is a new beginning; what came before it is told as it is."""
        if not self._started:
            return
        count = len(self._pending.open.words)
        if self._idle is None or self._idle[1] != count or self._idle[0] > t:
            self._idle = (t, count)
        elif t - self._idle[0] >= IDLE_NS:
            since = self._idle[0]
            if self._boundaries.candidate_ns is not None:
                self._close(*self._boundaries.take_candidate())
            for stretch in self._pending.ripe(t, everything=True):
                self._emit(stretch)
            rest = self._pending.open
            rest.t1_ns = max(since, rest.t0_ns)
            self._keep(self._interpreter.read(rest))
            self._front = None
            self._restart()

    def _edge(self, code: int, word: int, t: int) -> None:
        if code >> 1 > COLLECTIVE:
            self._bad += 1
            return
        boundaries = self._boundaries
        if t + BACKWARDS_NS < boundaries.last_ns:
            self._bad += 1
            self._restart(mid_step=True)
        if code in (_BACKWARD_BEGIN, _OPTIMIZER_BEGIN) and not self._started:
            self._start(t)
        if code == _DATA_BEGIN and self._started:
            cut = boundaries.batch_begins(t, len(self._pending.open.words))
            if cut is not None:
                self._close(*cut)
        words = self._pending.open.words
        words.append(word)
        cuts = boundaries.edge(code, t, len(words))
        if cuts and self._started:
            self._close_all(cuts)
        if self._waits_for_boundary and code == _OPTIMIZER_END and boundaries.ends_cycle():
            self._begin_after_loss(t)

    def _optimizer_begins(self, optimizer_id: int) -> None:
        cut = self._boundaries.optimizer_id(optimizer_id, self._pending.open.words)
        if cut is not None and self._started:
            self._close(*cut)

    def _tick(self, t: int) -> None:
        """An optimizer call ended, and of the step so far nothing else was recorded."""
        boundaries = self._boundaries
        optimizer, self._tick_optimizer = self._tick_optimizer, None
        if t + BACKWARDS_NS < boundaries.last_ns:
            self._bad += 1
            self._restart(mid_step=True)
        if not self._started and not self._waits_for_boundary:
            self._begin_after_loss(t)  # when this step began, nobody knows
            return
        cut = boundaries.tick_begins(optimizer, self._pending.open.words)
        if cut is not None and self._started:
            self._close(*cut)
        self._pending.open.unrecorded_step = True
        cuts = boundaries.tick_ends(t, len(self._pending.open.words))
        if self._started:
            self._close_all(cuts)
        if self._waits_for_boundary and boundaries.ends_cycle():
            self._begin_after_loss(t)

    def _skipped(self, t: int) -> None:
        cuts = self._boundaries.step_skipped(t, len(self._pending.open.words))
        if self._started and cuts:
            self._close_all(cuts[:-1])
            self._pending.open.unrecorded_step = True
            self._close(cuts[-1][0], len(self._pending.open.words))

    # -- beginning and closing a stretch ---------------------------------------------------------

    def _restart(self, *, mid_step: bool = False) -> None:
        """Forget the open step. After a loss the next one begins at the next boundary."""
        if self._started and self._boundaries.candidate_ns is not None:
            self._close(*self._boundaries.take_candidate())
        self._pending.drop_open()
        if not len(self._pending):
            self._front = None  # the front of the step that is dropped
        self._started = False
        self._waits_for_boundary = mid_step and self._boundaries.optimizer_seen
        self._idle = None
        self._tick_optimizer = None
        self._argument_of = ARG_SITE
        self._records.restart()
        self._boundaries.restart()

    def _start(self, t: int) -> None:
        """The first backward or optimizer: the first step began with the batch that led here."""
        if self._waits_for_boundary:
            return
        self._started = True
        stretch = self._pending.open
        start, position = body_start(stretch.words, t)
        stretch.t0_ns = start
        del stretch.words[:position]
        stretch.spans = [span for span in stretch.spans if span.t0_ns >= start]
        stretch.samples = [sample for sample in stretch.samples if sample[0] >= start]
        self._boundaries.rebase(position)

    def _begin_after_loss(self, t: int) -> None:
        self._waits_for_boundary = False
        self._started = True
        self._boundaries.restart()
        self._pending.open = Stretch(t0_ns=t)

    def _close_all(self, cuts: Sequence[Cut]) -> None:
        """Make several cuts; each moves the positions of those after it."""
        taken = 0
        for t, position in cuts:
            self._close(t, position - taken)
            taken = position

    def _close(self, t: int, position: int, *, partial: bool = False) -> None:
        """End the open stretch at ``t``; words from ``position`` on belong to the next one."""
        done = self._pending.close_at(t, position, partial=partial)
        self._idle = None
        self._boundaries.rebase(position)
        self._interpreter.note_closed(done)
        for stretch in self._pending.overflow():
            self._emit(stretch)

    def _fold_if_long(self) -> None:
        """Interpret the front of a step that grows without end, to bound memory."""
        stretch = self._pending.open
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

    # -- handing out -----------------------------------------------------------------------------

    def _last_ended(self, t: int) -> int | None:
        """Index of the last step that had ended at ``t``."""
        index = self._index + self._pending.whole_steps() - 1
        boundary = self._boundaries.candidate_ns
        if boundary is not None and boundary <= t:
            index += 1
        return index if index >= 0 else None

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
