"""Runs that change: what is over is no warning, what began late is told since when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_runs import SECOND, feeding_loader, probe_state
from synthetic_windows import MS, loader, make_steps, probe, window

from gputop_train.diagnose import evidence
from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.regimes import stretch
from gputop_train.model import HostSample, Interval, ProcSample
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

FED = {"data_wait": 1, "forward": 29, "backward": 30}
STARVED = {"data_wait": 61, "forward": 29, "backward": 30}


def recorded(tmp_path, steps, *, intervals=(), loaders=None, procs=()):
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    end = steps[-1].t1_ns
    writer.add_steps(steps)
    writer.add_intervals(list(intervals))
    writer.put_loaders([loader(num_workers=0)] if loaders is None else loaders, end)
    writer.put_probe_state(0, probe(False), end)
    for t_ns in range(steps[0].t0_ns, end, SECOND):
        writer.add_host([HostSample(t_ns, cpus_total=8, cpus_allowed=8)])
        writer.add_procs([ProcSample(t_ns, 10, "trainer", cpu=1.0, rank=0)])
    writer.add_procs(list(procs))
    writer.commit()
    writer.close()
    return RunReader(path)


def judged(reader, *, final=True, t1_ns=None):
    return diagnose(evidence.build(reader, final=final, t1_ns=t1_ns))


def switching(first, count, second, more):
    return make_steps(count + more, {}, extra=lambda i: first if i < count else second)


def test_a_slow_first_epoch_is_information_once_most_steps_ran_without_it(tmp_path):
    found = judged(recorded(tmp_path, switching(STARVED, 200, FED, 600)))
    assert found.status == "healthy"
    assert found.note == "No cause of lost time that lasts or recurs above 10% in 790 steps."
    (told,) = [f for f in found.also if f.id == "input-bound"]
    assert told.severity == "info"
    assert told.summary.endswith(" s in).") and "It was over at step" in told.summary
    assert told.refined is None
    assert [a.setting for a in told.advice] == [None]
    (row,) = [e for e in told.evidence if e.what == "over since"]
    step = int(str(row.value).split()[1].replace(",", ""))
    assert step == pytest.approx(200, abs=15)


def test_a_cause_that_ended_late_is_still_what_cost_most(tmp_path):
    found = judged(recorded(tmp_path, switching(STARVED, 500, FED, 250)))
    assert found.verdict is not None and found.verdict.id == "input-bound"
    assert "It was over at step" in found.verdict.summary


def test_a_loader_that_dries_up_half_way_is_named_since_when(tmp_path):
    steps = switching(FED, 400, STARVED, 400)
    window = evidence.build(recorded(tmp_path, steps), final=True)
    assert len(window.regimes) == 2
    assert window.newest is not None and window.newest.totals.steps == pytest.approx(400, abs=15)
    found = diagnose(window)
    assert found.verdict is not None and found.verdict.id == "input-bound"
    assert "So it is since step" in found.verdict.summary
    # The loss is that of the whole run; the ceiling is what can be had from now on.
    whole = window.totals.labels["data_wait"] / window.totals.wall_ns
    assert found.verdict.lost_share == pytest.approx(whole, rel=0.05)
    assert found.verdict.gain is not None
    assert found.verdict.gain.ceiling == pytest.approx(120 / 59, rel=0.05)


def test_a_cause_too_small_over_the_run_is_named_where_it_began_late(tmp_path):
    found = judged(recorded(tmp_path, switching(FED, 1500, STARVED, 130)))
    assert found.verdict is not None and found.verdict.id == "input-bound"
    assert found.verdict.lost_share < 0.10
    assert "So it is since step" in found.verdict.summary


def test_live_the_newest_regime_is_judged(tmp_path):
    reader = recorded(tmp_path, switching(FED, 800, STARVED, 150))
    live = evidence.build(reader, final=False)
    assert live.totals.steps == pytest.approx(150, abs=10)
    found = diagnose(live)
    assert found.verdict is not None
    assert found.verdict.lost_share == pytest.approx(0.5, abs=0.05)


def test_live_a_cause_that_is_over_is_told_no_more(tmp_path):
    reader = recorded(tmp_path, switching(STARVED, 300, FED, 300))
    assert judged(reader, final=False).status == "healthy"


def test_saves_are_told_though_none_fell_into_the_newest_regime(tmp_path):
    steps = make_steps(
        900,
        {},
        extra=lambda i: (
            (FED if i < 700 else STARVED)
            | ({"checkpoint": 4000} if i % 100 == 50 and i < 700 else {})
        ),
    )
    saves = [
        Interval(0, "checkpoint", s.t0_ns, s.t0_ns + 4000 * MS)
        for s in steps
        if s.labels["checkpoint"]
    ]
    found = judged(recorded(tmp_path, steps, intervals=saves))
    told = [f for f in (found.verdict, *found.also) if f is not None]
    assert {"checkpoint-stall", "input-bound"} <= {f.id for f in told}
    (save,) = [f for f in told if f.id == "checkpoint-stall"]
    assert "over at" not in save.summary


def test_early_and_late_tell_a_cold_cache(tmp_path):
    steps = switching(STARVED, 400, FED, 1200)
    rates = [
        ProcSample(s.t0_ns, 20, "worker", rank=0, read_bytes_per_s=4e8 if i < 400 else 1e6)
        for i, s in enumerate(steps)
        if i % 20 == 0
    ]
    window = evidence.build(recorded(tmp_path, steps, procs=rates), final=True)
    assert window.early is not None and window.late is not None
    assert window.early.step_ms == pytest.approx(120, rel=0.05)
    assert window.late.step_ms == pytest.approx(60, rel=0.05)
    assert window.early.read_bytes_per_s > 3 * window.late.read_bytes_per_s


def test_early_is_the_runs_beginning_also_live(tmp_path):
    steps = switching(STARVED, 600, FED, 2500)
    live = evidence.build(recorded(tmp_path, steps), final=False)
    assert live.early is not None and live.late is not None
    assert live.early.step_ms == pytest.approx(120, rel=0.1)
    assert live.late.step_ms == pytest.approx(60, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "done"),
    [
        ({"epochs": 1, "length": 500, "batches": 120}, False),
        ({"epochs": 1, "length": 100, "batches": 100}, True),
        ({"epochs": 3, "length": None}, True),
        ({"epochs": 1, "length": None}, None),
    ],
)
def test_the_first_epoch_is_done_once_the_loader_was_read_through(tmp_path, changes, done):
    reader = recorded(tmp_path, make_steps(120, FED), loaders=[loader(**changes)])
    assert evidence.build(reader, final=False).first_epoch_done is done


def growing(tmp_path, steps, intervals=(), *, look_from_s=0.0):
    """When a live watch that looks every 2 s first claims something, in s after the first step."""
    path = tmp_path / "run.sqlite"
    writer = RunWriter(path)
    state = probe_state()
    begin, at = steps[0].t0_ns, 0
    told = None
    for now in range(begin + 2 * SECOND, steps[-1].t1_ns + SECOND, 2 * SECOND):
        upto = at
        while upto < len(steps) and steps[upto].t1_ns <= now:
            upto += 1
        writer.add_steps(steps[at:upto])
        at = upto
        writer.add_intervals([i for i in intervals if now - 2 * SECOND < i.t1_ns <= now])
        writer.put_loaders([feeding_loader()], now)
        writer.put_probe_state(0, state, now)
        writer.add_host([HostSample(now, cpus_total=4, cpus_allowed=4)])
        writer.add_procs([ProcSample(now, 100, "trainer", cpu=1.0, rank=0)])
        writer.commit()
        if now < begin + look_from_s * SECOND:
            continue
        with RunReader(path) as reader:
            found = diagnose(evidence.build(reader, final=False))
        if found.verdict is not None:
            told = (now - begin) / SECOND, found.verdict.id
            break
    writer.close()
    return told


@pytest.mark.parametrize("step_ms", [10, 100, 400, 1000, 3000])
def test_a_cause_in_every_step_is_told_within_15_s_or_20_measured_steps(tmp_path, step_ms):
    usual = {"data_wait": 0.6 * step_ms, "forward": 0.4 * step_ms}
    steps = make_steps(max(60, 30_000 // step_ms), usual)
    after_s, cause = growing(tmp_path, steps)
    assert cause == "input-bound"
    # 20 measured steps and the one of warm-up that leaves them; looks come every 2 s.
    assert after_s <= max(15.0, 21 * step_ms / 1000) + 2.0


@pytest.mark.parametrize("every_s", [10, 45, 150])
def test_an_interruption_is_told_after_its_second_period(tmp_path, every_s):
    every = every_s * 10
    steps = make_steps(
        int(2.5 * every) + 20,
        {"forward": 50, "backward": 50},
        extra=lambda i: {"checkpoint": 200 * every_s} if i and i % every == 0 else {},
    )
    saves = [
        Interval(0, "checkpoint", s.t0_ns, s.t0_ns + 200 * every_s * MS)
        for s in steps
        if s.labels["checkpoint"]
    ]
    assert len(saves) == 2
    after_s, cause = growing(tmp_path, steps, saves, look_from_s=1.8 * every_s)
    assert cause == "checkpoint-stall"
    second_ends_s = (saves[1].t1_ns - steps[0].t0_ns) / SECOND
    assert after_s <= second_ends_s + 4.0


def test_an_evaluation_each_four_minutes_stays_told_between(tmp_path):
    every = 2400
    steps = make_steps(
        4 * every + 1500,
        {"forward": 50, "backward": 50},
        extra=lambda i: {"checkpoint": 60_000} if i and i % every == 0 else {},
    )
    saves = [
        Interval(0, "checkpoint", s.t0_ns, s.t0_ns + 60_000 * MS)
        for s in steps
        if s.labels["checkpoint"]
    ]
    window = evidence.build(recorded(tmp_path, steps, intervals=saves), final=False)
    assert len([i for i in window.intervals if i.label == "checkpoint"]) == 2
    assert window.totals.labels["checkpoint"] / window.totals.wall_ns == pytest.approx(
        0.2, abs=0.06
    )
    found = diagnose(window)
    assert found.verdict is not None and found.verdict.id == "checkpoint-stall"


def test_an_epoch_of_a_second_in_a_short_run_is_a_regime_too(tmp_path):
    slow, fast = ({label: ms / 4 for label, ms in usual.items()} for usual in (STARVED, FED))
    found = judged(recorded(tmp_path, switching(slow, 40, fast, 200)))
    assert found.status == "healthy"
    assert [(f.id, f.severity) for f in found.also] == [("input-bound", "info")]


def test_a_cause_that_goes_on_is_not_over_because_a_short_regime_holds_one_occurrence(tmp_path):
    # Each epoch of 100 steps begins with a long wait; the machine is slower for the last steps.
    steps = make_steps(
        960,
        {},
        extra=lambda i: {
            "data_wait": 3000 if i % 100 == 0 else 1,
            "forward": 60 if i < 860 else 120,
        },
    )
    window = evidence.build(recorded(tmp_path, steps), final=True)
    assert len(window.regimes) == 2
    found = diagnose(window)
    assert found.verdict is not None and found.verdict.id == "input-bound"
    assert "over at" not in found.verdict.summary


def test_saves_stay_told_live_while_the_host_grows_slower(tmp_path):
    steps = make_steps(
        1200,
        {},
        extra=lambda i: (
            {"forward": 100 if i < 900 else 160} | ({"checkpoint": 8000} if i % 300 == 299 else {})
        ),
    )
    saves = [
        Interval(0, "checkpoint", s.t0_ns, s.t0_ns + 8000 * MS)
        for s in steps
        if s.labels["checkpoint"]
    ]
    found = judged(recorded(tmp_path, steps, intervals=saves), final=False)
    assert found.verdict is not None and found.verdict.id == "checkpoint-stall"


def launching(now_util):
    """A GPU run that is launch-bound, but for its last regime, in which that rule is silent."""
    steps = make_steps(800, {"forward": 50, "backward": 50}, dry=0.9)
    last = [replace(step, dry=0.2) for step in steps[300:]]
    whole = window(steps, on_gpu=True, util=30)
    first, second = stretch(steps[:300]), stretch(steps[300:])
    newest = replace(window(last, on_gpu=True, util=now_util), t0_ns=last[0].t0_ns)
    return replace(whole, regimes=(first, second), newest=newest)


def test_launch_idle_is_over_only_where_the_gpu_is_idle_no_more():
    found = diagnose(launching(now_util=97))
    assert [(f.id, f.severity) for f in found.also if f.id == "launch-bound"] == [
        ("launch-bound", "info")
    ]
    found = diagnose(launching(now_util=33))
    assert found.verdict is not None and found.verdict.id == "launch-bound"
