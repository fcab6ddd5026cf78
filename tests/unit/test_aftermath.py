"""What is seen of a live run after its last step, out of real stores."""

from __future__ import annotations

from synthetic_windows import UUID, make_steps, probe

from gputop_train.diagnose import evidence
from gputop_train.diagnose.engine import diagnose
from gputop_train.model import GpuSample, MemorySample, ProcSample, UtilSample
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

S = 1_000_000_000
USUAL = {"gpu_wait": 80, "forward": 20}


def stopped(tmp_path, *, silent_s=300, util=0.0, trainer=0.01) -> RunReader:
    """A run whose last step ended so long ago, sampled since once a second."""
    steps = make_steps(200, USUAL, exposed={"data_wait": 0, "sync": 0}, dry=0.02)
    end = steps[-1].t1_ns
    times = [end - 10 * S + n * S for n in range(silent_s + 10)]
    writer = RunWriter(tmp_path / "run.sqlite")
    writer.add_steps(steps)
    writer.add_util([UtilSample(t, UUID, 90.0 if t < end else util) for t in times])
    writer.add_gpu([GpuSample(t, UUID, memory_total=80 * 10**9) for t in times])
    writer.add_procs([ProcSample(t, 10, "trainer", cpu=1.0 if t < end else trainer) for t in times])
    writer.add_memory([MemorySample(0, end - S, 190, "cuda-allocator", 30 * 10**9, 32 * 10**9)])
    now = end + silent_s * S
    writer.put_probe_state(0, probe(True, t_ns=now), now)
    writer.commit()
    writer.close()
    return RunReader(tmp_path / "run.sqlite")


def test_a_run_that_sleeps_with_its_memory_held_is_told_live_and_not_at_its_end(tmp_path):
    with stopped(tmp_path) as reader:
        window = evidence.build(reader, final=False)
        assert window.since is not None
        assert window.since.seconds == 300
        assert window.since.util == 0 and window.since.trainer < 0.05
        told = diagnose(window)
        assert told.verdict is not None and told.verdict.id == "idle-allocation"
        assert "32 GB" in told.verdict.summary
        assert evidence.build(reader, final=True).since is None


def test_for_a_minute_nothing_is_looked_up(tmp_path):
    with stopped(tmp_path, silent_s=50) as reader:
        assert evidence.build(reader, final=False).since is None


def test_work_without_steps_is_no_idle_allocation(tmp_path):
    with stopped(tmp_path, util=70.0, trainer=1.0) as reader:
        told = diagnose(evidence.build(reader, final=False))
        assert told.verdict is None or told.verdict.id != "idle-allocation"
