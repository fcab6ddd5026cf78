"""A broken part of the supervisor is off; the rest goes on."""

from __future__ import annotations

import errno

import pytest

from gputop_train.launch.guard import LOG_LINES, MAX_FAILURES, RETRY_NS, STORE_RETRY_NS, Guard
from gputop_train.store.errors import StoreError, StoreFull


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def notes():
    return []


@pytest.fixture
def guard(clock, notes):
    return Guard(lambda kind, body: notes.append((kind, body)), clock)


def broken() -> None:
    raise RuntimeError("driver on fire")


def test_a_working_part_gives_its_value(guard):
    assert guard.run("host", lambda: 42) == 42


def test_a_failure_is_one_note_and_a_pause_and_other_parts_go_on(guard, notes, clock, capsys):
    assert guard.run("nvml", broken) is None
    assert guard.run("nvml", lambda: 1) is None, "it was tried again at once"
    assert guard.run("host", lambda: 2) == 2
    assert [kind for kind, _ in notes] == ["part-failed"]
    assert "driver on fire" in notes[0][1]["text"]
    assert "driver on fire" in capsys.readouterr().err
    clock.now_ns += RETRY_NS
    assert guard.run("nvml", lambda: 1) == 1, "it was never tried again"


def test_a_part_that_keeps_failing_stays_off_and_says_so_once(guard, notes, clock):
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        broken()

    for _ in range(20):
        guard.run("nvml", count)
        clock.now_ns += RETRY_NS
    assert calls == MAX_FAILURES
    assert guard.is_off("nvml")
    assert [body["off"] for _, body in notes] == [False, True]


def test_a_full_disk_is_not_a_broken_part(guard):
    def full() -> None:
        raise StoreFull("no room")

    with pytest.raises(StoreFull):
        guard.run("store", full)
    assert guard.run("store", lambda: 1) == 1


def test_a_note_that_cannot_be_stored_is_no_second_failure(clock, capsys):
    def no_store(kind, body):
        raise OSError("store is gone")

    assert Guard(no_store, clock).run("host", broken) is None
    assert "store is gone" in capsys.readouterr().err


def test_the_log_is_bounded(guard, capsys):
    for _ in range(3 * LOG_LINES):
        guard.log("again\nand again")
    assert len(capsys.readouterr().err.splitlines()) == LOG_LINES


def test_a_locked_store_is_asked_again_for_ever_and_told_once(guard, notes, clock, capsys):
    def locked() -> None:
        raise StoreError("Another program holds the store locked.")

    for _ in range(50):
        assert guard.run("store", locked) is None
        clock.now_ns += STORE_RETRY_NS
    assert not guard.is_off("store")
    assert guard.run("store", lambda: 1) == 1
    assert notes == [], "a lock that came free again is nobody's trouble"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "locked" in said[0]
    assert "works again" in said[1]


def test_at_the_end_a_pause_is_over(guard):
    guard.run("store", broken)
    assert guard.run("store", lambda: 1) is None
    guard.retry_now("store")
    assert guard.run("store", lambda: 1) == 1


def test_what_lacks_descriptors_waits_and_says_so_once() -> None:
    now, told = [0], []
    guard = Guard(lambda kind, body: told.append((kind, body["text"])), lambda: now[0])

    def short() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    for _ in range(10):  # more often than a broken part is tried
        assert guard.run("rings", short) is None
        now[0] += STORE_RETRY_NS
    assert guard.run("rings", lambda: 7) == 7
    assert [kind for kind, _ in told] == ["part-waits"]
    assert "no file descriptors (ulimit -n) left" in told[0][1]
