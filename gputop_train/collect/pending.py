"""Steps that have ended but wait for words that arrive after them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final

from gputop_train.collect.gpu_edges import GpuStep
from gputop_train.collect.stretch import Span, Stretch

#: A closed step is kept this long (stream time) for samples and spans that arrive after it.
HOLD_NS: Final = 300_000_000
#: Once the process writes GPU events, which are read back later than the step ends.
GPU_HOLD_NS: Final = 1_000_000_000
#: A step still without its events is kept while fewer than this many later steps have ended.
GPU_HOLD_STEPS: Final = 3
GPU_HOLD_MOST_NS: Final = 10_000_000_000
#: Never more steps than this are kept back.
MAX_PENDING: Final = 256


class Pending:
    """Closed stretches in order, and the open one after them.

    Attributes:
        open: The stretch that is being written.
        late: Words whose step had been handed out already.
    """

    def __init__(self) -> None:
        self.open = Stretch(t0_ns=0)
        self.late = 0
        self._closed: deque[Stretch] = deque()
        self._gpu_seen_ns: int | None = None

    def __len__(self) -> int:
        return len(self._closed)

    def close_at(self, t: int, position: int, *, partial: bool) -> Stretch:
        """Cut the open stretch; words from ``position`` and times from ``t`` on start the next."""
        done = self.open
        t = max(t, done.t0_ns)
        done.t1_ns = t
        done.partial = partial
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
        self.open = rest
        self._closed.append(done)
        return done

    def drop_open(self) -> None:
        """Forget the open step, the parts of it that were closed already included."""
        self.open = Stretch(t0_ns=0)
        while self._closed and self._closed[-1].partial:
            self._closed.pop()

    def whole_steps(self) -> int:
        """Steps that wait."""
        return sum(1 for stretch in self._closed if not stretch.partial)

    def overflow(self) -> Iterator[Stretch]:
        """Stretches that must go because too many wait."""
        while len(self._closed) > MAX_PENDING:
            yield self._closed.popleft()

    def ripe(self, now_ns: int, *, everything: bool) -> Iterator[Stretch]:
        """Stretches that need not wait any longer."""
        while self._closed and (everything or self._is_ripe(self._closed[0], now_ns)):
            yield self._closed.popleft()

    def _is_ripe(self, stretch: Stretch, now_ns: int) -> bool:
        age = now_ns - stretch.t1_ns
        if self._gpu_seen_ns is None:
            return age >= HOLD_NS
        if age < GPU_HOLD_NS:
            return False
        return (
            stretch.gpu is not None
            or self._gpu_seen_ns >= stretch.t1_ns
            or len(self._closed) > GPU_HOLD_STEPS
            or age >= GPU_HOLD_MOST_NS
        )

    def place_sample(self, t: int, label: int) -> None:
        """Put a stack sample where it belongs."""
        stretch = self._at(t)
        if stretch is not None:
            stretch.samples.append((t, label))

    def place_gpu(self, gpu: GpuStep) -> None:
        """Put a step's events where they belong."""
        self._gpu_seen_ns = max(self._gpu_seen_ns or 0, gpu.t_ns)
        stretch = self._at(gpu.t_ns)
        if stretch is not None:
            stretch.gpu = gpu

    def place_span(self, span: Span) -> None:
        """Put a span into every stretch it overlaps."""
        if span.t0_ns >= self.open.t0_ns:
            self.open.spans.append(span)
            return
        found = False
        for stretch in reversed(self._closed):
            if stretch.t0_ns < span.t1_ns and stretch.t1_ns > span.t0_ns:
                stretch.spans.append(span)
                found = True
            if stretch.t0_ns <= span.t0_ns:
                break
        if span.t1_ns > self.open.t0_ns:
            self.open.spans.append(span)
            found = True
        self.late += not found

    def _at(self, t: int) -> Stretch | None:
        """The stretch that ``t`` lies in; ``None`` when it has been handed out already."""
        if t >= self.open.t0_ns:
            return self.open
        closed = self._closed
        if not closed or t < closed[0].t0_ns:
            self.late += 1
            return None
        return closed[bisect_right(closed, t, key=_begin) - 1]


def _begin(stretch: Stretch) -> int:
    return stretch.t0_ns
