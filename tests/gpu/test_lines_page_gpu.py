"""On a real NVIDIA GPU: what the lines and the findings pages say of a run through the command.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_lines_page_gpu.py`` (one run, some 40 s).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from gputop_train.store.reader import RunReader
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.code import Sources
from gputop_train.tui.gather.findings import Findings
from gputop_train.tui.gather.lines import gather
from gputop_train.tui.snapshot import Axis, View
from gputop_train.tui.views.lines import Line, Part
from tests.gpu.support import needs_cuda, watched_store

pytestmark = pytest.mark.gpu

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(2048, 2048, device="cuda") for _ in range(4)])
opt = torch.optim.AdamW(model.parameters(), fused=True)
pageable = torch.zeros(16 << 20, dtype=torch.uint8)
x = torch.randn(512, 2048, device="cuda")
for i in range(1500):
    b = pageable.to("cuda")
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for n in range(20):
        worst = x[n].abs().max().item()
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """The store of one run, read as of its end."""
    needs_cuda()
    folder = tmp_path_factory.mktemp("page")
    store = watched_store(folder, SCRIPT)
    run = json.loads((store.parent / "run.json").read_text())
    with RunReader(store) as reader:
        span = reader.span()
        assert span is not None
        axis = Axis(span[1] - 10_000_000_000, span[1], 100)
        yield Asked(reader, run, store.parent, View(page="lines"), axis, span[1], 0)


def part_of(asked: Asked, code: str, kind: str) -> tuple[Line, Part]:
    view = gather(asked, Sources(time.monotonic))
    (file,) = view.files
    assert file.source.note == ""
    (line,) = [line for line in file.lines if code in line.text]
    assert code in file.source.lines[line.number - 1]
    return line, next(part for part in line.parts if part.kind == kind)


def test_a_copy_says_what_it_moves_from_where_and_how_fast(asked: Asked) -> None:
    _, copy = part_of(asked, 'pageable.to("cuda")', "h2d")
    assert copy.calls == pytest.approx(1.0, rel=0.2)  # of the steps whose copies were told
    assert copy.bytes_each == pytest.approx(16 << 20, rel=0.01)
    assert copy.memory == "pageable"
    assert copy.gb_per_s is not None
    assert 0.5 < copy.gb_per_s < 200


def test_reads_in_a_loop_have_their_calls_and_the_idle_time_behind_them(asked: Asked) -> None:
    line, read = part_of(asked, ".max().item()", "sync")
    assert read.calls == pytest.approx(20, rel=0.2)
    assert read.idle_ms is not None
    assert line.share is not None
    assert line.share > 0.1


def test_the_findings_page_has_idle_time_of_the_window_and_of_the_whole_run(asked: Asked) -> None:
    view = Findings(time.monotonic).gather(asked)
    assert view.claims
    assert view.whole is not None
    assert view.whole.basis == "at the run's end"
    idle = {row.label: row for row in view.idle}
    assert idle["h2d"].now is not None
    assert idle["h2d"].whole is not None
    assert view.on_gpu
