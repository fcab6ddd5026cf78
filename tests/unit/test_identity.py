"""A signal reaches the very process that was recorded, or nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gputop_train.launch import identity
from gputop_train.launch.identity import ProcessId
from tests.limits import no_descriptors

SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(60)"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def known(process: subprocess.Popen[bytes]) -> ProcessId:
    found = identity.identify(process.pid)
    assert found is not None
    return found


def test_a_running_process_is_recognised(sleeper: subprocess.Popen[bytes]) -> None:
    me = known(sleeper)
    assert identity.same_process(me.pid, me.start_ticks, me.boot_id)
    assert identity.is_alive(me)
    assert me.pgid == sleeper.pid


@pytest.mark.parametrize(
    "change", [{"start_ticks": 1}, {"boot_id": "another boot"}, {"pid": 2**22 + 1}]
)
def test_nothing_is_signalled_when_any_part_of_the_identity_differs(
    sleeper: subprocess.Popen[bytes], change: dict[str, int | str]
) -> None:
    stranger = replace(known(sleeper), **change)
    assert not identity.is_alive(stranger)
    assert not identity.send(stranger, signal.SIGKILL)
    assert not identity.send_group(stranger, signal.SIGKILL)
    assert sleeper.poll() is None
    assert identity.is_alive(known(sleeper))


def test_the_recorded_process_is_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    assert identity.send(known(sleeper), signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_the_recorded_group_is_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    assert identity.send_group(known(sleeper), signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_a_group_that_is_our_own_or_everybody_is_never_signalled() -> None:
    me = identity.identify(os.getpid())
    assert me is not None
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        for pgid in (os.getpgrp(), 0, 1, -1, None):
            assert not identity.send_group(replace(me, pgid=pgid), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == []


def test_a_zombie_is_the_same_process_but_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    me = known(sleeper)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert identity.same_process(me.pid, me.start_ticks, me.boot_id)
    assert not identity.is_alive(me)


def test_a_command_name_with_brackets_and_blanks_does_not_confuse_the_start_time(
    tmp_path: os.PathLike[str],
) -> None:
    odd = os.path.join(tmp_path, "a) S 1 (b")
    os.symlink(sys.executable, odd)
    process = subprocess.Popen([odd, "-c", SLEEPER], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        plain = identity.start_ticks(os.getpid())
        assert plain is not None
        assert (identity.start_ticks(process.pid) or 0) >= plain
        assert identity.is_running(process.pid)
    finally:
        process.kill()
        process.communicate()


def test_run_json_without_a_full_identity_names_nobody() -> None:
    whole = {"boot_id": "b", "child": {"pid": 5, "start_ticks": 7, "pgid": 5}}
    assert identity.recorded_child(whole) == ProcessId(5, 7, "b", 5)
    for broken in (
        {},
        {**whole, "boot_id": None},
        {**whole, "child": None},
        {**whole, "child": {"pid": "5", "start_ticks": 7}},
        {**whole, "child": {"pid": 5}},
    ):
        assert identity.recorded_child(broken) is None


def test_a_handler_of_the_process_itself_is_seen() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert identity.catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not identity.catches(os.getpid(), signal.SIGUSR2)


def test_without_descriptors_a_process_is_not_declared_dead_and_not_signalled(
    sleeper: subprocess.Popen[bytes],
) -> None:
    who = identity.identify(sleeper.pid)
    assert who is not None
    with no_descriptors():
        assert identity.is_alive(who)
        assert not identity.send(who, signal.SIGTERM)
    sleeper.kill()
    sleeper.wait()
    with no_descriptors():
        assert not identity.is_alive(who)
