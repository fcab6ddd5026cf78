"""Loops that lose their time on the training thread for one reason each: the reason is named.

Every cost but that of a collection is a sleep, so that a busy machine changes little.
"""

from __future__ import annotations

import pytest

from tests.watching import all_watched, causes, crowded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOOP = """
import contextlib
import gc
import logging
import time
import torch

torch.set_num_threads(1)
log = logging.getLogger("train")


class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(0.004)


class Net(torch.nn.Linear):
    def forward(self, rows):
        time.sleep(0.01)
        return super().forward(rows)


def confusion_matrix(scores):
    time.sleep(0.25)


def pair_loss(scores):
    time.sleep(0.012)
    return scores.square().mean()


log.addHandler(Slow())
log.setLevel(logging.INFO)
net = Net(64, 64)
heap = {heap}
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(140):
    with {around}:
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    {also}
"""
HEAP = ("()", "[[n] for n in range(600_000)]")
NOTHING, MEAN = "contextlib.nullcontext()", "net(torch.ones(8, 64)).square().mean()"
#: diagnosis, or why there is none -> what is around a step, its loss, what else it does.
LOOPS = {
    "gc-pause": (NOTHING, MEAN, "step % 10 or gc.collect()"),
    "logging-stall": (NOTHING, MEAN, 'log.info("step %d", step)'),
    "host-compute": (NOTHING, MEAN, "step % 10 or confusion_matrix(loss)"),
    "anomaly-mode": ("torch.autograd.detect_anomaly()", MEAN, "pass"),
    "other": (NOTHING, "pair_loss(net(torch.ones(8, 64)))", "pass"),
    "healthy": (NOTHING, MEAN, 'step % 50 or log.info("step %d", step)'),
}


def source(name: str) -> str:
    """The script of one loop."""
    around, loss, also = LOOPS[name]
    return LOOP.format(around=around, loss=loss, also=also, heap=HEAP[name == "gc-pause"])


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    return all_watched(folder, {name: source(name) for name in LOOPS})


@pytest.mark.parametrize("name", ["logging-stall", "host-compute", "anomaly-mode", "gc-pause"])
def test_the_reason_is_named_with_its_line(reports, name):
    report = reports[name]
    assert report["verdict"] is not None, report["abstained"]
    assert report["verdict"]["id"] == name
    around, loss, also = LOOPS[name]
    text = LOOP.format(around=around, loss=loss, also=also, heap="").splitlines()
    said = [text[place["line"] - 1] for place in report["verdict"]["where"]]
    wanted = {
        "logging-stall": "time.sleep(0.004)",
        "host-compute": "time.sleep(0.25)",
        "anomaly-mode": "detect_anomaly()",
        "gc-pause": "gc.collect()",
    }[name]
    assert any(wanted in line for line in said), said


def test_what_recurs_is_told_with_its_period(reports):
    evidence = {e["what"]: e["value"] for e in reports["host-compute"]["verdict"]["evidence"]}
    assert evidence["steps between pauses"] == 10
    assert reports["host-compute"]["verdict"]["gain"]["ceiling"] > 1.8


def test_a_loss_of_the_persons_own_is_named_and_not_blamed(reports):
    report = reports["other"]
    assert report["status"] == "abstained" or crowded(report)
    (missing,) = [a["missing"] for a in report["abstained"] if a["id"] == "other"]
    assert "pair_loss" in missing


def test_a_line_now_and_then_is_healthy(reports):
    report = reports["healthy"]
    assert report["status"] == "healthy" or crowded(report)
    assert causes(report) == []
