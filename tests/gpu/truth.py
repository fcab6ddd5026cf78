"""Runs ``workloads.py`` under the product and lays its numbers beside what is known.

``python tests/gpu/truth.py [SECONDS]`` prints the table of benchmarks/results/gpu_truth_h200.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputop_train.collect.ring_reader import Ring, RingError, rings
from gputop_train.diagnose import evidence
from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.engine import diagnose
from gputop_train.report.json import exposed_idle
from gputop_train.store.reader import RunReader

SCRIPT = Path(__file__).parent / "workloads.py"
#: The busy share of these may be null (named beforehand): the driver cannot tell the time of kernels
#: of two microseconds from that around them.
MAY_BE_NULL = ("launch-bound tiny MLP", "small, accumulated")


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of training: what is known, and what the product said of it."""

    name: str
    known: Mapping[str, float]
    busy: float | None
    busy_with_burst: float | None
    exposed: Mapping[str, float | None]
    dry: float | None
    sampled: int
    burst: Mapping[str, Any] | None
    verdict: str

    @property
    def busy_told(self) -> float | None:
        """What the report shows: with the burst where there was one."""
        return self.busy_with_burst if self.busy_with_burst is not None else self.busy

    @property
    def data_ms(self) -> float | None:
        """Exposed data wait, milliseconds a step."""
        share = self.exposed.get("data_wait")
        return None if share is None else share * self.known["step_ms"]


def measure(seconds: float = 4.0) -> list[Row]:
    """Run everything once; takes about 13 times ``seconds`` and ten."""
    with tempfile.TemporaryDirectory(prefix="gpt") as directory:
        return _measure(Path(directory), seconds)


def _measure(root: Path, seconds: float) -> list[Row]:
    command = [sys.executable, "-m", "gputop_train", "--no-tui", "--no-burst", "--run-root"]
    command += [str(root / "runs"), str(SCRIPT), str(seconds)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    bursts = _ask_all_along(child, root / "runs")  # a pipe holds the dozen lines printed meanwhile
    out, err = child.communicate()
    if child.returncode:
        raise RuntimeError(err[-3000:])
    known = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    (store,) = (root / "runs").glob("*/run.sqlite")
    return [_row(RunReader(store), kind, bursts) for kind in known]


def _ask_all_along(child: Any, runs: Path) -> list[Mapping[str, Any]]:
    """A burst every other second; each result once."""
    found: list[Mapping[str, Any]] = []
    ring: Ring | None = None
    number, asked = 0, 0.0
    while child.poll() is None:
        time.sleep(0.2)
        if ring is None:
            ring = _ring(runs)
            continue
        told = (ring.snapshot() or {}).get("burst")
        if told and told.get("state") == "done" and told not in found:
            found.append(told)
        if time.monotonic() - asked > 1.5:
            number, asked = number + 1, time.monotonic()
            ring.request_burst(number)
    return found


def _ring(runs: Path) -> Ring | None:
    found = list(runs.glob("*/run.json"))
    try:
        paths = rings(json.loads(found[0].read_text())["ring_dir"]) if found else []
        return Ring.open(paths[0]) if paths else None
    except (OSError, ValueError, KeyError, RingError):
        return None  # not there yet


def _row(reader: RunReader, kind: dict[str, Any], bursts: list[Mapping[str, Any]]) -> Row:
    window = evidence.build(reader, t0_ns=kind["t0_ns"], t1_ns=kind["t1_ns"], final=True)
    without = dataclasses.replace(window, probe={**window.probe, "burst": None})
    mine = [b for b in bursts if kind["t0_ns"] < b["t_ns"] < kind["t1_ns"]]
    burst = mine[-1] if mine else None
    seen = dataclasses.replace(window, probe={**window.probe, "burst": burst})
    acc, acc_with = account(without), account(seen)
    found = diagnose(seen)
    sampled = [s for s in window.steps if s.exposed is not None]
    return Row(
        name=kind["name"],
        known=kind,
        busy=acc.busy_share,
        busy_with_burst=acc_with.busy_share if acc_with.burst is not None else None,
        exposed=exposed_idle(seen),
        dry=acc.dry,
        sampled=len(sampled),
        burst=burst,
        verdict=found.verdict.id if found.verdict else found.status,
    )


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| workload | step ms | `next()` ms | exposed data ms | kernels busy, profiler | busy, no burst"
        " | busy, burst | exposed sync | exposed launch | unattributed | dry | steps with events"
        " | kernels/step: profiler, burst | verdict |",
        "|" + "---|" * 14,
    ]
    for r in rows:
        burst = r.burst or {}
        lines.append(
            f"| {r.name} | {r.known['step_ms']:.2f} | {r.known['wait_ms']:.2f} | {_n(r.data_ms)} "
            f"| {r.known['busy']:.2f} | {_n(r.busy)} | {_n(r.busy_with_burst)} "
            f"| {_n(r.exposed['sync'])} | {_n(r.exposed['launch'])} "
            f"| {_n(r.exposed['unattributed'])} | {_n(r.dry)} | {r.sampled} "
            f"| {r.known['kernels']:.0f}, {_n(burst.get('kernels_per_step'))} | {r.verdict} |"
        )
    return "\n".join(lines)


def _n(value: float | None) -> str:
    return "null" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.getcwd())
    print(table(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)))
