"""Any part of the probe may fail, in any hook, and the training never notices."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.probe_support import deploy

DRIVER = Path(__file__).with_name("injected.py")
PARTS = 2


@pytest.mark.slow
def test_no_failure_inside_the_probe_reaches_the_training(tmp_path: Path) -> None:
    def part(number: int) -> dict[str, object]:
        place = tmp_path / str(number)
        place.mkdir()
        done = subprocess.run(
            [sys.executable, str(DRIVER), str(number), str(PARTS)],
            env=deploy(place).env(),
            capture_output=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return dict(json.loads(done.stdout))

    with ThreadPoolExecutor(PARTS) as pool:
        results = list(pool.map(part, range(PARTS)))
    tried = {name for result in results for name in result["tried"]}  # type: ignore[attr-defined]
    # The driver finds them by itself: were the search broken, nothing would differ.
    hooks = {"state.append", "state.now", "gpu_events.GpuEvents.mark", "sites.caller"}
    assert hooks <= tried and len(tried) > 100
    assert results[0]["plain"][0].count("\n") > 30  # type: ignore[index]
    assert [result["differing"] for result in results] == [{}] * PARTS
