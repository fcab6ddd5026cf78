"""The span gate: how many reads are recorded one by one, within the overhead budget."""

from __future__ import annotations

from itertools import pairwise

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


# -- which steps have their phases recorded --------------------------------------------------------


@pytest.fixture
def duty(monkeypatch: pytest.MonkeyPatch) -> budget.Duty:
    monkeypatch.setattr(budget, "S", state.ProbeState())
    monkeypatch.setattr(budget, "gate", budget.SpanGate())
    return budget.Duty()


class Loop:
    """A loop whose hooks cost ``hook_us`` as they can time it themselves."""

    def __init__(self, duty: budget.Duty, hook_us: float) -> None:
        self.duty, self.hook_ns = duty, int(hook_us * 1e3)
        self.at = 1_000_000_000

    def run(self, ms: float, steps: int, keep: bool = False) -> list[bool]:
        """Which of so many steps were recorded."""
        s = budget.S
        recorded = []
        for _ in range(steps):
            recorded.append(s.whole)
            self.at += int(ms * 1e6)
            s.steps += 1
            if s.whole:
                s.hook_ns += self.hook_ns if s.timing else 0
                self.duty.recorded_end(self.at, keep)
            elif self.at >= s.quiet_until_ns:
                self.duty.quiet_ends(self.at)
        return recorded


def spent(recorded: list[bool], hook_us: float, ms: float) -> float:
    """Share of the steps' time that their hooks take, by the module's own reckoning."""
    full = budget.HOOKS_FACTOR * hook_us
    cost = sum(full if whole else budget.QUIET_PART * full for whole in recorded)
    return cost / (len(recorded) * ms * 1e3)


def test_a_slow_loop_has_every_step_recorded(duty: budget.Duty) -> None:
    assert all(Loop(duty, hook_us=6).run(ms=10, steps=2_000))


@pytest.mark.parametrize("ms", [1.0, 1.5])
def test_a_fast_loop_is_recorded_as_often_as_its_part_of_the_budget_allows(
    duty: budget.Duty, ms: float
) -> None:
    loop = Loop(duty, hook_us=2)
    loop.run(ms, 100)
    recorded = loop.run(ms, 40_000)
    share = spent(recorded, 2, ms)
    assert 0.6 * budget.PHASES_ONLY_SHARE * 0.01 < share <= 1.1 * budget.PHASES_ONLY_SHARE * 0.01


def test_however_fast_a_loop_is_a_few_runs_a_second_are_recorded(duty: budget.Duty) -> None:
    loop = Loop(duty, hook_us=6)
    loop.run(0.1, 100)
    recorded = loop.run(0.1, 200_000)
    while recorded[-1]:  # a run that was still under way
        recorded.pop()
    runs = sum(1 for before, after in pairwise(recorded) if after > before)
    assert runs >= 20 / (1.5 * budget.MAX_QUIET_NS / 1e9)  # in 20 s
    assert sum(recorded) >= runs * budget.RUN_CALLS


def test_a_loop_that_becomes_slow_is_recorded_from_its_next_step_on(duty: budget.Duty) -> None:
    loop = Loop(duty, hook_us=6)
    loop.run(0.8, 500)
    while budget.S.whole:
        loop.run(0.8, 1)
    quiet_left = (budget.S.quiet_until_ns - loop.at) / 1e6
    assert all(loop.run(50, 200)[1 + int(quiet_left / 50) :])


def test_pauses_between_recorded_runs_are_no_two_alike(duty: budget.Duty) -> None:
    loop = Loop(duty, hook_us=6)
    recorded = loop.run(1.0, 20_000)[100:]
    text = "".join("x" if whole else "." for whole in recorded)
    assert len({len(pause) for pause in text.strip(".").split("x") if pause}) > 8


def test_steps_that_must_be_told_are_recorded_however_fast_the_loop_is(duty: budget.Duty) -> None:
    loop = Loop(duty, hook_us=6)
    loop.run(0.5, 500)
    while not budget.S.whole:
        loop.run(0.5, 1)
    assert all(loop.run(0.5, 100, keep=True))


def test_every_unrecorded_step_is_stood_for_once(duty: budget.Duty) -> None:
    loop = Loop(duty, hook_us=6)
    loop.run(1.0, 500)
    while not budget.S.whole:
        loop.run(1.0, 1)
    while budget.S.whole:
        loop.run(1.0, 1)
    quiet = 0
    while not budget.S.whole:
        quiet += 1
        loop.run(1.0, 1)
    stands_for = [duty.stands_for()]
    for _ in range(budget.RUN_CALLS - 1):
        loop.run(1.0, 1)
        stands_for.append(duty.stands_for())
    assert sum(stands_for) == quiet
    assert max(stands_for) - min(stands_for) <= 1


def test_the_parts_of_the_budget_leave_a_reserve() -> None:
    parts = budget.READS_SHARE + budget.EVENTS_SHARE + budget.HELPER_SHARE
    assert parts + budget.PHASES_SHARE < 0.96
    assert budget.PHASES_ONLY_SHARE + budget.HELPER_SHARE < 0.96
