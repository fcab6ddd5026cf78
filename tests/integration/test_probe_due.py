"""Batches ready in a loader's queue: those the trainer can have now, not those behind a late one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from gputop_train.probe.hooks.loader import _due

WITHIN_S = 60


class FirstIsLate(Dataset[int]):
    """Item 0 is not there before a file is."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        while i == 0 and not self.gate.exists():
            time.sleep(0.01)
        return i


def until(condition) -> bool:
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end and not condition():
        time.sleep(0.01)
    return condition()


def test_batches_behind_one_that_is_still_made_are_not_ready(tmp_path):
    gate = tmp_path / "gate"
    batches = iter(DataLoader(FirstIsLate(gate), batch_size=1, num_workers=2))
    got: list[int] = []
    trainer = threading.Thread(target=lambda: got.append(int(next(batches))), daemon=True)
    trainer.start()
    taken = batches._task_info  # what came too early lies there with its data
    assert until(lambda: sum(len(task) == 2 for task in list(taken.values())) >= 2)
    assert _due(batches) == 0
    gate.touch()
    trainer.join(WITHIN_S)
    assert got == [0]
    assert _due(batches) >= 1  # now batch 1 is due, and there
    assert [int(batch) for batch in batches] == list(range(1, 8))
