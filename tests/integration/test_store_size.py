"""A day-long run at 100 steps/s stays under 200 MB.

The whole day is simulated by benchmarks/store_size.py (see benchmarks/results); here a shorter one
shows the same: what is kept in full does not grow, and the rest grows slowly enough.
"""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from pathlib import Path

import pytest

from gputop_train.store.retention import KEEP_NS, KEEP_STEPS
from gputop_train.store.rollup import SECOND_NS
from gputop_train.store.writer import RunWriter

DAY_S = 86_400
LIMIT_BYTES = 200_000_000


def benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "store_size.py"
    spec = importlib.util.spec_from_file_location("store_size", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def used_bytes(path: Path) -> int:
    """Bytes of pages in use."""
    with sqlite3.connect(path) as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
    return (pages - free) * 4096


@pytest.mark.slow
def test_a_day_at_a_hundred_steps_a_second_stays_under_200_mb(tmp_path):
    module = benchmark()
    path = tmp_path / "run.sqlite"
    window_s = 60
    writer = RunWriter(path, keep_ns=window_s * SECOND_NS, keep_steps=KEEP_STEPS // 10)
    simulator = module.Simulator(writer, module.Load())
    simulator.run(4 * window_s, path)
    first = used_bytes(path)
    simulator.run(6 * window_s, path)
    second = used_bytes(path)
    per_s = (second - first) / (6 * window_s)
    # The full window holds ten times what this short one does.
    full_window = (first - 3 * window_s * per_s) * (KEEP_NS / SECOND_NS / window_s)
    assert per_s > 0
    assert full_window + DAY_S * per_s < LIMIT_BYTES
    # On disk there is hardly more than is in use: pages are used again, and the log is bounded.
    assert module.on_disk(path) < 1.5 * second + 5_000_000
    writer.close()
    assert path.stat().st_size < 1.1 * second + 1_000_000
