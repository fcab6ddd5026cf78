"""What a run's store says arrives on the screen's snapshot unchanged, and nothing is made up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_train.model import GpuSample, HostSample, ProcSample, Step, UtilSample
from gputop_train.store.errors import StoreError
from gputop_train.store.writer import RunWriter
from gputop_train.tui import gather, pages
from gputop_train.tui.playback import STORY_S, Playback
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.series import axis_for
from gputop_train.tui.snapshot import View
from gputop_train.tui.source import LiveSource

from .made_run import START, UUID, S, exit_json, run_json, write_store

VIEW = View(window_s=60, columns=60, log_lines=20)
GIB = 1 << 30


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "3f2a"
    path.mkdir()
    return path


def test_a_live_gpu_run_shows_the_numbers_of_its_store(run_dir: Path) -> None:
    end = write_store(run_dir, pid=os.getpid())
    run_json(run_dir, pid=os.getpid())
    source = LiveSource(run_dir, now_ns=lambda: end)
    snap = source.read(VIEW)
    source.close()
    assert snap.state == "live"
    assert snap.run.device == "GPU 0 H200"
    assert snap.elapsed_s == pytest.approx(60, abs=0.1)
    assert snap.step.count == 600
    assert snap.step.median_ms == pytest.approx(100)
    assert snap.step.samples_per_s == pytest.approx(640)
    assert dict(snap.step.parts) == pytest.approx(
        {"data_wait": 60, "forward": 15, "backward": 20, "optimizer": 5}
    )
    assert {lane.label: lane.share for lane in snap.lanes} == pytest.approx(
        {"data_wait": 0.6, "forward": 0.15, "backward": 0.2, "optimizer": 0.05}
    )
    assert snap.chart is not None
    assert snap.chart.device == "gpu"
    known = [value for value in snap.chart.area.mean if value is not None]
    assert len(known) >= 58
    assert sum(known) / len(known) == pytest.approx(35, abs=1)
    assert {value for value in snap.chart.area.peak if value is not None} == {40.0}
    assert snap.memory is not None
    assert (snap.memory.allocated, snap.memory.reserved, snap.memory.total) == (
        4 * GIB,
        6 * GIB,
        80 * GIB,
    )
    assert snap.loader is not None
    assert snap.loader.cpu == (0.5, 0.25)
    assert (snap.loader.ready, snap.loader.capacity) == (0, 4)
    assert snap.host is not None
    assert (snap.host.cores_busy, snap.host.cores_allowed) == (1.5, 4.0)
    assert snap.host.read_bytes_per_s == 3 << 20
    assert [mark.kind for mark in snap.marks] == ["checkpoint"]
    assert snap.diagnosis is not None
    assert snap.diagnosis.verdict is not None
    assert snap.diagnosis.verdict.advice[0].setting == {"num_workers": 7}
    assert snap.log == ("hello", "step 3")
    assert snap.notes == ()


def test_without_a_gpu_the_chart_shows_the_cores_the_run_uses_and_says_so_once(
    run_dir: Path,
) -> None:
    end = write_store(run_dir, gpu=False, pid=os.getpid())
    run_json(run_dir, pid=os.getpid())
    snap = LiveSource(run_dir, now_ns=lambda: end).read(VIEW)
    assert snap.chart is not None
    assert snap.chart.device == "cpu"
    assert snap.chart.area.mean[30] == pytest.approx(1.75 / 4 * 100)
    assert snap.notes == ("no NVIDIA driver: the CPU is the device here",)
    assert snap.memory is not None
    assert (snap.memory.basis, snap.memory.reserved) == ("rss-anon", None)
    assert snap.memory.total == 8 * GIB


def test_before_the_first_step_the_screen_waits_instead_of_failing(run_dir: Path) -> None:
    run_json(run_dir, pid=os.getpid())
    source = LiveSource(run_dir, now_ns=lambda: START + S)
    snap = source.read(VIEW)
    assert snap.state == "starting"
    assert (snap.chart, snap.lanes, snap.step.median_ms) == (None, (), None)
    write_store(run_dir, pid=os.getpid())
    assert source.read(VIEW).state == "live"


def test_an_ended_run_tells_its_exit_code_and_its_axis_stops_at_the_end(run_dir: Path) -> None:
    end = write_store(run_dir)
    run_json(run_dir)
    exit_json(run_dir, end, code=7)
    snap = LiveSource(run_dir, now_ns=lambda: end + 3600 * S).read(VIEW)
    assert (snap.state, snap.exit_code, snap.exit_text) == ("ended", 7, "exit code 7")
    assert snap.elapsed_s == pytest.approx(60)
    assert snap.axis.t0_ns < end <= snap.axis.t1_ns


def test_a_run_killed_by_a_signal_is_named_by_that_signal(run_dir: Path) -> None:
    end = write_store(run_dir)
    run_json(run_dir)
    exit_json(run_dir, end, code=None, signal=signal.SIGSEGV)
    snap = LiveSource(run_dir).read(VIEW)
    assert (snap.exit_code, snap.exit_text) == (139, "killed by SIGSEGV (139)")


def test_a_run_that_steps_stopped_is_not_called_killed(run_dir: Path) -> None:
    end = write_store(run_dir)
    with RunWriter(run_dir / "run.sqlite") as writer:
        writer.set_meta("stopped_by", "steps")
        writer.commit()
    run_json(run_dir)
    exit_json(run_dir, end, code=None, signal=signal.SIGINT)
    assert LiveSource(run_dir).read(VIEW).exit_text == "stopped as asked by --steps"


def test_a_run_whose_process_vanished_without_a_word_is_lost_not_live(run_dir: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    end = write_store(run_dir, pid=child.pid)
    run_json(run_dir, pid=child.pid)
    source = LiveSource(run_dir, now_ns=lambda: end)
    assert source.read(VIEW).state == "live"
    child.kill()
    child.wait()
    assert source.read(VIEW).state == "lost"


def test_a_damaged_store_is_a_sentence_not_a_crash(run_dir: Path) -> None:
    run_json(run_dir)
    (run_dir / "run.sqlite").write_bytes(b"this is not a database" * 500)
    with pytest.raises(StoreError, match="sqlite"):
        LiveSource(run_dir).read(VIEW)


def test_a_finding_of_another_version_is_left_out_rather_than_guessed_at(run_dir: Path) -> None:
    from gputop_train.store.writer import RunWriter

    end = write_store(run_dir)
    run_json(run_dir)
    with RunWriter(run_dir / "run.sqlite") as writer:
        writer.add_finding(end, {"status": "something-new", "healthy": "perhaps"})
    exit_json(run_dir, end)
    assert LiveSource(run_dir).read(VIEW).diagnosis is None


class Clock:
    def __init__(self) -> None:
        self.t = 100.0

    def __call__(self) -> float:
        return self.t


def test_a_young_run_fills_its_axis_and_an_old_one_keeps_the_asked_span() -> None:
    for elapsed, span in ((3.0, 15), (15.0, 15), (31.0, 45), (59.0, 60), (4000.0, 60), (None, 60)):
        axis = axis_for(10**12, VIEW, elapsed)
        assert (axis.t1_ns - axis.t0_ns) / 1e9 == pytest.approx(span, rel=0.01)
        assert axis.columns == VIEW.columns


def test_a_replay_tells_the_whole_story_in_half_a_minute(tmp_path: Path) -> None:
    run_dir = tmp_path / "abcdef"
    run_dir.mkdir()
    run_json(run_dir)
    write_store(run_dir)
    exit_json(run_dir, START + 60 * S)
    clock = Clock()
    source = ReplaySource(run_dir, Playback(clock=clock))
    first = source.read(VIEW).replay
    assert first is not None
    assert first.position_s == 0
    assert 10 <= first.length_s / first.speed <= STORY_S
    clock.t += STORY_S
    last = source.read(VIEW).replay
    assert last is not None
    assert last.position_s == last.length_s
    source.playback.seek(-1e12)
    again = source.read(VIEW).replay
    assert again is not None
    assert again.position_s == 0
    source.close()


def replay_of(run_dir: Path) -> tuple[ReplaySource, Clock]:
    end = write_store(run_dir)
    run_json(run_dir)
    exit_json(run_dir, end)
    clock = Clock()
    return ReplaySource(run_dir, Playback(clock=clock, speed=1.0)), clock


def test_a_replay_shows_the_run_as_it_stood_then(run_dir: Path) -> None:
    source, clock = replay_of(run_dir)
    source.read(VIEW)
    clock.t += 10
    snap = source.read(VIEW)
    assert snap.replay is not None
    assert snap.replay.position_s == pytest.approx(10)
    assert snap.diagnosis is not None
    assert snap.diagnosis.status == "too-early"
    assert snap.step.count == pytest.approx(100, abs=1)
    assert snap.marks == ()
    clock.t += 40
    later = source.read(VIEW)
    assert later.diagnosis is not None
    assert later.diagnosis.status == "verdict"
    assert [mark.kind for mark in later.marks] == ["checkpoint"]


def test_a_replay_pauses_seeks_speeds_up_and_stays_within_the_run(run_dir: Path) -> None:
    source, clock = replay_of(run_dir)

    def position() -> float:
        snap = source.read(VIEW)
        assert snap.replay is not None
        return snap.replay.position_s

    position()
    source.playback.toggle()
    clock.t += 30
    assert position() == pytest.approx(0)
    source.playback.seek(20)
    assert position() == pytest.approx(20)
    source.playback.toggle()
    source.playback.change_speed(1)
    clock.t += 5
    assert position() == pytest.approx(30)
    source.playback.seek(-1000)
    assert position() == 0
    source.playback.seek(1000)
    length = source.read(VIEW).replay
    assert length is not None
    assert length.position_s == length.length_s
    assert not length.playing
    source.playback.toggle()
    assert position() == 0


def test_a_replay_without_records_says_where_the_output_is(run_dir: Path) -> None:
    run_json(run_dir)
    with pytest.raises(StoreError, match=r"output\.log"):
        ReplaySource(run_dir).read(VIEW)


def test_once_training_is_over_the_last_readings_are_those_of_its_end(run_dir: Path) -> None:
    end = write_store(run_dir, pid=os.getpid())
    with RunWriter(run_dir / "run.sqlite") as writer:
        for t in range(end + S, end + 20 * S, S):
            writer.add_util([UtilSample(t, UUID, 0.0)])
            writer.add_gpu([GpuSample(t, UUID, memory_total=80 * GIB, power_w=70.0)])
            writer.add_host([HostSample(t, cpu_busy=0.1, cpus_total=16, cpus_allowed=4)])
            writer.add_procs([ProcSample(t, os.getpid() + 1, "worker", cpu=0.0)])
        writer.commit()
    run_json(run_dir, pid=os.getpid())
    exit_json(run_dir, end + 20 * S)
    source = LiveSource(run_dir, now_ns=lambda: end + 20 * S)
    snaps = [source.read(View(window_s=60, columns=columns)) for columns in (17, 60, 181)]
    source.close()
    for snap in snaps:
        assert snap.chart is not None
        assert not any("now" in fact or "70 of" in fact for fact in snap.chart.facts)
        assert "228 of 700 W" in snap.chart.facts
        # The same time gives the same mean, however wide the screen is.
        assert {"35% mean", "SM active 20%"} <= set(snap.chart.facts)
        assert snap.loader is not None
        assert snap.loader.cpu == (0.5, 0.25)
        assert snap.host is not None
        assert snap.host.cores_busy == 1.5


@pytest.mark.parametrize("per_second", [10, 100])
def test_median_and_p95_are_of_the_window_whatever_way_it_is_read(
    run_dir: Path, per_second: int
) -> None:
    wall = S // per_second
    count = 60 * per_second
    with RunWriter(run_dir / "run.sqlite") as writer:
        writer.add_steps(
            # The newest are slower: those alone would give another median.
            Step(0, i, START + i * wall - (i > count * 0.7) * wall // 2, START + (i + 1) * wall, {})
            for i in range(count)
        )
        writer.commit()
    run_json(run_dir, pid=os.getpid())
    source = LiveSource(run_dir, now_ns=lambda: START + 60 * S)
    step = source.read(VIEW).step
    source.close()
    assert step.median_ms == pytest.approx(1000 / per_second)
    assert step.p95_ms == pytest.approx(1500 / per_second)


def test_every_page_is_read_for_and_loaded_by_name() -> None:
    assert set(gather.GATHERERS) == set(pages.names()) - {"overview", "log"}
    assert all(callable(gather.gatherer(name)) for name in gather.GATHERERS)
    assert all(name == page.NAME for name, page in pages.by_name().items())


@pytest.mark.parametrize("page", pages.names())
def test_every_page_of_a_real_store_is_read(run_dir: Path, page: str) -> None:
    end = write_store(run_dir, pid=os.getpid())
    run_json(run_dir, pid=os.getpid())
    source = LiveSource(run_dir, now_ns=lambda: end)
    snap = source.read(replace(VIEW, page=page))
    source.close()
    assert (snap.page, snap.step.count) == (page, 600)
