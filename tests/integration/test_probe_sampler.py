"""What the stack sampler makes of loops whose parts no hook can see."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.timeline import Timeline
from gputop_train.model import Step
from gputop_train.probe import sampler
from gputop_train.probe import words as W
from tests.probe_support import deploy, run
from tests.watching import undisturbed_at_least_once

PREAMBLE = """
import sys, time, threading, torch
torch.set_num_threads(1)
m = torch.nn.Linear(8, 1); o = torch.optim.SGD(m.parameters(), 0.1)
def burn(ms):
    end = time.perf_counter() + ms / 1e3
    n = 0
    while time.perf_counter() < end: n += 1
    return n
class Slow(torch.nn.Module):
    def forward(self, x):
        burn(20); return m(x)
slow = Slow()
"""

LOOPS = {
    "a batch function without a DataLoader is data wait": (
        """
        def get_batch(split):
            burn(30); return torch.ones(2, 8)
        def main():
            for _ in range(60):
                x = get_batch("train"); loss = slow(x).sum(); o.zero_grad(); loss.backward(); o.step()
        main()
        """,
        "data_wait",
        "get_batch",
    ),
    "a batch fetched between two calls of what does the step is data wait": (
        """
        def get_batch():
            burn(30); return torch.ones(2, 8)
        def train_step(x):
            loss = slow(x).sum(); o.zero_grad(); loss.backward(); o.step()
        def main():
            for _ in range(60):
                train_step(get_batch())
        main()
        """,
        "data_wait",
        "get_batch",
    ),
    "what a generator makes for the loop is data wait": (
        """
        def rows():
            while True:
                burn(30); yield torch.ones(2, 8)
        def main():
            for n, x in enumerate(rows()):
                loss = slow(x).sum(); o.zero_grad(); loss.backward(); o.step()
                if n == 59: break
        main()
        """,
        "data_wait",
        "time.perf_counter()",
    ),
    "a block's own manager is no data": (
        """
        import contextlib
        @contextlib.contextmanager
        def timed():
            burn(15)
            yield
            burn(15)
        for _ in range(60):
            with timed():
                loss = slow(torch.ones(2, 8)).sum(); o.zero_grad(); loss.backward(); o.step()
        """,
        "other",
        "time.perf_counter()",
    ),
    "a save written through another file object is a checkpoint": (
        """
        import gzip, os, pickle, tempfile
        path, weights = tempfile.mkdtemp() + "/w.gz", os.urandom(200_000)
        def write():
            with gzip.open(path, "wb") as out:
                pickle.dump(weights, out)
        began = time.perf_counter(); write()
        weights = weights * max(1, round(0.03 / (time.perf_counter() - began)))
        for _ in range(60):
            loss = slow(torch.ones(2, 8)).sum(); o.zero_grad(); loss.backward(); o.step()
            write()
        """,
        "checkpoint",
        "pickle.dump",
    ),
    "a queue filled by a thread is data wait": (
        """
        import queue
        q = queue.Queue(2)
        def fill():
            while True:
                time.sleep(0.06); q.put(torch.ones(2, 8))
        threading.Thread(target=fill, daemon=True).start()
        for _ in range(60):
            x = q.get(); loss = slow(x).sum(); o.zero_grad(); loss.backward(); o.step()
            burn(2)
        """,
        "data_wait",
        "q.get()",
    ),
    "bookkeeping in the loop is other": (
        """
        def bookkeeping():
            burn(30)
        for _ in range(60):
            loss = slow(torch.ones(2, 8)).sum(); o.zero_grad(); loss.backward(); o.step()
            bookkeeping()
        """,
        "other",
        "time.perf_counter()",
    ),
}


def watch(tmp_path: Path, body: str) -> tuple[list[Step], list[tuple[str, int]]]:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + textwrap.dedent(body))
    deployed = deploy(tmp_path)
    result = run(script, env=deployed.env())
    assert result.returncode == 0, result.stderr.decode()
    with Ring.open(deployed.ring_files()[0]) as ring:
        timeline, steps = Timeline(0), []
        while words := ring.poll():
            steps += timeline.feed(words).steps
        steps += timeline.finish().steps
        snapshot = ring.snapshot()
    assert snapshot is not None
    counts = snapshot["site_stats"]
    seen = [(row[5], counts[str(row[0])][0]) for row in snapshot["sites"] if row[1] == "sample"]
    return steps, seen


#: Others like them are left.
LONG = (
    "a block's own manager is no data",
    "a queue filled by a thread is data wait",
    "bookkeeping in the loop is other",
)


@undisturbed_at_least_once
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in LOOPS],
)
def test_time_between_the_edges_gets_its_name(name: str, tmp_path: Path) -> None:
    body, label, call = LOOPS[name]
    steps, seen = watch(tmp_path, body)
    assert len(steps) == 60
    tail = steps[5:]
    share = sum(s.labels[label] for s in tail) / sum(s.wall_ns for s in tail)
    forward = sum(s.labels["forward"] for s in tail) / sum(s.wall_ns for s in tail)
    assert 0.4 < share < 0.75, (share, forward)
    assert forward > 0.2
    assert sum(count for text, count in seen if call in text) > 10


def test_training_in_a_thread_of_its_own_is_watched(tmp_path: Path) -> None:
    body = """
        def train():
            for _ in range(30):
                loss = slow(torch.ones(2, 8)).sum(); o.zero_grad(); loss.backward(); o.step()
        t = threading.Thread(target=train); t.start(); t.join()
    """
    steps, _ = watch(tmp_path, body)
    assert len(steps) == 30


def test_the_locks_that_logging_takes_around_a_fork_are_no_logging() -> None:
    file = "/usr/lib/python3/logging/__init__.py"
    for name in ("_acquireLock", "_releaseLock", "_prepareFork", "_afterFork"):
        assert sampler._match(file, name) == sampler._UNKNOWN
    for name in ("info", "_log", "emit", "format", "handle"):
        assert sampler._match(file, name) == W.L_LOGGING


def test_tables_and_records_that_the_standard_library_writes_are_logs_and_reading_is_not() -> None:
    written = (("csv.py", "_dict_to_list"), ("csv.py", "writerows"), ("json/__init__.py", "dump"))
    for file, name in written:
        assert sampler._match(f"/usr/lib/python3.11/{file}", name) == W.L_LOGGING
    read = (("csv.py", "__next__"), ("json/__init__.py", "load"), ("json/__init__.py", "dumps"))
    for file, name in read:
        assert sampler._match(f"/usr/lib/python3.11/{file}", name) == sampler._UNKNOWN


def test_a_model_that_encodes_is_no_loader_and_a_tokenizer_is_one(tmp_path: Path) -> None:
    body = """
        w = torch.randn(900, 900)
        class Coder:
            def encode(self, x):
                return torch.tanh(x @ w)
        coder = Coder()
        def encode_text(ms):
            burn(ms); return torch.ones(2, 8)
        for _ in range(60):
            x = encode_text(20); z = coder.encode(w)
            loss = slow(x).sum(); o.zero_grad(); loss.backward(); o.step()
    """
    steps, _ = watch(tmp_path, body)
    tail = steps[5:]
    wall = sum(s.wall_ns for s in tail)
    loading = sum(s.labels["data_wait"] for s in tail) / wall
    rest = sum(s.wall_ns for s in tail) / len(tail) - 20e6  # all but what encode_text burns
    assert loading < (20e6 / (rest + 20e6)) + 0.12
    assert loading > 0.1
    assert sum(s.labels["forward"] for s in tail) / wall > 0.5


def test_a_branch_on_a_tensor_is_told_from_other_instructions() -> None:
    def asks(value: object) -> int:
        if value:
            return 1
        return len(str(value))

    class Asked:
        frames: ClassVar[list[object]] = []

        def __bool__(self) -> bool:
            frame = sys._getframe(1)
            self.frames.append((frame.f_code, frame.f_lasti))
            return False

        def __str__(self) -> str:
            frame = sys._getframe(1)
            self.frames.append((frame.f_code, frame.f_lasti))
            return ""

    asks(Asked())
    one = sampler.Sampler()
    told = [
        one._branches(SimpleNamespace(f_code=code, f_lasti=last)) for code, last in Asked.frames
    ]
    assert told == [True, False]


@pytest.mark.parametrize(
    ("call", "reads"),
    [
        ("loss.item()", True),
        ("out.detach().max(1)[1].cpu()", True),
        ("torch.unique(labels.view(-1))", True),
        ("float(total / n)", True),
        ("scores[~mask]", True),
        ("sorted((v, q) for q, row in enumerate(rows.tolist()))", False),
        ("meters[name].update(value.item())", False),
        ("scores[mask].sum()", False),
    ],
)
def test_what_takes_the_result_of_a_read_is_no_read(call: str, reads: bool) -> None:
    assert bool(sampler._SYNC_CALL.search(call)) is reads
