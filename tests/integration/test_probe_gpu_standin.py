"""The whole probe beside a stand-in for CUDA: events, reads and unrecorded steps go together."""

from __future__ import annotations

from pathlib import Path

from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.timeline import Timeline
from tests.gpu_standin import CUDA
from tests.probe_support import deploy, run

STAND_IN = (
    CUDA
    + """
from torch.utils.data import DataLoader
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.1)
x, end = torch.ones(2, 4), time.time() + 3
while time.time() < end:
    for _ in DataLoader(range(200), batch_size=None):
        o.zero_grad(); m(x).sum().backward(); o.step(); Stream().synchronize()
"""
)


def test_short_steps_with_events_are_recorded_without_one_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STAND_IN)
    deployed = deploy(tmp_path)
    result = run(script, env=deployed.env())
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    (path,) = deployed.ring_files()
    with Ring.open(path) as ring:
        timeline = Timeline(0)
        steps = []
        while words := ring.poll():
            steps += timeline.feed(words).steps
        told = ring.snapshot()
        assert told is not None
        assert not ring.failed
    assert told["errors"] == []
    assert told["detail"]["recorded"] < told["detail"]["steps"]  # some were not
    assert told["gpu_events"]["steps"] >= 3
    assert told["gpu_events"]["errors"] == 0
    assert any(step.exposed is not None for step in steps)
