"""cpu-contention: programs outside the run have the cores that training waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import MS, loader, make_steps, probe, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import cpu_contention
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding, HostSample, ProcSample

TRAINING = {"forward": 90, "backward": 100, "optimizer": 50}


def crowded(
    *, delay=0.5, others=1.0, trainer=1.0, cores=2, known=2, on_gpu=False, wide=8, labels=None,
    workers=(), **more,
):  # fmt: skip
    """A window of a run beside other programs, as schedstat and /proc/stat tell it."""
    steps = make_steps(120, labels or TRAINING)
    first = steps[0].t0_ns
    procs = [
        ProcSample(first + k * 1000 * MS, 10, "trainer", cpu=trainer, run_delay=delay)
        for k in range(wide)
    ]
    procs += [
        ProcSample(first + k * 1000 * MS, 20 + n, "worker", cpu=cpu, run_delay=waits)
        for n, (cpu, waits) in enumerate(workers)
        for k in range(wide)
    ]
    busy = trainer + others + sum(cpu for cpu, _ in workers)
    host = [
        HostSample(first + k * 1000 * MS, cpu_busy=busy, cpus_total=known, cpus_allowed=cores)
        for k in range(wide)
    ]
    made = window(steps, on_gpu=on_gpu, cores=cores, probe=probe(on_gpu), **more)
    return replace(made, procs=tuple(procs), host=tuple(host))


def test_training_without_a_core_beside_another_program_is_named():
    found = cpu_contention.judge(crowded())
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("critical", "high")
    assert found.lost_share == pytest.approx(0.5)
    assert found.gain.at_least and found.gain.ceiling == pytest.approx(2.0)
    assert found.where == () and found.where_missing
    assert "1.0 of 2 cores" in found.summary


def test_it_is_the_verdict_of_a_script_that_has_no_fault():
    told = diagnose(crowded())
    assert told.status == "verdict" and told.verdict.id == "cpu-contention"


def test_a_cause_in_the_script_stands_before_it():
    waiting = {"data_wait": 40, "forward": 90, "backward": 70, "optimizer": 40}
    told = diagnose(crowded(labels=waiting, loaders=(loader(num_workers=0),)))
    assert told.verdict.id == "input-bound"
    assert "cpu-contention" in [found.id for found in told.also]


def test_a_little_of_it_is_information_and_keeps_nobody_from_being_healthy():
    found = cpu_contention.judge(crowded(delay=0.15))
    assert isinstance(found, Finding) and found.severity == "info"
    assert diagnose(crowded(delay=0.15)).status != "verdict"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"delay": 0.04}, "waited for a core 4%"),
        ({"wide": 4}, "not judged before 5 samples"),
        ({"others": 0.2}, "other programs keep 0.2"),
        # Two workers and a trainer want three cores of two: that fight is the run's own.
        ({"workers": [(0.5, 0.4), (0.5, 0.4)], "others": 0.6}, "the run itself wants"),
        ({"on_gpu": True, "util": 99}, "GPU is idle"),
    ],
)
def test_what_is_something_else_is_not_blamed_on_others(changed, why):
    found = cpu_contention.judge(crowded(**changed))
    assert isinstance(found, RuledOut) and why in found.why


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"delay": None}, "schedstat"),
        ({"known": 64}, "outside this run"),  # the run may use 2 of 64: theirs may be others
        ({"on_gpu": True}, "GPU was idle"),
    ],
)
def test_without_the_signal_it_abstains_by_name(changed, missing):
    found = cpu_contention.judge(crowded(**changed))
    assert isinstance(found, Abstention) and missing in found.missing


def test_threads_that_wait_for_each_other_are_to_be_as_many_as_cores_are_free():
    made = crowded()
    told = {**made.probe, "flags": {**dict(made.probe.get("flags") or {}), "threads": 2}}
    found = cpu_contention.judge(replace(made, probe=told))
    assert "torch.set_num_threads(1), now 2" in found.advice[1].text
    told["flags"]["threads"] = 1
    assert len(cpu_contention.judge(replace(made, probe=told)).advice) == 1
