"""From one stretch of words to one record: tiles, evaluations, gaps, sync split, exposed idle."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gputop_train.collect.apportion import (
    EVAL_KIND,
    UNEXPLAINED_KIND,
    Apportioner,
    empty_tally,
)
from gputop_train.collect.evaluation import evaluations
from gputop_train.collect.gpu_edges import GpuStep, complete, exposure
from gputop_train.collect.reading import MIN_LOGGING_NS, Reading, kept_intervals
from gputop_train.collect.tiling import (
    Scan,
    Tile,
    divide,
    flatten,
    paint,
    samples_by_gap,
    samples_in_gaps,
    scan,
)
from gputop_train.collect.unrecorded import (
    Layouts,
    in_doubt_left_out,
    laid_out,
    told_exactly,
)
from gputop_train.collect.words import (
    CODE_MASK,
    DATA,
    DATA_NOGRAD,
    L_DATA_WAIT,
    L_EVAL,
    L_FORWARD,
    L_GPU_WAIT,
    L_H2D,
    L_OTHER,
    L_SYNC,
    RANK,
    SPAN_COMPILE,
    SPAN_GC,
    SPAN_LABEL,
    SPAN_LOGGING,
    SPAN_NOGRAD,
    SPAN_SYNC,
)
from gputop_train.model import LABELS, Interval

#: Shorter pauses are tallied, but not kept as intervals of their own.
MIN_GC_NS: Final = 1_000_000
#: A gradient-free block is unusual when it is longer than this many times the typical step's.
RARE_FACTOR: Final = 2
HABIT_STEPS: Final = 256
#: Gradient-free blocks that were found to evaluate, whose length is kept.
EVAL_MEMORY: Final = 15
#: The exposed share of blocking reads is that of so many of the last steps with events: a loop that
#: becomes another one is read by its own within seconds.
SYNC_MEMORY_STEPS: Final = 16

_NONE_EXACT: Final[frozenset[int]] = frozenset()
_EVAL_PARTS: Final = (L_DATA_WAIT, L_H2D, L_FORWARD, L_SYNC, L_OTHER)


@dataclass(frozen=True, slots=True)
class Span:
    """A whole interval the probe wrote after the fact."""

    code: int
    t0_ns: int
    t1_ns: int
    amount: int
    site: int


@dataclass(slots=True)
class Stretch:
    """The words of one step, cut out of the stream but not yet interpreted.

    ``partial`` marks the front part of a step that grew too long to be kept whole.
    """

    t0_ns: int
    t1_ns: int = -1
    words: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    samples: list[tuple[int, int]] = field(default_factory=list)
    gpu: GpuStep | None = None
    partial: bool = False
    unrecorded_step: bool = False  # ended by a tick: its phases were not recorded
    unrecorded: int = 0  # blocking reads that were counted but not recorded one by one


class Interpreter:
    """Turns stretches, in order, into readings; learns the run's habits on the way."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._gaps = Apportioner()
        self._layouts = Layouts()
        self._nograd_recent: deque[int] = deque()
        self._nograd_sorted: list[int] = []
        self._grad_loader_seen = False
        self._syncs: deque[tuple[int, int]] = deque(maxlen=SYNC_MEMORY_STEPS)
        self._eval_open = False
        self._eval_blocks: deque[int] = deque(maxlen=EVAL_MEMORY)
        self._batches_told = False

    def note_sample(self, t_ns: int) -> None:
        """A stack sample arrived, whichever stretch it belongs to."""
        self._gaps.note_sample(t_ns)

    def note_closed(self, stretch: Stretch) -> None:
        """A stretch was cut: learn from it before it is interpreted."""
        longest = 0
        for span in stretch.spans:
            if span.code == SPAN_NOGRAD:
                longest = max(longest, span.t1_ns - span.t0_ns)
        recent, ordered = self._nograd_recent, self._nograd_sorted
        if longest == 0 and not (ordered and ordered[-1]):
            # The usual run: nothing to keep in order.
            if len(recent) < HABIT_STEPS:
                recent.append(0)
                ordered.append(0)
            return
        if len(recent) >= HABIT_STEPS:
            old = recent.popleft()
            del ordered[bisect_right(ordered, old) - 1]
        recent.append(longest)
        insort(ordered, longest)

    def read(self, stretch: Stretch) -> Reading:
        """Interpret one stretch; its tally sums to its length exactly."""
        t0, t1 = stretch.t0_ns, stretch.t1_ns
        unrecorded = stretch.unrecorded_step
        if unrecorded and not (
            stretch.words or stretch.spans or stretch.samples or stretch.gpu or self._eval_open
        ):
            return self._read_bare(stretch)
        seen = scan(told_exactly(stretch.words) if unrecorded else stretch.words, t0, t1)
        if stretch.samples:
            stretch.samples.sort()
        tiles = seen.tiles
        spans = stretch.spans
        if spans:
            spans = [s for s in spans if s.t1_ns > t0 and s.t0_ns < t1]
        evals: list[tuple[int, int]] = []
        if spans or seen.evaluates or self._eval_open:
            if seen.evaluates or self._eval_open or any(s.code == SPAN_NOGRAD for s in spans):
                evals = self._evaluations(stretch, spans)
            else:
                self._note_loader(stretch.words)
            overlays: list[Tile] = [
                (max(s.t0_ns, t0), min(s.t1_ns, t1), SPAN_LABEL[s.code])
                for s in spans
                if s.code in SPAN_LABEL
            ]
            if overlays:
                tiles = paint(tiles, flatten(overlays))
        reading = Reading(
            t0_ns=t0,
            t1_ns=t1,
            tally=empty_tally(),
            eval_tally=None,
            intervals=self._intervals(seen, spans, evals, t0, t1),
            measured_ns=0,
            micro=seen.backwards,
            samples=self._samples(seen),
            syncs=(_count_syncs(spans, t0) if spans else 0) + stretch.unrecorded,
            bad=seen.bad,
        )
        if evals:
            inside, tiles = divide(tiles, evals)
            self._book_evaluation(inside, stretch, reading)
        if unrecorded:
            self._book_unrecorded(tiles, seen, stretch, reading)
        else:
            self._book(tiles, seen.kinds, stretch, reading)
            if not stretch.partial:
                self._layouts.learn(
                    tiles,
                    seen.kinds,
                    micro=reading.micro,
                    samples=reading.samples,
                    syncs=reading.syncs,
                    usual=not (stretch.unrecorded or seen.starts_loader or seen.exhausted),
                )
        self._expose(stretch, spans, reading)
        return reading

    def _samples(self, seen: Scan) -> int | None:
        """Samples of a step; none where loaders that tell their batches had no more.

        Loops that fetch one batch ahead (Accelerate, the Hugging Face Trainer) end each epoch so.
        """
        if seen.samples is not None:
            self._batches_told = True
        elif seen.exhausted and self._batches_told:
            return 0
        return seen.samples

    def _read_bare(self, stretch: Stretch) -> Reading:
        """The usual step of a fast loop: its end is all there is."""
        t0, t1 = stretch.t0_ns, stretch.t1_ns
        tally, length = empty_tally(), t1 - t0
        layout = self._layouts.next(length, _NONE_EXACT)
        if layout is None:
            reading = Reading(t0, t1, tally, None, [], 0, 0, None, stretch.unrecorded, 0)
            unexplained = length
        else:
            told = (layout.micro, layout.samples, layout.syncs)
            reading = Reading(t0, t1, tally, None, [], 0, *told, 0)
            laid, unexplained = laid_out(layout, length)
            self._book_gaps(laid, layout.kinds, (), tally)
        if unexplained:
            self._gaps.split(UNEXPLAINED_KIND, unexplained, (), tally)
        self._expose(stretch, [], reading)
        return reading

    def _evaluations(self, stretch: Stretch, spans: list[Span]) -> list[tuple[int, int]]:
        nograd = [(s.t0_ns, s.t1_ns) for s in spans if s.code == SPAN_NOGRAD]
        typical = self._nograd_sorted[len(self._nograd_sorted) // 2] if self._nograd_sorted else 0
        rare = [span for span in nograd if span[1] - span[0] > RARE_FACTOR * typical]
        found, self._eval_open = evaluations(
            stretch.words,
            stretch.t0_ns,
            stretch.t1_ns,
            nograd,
            rare,
            stretch.samples,
            nograd_data_is_training=self._nograd_data_is_training(stretch.words),
            eval_open=self._eval_open,
            usual_ns=sorted(self._eval_blocks)[len(self._eval_blocks) // 2]
            if self._eval_blocks
            else 0,
        )
        self._eval_blocks.extend(b - a for a, b in set(rare).intersection(found))
        return [(max(a, stretch.t0_ns), min(b, stretch.t1_ns)) for a, b in found]

    def _nograd_data_is_training(self, words: Sequence[int]) -> bool:
        """Whether the loop fetches its own batches with gradients disabled."""
        self._note_loader(words)
        if self._grad_loader_seen:
            return False
        return sum(1 for word in words if word & CODE_MASK == DATA_NOGRAD << 1) <= 1

    def _note_loader(self, words: Sequence[int]) -> None:
        if not self._grad_loader_seen:
            self._grad_loader_seen = any(word & CODE_MASK == DATA << 1 for word in words)

    def _intervals(
        self,
        seen: Scan,
        spans: list[Span],
        evals: list[tuple[int, int]],
        t0: int,
        t1: int,
    ) -> list[Interval]:
        if not (evals or seen.kept or spans):
            return []
        rank = self._rank
        found = [Interval(rank, "eval", begin, end) for begin, end in evals]
        found += kept_intervals(rank, seen.kept)
        for s in spans:
            if not t0 <= s.t0_ns < t1:
                continue  # it began in another stretch and is kept there
            long_enough = (
                s.code == SPAN_COMPILE
                or (s.code == SPAN_GC and s.t1_ns - s.t0_ns >= MIN_GC_NS)
                or (s.code == SPAN_LOGGING and s.t1_ns - s.t0_ns >= MIN_LOGGING_NS)
            )
            if long_enough:
                label = LABELS[SPAN_LABEL[s.code]]
                found.append(Interval(rank, label, s.t0_ns, s.t1_ns, s.site or None))
        found.sort(key=lambda interval: interval.t0_ns)
        return found

    def _book(
        self, tiles: list[Tile], kinds: list[int], stretch: Stretch, reading: Reading
    ) -> None:
        reading.measured_ns = self._book_gaps(tiles, kinds, stretch.samples, reading.tally)

    def _book_gaps(
        self,
        tiles: list[Tile],
        kinds: Sequence[int],
        samples: Sequence[tuple[int, int]],
        tally: list[int],
    ) -> int:
        """Book tiles, split gaps by the samples in them; the total booked before the gaps."""
        gaps: dict[int, int] = {}
        for begin, end, label in tiles:
            if label >= 0:
                tally[label] += end - begin
            else:
                gaps[label] = gaps.get(label, 0) + end - begin
        measured = sum(tally)
        sampled = samples_by_gap(tiles, samples) if samples else {}
        split = self._gaps.split
        for gap, length in gaps.items():
            split(kinds[-1 - gap], length, sampled.get(gap, ()), tally)
        return measured

    def _book_unrecorded(
        self, tiles: list[Tile], seen: Scan, stretch: Stretch, reading: Reading
    ) -> None:
        """Book what is exact, and the rest as in a recorded step of about that length."""
        tally = reading.tally
        exact: set[int] = set()
        rest_ns = 0
        for begin, end, label in tiles:
            if label >= 0:
                tally[label] += end - begin
                exact.add(label)
            else:
                rest_ns += end - begin
        reading.measured_ns = sum(tally)
        reading.samples = None
        if seen.starts_loader and not seen.loads:
            exact.discard(L_DATA_WAIT)  # starting a loader is told, the wait for its batch is not
        layout = self._layouts.next(rest_ns, frozenset(exact))
        samples = samples_in_gaps(tiles, stretch.samples) if stretch.samples else []
        unexplained = rest_ns
        if layout is not None:
            reading.micro, reading.samples = layout.micro, layout.samples
            reading.syncs = layout.syncs
            laid, unexplained = laid_out(layout, rest_ns)
            inside = [] if unexplained else in_doubt_left_out(layout, samples, rest_ns)
            self._book_gaps(laid, layout.kinds, inside, tally)
        if unexplained:
            # Longer than any step that was recorded: what the sampler saw is all there is.
            offsets = [(t * unexplained // rest_ns, label) for t, label in samples]
            self._gaps.split(UNEXPLAINED_KIND, unexplained, offsets, tally)

    def _book_evaluation(self, tiles: list[Tile], stretch: Stretch, reading: Reading) -> None:
        """Book what lies in evaluations, and its parts on the side."""
        parts = empty_tally()
        reading.eval_tally = empty_tally()
        gaps: dict[int, int] = {}
        for begin, end, label in tiles:
            length = end - begin
            if label >= 0 and RANK[label] > RANK[L_EVAL]:
                reading.tally[label] += length
                continue
            reading.tally[L_EVAL] += length
            if label >= 0:
                parts[label] += length
            else:
                gaps[label] = gaps.get(label, 0) + length
        sampled = samples_by_gap(tiles, stretch.samples)
        for gap, length in gaps.items():
            labels = [
                (offset, L_FORWARD if label == L_EVAL else label)
                for offset, label in sampled.get(gap, ())
            ]
            self._gaps.split(EVAL_KIND, length, labels, parts)
        for label, length in enumerate(parts):
            reading.eval_tally[label if label in _EVAL_PARTS else L_OTHER] += length

    def _expose(self, stretch: Stretch, spans: list[Span], reading: Reading) -> None:
        """Attach the GPU's idle time and split blocking reads into ``sync`` and ``gpu_wait``."""
        tally = reading.tally
        if stretch.gpu is None and not tally[L_SYNC]:
            return
        if stretch.gpu is not None:
            host = [s.t1_ns - s.t0_ns for s in spans if s.code == SPAN_SYNC]
            found = exposure(stretch.gpu, host)
            reading.exposure = complete(found, tally, reading.t1_ns - reading.t0_ns)
            exposed = reading.exposure.blocked_ns
            if exposed is not None and tally[L_SYNC]:
                exposed = min(exposed, tally[L_SYNC])
                self._syncs.append((tally[L_SYNC], exposed))
                tally[L_GPU_WAIT] += tally[L_SYNC] - exposed
                tally[L_SYNC] = exposed
                return
        if self._syncs and tally[L_SYNC]:
            host_ns = sum(row[0] for row in self._syncs)
            exposed = tally[L_SYNC] * sum(row[1] for row in self._syncs) // host_ns
            tally[L_GPU_WAIT] += tally[L_SYNC] - exposed
            tally[L_SYNC] = exposed


def _count_syncs(spans: list[Span], t0_ns: int) -> int:
    return sum(1 for span in spans if span.code == SPAN_SYNC and span.t0_ns >= t0_ns)
