"""The wait for other ranks is taken out of backward only where it was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_runs import SECOND, START, Recorded, ended, probe_state, steps_of

from gputop_train.diagnose.comm import exposed_per_step_ns, with_comm
from gputop_train.diagnose.window import Totals
from gputop_train.report import comm

MS = 1_000_000
DDP: dict[str, Any] = {"device": "cpu", "exposed_ns": 30 * MS, "per_step": 1.0, "samples": 8}
SHARES = {"backward": 0.8, "forward": 0.2, "comm": 0.0}
#: 100 steps of 50 ms.
TOTALS = Totals(steps=100, wall_ns=5000 * MS)


def state(*modules: dict[str, Any], calls: int = 120) -> dict[str, Any]:
    return {"ddp": list(modules), "cost": {"steps": calls}}


def test_the_measured_wait_moves_from_backward_to_comm():
    found = with_comm(SHARES, state(DDP), TOTALS, 120)
    assert found == pytest.approx({"backward": 0.2, "forward": 0.2, "comm": 0.6})


def test_it_never_takes_more_than_backward_had():
    found = with_comm(SHARES, state(DDP | {"exposed_ns": 90 * MS}), TOTALS, 120)
    assert found == pytest.approx({"backward": 0.0, "forward": 0.2, "comm": 0.8})


def test_iterations_and_optimizers_of_a_step_are_counted():
    accumulates = state(DDP | {"exposed_ns": 5 * MS, "per_step": 4.0})
    assert with_comm(SHARES, accumulates, TOTALS, 120)["comm"] == pytest.approx(0.4)
    two = DDP | {"exposed_ns": 10 * MS, "per_step": 0.5}
    assert with_comm(SHARES, state(two, two, calls=240), TOTALS, 120)["comm"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    "unknown",
    [
        state(DDP | {"exposed_ns": None}),
        state(DDP | {"per_step": None}),
        state(DDP | {"samples": 4}),
        state(DDP | {"device": "cuda"}),
        state(DDP, DDP | {"exposed_ns": None}),
        state(),
        {"ddp": [DDP]},
        {"ddp": "hostile"},
        state(DDP | {"samples": "many"}, 7),  # type: ignore[arg-type]
        {},
    ],
)
def test_what_was_not_measured_stays_backward(unknown: dict[str, Any]):
    assert with_comm(SHARES, unknown, TOTALS, 120) == SHARES


def test_a_gpus_wait_is_known_though_the_host_does_not_share_it():
    assert exposed_per_step_ns(state(DDP | {"device": "cuda"})) == 30 * MS


def test_rows_say_what_was_timed_and_who_waits():
    told = {
        "module": "Net", "backend": "gloo", "world_size": 2, "find_unused_parameters": True,
        "bucket_bytes": [1_000_000, 25_000_000], "forward_compute_ns": 4 * MS,
        "backward_compute_ns": 8 * MS, "backward_comm_ns": 35 * MS,
        "backward_compute_comm_overlap_ns": 5 * MS,
    }  # fmt: skip
    text = " ".join(comm.notes(state(DDP | told), 50 * MS))
    assert "Net · 2 ranks over gloo · find_unused_parameters" in text
    assert "2 buckets of 1 MB 25 MB" in text
    assert "communication 35.0 ms · overlap 5.0 ms · medians of 8 timed iterations" in text
    assert "30.0 ms a step not hidden by backward, 60% of it: the host waits" in text
    on_gpu = " ".join(comm.notes(state(DDP | told | {"device": "cuda"}), None))
    assert "the GPU's stream waits" in on_gpu and "%" not in on_gpu


def test_rows_of_too_few_or_hostile_timings_claim_nothing():
    rows = comm.notes(state(DDP | {"samples": 2}, 3), 50 * MS)  # type: ignore[arg-type]
    assert "too few iterations" in rows[1] and "exposed" not in "".join(rows)
    assert comm.notes({}, None) == []


def test_the_report_gives_every_rank_its_wait(tmp_path: Path):
    run = Recorded(tmp_path)
    for rank, exposed in ((0, 30), (1, 2)):
        run.train(steps_of(400, {"forward": 10, "backward": 40}, rank=rank), rank=rank)
        ddp = [DDP | {"exposed_ns": exposed * MS}]
        told = probe_state() | {"ddp": ddp, "cost": {"total_ns": 1, "steps": 400}}
        run.writer.put_probe_state(rank, told, START + 20 * SECOND)
    report = run.report(ended())
    assert report["time"]["shares"]["comm"] == pytest.approx(0.6)
    assert report["time"]["shares"]["backward"] == pytest.approx(0.2)
    assert sum(v for v in report["time"]["shares"].values() if v) == pytest.approx(1)
    waits = [r["shares"]["comm"] for r in report["ranks"]]
    assert waits == pytest.approx([0.6, 0.04])
