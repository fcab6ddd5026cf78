"""The mailbox: a reader may switch the sampler off while the script runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop_train.collect.ring_reader import Ring
from tests.probe_support import deploy

SCRIPT = """
import time, torch
m = torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), 0.1)
end = time.time() + 60
while time.time() < end:
    m(torch.ones(1, 2)).sum().backward(); o.step(); time.sleep(0.01)
"""


def samples(ring: Ring) -> int:
    snapshot = ring.snapshot()
    return int(snapshot["sampler"]["n"]) if snapshot else 0


def wait_until(condition, what: str) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.mark.long
def test_the_sampler_stops_when_a_reader_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    deployed = deploy(tmp_path)
    child = subprocess.Popen([sys.executable, str(script)], env=deployed.env())
    try:
        wait_until(lambda: deployed.ring_files(), "no ring")
        with Ring.open(deployed.ring_files()[0]) as ring:
            wait_until(lambda: samples(ring) > 10, "no samples")
            assert ring.set_control(1)
            time.sleep(2.5)  # the helper looks once a second
            before = samples(ring)
            time.sleep(3)
            assert samples(ring) == before
            assert ring.set_control(0)
            wait_until(lambda: samples(ring) > before + 10, "the sampler stayed off")
    finally:
        child.kill()
        child.wait()
