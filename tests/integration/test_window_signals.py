"""What the probe and the collectors tell reaches the rules' window, while a run lives and after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.diagnose.evidence import build
from gputop_train.diagnose.window import Window
from gputop_train.store.reader import RunReader, StoreError
from tests.launching import World, wait_for, world

SCRIPT = """
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.full((4 + i // 8 % 4,), float(i))

def pile(items):
    return torch.stack(items)

model = torch.compile(lambda x: (x * w).sum(), backend="eager", dynamic=False)
w = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([w], 1e-6)
loader = DataLoader(Rows(), 8, num_workers=1, collate_fn=pile)
while not os.path.exists("stop"):
    for x in loader:
        model(x).backward()
        optimizer.step()
"""

#: What rules read of the probe's newest state, whether the run is over or not.
KEYS = {
    "amp", "cost", "cuda", "ddp", "dynamo", "empty_cache", "errors", "flags", "gc", "hooks",
    "logging", "optimizers", "param_device", "shapes", "startup", "world_size",
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def window(here: World, *, final: bool) -> Window | None:
    try:
        with RunReader(here.run_dir()) as reader:
            return build(reader, final=final)
    except StoreError:  # not there yet
        return None


def assert_told(window: Window) -> None:
    assert set(window.probe) >= KEYS
    assert window.probe["errors"] == []
    # Four lengths of batches: one compilation, and three more for the guard on the shape.
    assert window.probe["dynamo"]["recompiles"] == 3
    assert all(file.endswith("train.py") for _, file, *_ in window.probe["dynamo"]["reasons"])
    assert window.probe["shapes"][0][0] == 1
    assert window.probe["optimizers"][0]["cls"] == "SGD"
    assert window.probe["startup"]["step_ns"] > window.probe["startup"]["process_ns"]
    (loader,) = window.loaders
    (fetch,) = loader.fetch
    assert (fetch.worker, fetch.items) == (0, 8 * fetch.batches)
    assert fetch.fetch_ns - fetch.collate_ns >= fetch.items * 2_000_000
    assert loader.starts == fetch.starts == loader.first_waits > 1
    assert (loader.context, loader.dataset_length, loader.in_order) == ("fork", 32, True)
    assert loader.source is not None and loader.source.what == "Rows.__getitem__"
    assert loader.collate is not None and loader.collate.what == "pile"


def test_a_live_window_and_a_final_one_carry_what_was_told(here: World) -> None:
    here.script(SCRIPT)
    started = here.start("--no-tui", "train.py")

    def live() -> Window | None:
        found = window(here, final=False)
        ready = (
            found is not None
            and found.loaders
            and found.loaders[0].starts > 2
            and found.loaders[0].first_waits == found.loaders[0].starts
            and found.loaders[0].fetch
            and found.loaders[0].fetch[0].starts == found.loaders[0].starts
            and any(p.role == "trainer" and p.cpu_sys is not None for p in found.procs)
        )
        return found if ready else None

    found = wait_for(live, "a live window")
    (here.place / "stop").touch()
    assert_told(found)
    trainer = next(p for p in found.procs if p.role == "trainer" and p.cpu_sys is not None)
    assert trainer.cpus_allowed and trainer.threads and trainer.cpu_sys <= trainer.cpu + 0.05
    assert None not in (trainer.rchar_per_s, trainer.reads_per_s, trainer.major_faults_per_s)
    assert (trainer.run_delay is None) == ("run_delay" in found.missing)
    assert started.wait(60) == 0
    here.exit_json()
    final = wait_for(lambda: _ended(here), "the run's end")
    assert_told(final)


def _ended(here: World) -> Window | None:
    found = window(here, final=True)
    return found if found is not None and found.exit_code == 0 else None
