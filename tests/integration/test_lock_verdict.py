"""A thread of the script's own that computes in Python beside training, live."""

from __future__ import annotations

import pytest

from tests.watching import all_watched, causes, undisturbed_at_least_once

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]

FEEDER = """
import queue
import threading
import torch

torch.set_num_threads(1)
net = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
batches = queue.Queue(2)


def features(n):
    total = 0
    for k in range(n):
        total += k * k % 7
    return total


def fill():
    while True:
        features(300_000)
        batches.put(torch.ones(64, 256))


threading.Thread(target=fill, daemon=True).start()
for step in range(250):
    rows = batches.get()
    loss = sum(net(rows).sum() for _ in range(3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@undisturbed_at_least_once
def test_the_thread_and_its_line_are_named(tmp_path):
    report = all_watched(tmp_path, {"feeder": FEEDER})["feeder"]
    found = [report["verdict"], *report["also"]] if report["verdict"] else []
    named = [one for one in found if one["id"] == "input-bound"]
    assert causes(report)[:1] == ["input-bound"] and named, report["abstained"]
    text = FEEDER.splitlines()
    said = [text[place["line"] - 1] for place in named[0]["where"]]
    assert any("total" in line or "for k in" in line for line in said), said
    assert "num_workers=" in named[0]["advice"][0]["text"]
