"""Any part of the probe may fail, in any hook, and the training never notices."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.probe_support import deploy

DRIVER = Path(__file__).with_name("injected.py")
AT_ONCE = 2


def inject(tmp_path: Path, parts: int) -> list[dict[str, Any]]:
    """Try the first ``AT_ONCE`` of ``parts`` parts of all faults."""

    def part(number: int) -> dict[str, Any]:
        place = tmp_path / str(number)
        place.mkdir()
        done = subprocess.run(
            [sys.executable, str(DRIVER), str(number), str(parts)],
            env=deploy(place).env(),
            capture_output=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return dict(json.loads(done.stdout))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(part, range(AT_ONCE)))
    # The driver finds the faults by itself: were the search broken, nothing would differ.
    tried = {name for result in results for name in result["tried"]}
    assert {"state.append", "state.now", "gpu_events.GpuEvents.mark", "sites.caller"} <= tried
    assert results[0]["plain"][0].count("\n") > 30
    assert results[0]["plain"][1] == 5
    return results


def test_the_primitives_and_a_sample_of_all_parts_may_fail(tmp_path: Path) -> None:
    results = inject(tmp_path, parts=24)
    assert [result["differing"] for result in results] == [{}] * AT_ONCE


@pytest.mark.frameworks  # minutes; by hand, after a change to the probe
@pytest.mark.timeout(1600)
def test_every_function_of_the_probe_may_fail(tmp_path: Path) -> None:
    results = inject(tmp_path, parts=AT_ONCE)
    assert sum(len(result["tried"]) for result in results) > 200
    assert [result["differing"] for result in results] == [{}] * AT_ONCE
