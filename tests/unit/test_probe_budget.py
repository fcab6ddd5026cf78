"""The span gate: how many reads are recorded one by one, within the overhead budget."""

from __future__ import annotations

import pytest

from gputop_train.probe import budget, state
from gputop_train.probe.words import CODE_BITS, UNRECORDED


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    at = [1_000_000_000]
    monkeypatch.setattr(budget, "now", lambda: at[0])
    state.log.clear()
    return at


def step(gate: budget.SpanGate, clock: list[int], ms: float, reads: int, cost_ns: int) -> None:
    begin = clock[0]
    for _ in range(reads):
        if gate.open:
            started = clock[0]
            clock[0] += cost_ns
            gate.timed(started)
        else:
            gate.skipped += 1
    clock[0] = begin + int(ms * 1e6)
    gate.tell_skipped()
    gate.mean_step_ns = ms * 1e6
    gate.step_end(False)


def test_a_few_reads_a_step_are_always_recorded(clock: list[int]) -> None:
    gate = budget.SpanGate()
    for _ in range(50):
        step(gate, clock, ms=10, reads=4, cost_ns=5_000)
        assert gate.open and gate.every == 1


def test_a_thousand_reads_are_recorded_only_as_often_as_the_budget_allows(clock: list[int]) -> None:
    gate = budget.SpanGate()
    recorded = 0
    for _ in range(400):
        was_open = gate.open
        step(gate, clock, ms=30, reads=1000, cost_ns=2_000)
        recorded += 1000 * was_open
    # cost of a record 2 us, taken twice for the wrapper; 15% of 1% of 30 ms = 45 us a step
    share = recorded * budget.WRAPPER_FACTOR * 2_000 / (400 * 30e6)
    assert 0 < share <= 1.3 * budget.READS_SHARE * 0.01


def test_reads_left_out_are_told_by_number(clock: list[int]) -> None:
    gate = budget.SpanGate()
    for _ in range(20):
        step(gate, clock, ms=30, reads=500, cost_ns=2_000)
    told = [w >> CODE_BITS for w in state.log if w & 63 == UNRECORDED]
    assert told and set(told) == {500}


def test_a_step_with_gpu_events_is_always_recorded_in_full(clock: list[int]) -> None:
    gate = budget.SpanGate()
    for _ in range(20):
        step(gate, clock, ms=30, reads=1000, cost_ns=2_000)
    assert gate.every > 1
    gate.step_end(True)
    assert gate.open


def test_a_wait_for_the_interpreter_lock_is_no_cost_of_a_record(clock: list[int]) -> None:
    gate = budget.SpanGate()
    step(gate, clock, ms=100, reads=17, cost_ns=5_000_000)
    assert gate.cost_ns <= 17 * budget.WRAPPER_FACTOR * budget.RECORD_MAX_NS
