"""Finds the evaluations in a step: eval mode, gradient-free loader batches, no_grad blocks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from gputop_train.collect.tiling import union
from gputop_train.collect.words import (
    BACKWARD,
    CODE_BITS,
    CODE_MASK,
    DATA,
    DATA_NOGRAD,
    EVAL,
    FIRST_NON_EDGE,
    ITER,
    L_EVAL,
    L_FORWARD,
    OPTIMIZER,
    SAVE,
)

Span = tuple[int, int]

#: A gradient-free block alone is an evaluation only when at least this share of its samples shows
#: a forward pass; the rest may be its data, its metrics, its printing.
FORWARD_SHARE: Final = 0.2
#: Blocks within this factor of the usual length are alike.
ALIKE: Final = 1.5


def evaluations(
    words: Sequence[int],
    t0_ns: int,
    t1_ns: int,
    nograd: Sequence[Span],
    rare: Sequence[Span],
    samples: Sequence[tuple[int, int]],
    *,
    nograd_data_is_training: bool = False,
    eval_open: bool = False,
    usual_ns: int = 0,
) -> tuple[list[Span], bool]:
    """Evaluations within ``[t0_ns, t1_ns]``, disjoint and sorted.

    Args:
        words: The stretch's edge words.
        t0_ns: Its begin.
        t1_ns: Its end.
        nograd: Its ``SPAN_NOGRAD`` blocks.
        rare: Those of them that are far longer than what most steps contain. A block as long as
            in most steps is part of the step: a teacher, a metric.
        samples: Its stack samples, ``(t_ns, label index)``, sorted.
        nograd_data_is_training: The loop's own batches are fetched with gradients disabled.
        eval_open: Whether eval mode was already on at ``t0_ns``.
        usual_ns: Length of the blocks before that were found to evaluate; 0 = none yet.

    Returns:
        The evaluations, and whether eval mode is still on at the end.
    """
    finder = _Finder(t0_ns, t1_ns, union(nograd), eval_open=eval_open)
    data = DATA if nograd_data_is_training else DATA_NOGRAD
    for word in words:
        code = word & CODE_MASK
        if code < FIRST_NON_EDGE:
            phase = code >> 1
            t = min(max(word >> CODE_BITS, t0_ns), t1_ns)
            finder.edge(t, data if phase == DATA_NOGRAD else phase, end=bool(code & 1))
    found = finder.finish()
    if rare:
        blocks = union(rare)
        found += finder.batches_without_grad(blocks)
        found += _blocks_with_forward(finder.head_end, blocks, samples, usual_ns)
    still_open = finder.eval_from is not None
    return [span for span in union(found) if span[1] > t0_ns and span[0] < t1_ns], still_open


class _Finder:
    """One walk over a stretch's edges."""

    def __init__(self, t0_ns: int, t1_ns: int, nograd: list[Span], *, eval_open: bool) -> None:
        self.eval_from: int | None = t0_ns if eval_open else None
        self.head_end = t1_ns  # until here nothing of the next step's training was seen
        self._t1_ns = t1_ns
        self._nograd = nograd
        self._nograd_begins = [begin for begin, _ in nograd]
        self._found: list[Span] = []
        self._run_from: int | None = None
        self._run_to = t0_ns
        self._wall = t0_ns  # a run cannot reach back over this
        self._iter_from: int | None = None
        self._train_data_from: int | None = None
        self._active = False
        self._batches: list[tuple[int, bool]] = []  # (begin, whether a backward came before it)
        self._backward = False

    def edge(self, t: int, phase: int, *, end: bool) -> None:
        """One edge."""
        if end:
            self._end(t, phase)
        else:
            self._begin(t, phase)

    def _begin(self, t: int, phase: int) -> None:
        if phase == EVAL:
            if self.eval_from is None:
                self.eval_from, self._active, self._train_data_from = t, False, None
        elif phase == DATA_NOGRAD:
            if self._run_from is None:
                self._run_from = t if self._iter_from is None else self._iter_from
            self._train_data_from, self._active = None, True
        elif phase in (DATA, ITER):
            self._close_run(t)
            self._iter_from = t if phase == ITER else None
            if self._train_data_from is None:
                self._train_data_from = t
            if phase == DATA:
                self.head_end = min(self.head_end, t)
                self._batches.append((t, self._backward))
                self._backward = False
        elif phase in (BACKWARD, OPTIMIZER):
            self._close_run(t)
            self.eval_from = self._iter_from = None
            self.head_end = min(self.head_end, t)
            self._backward = True
        elif phase == SAVE:
            self._close_run(t)

    def _end(self, t: int, phase: int) -> None:
        if phase == EVAL and self.eval_from is not None:
            # train() called inside the loop, after the batch was fetched: that fetch is training's.
            late = self._train_data_from if self._active else None
            self._found.append((self.eval_from, t if late is None else late))
            self.eval_from = None
        elif phase == DATA_NOGRAD:
            self._run_to = t
        elif phase in (DATA, BACKWARD, OPTIMIZER, SAVE):
            self._wall = t

    def _close_run(self, t: int) -> None:
        """Book a run of gradient-free batches that ends before the edge at ``t``."""
        if self._run_from is None:
            return
        begin, stop = self._run_from, t
        index = bisect_right(self._nograd_begins, self._run_to) - 1
        if index >= 0 and self._nograd[index][1] >= self._run_to:
            stop = min(self._nograd[index][1], t)
            begin = max(min(begin, self._nograd[index][0]), self._wall)
        self._found.append((begin, stop))
        self._run_from = None

    def finish(self) -> list[Span]:
        """Close what is open at the end of the stretch."""
        self._close_run(self._t1_ns)
        if self.eval_from is not None:
            self._found.append((self.eval_from, self._t1_ns))
        return list(self._found)

    def batches_without_grad(self, rare: Sequence[Span]) -> list[Span]:
        """Batches consumed inside ``no_grad`` and never by a backward.

        The usual evaluation loop that enters ``no_grad`` for each batch anew: its loader is asked
        with gradients enabled, so its edges look like those of training.
        """
        found = []
        begins = [begin for begin, _ in rare]
        for (begin, _), (following, used) in pairwise(self._batches):
            index = bisect_left(begins, begin)
            if not used and index < len(rare) and rare[index][1] <= following:
                found.append((begin, following))
        return found


def _blocks_with_forward(
    head_end: int, rare: Sequence[Span], samples: Sequence[tuple[int, int]], usual_ns: int
) -> list[Span]:
    """Gradient-free blocks between two steps in which the sampler saw a forward pass.

    One that it did not look into at all is told by its length, where others like it were seen.
    """
    times = [t for t, _ in samples]
    found = []
    for begin, stop in rare:
        if stop > head_end:
            break
        inside = samples[bisect_left(times, begin) : bisect_right(times, stop)]
        forward = sum(1 for _, label in inside if label in (L_FORWARD, L_EVAL))
        like = not inside and usual_ns / ALIKE <= stop - begin <= usual_ns * ALIKE
        if like or (forward and forward >= FORWARD_SHARE * len(inside)):
            found.append((begin, stop))
    return found
