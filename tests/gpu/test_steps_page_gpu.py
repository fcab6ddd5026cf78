"""On a real NVIDIA GPU: what the steps page says of the GPU beside the host.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_steps_page_gpu.py`` (one run, some 40 s).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gputop_train.store.reader import RunReader
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.steps import steps_view
from gputop_train.tui.paint import UNICODE
from gputop_train.tui.snapshot import Axis, View
from gputop_train.tui.views.steps import StepRow, StepsView
from gputop_train.tui.widgets.steplanes import step_text
from tests.gpu.support import needs_cuda, watched_store

pytestmark = pytest.mark.gpu

SLEEP_MS, SAVE_AT, STEPS = 30, 60, 150
SCRIPT = f"""
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return {STEPS}
    def __getitem__(self, i):
        time.sleep({SLEEP_MS} / 1000)
        return torch.zeros(8, 2048)

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(2048, 2048, device="cuda") for _ in range(4)])
opt = torch.optim.AdamW(model.parameters(), fused=True)
for i, x in enumerate(DataLoader(Slow(), batch_size=None)):
    loss = model(x.to("cuda")).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i + 1 == {SAVE_AT}:
        torch.save({{"model": model.state_dict(), "pad": torch.zeros(1 << 26)}}, "state.pt")
"""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StepsView]:
    """The page at the run's end."""
    needs_cuda()
    folder = tmp_path_factory.mktemp("page")
    store = watched_store(folder, SCRIPT)
    run = json.loads((store.parent / "run.json").read_text())
    with RunReader(store) as reader:
        end = reader.steps_tail(1, 0)[-1].t1_ns
        axis = Axis(end - 300_000_000_000, end, 100)
        yield steps_view(Asked(reader, run, store.parent, View(page="steps"), axis, end, 0), 0)


def sampled(view: StepsView) -> list[StepRow]:
    return [row for row in view.newest if row.idle is not None and row.number > 10]


def test_the_gpu_idles_in_the_waits_for_data_and_no_longer_than_they_last(view: StepsView) -> None:
    assert view.count == STEPS
    assert view.has_gpu
    rows = sampled(view)
    assert rows
    for row in rows:
        idle, host = dict(row.idle or ())["data_wait"], dict(row.parts)["data_wait"]
        print(row.number, idle, host)
        # It works off at most the step before; events cost some of the wait themselves.
        assert 0.7 * SLEEP_MS < idle < host + 1
        assert "GPU idle up to" in step_text(row, view, UNICODE)


def test_the_step_of_the_save_is_the_slowest_and_says_so(view: StepsView) -> None:
    slow = next(row for row in view.slowest if row.number > 5)  # the first ones warm up
    assert slow.number == SAVE_AT + 1
    assert slow.why[0].what == "checkpoint"
    assert "script.py:" in slow.why[0].more
    assert slow.pauses[0].label == "checkpoint"
    assert 0 <= slow.pauses[0].begin_ms < slow.pauses[0].end_ms <= slow.wall_ms


def test_steps_without_events_say_that_they_were_not_sampled(view: StepsView) -> None:
    for row in view.newest:
        words = step_text(row, view, UNICODE)
        assert ("GPU not sampled in this step" in words) == (row.idle is None)
