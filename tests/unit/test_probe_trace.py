"""What a trace is reduced to, with the trace itself stood in for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gputop_train.probe.trace import reduce

US = 1_000
BEGIN = 10_000 * US
END = BEGIN + 1_000 * US


@dataclass
class Event:
    """One event; times in microseconds from the window's begin."""

    what: str
    at_us: float
    us: float
    correlation: int
    device: str = "DeviceType.CPU"

    def name(self) -> str:
        return self.what

    def start_ns(self) -> int:
        return BEGIN + int(self.at_us * US)

    def duration_ns(self) -> int:
        return int(self.us * US)

    def correlation_id(self) -> int:
        return self.correlation

    def device_type(self) -> str:
        return self.device


class Result:
    def __init__(self, *events: Event) -> None:
        self._events = events

    def events(self) -> tuple[Event, ...]:
        return self._events


def launched(number: int, launch_us: float, begin_us: float, us: float) -> tuple[Event, Event]:
    return (
        Event("cudaLaunchKernel", launch_us, 4, number),
        Event("void gemm<...>", begin_us, us, number, "DeviceType.CUDA"),
    )


def read(*events: Event) -> dict[str, Any]:
    return reduce(Result(*events), BEGIN, END)


def test_kernels_that_overlap_count_once():
    found = read(*launched(1, 0, 10, 100), *launched(2, 1, 60, 100))
    assert found["kernels"] == found["launches"] == 2
    assert found["busy_ns"] == 150 * US
    assert found["kernel_us"] == 100


def test_a_gap_before_a_kernel_that_was_launched_late_is_the_hosts():
    found = read(*launched(1, 0, 10, 100), *launched(2, 400, 410, 100))
    assert found["host_idle_ns"] == 300 * US
    assert found["sync_idle_ns"] == 0


def test_a_gap_before_a_kernel_that_waited_in_the_queue_is_not_the_hosts():
    found = read(*launched(1, 0, 10, 100), *launched(2, 50, 130, 100))
    assert found["host_idle_ns"] == 0


def test_idle_time_from_a_blocking_call_to_the_next_launch_is_told_apart():
    wait = Event("cudaStreamSynchronize", 90, 25, 9)
    found = read(*launched(1, 0, 10, 100), wait, *launched(2, 400, 410, 100))
    assert found["sync_idle_ns"] == 300 * US
    late = Event("cudaStreamSynchronize", 200, 5, 9)  # the queue was long empty when it was called
    found = read(*launched(1, 0, 10, 100), late, *launched(2, 400, 410, 100))
    assert found["host_idle_ns"] == 300 * US
    assert found["sync_idle_ns"] == 210 * US


def test_copies_are_no_kernels_but_no_idle_time_either():
    copy = Event("Memcpy HtoD (Pageable -> Device)", 110, 290, 3, "DeviceType.CUDA")
    call = Event("cudaMemcpyAsync", 105, 290, 3)
    found = read(*launched(1, 0, 10, 100), call, copy, *launched(2, 395, 405, 100))
    assert found["kernels"] == 2
    assert found["copy_ns"] == 290 * US
    assert found["busy_ns"] == 200 * US
    assert found["host_idle_ns"] == 0


def test_a_device_that_is_behind_is_said_to_be():
    behind = [Event("cudaLaunchKernel", 10 * n, 4, n) for n in range(100)]
    first = Event("void gemm<...>", 900, 50, 0, "DeviceType.CUDA")
    assert read(*behind, first)["caught_up"] is False
    assert read(*launched(1, 0, 10, 100))["caught_up"] is True


def test_work_from_before_the_window_counts_only_for_its_part_inside():
    early = launched(1, -50, -20, 120)
    found = read(*early, *launched(2, 300, 310, 10))
    assert found["kernels"] == 1
    assert found["busy_ns"] == 110 * US


def test_a_trace_of_a_cpu_counts_operators():
    found = read(Event("aten::add", 5, 1, 0), Event("aten::mul", 6, 1, 0))
    assert found["cpu_ops"] == 2
    assert found["kernel_us"] is None


def test_times_in_microseconds_of_older_torch_are_read():
    class Old:
        def name(self) -> str:
            return "k"

        def start_us(self) -> int:
            return BEGIN // US + 10

        def duration_us(self) -> int:
            return 5

        def correlation_id(self) -> int:
            return 1

        def device_type(self) -> str:
            return "DeviceType.CUDA"

    assert reduce(Result(Old()), BEGIN, END)["busy_ns"] == pytest.approx(5 * US)  # type: ignore[arg-type]
