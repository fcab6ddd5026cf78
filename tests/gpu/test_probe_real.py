"""On a real NVIDIA GPU: what the event pairs read, and that graphs, compile and results are untouched.

Run by hand: ``python -m pytest -m gpu tests/gpu``.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.timeline import Timeline
from gputop_train.model import Step
from tests.probe_support import Deployed, deploy, run

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.fail("these tests need an NVIDIA GPU; CI deselects them with -m 'not gpu'")


LOOP = """
import time, torch
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
waits = []
def step(read=False, reads=0):
    loss = model(x).square().mean(); opt.zero_grad(); loss.backward(); opt.step()
    if read: loss.item()
    for _ in range(reads): loss.item()
"""


def steps_of(deployed: Deployed) -> list[Step]:
    (path,) = deployed.ring_files()
    with Ring.open(path) as ring:
        timeline = Timeline(0)
        found: list[Step] = []
        while words := ring.poll():
            found += timeline.feed(words).steps
        return found + list(timeline.finish().steps)


def watched(tmp_path: Path, body: str) -> tuple[list[Step], str]:
    script = tmp_path / "script.py"
    script.write_text(LOOP + textwrap.dedent(body))
    deployed = deploy(tmp_path)
    result = run(script, env=deployed.env())
    assert result.returncode == 0, result.stderr.decode()
    return steps_of(deployed), result.stdout.decode()


def exposed(steps: list[Step], label: str) -> list[int]:
    return [s.exposed[label] for s in steps if s.exposed is not None and label in s.exposed]


def test_a_known_loader_wait_is_read_as_idle_gpu(tmp_path: Path) -> None:
    body = """
        small = nn.Linear(64, 64, device=dev); o = torch.optim.SGD(small.parameters(), 0.0)
        for i, b in enumerate(DataLoader(Slow(0.010), 1)):
            small(b.to(dev)).sum().backward(); o.step(); torch.cuda.synchronize()
            if i >= 400: break
    """
    steps, _ = watched(tmp_path, body)
    seen = exposed(steps[20:], "data_wait")
    host = [s.labels["data_wait"] for s in steps[20:]]
    idle_ms, host_ms = statistics.median(seen) / 1e6, statistics.median(host) / 1e6
    print("data wait: host", host_ms, "ms, exposed", idle_ms, "ms, sampled", len(seen))
    assert len(seen) >= 5
    assert abs(idle_ms - host_ms) <= max(0.3, 0.05 * host_ms)


def test_a_wait_hidden_behind_queued_work_is_not_idle(tmp_path: Path) -> None:
    body = """
        for i, b in enumerate(DataLoader(Slow(0.004), 1)):
            step()
            if i >= 200: break
        torch.cuda.synchronize()
    """
    steps, _ = watched(tmp_path, body)
    seen = exposed(steps[20:], "data_wait")
    wall = statistics.median(s.wall_ns for s in steps[20:])
    print("hidden wait: exposed", statistics.median(seen) / 1e6, "of", wall / 1e6, "ms")
    assert len(seen) >= 3
    assert statistics.median(seen) < 0.05 * wall


def test_a_read_while_the_gpu_works_is_gpu_wait_not_sync(tmp_path: Path) -> None:
    steps, _ = watched(tmp_path, "for i in range(200): step(read=True)\n")
    tail = steps[20:]
    wall = sum(s.wall_ns for s in tail)
    wait = sum(s.labels["gpu_wait"] for s in tail) / wall
    sync = sum(s.labels["sync"] for s in tail) / wall
    print("busy read: gpu_wait", wait, "sync", sync, "exposed", exposed(tail, "sync")[:5])
    assert wait > 0.3 and sync < 0.05


def test_hundreds_of_reads_on_an_empty_queue_are_sync(tmp_path: Path) -> None:
    body = """
        small = nn.Linear(64, 64, device=dev); o = torch.optim.SGD(small.parameters(), 0.0)
        z = torch.zeros(64, device=dev); losses = torch.zeros(500, device=dev)
        for i in range(200):
            small(z).sum().backward(); o.step()
            total = sum(losses[j].item() for j in range(500))
    """
    steps, _ = watched(tmp_path, body)
    tail = steps[20:]
    share = sum(s.labels["sync"] for s in tail) / sum(s.wall_ns for s in tail)
    print(
        "many reads: sync share",
        share,
        "syncs",
        tail[5].syncs,
        "exposed",
        exposed(tail, "sync")[:3],
    )
    assert share > 0.25 and tail[5].syncs >= 500


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
        for i in range(4000):
            o.zero_grad(); small(z).square().mean().backward(); o.step()
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


@pytest.mark.parametrize("name", SAME)
def test_cuda_scripts_print_the_same(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOP + textwrap.dedent(SAME[name]))
    extra = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "0"}
    bare_env = deploy_free_env(extra)
    bare, again = (run(script, env=bare_env) for _ in range(2))
    assert bare.returncode == 0, bare.stderr.decode()
    assert bare.stdout == again.stdout, "plain runs differ from each other"
    ours = run(script, env=deploy(tmp_path).env(**extra))
    assert (ours.returncode, ours.stdout) == (0, bare.stdout), ours.stderr.decode()


def deploy_free_env(extra: dict[str, str]) -> dict[str, str]:
    import os

    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **extra}


def test_allocator_readings_come_at_step_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOP + "import time\nfor i in range(200): step(); time.sleep(0.01)\n")
    deployed = deploy(tmp_path)
    assert run(script, env=deployed.env()).returncode == 0
    readings = list(_memory(deployed))
    assert len(readings) >= 4 and min(readings) > 6 * 4096 * 4096 * 4


def _memory(deployed: Deployed) -> Iterator[int]:
    with Ring.open(deployed.ring_files()[0]) as ring:
        timeline = Timeline(0)
        while words := ring.poll():
            yield from (m.allocated for m in timeline.feed(words).memory)
