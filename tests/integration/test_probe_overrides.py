"""``--set`` for loaders: what is applied, what is refused and why, in a real script."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from gputop_train.collect.ring_reader import Ring
from tests.probe_support import deploy, run

SCRIPT = """
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(32, 8))

if __name__ == "__main__":
    data = TensorDataset(torch.randn(64, 8))
    train = DataLoader(data, batch_size=8, shuffle=True)
    valid = DataLoader(data, batch_size=8)
    stream = DataLoader(Stream(), batch_size=8)
    own = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, False))
    m = torch.nn.Linear(8, 1); o = torch.optim.SGD(m.parameters(), 0.1)
    for (x,) in train:
        m(x).sum().backward(); o.step()
    print(train.num_workers, valid.num_workers, stream.num_workers, own.batch_size, x.shape[0])
"""


def overridden(tmp_path: Path, *overrides: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    full = [{"loader": None, **o} for o in overrides]
    deployed = deploy(tmp_path, overrides=full)
    result = run(script, env=deployed.env())
    assert result.returncode == 0, result.stderr.decode()
    with Ring.open(deployed.ring_files()[0]) as ring:
        snapshot = ring.snapshot()
    assert snapshot is not None
    return result.stdout.decode().strip(), snapshot["overrides"]


def line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(SCRIPT.splitlines()) if text in line)


def test_workers_are_set_on_the_loader_that_shuffles(tmp_path: Path) -> None:
    printed, told = overridden(tmp_path, {"key": "num_workers", "value": 2})
    assert printed.split()[0] == "2"
    assert {"status": "applied", "loader": f"script.py:{line_of('train =')}"}.items() <= told[
        0
    ].items()


def test_an_evaluation_loader_and_a_stream_are_left_alone_and_say_why(tmp_path: Path) -> None:
    printed, told = overridden(tmp_path, {"key": "num_workers", "value": 2})
    assert printed.split()[1:3] == ["0", "0"]
    refused = {row["loader"]: row["why"] for row in told if row["status"] == "refused"}
    assert "evaluation" in refused[f"script.py:{line_of('valid =')}"]
    assert f"script.py:{line_of('stream =')}" in refused


def test_a_named_loader_gets_the_setting_and_no_other(tmp_path: Path) -> None:
    named = f"script.py:{line_of('valid =')}"
    _, told = overridden(tmp_path, {"key": "num_workers", "value": 1, "loader": named})
    assert {row["loader"] for row in told} == {named}


def test_batch_size_is_changed_where_it_is_legal_and_refused_where_a_sampler_rules(
    tmp_path: Path,
) -> None:
    printed, told = overridden(tmp_path, {"key": "batch_size", "value": 16})
    assert printed.split()[4] == "16"
    own = [row for row in told if row["loader"] == f"script.py:{line_of('own =')}"]
    assert own and own[0]["status"] == "refused" and own[0]["why"]


def test_what_needs_workers_is_refused_without_them(tmp_path: Path) -> None:
    _, told = overridden(tmp_path, {"key": "persistent_workers", "value": True})
    assert told[0]["status"] == "refused" and "num_workers" in told[0]["why"]


def test_what_needs_workers_is_refused_where_workers_were_refused(tmp_path: Path) -> None:
    prefetch = {"key": "prefetch_factor", "value": 3}
    _, told = overridden(tmp_path, prefetch, {"key": "num_workers", "value": 2})
    status = {(row["loader"], row["key"]): row["status"] for row in told}
    train, stream = (f"script.py:{line_of(name)}" for name in ("train =", "stream ="))
    assert status[train, "num_workers"] == status[train, "prefetch_factor"] == "applied"
    assert status[stream, "num_workers"] == status[stream, "prefetch_factor"] == "refused"


def test_a_setting_for_one_loader_outranks_the_one_for_all(tmp_path: Path) -> None:
    named = {"key": "num_workers", "value": 1, "loader": f"script.py:{line_of('train =')}"}
    printed, told = overridden(tmp_path, named, {"key": "num_workers", "value": 2})
    assert printed.split()[0] == "1"
    at_train = [row["value"] for row in told if row["loader"] == named["loader"]]
    assert at_train == [1]
