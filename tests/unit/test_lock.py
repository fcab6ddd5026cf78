"""Threads of the script's own that keep the interpreter lock from the thread that trains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import MS, make_steps, site, window

from gputop_train.diagnose import lock
from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.lock import held
from gputop_train.diagnose.rules import host_compute, input_bound, pageable_h2d
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding, ProcSample
from gputop_train.probe import others

# As recorded on an H200 (2026-12-01): 642 kB a step seemed to take 52 ms of 84.
USUAL = {"h2d": 52, "forward": 18, "backward": 10, "optimizer": 1, "other": 3}
STEPS = make_steps(200, USUAL, exposed={"h2d": 58, "data_wait": 0.0, "sync": 0.0}, dry=1.0)
COPY = replace(
    site("h2d", 52, call="x.to(dev)", count=400, total_ns=10_400 * MS),
    bytes=200 * 642_000,
    unpinned_bytes=200 * 642_000,
)
FEEDER = site("thread", 33, func="frames", call="np.fft.rfft(seg)", label="feeds", count=80)


def trainers(main: float, others: float) -> tuple[ProcSample, ...]:
    return tuple(
        ProcSample(1_000 * MS + k * 1_000 * MS, 7, "trainer", cpu=main + others, main_cpu=main)
        for k in range(8)
    )


def made(main=0.19, others=0.9, sites=(COPY, FEEDER), steps=STEPS):
    return window(steps, on_gpu=True, util=12, sites=sites, procs=trainers(main, others))


def test_a_thread_that_makes_batches_in_python_is_the_reason_and_no_copy():
    found = input_bound.judge(made())
    assert isinstance(found, Finding)
    assert [w.line for w in found.where] == [33]
    # Neither computing (0.19) nor in the backward (10 of 84 ms), which torch's own thread launches.
    assert found.lost_share == pytest.approx(1 - 0.19 - 10 / 84)
    assert "num_workers=" in found.advice[0].text and "frames (train.py:33)" in found.summary
    assert isinstance(pageable_h2d.judge(made()), RuledOut)
    verdict = diagnose(made()).verdict
    assert verdict is not None and verdict.id == "input-bound"


def test_a_thread_that_fills_no_queue_is_code_beside_training():
    scoring = replace(FEEDER, label=None, func="score")
    found = host_compute.judge(made(sites=(COPY, scoring)))
    assert isinstance(found, Finding)
    assert "ProcessPoolExecutor" in found.advice[0].text
    assert isinstance(input_bound.judge(made(sites=(COPY, scoring))), RuledOut)


@pytest.mark.parametrize(
    "changes",
    [
        {"sites": (COPY,)},  # nobody met a thread at work
        {"others": 0.1},  # no thread computes
        {"main": 0.85},  # training computes itself
        {"sites": (COPY, replace(FEEDER, count=2))},
        {"sites": (COPY, FEEDER, site("sample", 52, label="h2d", count=800))},  # 80 of 200 looks
    ],
)
def test_without_both_witnesses_nothing_is_said_of_the_lock(changes):
    assert held(made(**changes)) is None
    assert isinstance(pageable_h2d.judge(made(**changes)), Abstention)


def test_a_known_wait_is_not_for_the_lock():
    waiting = make_steps(200, {"data_wait": 60, "forward": 12, "backward": 12}, dry=1.0)
    assert held(made(steps=waiting)) is None


def test_a_look_at_the_others_is_as_rare_as_the_probe_makes_it():
    assert lock.SAMPLES_A_LOOK == others.EVERY


def test_copies_that_take_as_long_as_copies_do_are_copies():
    large = replace(COPY, bytes=200 * 200_000_000, unpinned_bytes=200 * 200_000_000)
    found = pageable_h2d.judge(made(sites=(large,)))
    assert isinstance(found, Finding)
