"""Loops that wait for their data for one reason each, watched on a CPU: the reason is named.

Every cost is a sleep, in a worker or in the loop, so that a busy machine changes little.
"""

from __future__ import annotations

import pytest

from tests.watching import all_watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOOP = """
import time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Net(torch.nn.Linear):
    def forward(self, rows):
        time.sleep(0.01)
        return super().forward(rows)


class Rows(Dataset):
    ready = False

    def __len__(self):
        return {length}

    def __getitem__(self, i):
        {item}
        return torch.ones(8)


class Stream(IterableDataset):
    def __iter__(self):
        while get_worker_info().id == 0:
            time.sleep(0.004)
            yield torch.ones(8)


def merge(rows):
    time.sleep(0.06)
    return torch.stack(rows)


def main():
    torch.set_num_threads(1)
    loader = DataLoader({arguments}, batch_size=8)
    net = Net(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    done = 0
    while done < {steps}:
        for rows in loader:
            optimizer.zero_grad()
            net(rows).sum().backward()
            optimizer.step()
            done += 1
            if done == {steps}:
                break


main()
"""
LATE = "time.sleep(0.02 if get_worker_info().id == 1 else 0.001)"
FIRST = "self.ready = self.ready or time.sleep(0.5) or True"
#: name -> length of the data, what an item costs, the loader's arguments, steps.
LOOPS = {
    "worker-respawn": (120, FIRST, "Rows(), num_workers=2", 120),
    "idle-workers": (8, "pass", "Stream(), num_workers=4", 100),
    "slow-collate": (4000, "pass", "Rows(), num_workers=2, collate_fn=merge", 100),
    "fetch-stall": (4000, "time.sleep(0.008)", "Rows(), num_workers=2", 180),
    "slow-worker": (4000, LATE, "Rows(), num_workers=4", 120),
    "main-process-loading": (4000, "time.sleep(0.004)", "Rows()", 80),
}


def source(name: str) -> str:
    """The script of one loop."""
    length, item, arguments, steps = LOOPS[name]
    return LOOP.format(length=length, item=item, arguments=arguments, steps=steps)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loading")
    return all_watched(folder, {name: source(name) for name in LOOPS})


@pytest.mark.parametrize("name", LOOPS)
def test_the_reason_is_named_with_its_line(reports, name):
    verdict = reports[name]["verdict"]
    assert verdict is not None, reports[name]["abstained"]
    assert (verdict["id"], verdict["refined"]) == ("input-bound", name)
    lines = LOOP.format(length=1, item="", arguments="", steps=1).splitlines()
    wanted = "def merge" if name == "slow-collate" else "loader = DataLoader("
    (line,) = [n for n, text in enumerate(lines, 1) if wanted in text]
    assert line in [place["line"] for place in verdict["where"]]


def test_only_those_that_more_workers_would_help_are_told_so(reports):
    def asked(name):
        advice = reports[name]["verdict"]["advice"]
        return max(((a["setting"] or {}).get("num_workers", 0) for a in advice), default=0)

    # Sleeping workers may be more where other programs leave room for them.
    more = {name for name in LOOPS if asked(name) > 2}
    assert more - {"fetch-stall"} == {"main-process-loading"}
    respawn = reports["worker-respawn"]["verdict"]["advice"]
    assert respawn[0]["setting"] == {"persistent_workers": True}
