"""Real frameworks under the real product. By hand: ``pytest -m frameworks tests/coverage``.

Needs ``pip install -e '.[frameworks]'``. With ``FRAMEWORKS_TABLE=FILE`` each row's result is added
to a table (benchmarks/results/frameworks_cpu.md is made so).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gputop_train.store.reader import RunReader
from tests.watching import causes

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

LOOPS = Path(__file__).with_name("framework_loops.py")

#: Row -> (distribution it needs, shares of the training time that must be seen at least).
ROWS: dict[str, tuple[str, dict[str, float]]] = {
    "stateful_dataloader": ("torchdata", {"data_wait": 0.45, "forward": 0.2}),
    "webdataset": ("webdataset", {"data_wait": 0.45, "forward": 0.15}),
    "transformers_trainer": ("transformers", {"data_wait": 0.25, "forward": 0.2, "eval": 0.05}),
    "trl_sft": ("trl", {"forward": 0.05, "backward": 0.03}),
    "accelerate": ("accelerate", {"data_wait": 0.45, "forward": 0.2}),
    "lightning": ("lightning", {"data_wait": 0.25, "forward": 0.2, "eval": 0.05}),
    "timm_loop": ("timm", {"data_wait": 0.05, "forward": 0.05, "backward": 0.05}),
    "deepspeed": ("deepspeed", {"data_wait": 0.4, "forward": 0.2}),
    "ray_train": ("ray", {"data_wait": 0.4, "forward": 0.2}),
}
#: torchrun with two ranks, plain torch.
RANKED = {"ddp": 0.3, "fsdp2": 0.1}


def launch(place: Path, *command: str) -> tuple[subprocess.CompletedProcess[bytes], dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "gputop_train.cli", "--run-root", str(place / "runs"), "--no-tui",
         "--json", str(place / "report.json"), "--", *command],
        cwd=place, capture_output=True, timeout=500, check=False,
    )  # fmt: skip
    return done, json.loads((place / "report.json").read_bytes())


def interruptions(place: Path) -> list[str]:
    """Labels of the interruptions kept of a run."""
    (store,) = place.glob("runs/*/run.sqlite")
    with RunReader(store) as reader:
        return [interval.label for interval in reader.intervals(None, None)]


def note(row: str, package: str, report: dict[str, Any], told: dict[str, Any]) -> None:
    """Add a line to the table, if one is asked for."""
    table = os.environ.get("FRAMEWORKS_TABLE")
    if not table:
        return
    shares = {k: v for k, v in report["time"]["shares"].items() if v >= 0.01}
    parts = ", ".join(f"{k} {v:.0%}" for k, v in sorted(shares.items(), key=lambda kv: -kv[1]))
    verdict = report["verdict"]
    where = "none"
    if verdict:
        places = verdict["where"] or []
        where = verdict["id"] + (f" at line {places[0]['line']}" if places else "")
    version = importlib.metadata.version(package)
    with Path(table).open("a") as file:
        file.write(
            f"| {row} | {package} {version} | {told['steps']} | {report['steps']['count']} "
            f"| {parts} | {where} | {report['status']} |\n"
        )


@pytest.mark.parametrize("row", ROWS)
def test_a_framework_is_read_step_by_step(row: str, tmp_path: Path) -> None:
    package, shares = ROWS[row]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done, report = launch(tmp_path, sys.executable, str(LOOPS), row, str(tmp_path))
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert done.stdout.splitlines()[-1] == b"done " + row.encode()
    told = json.loads((tmp_path / f"{row}.json").read_bytes())
    note(row, package, report, told)
    assert report["steps"]["count"] == told["steps"]
    for label, least in shares.items():
        assert report["time"]["shares"][label] >= least, (label, report["time"]["shares"])
    assert report["status"] in ("verdict", "healthy")
    # So short a run may have too few memory readings for a trend.
    assert {row["id"] for row in report["abstained"]} <= {"memory-leak"}
    if shares.get("data_wait", 0) > 0.2:
        assert report["verdict"]["id"] == "input-bound"
    found = interruptions(tmp_path)
    assert found.count("eval") == told.get("evals", 0)
    # A checkpoint may be written by several writers: model, optimizer, random state.
    assert found.count("checkpoint") >= told.get("saves", 0)
    assert "checkpoint" not in found or told.get("saves")
    if "loader" in told:
        assert (LOOPS.name, told["loader"]) in [
            (Path(w["file"]).name, w["line"]) for w in report["verdict"]["where"]
        ]


@pytest.mark.parametrize("row", RANKED)
def test_each_rank_of_torchrun_has_a_record_of_its_own(row: str, tmp_path: Path) -> None:
    done, report = launch(
        tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node=2", str(LOOPS), row, str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    told = json.loads((tmp_path / f"{row}-0.json").read_bytes())
    note(row, "torch", report, told)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert report["steps"]["count"] == told["steps"]
    assert report["time"]["shares"]["data_wait"] >= RANKED[row]


NOTEBOOK = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        if index % 4 == 0:
            time.sleep(0.012)
        return torch.randn(8), torch.zeros(1)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""
CELL = """
for x, y in DataLoader(Rows(), batch_size=4):
    time.sleep(0.008)
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
"""


def test_a_notebook_is_not_idle_between_its_cells(tmp_path: Path) -> None:
    """Cells in turn, a wait after each; one of them runs a script with ``%run``."""
    for package in ("ipykernel", "nbclient"):
        pytest.importorskip(package)
    (tmp_path / "train.py").write_text(NOTEBOOK + CELL)
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import time, nbformat\n"
        "from nbclient import NotebookClient\n"
        f"cells = [{NOTEBOOK!r}, {CELL!r}, {CELL!r}, '%run train.py']\n"
        "book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])\n"
        "client = NotebookClient(book, kernel_name='python3', timeout=300)\n"
        "with client.setup_kernel():\n"
        "    for index, cell in enumerate(book.cells):\n"
        "        client.execute_cell(cell, index)\n"
        "        time.sleep(4)\n"
        "print('done notebook')\n"
    )
    done, report = launch(tmp_path, sys.executable, str(driver))
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    note("notebook", "ipykernel", report, {"steps": 90})
    assert report["steps"]["count"] == 90
    assert report["time"]["training_s"] < 90 * 0.1
    assert report["verdict"]["id"] == "input-bound" and causes(report) == ["input-bound"]
    assert report["time"]["shares"]["data_wait"] > 0.35
