"""On a real NVIDIA GPU: the pages of devices, memory and workers of one run beside a stranger.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_devices_page_gpu.py`` (one run, some 60 s).
Strangers are named only where the driver counts processes as we do (on the host, or in a container
that shows its own numbers); elsewhere that part is skipped, and says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gputop_train.store.reader import RunReader
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.devices import devices_view
from gputop_train.tui.gather.memory import memory_page
from gputop_train.tui.gather.workers import workers_page
from gputop_train.tui.snapshot import Axis, View
from gputop_train.tui.views.devices import DevicesView
from gputop_train.tui.views.memory import MemoryPageView
from gputop_train.tui.views.workers import WorkersPageView
from tests.gpu.support import bare_environment, needs_cuda, watched_store

pytestmark = pytest.mark.gpu

GIB = 1 << 30
STEPS = 400
SCRIPT = f"""
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Made(Dataset):
    def __len__(self):
        return {STEPS} * 16
    def __getitem__(self, i):
        return torch.randn(4096)

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(4096, 4096, device="cuda") for _ in range(8)])
opt = torch.optim.AdamW(model.parameters(), fused=True)
for x in DataLoader(Made(), batch_size=16, num_workers=2, pin_memory=True):
    loss = model(x.to("cuda", non_blocking=True).repeat(256, 1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    torch.cuda.synchronize()
    time.sleep(0.02)
"""
STRANGER = """
import sys, torch
held = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass
class Pages:
    devices: DevicesView
    memory: MemoryPageView
    workers: WorkersPageView
    stranger: int


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The pages at the end of training."""
    needs_cuda()
    folder = tmp_path_factory.mktemp("pages")
    stranger = subprocess.Popen(
        [sys.executable, "-c", STRANGER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=bare_environment(),
        text=True,
    )
    try:
        assert stranger.stdout is not None and stranger.stdout.readline().strip() == "ready"
        store = watched_store(folder, SCRIPT)
        run = json.loads((store.parent / "run.json").read_text())
        with RunReader(store) as reader:
            end = reader.steps_tail(1, 0)[-1].t1_ns
            axis = Axis(end - 30_000_000_000, end, 100)
            asked = Asked(reader, run, store.parent, View(), axis, end, 0)
            memory = memory_page(asked)
            assert memory is not None
            yield Pages(devices_view(asked), memory, workers_page(asked), stranger.pid)
    finally:
        stranger.kill()
        stranger.communicate()


def test_the_card_has_its_name_number_and_readings(pages: Pages) -> None:
    gpu = pages.devices.gpus[0]
    print(gpu)
    assert gpu.label.isdigit() and gpu.name and gpu.ranks == (0,)
    assert gpu.age_s is not None and gpu.age_s < 5
    assert gpu.util is not None and gpu.util > 5
    assert gpu.power_w and gpu.temperature_c and gpu.sm_clock_mhz and gpu.throttle is not None
    names = {curve.name for curve in pages.devices.curves}
    assert {"utilisation", "memory", "power", "temp", "SM clock"} <= names
    host = pages.devices.host
    assert host is not None and len(host.cores) == host.total


def test_who_else_computes_on_it_is_named(pages: Pages) -> None:
    gpu = pages.devices.gpus[0]
    print(gpu.others, gpu.foreign)
    if gpu.others is None:
        pytest.skip("the driver's process numbers are not ours here: strangers cannot be told")
    # Others may be at work on the card besides ours.
    assert gpu.others == len(gpu.foreign) >= 1
    (found,) = [other for other in gpu.foreign if other.pid == pages.stranger]
    assert found.name
    assert found.memory is None or found.memory > 2 * GIB


def test_memory_adds_up(pages: Pages) -> None:
    view = pages.memory
    print(view)
    assert view.used and view.reserved and view.allocated and view.peak_allocated and view.total
    assert view.allocated <= view.reserved <= view.used <= view.total
    assert view.used > view.reserved + 2 * GIB  # the stranger's
    held = dict(view.held)
    weights = 8 * (4096 * 4096 + 4096) * 4
    assert held["parameters"] == pytest.approx(weights, rel=0.01)
    assert held["optimizer state"] == pytest.approx(2 * weights, rel=0.01)
    assert view.growth.per_step is None and view.growth.why
    assert any(v is not None for v in view.used_history)


def test_the_loader_has_its_two_workers(pages: Pages) -> None:
    (loader,) = pages.workers.loaders
    print(loader)
    assert loader.feeds and loader.num_workers == 2 and loader.made_ms is not None
    assert [worker.number for worker in loader.workers] == [0, 1]
    assert any(any(v is not None for v in worker.history) for worker in loader.workers)
    cores = pages.workers.cores
    assert cores is not None and cores.main_thread is not None and cores.trainer is not None
    assert 0 < cores.main_thread <= cores.trainer + 0.05
