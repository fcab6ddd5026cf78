"""On a real NVIDIA GPU: what the event pairs read, and that graphs, compile and results are untouched.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_probe_real.py -s``. Scripts that are only
compared run side by side; those that are timed share one process.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from typing import Any

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.timeline import Timeline
from gputop_train.model import MemorySample, Step
from tests.gpu.support import Running, needs_cuda, start

pytestmark = pytest.mark.gpu

LOOP = """
import json, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
dev = "cuda"
class Slow(Dataset):
    def __init__(self, wait): self.wait = wait
    def __len__(self): return 100000
    def __getitem__(self, i):
        time.sleep(self.wait); return torch.zeros(64)
big = [nn.Linear(4096, 4096, device=dev) for _ in range(6)]
model = nn.Sequential(*big); opt = torch.optim.SGD(model.parameters(), 0.0)
x = torch.randn(4096, 4096, device=dev)
def step(read=False):
    loss = model(x).square().mean(); opt.zero_grad(); loss.backward(); opt.step()
    if read: loss.item()
"""

TIMED = """
small = nn.Linear(64, 64, device=dev); o = torch.optim.SGD(small.parameters(), 0.0)
z = torch.zeros(64, device=dev); losses = torch.zeros(500, device=dev)
class Phase:
    def __init__(self, name): self.name = name
    def __enter__(self): self.t0 = time.monotonic_ns()
    def __exit__(self, *error):
        torch.cuda.synchronize()
        print(json.dumps([self.name, self.t0, time.monotonic_ns()]), flush=True)
with Phase("many reads"):
    for i in range(200):
        small(z).sum().backward(); o.step()
        total = sum(losses[j].item() for j in range(500))
with Phase("hidden"):
    for i, b in enumerate(DataLoader(Slow(0.004), 1)):
        step()
        if i >= 120: break
with Phase("busy read"):
    for i in range(100): step(read=True)
with Phase("followed by a loader"):
    for i, b in enumerate(DataLoader(Slow(0.001), 1)):
        o.zero_grad(); loss = small(z).sum(); loss.backward(); o.step()
        loss.item(); time.sleep(0.004)
        if i >= 200: break
"""


class Recording:
    """What the probe wrote about one script, by the script's own phases."""

    def __init__(self, script: Running) -> None:
        code, out, err = script.end()
        assert code == 0, err[-3000:]
        self.phases = {name: (t0, t1) for name, t0, t1 in map(json.loads, out.splitlines())}
        self.steps: list[Step] = []
        self.memory: list[MemorySample] = []
        assert script.deployed is not None
        (path,) = script.deployed.ring_files()
        with Ring.open(path) as ring:
            timeline = Timeline(0)
            while words := ring.poll():
                batch = timeline.feed(words)
                self.steps += batch.steps
                self.memory += batch.memory
            self.steps += timeline.finish().steps

    def of(self, phase: str) -> list[Step]:
        """Its steps but for the first ones."""
        t0, t1 = self.phases[phase]
        return [s for s in self.steps if t0 <= s.t0_ns and s.t1_ns <= t1][10:]


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    needs_cuda()
    root = tmp_path_factory.mktemp("timed")
    script = root / "script.py"
    script.write_text(LOOP + TIMED)
    return Recording(start(script, probe_in=root / "probe"))


def exposed(steps: list[Step], label: str) -> list[int]:
    return [s.exposed[label] for s in steps if s.exposed is not None and label in s.exposed]


def test_a_wait_hidden_behind_queued_work_is_not_idle(timed: Recording) -> None:
    steps = timed.of("hidden")
    seen = exposed(steps, "data_wait")
    wall = statistics.median(s.wall_ns for s in steps)
    print("hidden wait: exposed", statistics.median(seen) / 1e6, "of", wall / 1e6, "ms")
    assert len(seen) >= 3
    assert statistics.median(seen) < 0.05 * wall


def test_a_read_while_the_gpu_works_is_gpu_wait_not_sync(timed: Recording) -> None:
    steps = timed.of("busy read")
    # Until a step with events tells how such reads divide, all of a read counts as sync.
    first = next(i for i, s in enumerate(steps) if s.exposed is not None and "sync" in s.exposed)
    steps = steps[first:]
    assert len(steps) >= 50
    wall = sum(s.wall_ns for s in steps)
    wait = sum(s.labels["gpu_wait"] for s in steps) / wall
    sync = sum(s.labels["sync"] for s in steps) / wall
    print("busy read: gpu_wait", wait, "sync", sync, "exposed", exposed(steps, "sync")[:5])
    assert wait > 0.3 and sync < 0.05


def test_hundreds_of_reads_on_an_empty_queue_are_sync(timed: Recording) -> None:
    steps = timed.of("many reads")
    share = sum(s.labels["sync"] for s in steps) / sum(s.wall_ns for s in steps)
    idle = exposed(steps, "sync")
    print("many reads: sync", share, "syncs", steps[5].syncs, "exposed", idle[:3])
    assert share > 0.25
    assert statistics.median(s.syncs for s in steps) >= 500


def test_what_follows_a_read_until_the_next_batch_is_the_reads_idle_time(
    timed: Recording,
) -> None:
    steps = timed.of("followed by a loader")
    idle = exposed(steps, "sync")
    waits = exposed(steps, "data_wait")
    print(
        "followed: sync",
        statistics.median(idle) / 1e6,
        "data",
        statistics.median(waits) / 1e6,
        "ms",
    )
    assert 4.0 <= statistics.median(idle) / 1e6 <= 4.8  # it slept for 4 ms after the read
    assert 1.0 <= statistics.median(waits) / 1e6 <= 1.5


def test_allocator_readings_come_at_step_ends(timed: Recording) -> None:
    held = [m.allocated for m in timed.memory]
    assert len(held) >= 4 and min(held) > 6 * 4096 * 4096 * 4


SAME = {
    "deterministic training": """
        torch.use_deterministic_algorithms(True)
        for i in range(60): step(read=(i % 7 == 0))
        print(sum(p.double().sum().item() for p in model.parameters()).hex(), torch.randn(1, device=dev).item().hex())
        print(torch.cuda.max_memory_allocated())
    """,
    "graph capture after a long watch": """
        small = nn.Linear(64, 64, device=dev); o = torch.optim.SGD(small.parameters(), 0.1)
        z = torch.ones(8, 64, device=dev)
        others = [torch.optim.AdamW(nn.Linear(64, 64, device=dev).parameters()) for _ in range(2)]
        slow = iter(DataLoader(Slow(0.001), 1, num_workers=1, pin_memory=True))
        for i in range(16_200):
            o.zero_grad(); small(z).square().mean().backward(); o.step()
            if i % 100 == 0:
                next(slow); [other.step() for other in others]; small(z).sum().item()
        del slow
        s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s):
            for _ in range(3):
                o.zero_grad(set_to_none=True); small(z).square().mean().backward()
        torch.cuda.current_stream().wait_stream(s)
        g = torch.cuda.CUDAGraph(); o.zero_grad(set_to_none=True)
        with torch.cuda.graph(g):
            loss = small(z).square().mean(); loss.backward()
        for _ in range(50):
            g.replay(); o.step()
        print(loss.item().hex())
        graphed = torch.cuda.make_graphed_callables(nn.Linear(64, 64, device=dev), (torch.ones(8, 64, device=dev),))
        print(graphed(z).shape)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).to(dev)
        c = torch.compile(net, mode="reduce-overhead")
        for i in range(20):
            net.zero_grad(set_to_none=True); c(z).sum().backward()
        print(c(z).shape)
    """,
    "reduce-overhead": """
        import torch._dynamo
        small = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(dev)
        o = torch.optim.SGD(small.parameters(), 0.1); c = torch.compile(small, mode="reduce-overhead")
        for i in range(80):
            o.zero_grad(); loss = c(torch.ones(8, 64, device=dev)).square().mean(); loss.backward(); o.step()
        k = torch._dynamo.utils.counters
        print(loss.item().hex(), dict(k["stats"]), sum(k["graph_break"].values()), dict(k["recompiles"]))
    """,
    "workers forked from a sampled trainer": """
        import os, sys
        small = nn.Linear(64, 64, device=dev); o = torch.optim.SGD(small.parameters(), 0.1)
        z = torch.ones(8, 64, device=dev)
        for i in range(300):
            o.zero_grad(); small(z).square().mean().backward(); o.step()
        for _ in range(2):
            for b in DataLoader(Slow(0.0), 64, num_workers=4):
                break
        pid = os.fork()
        if pid == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), b.shape, bytes(small(z).sum().item().hex(), "ascii"))
    """,
    "fullgraph": """
        import torch._dynamo
        small = nn.Linear(64, 64, device=dev); c = torch.compile(small, fullgraph=True)
        for n in (4, 4, 8): print(c(torch.ones(n, 64, device=dev)).sum().item().hex())
        print(dict(torch._dynamo.utils.counters["stats"]))
    """,
}


EXTRA = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "0"}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str, str]]]:
    """Two plain runs and a watched one of every script, all at once."""
    needs_cuda()
    root = tmp_path_factory.mktemp("same")
    running: dict[str, list[Running]] = {}
    for number, (name, body) in enumerate(SAME.items()):
        place = root / str(number)
        place.mkdir()
        script = place / "script.py"
        script.write_text(LOOP + textwrap.dedent(body))
        plain = [start(script, env=EXTRA) for _ in range(2)]
        running[name] = [*plain, start(script, probe_in=place / "probe", env=EXTRA)]
    return {name: [script.end(200) for script in scripts] for name, scripts in running.items()}


@pytest.mark.parametrize("name", SAME)
def test_cuda_scripts_print_the_same(name: str, outputs: dict[str, Any]) -> None:
    bare, again, ours = outputs[name]
    assert bare[0] == 0, bare[2][-3000:]
    assert bare[1] == again[1], "plain runs differ from each other"
    assert ours[:2] == bare[:2], ours[2][-3000:]
