"""The probe's CUDA events, with CUDA itself stood in for: when, how many, and what they cost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gputop_train.collect import words as W
from gputop_train.probe import gpu_events
from gputop_train.probe.hooks import graphs

BWD_B, BWD_E = W.begin(W.BACKWARD), W.end(W.BACKWARD)
DATA_B, DATA_E = W.begin(W.DATA), W.end(W.DATA)
SYNC_B, SYNC_E = W.begin(W.SYNC), W.end(W.SYNC)
MS = 1_000_000


class Card:
    """A device whose queue is done at ``ready_ns``, and a host clock that costs nothing."""

    def __init__(self) -> None:
        self.host_ns = 1_000 * MS
        self.ready_ns = 0
        self.capturing = False
        self.calls = 0
        self.call_ns = 0

    def called(self) -> None:
        assert not graphs.capturing[0], "CUDA was called while a graph was captured"
        self.calls += 1
        self.host_ns += self.call_ns

    def torch(self) -> Any:
        card = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0

            def record(self, stream: Any) -> None:
                card.called()
                self.at = max(card.host_ns, card.ready_ns)

            def query(self) -> bool:
                card.called()
                return card.host_ns >= self.at

            def elapsed_time(self, other: Event) -> float:
                card.called()
                return (other.at - self.at) / 1e6

        class Stream:
            device_index = cuda_stream = 0

            def query(self) -> bool:
                card.called()
                return card.host_ns >= card.ready_ns

        class cuda:
            pass

        class torch:
            _C = object()

        cuda.Event = Event  # type: ignore[attr-defined]
        cuda.current_stream = staticmethod(Stream)  # type: ignore[attr-defined]
        cuda.is_current_stream_capturing = staticmethod(  # type: ignore[attr-defined]
            lambda: card.capturing
        )
        torch.cuda = cuda  # type: ignore[attr-defined]
        return torch


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card()
    monkeypatch.setattr(gpu_events, "now", lambda: found.host_ns)
    return found


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    words: list[int] = []
    monkeypatch.setattr(gpu_events, "append", words.append)
    return words


def events(card: Card, budget: float = 0.01) -> gpu_events.GpuEvents:
    return gpu_events.GpuEvents(card.torch(), budget)


def step(gpu: gpu_events.GpuEvents, card: Card, step_ms: float = 10.0) -> bool:
    """One step with a backward of events; whether it was sampled."""
    sampled = gpu.on
    if sampled:
        gpu.mark(BWD_B)
    card.host_ns += int(step_ms * MS)
    if sampled:
        gpu.mark(BWD_E)
    gpu.step_end()
    return sampled


def edges(words: list[int]) -> list[tuple[int, int, int]]:
    """``(offset ns, edge, flags)`` of every event word."""
    values = [word >> W.CODE_BITS for word in words if word & W.CODE_MASK == W.GPU_EDGE]
    return [(v >> 12, v >> 6 & 63, v & 63) for v in values]


def test_events_cost_no_more_than_their_part_of_the_budget(card: Card, written: list[int]) -> None:
    gpu = events(card)
    card.call_ns = 4_000
    begun = card.host_ns
    for _ in range(4_000):
        step(gpu, card)
    spent = gpu.total_cost_ns / (card.host_ns - begun)
    assert gpu.sampled > 20
    assert spent <= 0.01 * gpu_events.EVENTS_SHARE * 1.3


def test_the_cost_counts_reading_back_and_not_only_recording(
    card: Card, written: list[int]
) -> None:
    gpu = events(card)
    card.call_ns = 4_000
    for _ in range(400):
        step(gpu, card)
    # Two marks with capture, query and record; then a query and two readings: over 5 calls at all.
    assert gpu.report()["cost_ns_per_sampled_step"] >= 5 * 4_000


def test_a_wait_for_the_interpreter_lock_does_not_end_sampling(
    card: Card, written: list[int]
) -> None:
    gpu = events(card)
    for number in range(400):
        card.call_ns = 30 * MS if number % 100 == 99 else 2_000
        step(gpu, card)
    assert gpu.off_reason is None
    assert gpu.interval_ns < 2_000 * MS


def test_steps_that_become_longer_are_sampled_more_densely_at_once(
    card: Card, written: list[int]
) -> None:
    gpu = events(card)
    card.call_ns = 4_000
    fast = sum(step(gpu, card, 1.0) for _ in range(5_000)) / 5_000
    slow = sum(step(gpu, card, 100.0) for _ in range(50)) / 50
    assert fast < 0.1
    assert slow > 0.3


def test_sampled_steps_do_not_keep_in_step_with_the_loop(card: Card, written: list[int]) -> None:
    gpu = events(card)
    card.call_ns = 4_000
    at = [number for number in range(6_000) if step(gpu, card, 2.0)]
    distances = {b - a for a, b in itertools.pairwise(at)}
    assert len(at) > 20
    assert len(distances) > 5


def test_no_cuda_call_is_made_while_any_thread_captures_a_graph(
    card: Card, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = events(card)
    while not gpu.on:
        step(gpu, card)
    monkeypatch.setattr(graphs, "capturing", [1])
    before = card.calls
    for _ in range(100):
        step(gpu, card)
    assert card.calls == before
    assert not gpu.on
    assert gpu.errors == 0


def test_a_stream_that_is_captured_ends_the_sampled_step(card: Card, written: list[int]) -> None:
    gpu = events(card)
    while not gpu.on:
        step(gpu, card)
    gpu.mark(BWD_B)
    card.capturing = True
    gpu.mark(BWD_E)
    assert not gpu.on
    gpu.step_end()
    assert not any(word & W.CODE_MASK == W.GPU_STEP for word in written[-3:])


def test_an_idle_stream_after_a_read_is_told(card: Card, written: list[int]) -> None:
    gpu = events(card)
    while not gpu.on:
        step(gpu, card)
    gpu.mark(SYNC_B)
    gpu.mark(SYNC_E)
    card.host_ns += MS
    gpu.mark(DATA_B)
    card.host_ns += MS
    card.ready_ns = card.host_ns + 5 * MS  # work was launched meanwhile
    gpu.mark(DATA_E)
    gpu.step_end()
    card.host_ns += 10 * MS
    gpu.step_end()
    flags = [flag for _, _, flag in edges(written)][-4:]
    assert flags[2] == gpu_events.DRY | gpu_events.IDLE
    assert flags[3] == gpu_events.DRY


def test_where_no_event_fits_the_budget_there_are_none_and_it_says_so(
    card: Card, written: list[int]
) -> None:
    gpu = events(card, budget=1e-7)
    card.call_ns = 4_000
    for _ in range(200):
        step(gpu, card)
    assert gpu.report()["every"] is None
    assert "overhead budget" in (gpu.off_reason or "")
    assert not gpu.on
