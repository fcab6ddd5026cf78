"""Which lines other threads are met at: those that run the person's code, none that wait."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable

import pytest

from gputop_train.probe import others, sampler, sites, state


def spin(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(k * k for k in range(2_000))


def feed(stop: threading.Event) -> None:
    batches: queue.Queue[int] = queue.Queue()
    while not stop.is_set():
        batches.put(sum(k * k for k in range(2_000)))


def sleeps(stop: threading.Event) -> None:
    while not stop.is_set():
        time.sleep(0.01)


def waits(stop: threading.Event) -> None:
    stop.wait()


def takes(stop: threading.Event) -> None:
    empty: queue.SimpleQueue[int] = queue.SimpleQueue()
    while not stop.is_set():
        with contextlib.suppress(queue.Empty):
            empty.get(timeout=0.05)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., None]], dict[str, int]]:
    monkeypatch.setattr(sites, "places", [None])
    monkeypatch.setattr(sites, "stats", [[0] * 9])
    monkeypatch.setattr(sites, "_ids", {})
    monkeypatch.setattr(sites, "_library", {})
    monkeypatch.setattr(state.S, "thread_id", threading.main_thread().ident)

    def look_at(work: Callable[..., None]) -> dict[str, int]:
        stop = threading.Event()
        thread = threading.Thread(target=work, args=(stop,))
        thread.start()
        for _ in range(50):
            time.sleep(0.004)
            others.look(sys._current_frames(), threading.get_ident(), sampler.Sampler()._text)
        stop.set()
        thread.join()
        found: dict[str, int] = {}
        for place, row in zip(sites.places, sites.stats, strict=True):
            if place is not None and place[3] in (work.__name__, "<genexpr>"):
                assert place[0] == "thread"
                found[str(place[5])] = found.get(str(place[5]), 0) + row[0]
        return found

    return look_at


def test_a_thread_that_computes_is_met_and_known_by_whether_it_fills_a_queue(met):
    assert met(spin).get("None", 0) >= 25
    assert met(feed).get("feeds", 0) >= 25


@pytest.mark.parametrize("work", [sleeps, waits, takes])
def test_a_thread_that_waits_is_not_met(met, work):
    assert sum(met(work).values()) <= 5


def test_where_another_thread_than_the_first_trains_nothing_is_counted(met, monkeypatch):
    monkeypatch.setattr(state.S, "thread_id", -1)
    assert met(spin) == {}
