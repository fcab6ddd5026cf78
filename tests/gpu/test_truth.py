"""What the product says of nine kinds of training, beside what is known of them.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_truth.py -s``; about a minute. Prints the
table of benchmarks/results/gpu_truth_h200.md.
"""

from __future__ import annotations

import os

import pytest

from tests.gpu.support import needs_cuda
from tests.gpu.truth import MAY_BE_NULL, Row, measure, table

pytestmark = pytest.mark.gpu

WORKLOADS = (
    "launch-bound tiny MLP",
    "GPU-bound large MLP",
    "transformer, bf16 autocast",
    "conv net",
    "starved half",
    "starved 80%",
    "pageable copies",
    "a read each step",
    "small, accumulated",
)
WAITS = ("starved half", "starved 80%", "wait 2 ms", "wait 5 ms", "wait 20 ms")


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    needs_cuda()
    found = measure(float(os.environ.get("TRUTH_SECONDS", "4")))
    print()
    print(table(found))
    return {row.name: row for row in found}


@pytest.mark.parametrize("name", WAITS)
def test_an_exposed_data_wait_is_the_known_wait(name: str, rows: dict[str, Row]) -> None:
    row = rows[name]
    assert row.data_ms is not None
    known = row.known["wait_ms"]
    assert abs(row.data_ms - known) <= max(0.3, 0.05 * known)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_busy_share_is_the_union_of_kernels(name: str, rows: dict[str, Row]) -> None:
    row = rows[name]
    if row.busy_told is None:
        assert name in MAY_BE_NULL
        return
    assert abs(row.busy_told - row.known["busy"]) <= 0.10


@pytest.mark.parametrize("name", WORKLOADS)
def test_busy_time_and_exposed_idle_never_exceed_the_whole(name: str, rows: dict[str, Row]) -> None:
    row = rows[name]
    idle = sum(share for share in row.exposed.values() if share is not None)
    assert all(share is None or share >= 0 for share in row.exposed.values())
    assert (row.busy_told or 0.0) + idle <= 1.001


def test_launch_idle_is_told_where_launches_are_what_is_waited_for(rows: dict[str, Row]) -> None:
    launch = rows["launch-bound tiny MLP"].exposed["launch"]
    assert launch is not None and launch > 0.5
    calm = rows["GPU-bound large MLP"].exposed["launch"]
    assert calm is None or calm < 0.1


def test_a_burst_counts_the_kernels_the_profiler_counts(rows: dict[str, Row]) -> None:
    for name in ("launch-bound tiny MLP", "transformer, bf16 autocast", "conv net"):
        burst = rows[name].burst
        assert burst is not None, name
        assert burst["kernels_per_step"] == pytest.approx(rows[name].known["kernels"], rel=0.02)
