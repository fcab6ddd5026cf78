"""The supervisor's own cost: what it tells of it, and when it holds back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gputop_train.launch import identity
from gputop_train.launch.own_cost import MOST, TARGET, WINDOW_NS, OwnCost, call_at_end

#: Burns CPU in a thread and in a child it waits for, then prints what it tells and what the kernel does.
TELL = """
import json, os, subprocess, sys, threading, time
from gputop_train.launch.own_cost import OwnCost
def burn():
    until = time.thread_time() + 0.4
    while time.thread_time() < until:
        pass
thread = threading.Thread(target=burn); thread.start(); thread.join()
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.4: pass"])
time.sleep(0.3)
told = OwnCost().told()
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
ticks = os.sysconf("SC_CLK_TCK")
cpu = sum(map(int, fields[11:15])) / ticks
age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / ticks
print(json.dumps([told, cpu, age]))
"""


def test_it_tells_what_the_kernel_counts_of_it_and_its_children():
    done = subprocess.run([sys.executable, "-c", TELL], capture_output=True, check=True, text=True)
    told, cpu_s, age_s = json.loads(done.stdout)
    assert cpu_s > 0.8
    assert told["cpu_s"] == pytest.approx(cpu_s, abs=0.05)  # the kernel's ticks are 10 ms
    assert told["wall_s"] == pytest.approx(age_s, abs=0.05)
    assert told["cpu_s"] / told["wall_s"] <= 1.1


def shares(cost, clock, values):
    """Let windows of these shares go by; the factor after each."""
    factors = []
    for value in values:
        clock[0] += WINDOW_NS
        clock[1] += value * WINDOW_NS / 1e9
        factors.append(cost.observe(clock[0]))
    return factors


def test_what_is_optional_slows_down_until_the_share_is_kept_and_comes_back():
    clock = [0, 50.0]  # whatever was spent before the first look is start-up
    cost = OwnCost(lambda: clock[1])
    assert cost.observe(0) == 1.0
    slower = shares(cost, clock, [2 * TARGET] * 6)
    assert slower == sorted(slower)
    assert slower[0] > 1.0
    assert slower[-1] == MOST
    assert shares(cost, clock, [0.75 * TARGET] * 3) == [MOST] * 3
    assert shares(cost, clock, [0.1 * TARGET] * 6)[-1] == 1.0


def test_between_two_windows_nothing_changes():
    clock = [0, 0.0]
    cost = OwnCost(lambda: clock[1])
    cost.observe(0)
    clock[1] = 100.0
    assert cost.observe(WINDOW_NS - 1) == 1.0
    assert cost.observe(WINDOW_NS) > 1.0


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_the_end_of_a_process_is_heard_of(sleeper):
    heard = threading.Event()
    assert call_at_end(identity.identify(sleeper.pid), heard.set)
    assert not heard.is_set()
    sleeper.kill()
    assert heard.wait(60)


def test_a_process_that_is_gone_or_another_by_now_is_not_waited_for(sleeper):
    known = identity.identify(sleeper.pid)
    other = identity.ProcessId(known.pid, known.start_ticks + 1, known.boot_id, known.pgid)
    open_before = len(os.listdir("/proc/self/fd"))
    assert not call_at_end(other, lambda: None)
    sleeper.kill()
    sleeper.wait()
    assert not Path(f"/proc/{sleeper.pid}").exists()
    assert not call_at_end(known, lambda: None)
    assert len(os.listdir("/proc/self/fd")) == open_before
