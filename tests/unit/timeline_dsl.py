"""A tiny language to write down what a training thread did, in milliseconds."""

from __future__ import annotations

from gputop_train.collect import words as W
from gputop_train.collect.timeline import Batch, Timeline

MS = 1_000_000
START_NS = 5_000 * MS

FORWARD, DATA_CLASS, BACKWARD_CLASS, OPTIMIZER_CLASS, EVAL_CLASS, HOST = 1, 2, 4, 5, 8, 13
SEEN_IN = {W.DATA: DATA_CLASS, W.DATA_NOGRAD: DATA_CLASS, W.BACKWARD: BACKWARD_CLASS}


class Thread:
    """Writes words as the probe would; ``at`` is the thread's own clock in ns."""

    def __init__(self, sample_every_ms: float | None = None) -> None:
        self.words: list[int] = []
        self.at = START_NS
        self.sample_every_ns = int(sample_every_ms * MS) if sample_every_ms else None
        self.next_sample_ns = START_NS

    def run(self, ms: float, seen_as: int = 0) -> Thread:
        """Let time pass outside or inside of edges; the sampler, if any, sees ``seen_as``."""
        end = self.at + round(ms * MS)
        if self.sample_every_ns:
            while self.next_sample_ns < end:
                if self.next_sample_ns >= self.at:
                    self.sample(seen_as, self.next_sample_ns)
                self.next_sample_ns += self.sample_every_ns
        self.at = end
        return self

    def begin(self, phase: int) -> Thread:
        self.words.append(W.word(W.begin(phase), self.at))
        return self

    def end(self, phase: int) -> Thread:
        self.words.append(W.word(W.end(phase), self.at))
        return self

    def argument(self, amount: int, site: int = 0) -> Thread:
        self.words.append(W.site_argument(amount, site))
        return self

    def phase(self, phase: int, ms: float, amount: int | None = None, site: int = 0) -> Thread:
        self.begin(phase).run(ms, SEEN_IN.get(phase, 0)).end(phase)
        return self if amount is None else self.argument(amount, site)

    def data(self, ms: float, samples: int = 8, loader: int = 1) -> Thread:
        return self.phase(W.DATA, ms, samples, loader)

    def eval_data(self, ms: float, samples: int = 8, loader: int = 2) -> Thread:
        return self.phase(W.DATA_NOGRAD, ms, samples, loader)

    def backward(self, ms: float) -> Thread:
        return self.phase(W.BACKWARD, ms)

    def optimizer(self, ms: float, id_: int = 1) -> Thread:
        return self.begin(W.OPTIMIZER).argument(id_).run(ms, OPTIMIZER_CLASS).end(W.OPTIMIZER)

    def save(self, ms: float, size: int = 0, site: int = 0) -> Thread:
        return self.phase(W.SAVE, ms, size, site)

    def span(self, code: int, begin_ns: int, ms: float, amount: int = 0, site: int = 0) -> Thread:
        self.words += [W.word(code, begin_ns), W.word(W.ARG_DUR, round(ms * MS))]
        return self.argument(amount, site)

    def run_in_span(self, code: int, ms: float, seen_as: int = 0, site: int = 0) -> Thread:
        """Time passes, and a span over it is written afterwards."""
        begin = self.at
        self.run(ms, seen_as)
        return self.span(code, begin, ms, 0, site)

    def sample(self, label: int, t_ns: int | None = None) -> Thread:
        self.words.append(W.word(W.SAMPLE, self.at if t_ns is None else t_ns))
        return self.argument(label)

    def tick(self, optimizer: int | None = None) -> Thread:
        """A step ends of which nothing else was recorded."""
        if optimizer is not None:
            self.words.append(W.word(W.TICK_OPTIMIZER, optimizer))
        self.words.append(W.word(W.STEP_TICK, self.at))
        return self

    def scaler_update(self) -> Thread:
        self.words.append(W.word(W.SCALER_UPDATE, self.at))
        return self

    def step(
        self, data: float = 2, forward: float = 3, backward: float = 4, optimizer: float = 1
    ) -> Thread:
        """An ordinary step."""
        self.data(data).run(forward, FORWARD)
        return self.backward(backward).optimizer(optimizer)

    def gpu(self, t_ns: int, *edges: tuple[float, int] | tuple[float, int, int]) -> Thread:
        """The events of one sampled step: ``(offset ms, edge code[, flags])``."""
        self.words.append(W.word(W.GPU_STEP, t_ns))
        for offset_ms, code, *flags in edges:
            flag = flags[0] if flags else 0
            value = round(offset_ms * MS) << 12 | code << 6 | flag
            self.words.append(W.word(W.GPU_EDGE, value))
        return self

    def gpu_end(self, dropped: int = 0) -> Thread:
        self.words.append(W.word(W.GPU_END, dropped))
        return self


def read(thread: Thread, chunk: int | None = None) -> Batch:
    """Everything a stream says, fed in chunks."""
    return read_with(Timeline(0), thread, chunk)


def read_with(timeline: Timeline, thread: Thread, chunk: int | None = None) -> Batch:
    """Feed a stream to a timeline, finish it, and join its batches."""
    size = chunk or max(1, len(thread.words))
    batches = [
        timeline.feed(thread.words[at : at + size]) for at in range(0, len(thread.words), size)
    ]
    batches.append(timeline.finish())
    sub: dict[str, int] = {}
    for batch in batches:
        for label, ns in (batch.eval_sub or {}).items():
            sub[label] = sub.get(label, 0) + ns
    return Batch(
        steps=tuple(step for batch in batches for step in batch.steps),
        intervals=tuple(interval for batch in batches for interval in batch.intervals),
        memory=tuple(sample for batch in batches for sample in batch.memory),
        events=tuple(event for batch in batches for event in batch.events),
        eval_sub=sub,
        tail=batches[-1].tail,
        tail_ns=batches[-1].tail_ns,
    )


def ms_by_label(step_or_labels: object) -> dict[str, float]:
    """Nonzero labels in milliseconds."""
    labels = getattr(step_or_labels, "labels", step_or_labels)
    return {label: round(ns / MS, 3) for label, ns in labels.items() if ns}  # type: ignore[attr-defined]
