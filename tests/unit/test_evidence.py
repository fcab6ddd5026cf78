"""Windows cut out of real stores, written by the real writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic_windows import MS, UUID, intervals_of, labels, loader, make_steps, probe, site

from gputop_train.diagnose import evidence
from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.steady import warm_up
from gputop_train.model import (
    GpuSample,
    HostSample,
    MemorySample,
    ProcSample,
    Step,
    UtilSample,
)
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

S = 1_000_000_000
STARVED = {"data_wait": 64, "forward": 16, "backward": 20}


def store(tmp_path: Path, steps, *, state=None, t_ns=None, prune_to=None, **kept) -> RunReader:
    """A store with these records in it, opened for reading."""
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path, **kept)
    writer.add_steps(steps)
    end = steps[-1].t1_ns if steps else 0
    if state is not None:
        writer.put_probe_state(0, state, end if t_ns is None else t_ns)
    writer.commit()
    if prune_to is not None:
        writer.prune(prune_to)
        writer.commit()
    writer.close()
    return RunReader(path)


def test_the_first_steps_are_left_out_and_counted(tmp_path):
    steps = make_steps(90, STARVED, extra=lambda i: {"compile": 900} if i < 4 else {})
    window = evidence.build(store(tmp_path, steps, state=probe(False)), final=True)
    assert window.steps_seen == 90
    assert window.warmup_excluded == 10
    assert window.totals.steps == 80
    assert window.totals.labels["compile"] == 0
    assert window.whole.steps == 90
    assert window.whole.labels["compile"] == 4 * 900 * MS
    assert window.median_ms == pytest.approx(100)


def test_warm_up_lasts_until_step_times_settle_but_never_over_a_third():
    falling = [100 * 0.95**i for i in range(60)] + [4.6] * 240
    excluded, why = warm_up(falling)
    assert 50 <= excluded <= 80
    assert "10%" in why
    assert warm_up([2.0**-i for i in range(90)])[0] == 30
    assert warm_up([5.0] * 300)[0] == 10


@pytest.mark.parametrize(("seen", "measured"), [(1, 0), (20, 19), (21, 20), (25, 20), (40, 30)])
def test_from_21_steps_on_at_least_20_are_measured(seen, measured):
    excluded, _ = warm_up([10.0] * seen)
    assert seen - excluded == measured


def test_the_final_window_is_the_whole_steady_run_the_live_one_its_last_minute(tmp_path):
    steps = make_steps(1000, STARVED)
    reader = store(tmp_path, steps, state=probe(False))
    final = evidence.build(reader, final=True)
    live = evidence.build(reader, final=False)
    assert final.totals.steps == 990
    assert live.steps_seen == 1000
    assert live.totals.wall_ns == pytest.approx(60 * S, rel=0.01)
    assert live.warmup_excluded == 0


def test_a_live_window_of_slow_steps_holds_50_of_them(tmp_path):
    steps = make_steps(120, {"forward": 3000})
    live = evidence.build(store(tmp_path, steps, state=probe(False)), final=False)
    assert live.totals.steps == 50


def test_a_young_live_run_leaves_its_warm_up_out(tmp_path):
    steps = make_steps(60, STARVED, extra=lambda i: {"compile": 900} if i < 4 else {})
    live = evidence.build(store(tmp_path, steps, state=probe(False)), final=False)
    assert live.warmup_excluded == 10
    assert live.totals.labels["compile"] == 0


def test_steps_that_live_on_as_rollups_still_count(tmp_path):
    steps = make_steps(6000, STARVED, syncs=2)
    reader = store(
        tmp_path,
        steps,
        state=probe(False),
        keep_ns=60 * S,
        keep_steps=10,
        prune_to=steps[-1].t1_ns,
    )
    kept = reader.steps()
    assert len(kept) < 2000
    window = evidence.build(reader, final=True)
    assert window.whole.steps == 6000
    assert window.whole.wall_ns == 600 * S
    assert 10 <= window.warmup_excluded < 100
    assert window.totals.steps == 6000 - window.warmup_excluded
    assert window.totals.syncs == 2 * window.totals.steps
    share = window.totals.labels["data_wait"] / window.totals.wall_ns
    assert share == pytest.approx(0.64)


def test_a_starved_store_gives_its_verdict(tmp_path):
    steps = make_steps(200, STARVED)
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    writer.put_loaders([loader()], steps[-1].t1_ns)
    writer.put_probe_state(0, probe(False), steps[-1].t1_ns)
    writer.add_host([HostSample(steps[50].t0_ns, cpus_total=8, cpus_allowed=4, cpu_quota=2.5)])
    writer.add_procs([ProcSample(steps[50].t0_ns, 7, "trainer", cpu=1.0, rank=0)])
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        window = evidence.build(reader, final=True)
    assert window.cores == 2.5
    found = diagnose(window)
    assert found.verdict is not None
    assert (found.verdict.id, found.verdict.refined) == ("input-bound", "main-process-loading")
    assert [w.line for w in found.verdict.where] == [41]


def test_interruptions_of_the_warm_up_are_not_in_the_window(tmp_path):
    steps = make_steps(
        90, {"forward": 10}, extra=lambda i: {"checkpoint": 500} if i in (2, 40, 80) else {}
    )
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    writer.add_intervals(intervals_of(steps, "checkpoint", site_id=88))
    writer.put_sites([site("save", 88)], steps[-1].t1_ns)
    writer.put_probe_state(0, probe(False), steps[-1].t1_ns)
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        window = evidence.build(reader, final=True)
    assert len(window.intervals) == 2


def test_counters_that_came_after_the_last_step_are_those_of_the_last_steps(tmp_path):
    steps = make_steps(60, {"forward": 10}, extra=lambda i: {"checkpoint": 40.0 * (i % 10 == 9)})
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    writer.put_probe_state(0, probe(False))
    writer.put_sites([site("save", 88, count=6)], steps[-1].t1_ns + 300_000_000)
    writer.close()
    with RunReader(path) as reader:
        assert [(s.line, s.count) for s in evidence.build(reader, final=True).sites] == [(88, 6)]


def test_a_switch_to_eval_mode_is_known_though_it_carries_no_counters(tmp_path):
    steps = make_steps(90, {"forward": 10})
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    writer.put_sites([site("eval", 61, count=0, total_ns=0)], steps[-1].t1_ns)
    writer.put_probe_state(0, probe(False), steps[-1].t1_ns)
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        assert [s.line for s in evidence.build(reader, final=True).sites] == [61]


def test_the_device_is_matched_by_its_uuid_with_or_without_the_prefix(tmp_path):
    steps = make_steps(200, STARVED)
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    times = np.linspace(steps[0].t0_ns, steps[-1].t1_ns, 100).astype(int)
    writer.add_util([UtilSample(int(t), UUID, 30.0) for t in times])
    writer.add_util([UtilSample(int(t), "GPU-bbbb", 99.0) for t in times])
    writer.add_gpu([GpuSample(int(times[50]), UUID, memory_total=10)])
    state = probe(True)
    state["cuda"]["uuid"] = "AAAA"
    writer.put_probe_state(0, state, steps[-1].t1_ns)
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        window = evidence.build(reader, final=True)
    assert window.gpu_uuid == UUID
    assert window.util_mean == pytest.approx(30)
    assert len(window.gpu) == 1


def test_two_devices_of_which_none_is_known_as_ours_give_no_utilisation(tmp_path):
    steps = make_steps(200, STARVED)
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    for uuid in (UUID, "GPU-bbbb"):
        writer.add_util([UtilSample(steps[100].t0_ns, uuid, 30.0)])
    writer.put_probe_state(0, probe(True), steps[-1].t1_ns)
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        assert evidence.build(reader, final=True).util_mean is None


def test_lost_records_make_the_run_unjudged(tmp_path):
    steps = make_steps(200, STARVED)
    state = probe(False, ring={"lost": 3_000, "probe_lost": 0})
    found = diagnose(evidence.build(store(tmp_path, steps, state=state), final=True))
    assert found.status == "abstained"
    assert "3,000 records" in found.note


def test_a_handful_of_lost_records_in_a_long_run_does_not_void_it(tmp_path):
    steps = make_steps(200, STARVED)
    state = probe(False, ring={"lost": 5, "probe_lost": 1})
    found = diagnose(evidence.build(store(tmp_path, steps, state=state), final=True))
    assert found.status == "verdict"


def test_a_probe_that_gave_up_makes_the_run_unjudged(tmp_path):
    steps = make_steps(200, STARVED)
    state = probe(False, ring={"failed": True})
    found = diagnose(evidence.build(store(tmp_path, steps, state=state), final=True))
    assert (found.status, found.healthy) == ("abstained", None)


def test_a_probe_that_fell_silent_while_training_went_on_makes_the_run_unjudged(tmp_path):
    steps = make_steps(200, {"forward": 100})
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    end = steps[-1].t1_ns
    writer.put_probe_state(0, probe(False, t_ns=end, ring={"pid": 7}), end)
    writer.add_procs([ProcSample(end + 60 * S, 7, "trainer", cpu=1.0, rank=0)])
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        found = diagnose(evidence.build(reader, final=True))
    assert found.status == "abstained"
    assert "silent for 60 s" in found.note


def test_a_parent_that_goes_on_after_training_ended_is_no_silent_probe(tmp_path):
    steps = make_steps(200, {"forward": 100})
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    end = steps[-1].t1_ns
    writer.put_probe_state(0, probe(False, t_ns=end, ring={"pid": 7}), end)
    writer.add_procs([ProcSample(end + 60 * S, 3, "other", cpu=1.0)])
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        assert diagnose(evidence.build(reader, final=True)).status == "healthy"


def test_an_empty_store_has_no_steps(tmp_path):
    window = evidence.build(store(tmp_path, []), final=True)
    assert window.steps_seen == 0
    assert diagnose(window).status == "no-steps"


def test_the_supervisors_reason_for_a_missing_probe_is_passed_on(tmp_path):
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_note(1, "no-probe", {"text": "The script cleared PYTHONPATH."})
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        found = diagnose(evidence.build(reader, final=True))
    assert found.status == "abstained"
    assert "The script cleared PYTHONPATH" in found.note


def test_a_script_that_never_loads_torch_has_no_steps_rather_than_a_broken_probe(tmp_path):
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_note(1, "no-probe", {"text": "No process has loaded torch.", "blocked": False})
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        assert diagnose(evidence.build(reader, final=True)).status == "no-steps"


@pytest.mark.parametrize(("batches", "status"), [(0, "abstained"), (90, "healthy")])
def test_a_loader_whose_batches_bypass_the_probe_is_no_proof_of_health(tmp_path, batches, status):
    steps = make_steps(90, {"forward": 10})
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    writer.put_loaders([loader(batches=batches, epochs=1)], steps[-1].t1_ns)
    writer.put_probe_state(0, probe(False), steps[-1].t1_ns)
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        found = diagnose(evidence.build(reader, final=True))
    assert found.status == status
    assert ("none of its batches" in found.note) == (status == "abstained")


@pytest.mark.parametrize(
    ("counted", "notes", "status", "why"),
    [
        (400, [], "abstained", "counted 400 steps, but none"),
        (5, [], "no-steps", ""),
        (0, [], "no-steps", ""),
        (0, [("part-failed", "ring 1-2.ring", True)], "abstained", "ring 1-2.ring broke"),
        (0, [("part-failed", "store", False)], "abstained", "store broke"),
        (0, [("part-failed", "host", True)], "no-steps", ""),
        (
            None,
            [("ring-refused", "foreign", False), ("no-probe-after", "end", True)],
            "abstained",
            "foreign broke",
        ),
    ],
)
def test_no_step_is_only_said_where_we_could_have_read_one(tmp_path, counted, notes, status, why):
    writer = RunWriter(tmp_path / "run.sqlite")
    if counted is not None:
        writer.put_probe_state(0, {**probe(False), "cost": {"steps": counted}}, 5 * S)
    for kind, part, off in notes:
        writer.add_note(S, kind, {"part": part, "off": off, "text": f"Watching {part} broke."})
    writer.commit()
    writer.close()
    with RunReader(tmp_path / "run.sqlite") as reader:
        found = diagnose(evidence.build(reader, final=True))
    assert found.status == status
    assert why in found.note


@pytest.mark.parametrize(("off", "status"), [(True, "abstained"), (False, "verdict")])
def test_steps_after_a_ring_was_given_up_are_not_judged(tmp_path, off, status):
    steps = make_steps(200, STARVED)
    writer = RunWriter(tmp_path / "run.sqlite")
    writer.add_steps(steps)
    writer.put_probe_state(0, probe(False), steps[-1].t1_ns)
    writer.put_loaders([loader()], steps[-1].t1_ns)
    body = {"part": "ring 1-2.ring", "off": off, "text": "Watching ring 1-2.ring broke."}
    writer.add_note(S, "part-failed", body)
    writer.commit()
    writer.close()
    with RunReader(tmp_path / "run.sqlite") as reader:
        assert diagnose(evidence.build(reader, final=True)).status == status


def test_a_leak_is_seen_live_over_the_whole_run_not_over_the_last_minute(tmp_path):
    steps = make_steps(4000, {"forward": 50})
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps)
    writer.put_probe_state(0, probe(False), steps[-1].t1_ns)
    writer.add_memory(
        [
            MemorySample(0, s.t1_ns, s.index, "rss-anon", 300_000_000 + 50_000 * s.index)
            for s in steps[::10]
        ]
    )
    writer.add_host([HostSample(steps[-5].t0_ns, mem_total=16 * S, mem_available=12 * S)])
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        window = evidence.build(reader, final=False)
    assert window.totals.steps < 1500
    found = diagnose(window)
    assert found.verdict is not None
    assert found.verdict.id == "memory-leak"
    values = {e.what: e.value for e in found.verdict.evidence}
    assert values["growth of the low-water marks"] == pytest.approx(50, rel=0.05)


def test_only_the_first_rank_is_judged(tmp_path):
    mine = make_steps(100, STARVED)
    other = [
        Step(1, s.index, s.t0_ns, s.t1_ns, labels(forward=100), measured_ns=s.wall_ns) for s in mine
    ]
    window = evidence.build(store(tmp_path, mine + other, state=probe(False)), final=True)
    assert window.rank == 0
    assert window.whole.steps == 100
    assert {s.rank for s in window.steps} == {0}


def test_the_same_store_gives_the_same_diagnosis(tmp_path):
    reader = store(tmp_path, make_steps(300, STARVED), state=probe(False))
    first = diagnose(evidence.build(reader, final=True))
    assert first == diagnose(evidence.build(reader, final=True))


def test_a_live_window_of_fast_steps_counts_all_and_looks_at_the_newest_one_by_one(tmp_path):
    steps = make_steps(80_000, {"data_wait": 0.6, "forward": 0.4}, syncs=1)
    reader = store(tmp_path, steps, state=probe(False))
    live = evidence.build(reader, final=False)
    assert 2_000 <= len(live.steps) <= evidence.LIVE_DETAIL
    assert live.steps_seen == 80_000
    assert live.totals.wall_ns == pytest.approx(60 * S, rel=0.02)
    assert live.totals.steps == live.totals.syncs == pytest.approx(60_000, rel=0.02)
    assert live.totals.labels["data_wait"] == pytest.approx(0.6 * live.totals.wall_ns)
    assert live.t0_ns < live.steps[0].t0_ns
    assert live.t1_ns - live.t0_ns == live.totals.wall_ns
    assert live.warmup_excluded == 0


def test_a_young_run_of_fast_steps_leaves_its_first_seconds_out(tmp_path):
    steps = make_steps(20_000, {"forward": 1}, extra=lambda i: {"compile": 900} if i < 4 else {})
    live = evidence.build(store(tmp_path, steps, state=probe(False)), final=False)
    assert live.warmup_excluded > 4
    assert live.totals.labels["compile"] == 0
    assert live.totals.steps == 20_000 - live.warmup_excluded
