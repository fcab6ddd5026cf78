"""Which processes are of the run, found without walking all of /proc every time."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from gputop_train.launch import sampling
from gputop_train.launch.guard import Guard
from gputop_train.launch.sampling import Sampling, uses_cuda

S = 1_000_000_000

#: A process that starts a child whenever it is told to, and says its number.
PARENT = """
import os, subprocess, sys
for line in sys.stdin:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=line.strip() == "apart")
    print(child.pid, flush=True)
"""


class Parent:
    """The leader of a run's session."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.children = []

    def start(self, how="near"):
        self._process.stdin.write(f"{how}\n")
        self._process.stdin.flush()
        self.children.append(int(self._process.stdout.readline()))
        return self.children[-1]

    def close(self):
        for pid in self.children:
            subprocess.run(["kill", "-9", str(pid)], check=False)
        self._process.kill()
        self._process.wait()


@pytest.fixture
def parent():
    made = Parent()
    yield made
    made.close()


@pytest.fixture
def stranger():
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    yield process.pid
    process.kill()
    process.wait()


class Kept:
    """A writer that keeps what it is given."""

    def __init__(self):
        self.procs = []
        self.meta = {}

    def add_procs(self, samples):
        self.procs += samples

    def set_meta(self, key, value):
        self.meta[key] = value

    def __getattr__(self, name):
        return lambda *_: None


@pytest.fixture
def watched(parent, monkeypatch):
    """A sampling of the run, the snapshot of its trainer, and the walks it makes."""
    snapshot = {"loaders": [{"worker_pids": []}]}
    feed = SimpleNamespace(pid=parent.pid, rank=0, snapshot=snapshot, alive=lambda: True)
    feeds = SimpleNamespace(
        active=[feed], pids=lambda: {parent.pid}, ranks=lambda: {parent.pid: 0}, steps=lambda _: 0
    )
    walks = []
    real = sampling.children_of_session
    monkeypatch.setattr(sampling, "children_of_session", lambda sid: walks.append(sid) or real(sid))
    kept = Kept()
    made = Sampling(parent.pid, feeds, kept, Guard(lambda *_: None), since_ns=0)
    yield SimpleNamespace(
        sampling=made, workers=snapshot["loaders"][0]["worker_pids"], walks=walks, kept=kept
    )
    made.close()


def roles(watched, now_ns):
    watched.kept.procs.clear()
    watched.sampling.tick(now_ns)
    return {sample.pid: sample.role for sample in watched.kept.procs}


def test_a_machine_with_many_processes_is_walked_seldom(watched, monkeypatch):
    monkeypatch.setattr(sampling, "_WALK_REST", 10**9)  # as if one walk had taken very long
    for second in range(0, 41, 2):
        watched.sampling.tick(second * S)
    assert len(watched.walks) == 3  # at 0, 20 and 40 s


def test_a_cheap_walk_is_made_each_time(watched, monkeypatch):
    monkeypatch.setattr(sampling, "_WALK_REST", 0)
    for second in range(0, 21, 2):
        watched.sampling.tick(second * S)
    assert len(watched.walks) == 11


def test_between_two_walks_new_workers_are_known_by_the_probe(
    watched, parent, stranger, monkeypatch
):
    monkeypatch.setattr(sampling, "_WALK_REST", 10**9)
    assert roles(watched, 0) == {parent.pid: "trainer"}
    near, apart = parent.start("near"), parent.start("apart")
    watched.workers += [near, apart, stranger]
    # The stranger is named, by a ring that anyone may have written, and is not of the run.
    assert roles(watched, 4 * S) == {parent.pid: "trainer", near: "worker", apart: "worker"}
    assert len(watched.walks) == 1


def test_a_walk_finds_what_the_probe_does_not_tell(watched, parent, monkeypatch):
    monkeypatch.setattr(sampling, "_WALK_REST", 0)
    roles(watched, 0)
    child = parent.start()
    assert roles(watched, 4 * S) == {parent.pid: "trainer", child: "other"}


def test_held_back_it_reads_processes_less_often(watched, monkeypatch):
    def readings(stretch, begin):
        watched.kept.procs.clear()
        for tick in range(40):
            watched.sampling.tick(begin + tick * S // 2, stretch=stretch)
        return len(watched.kept.procs)

    assert readings(1.0, 0) == 20
    assert readings(4.0, 1000 * S) == 5


def test_pinned_batches_alone_do_not_make_a_run_one_on_the_gpu():
    cuda, pinned = {"initialized": True}, {"peak_allocated": 0}
    trained = {"cuda": cuda, "memory": {"peak_allocated": 4096}, "param_device": "cpu"}
    assert not uses_cuda({"cuda": cuda, "memory": pinned, "param_device": "cpu"})
    assert uses_cuda({"cuda": cuda, "memory": pinned, "param_device": "cuda"})
    assert uses_cuda(trained)  # an optimizer that was offloaded to the CPU
    assert uses_cuda({"cuda": cuda, "memory": None, "param_device": None})
    assert not uses_cuda({"cuda": {"initialized": False}, "param_device": "cpu"})
    assert not uses_cuda({"cuda": "hostile"})
