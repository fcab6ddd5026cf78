"""Which lines are named for idle time behind reads, and what is advised for each."""

from __future__ import annotations

import pytest
from synthetic_windows import MS, make_steps, probe, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import host_sync_stall
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Finding


def stalled(*sites, optimizers=(), **more):
    """100 steps of 10 ms whose GPU is idle 4 ms behind reads."""
    steps = make_steps(
        100, {"sync": 4, "forward": 6}, exposed={"sync": 4, "data_wait": 0}, dry=0.8, syncs=2
    )
    state = probe(True, optimizers=list(optimizers))
    return window(steps, on_gpu=True, util=50, sites=sites, probe=state, **more)


def read(line, call, *, count=100, blocked=400, idle=None):
    """A line of reads, blocked and (of 20 with events around them) idle for so many ms in all."""
    pairs = {} if idle is None else {"pairs": 20, "pair_ns": round(idle * MS * 20 / count)}
    return site("sync", line, call=call, count=count, total_ns=blocked * MS, **pairs)


def test_the_line_with_idle_time_behind_it_comes_before_the_one_that_blocks_longer():
    harmless = read(40, "metrics.cpu()", blocked=900, idle=2)
    dear = read(49, "loss.item()", blocked=100, idle=390)
    found = host_sync_stall.judge(stalled(harmless, dear))
    assert [w.line for w in found.where] == [49]
    assert "train.py:49" in found.advice[0].text
    told = {e.what: e.unit for e in found.evidence}
    assert "GPU idle 390 ms" in told["train.py:49 loss.item()"]


def test_without_events_at_a_line_its_blocked_time_stands_for_it():
    one, other = read(40, "a.item()", blocked=100), read(49, "b.item()", blocked=900)
    found = host_sync_stall.judge(stalled(one, other))
    assert [w.line for w in found.where] == [49]


@pytest.mark.parametrize(
    ("call", "count", "said"),
    [
        ("loss.item()", 100, "every 50 steps: if step % 50 == 0"),
        ("counts[k].item()", 409_600, "4,096 reads -> 0.02 a step"),
        ("scaler.step(opt)", 100, "fused=True in AdamW"),
        ("torch.cuda.synchronize()", 100, "Remove torch.cuda.synchronize()"),
        ("if grads.isnan().any():", 100, "torch.where"),
        ("torch.dist(u, before) < self.tolerance", 40_000, "every 10 rounds of its loop"),
        ("cost.cpu()", 100, "copy it with non_blocking=True"),
        ("confusion_scores.cpu()", 100, "every 50 steps: if step % 50 == 0"),
    ],
)
def test_each_kind_of_read_has_a_mend_of_its_own(call, count, said):
    made = stalled(read(49, call, count=count), optimizers=[{"cls": "AdamW", "fused": False}])
    text = host_sync_stall.judge(made).advice[0].text
    assert said in text and "train.py:49" in text


def test_of_hundreds_of_reads_a_step_their_lines_tell_what_the_steps_do_not():
    # As recorded on an H200: 400 tests of a tensor a step, of which steps record but a few.
    usual = {"other": 9, "sync": 0.2, "forward": 0.8}
    steps = make_steps(100, usual, exposed={"sync": 1.3, "data_wait": 0}, dry=0.46, syncs=400)
    line = read(25, "torch.dist(u, old) < tolerance", count=40_000, blocked=230)
    found = host_sync_stall.judge(window(steps, on_gpu=True, util=80, sites=(line,)))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.2)  # all that the GPU is idle, of 23% in reads
    few = make_steps(100, usual, exposed={"sync": 1.3, "data_wait": 0}, dry=0.46, syncs=2)
    one = window(few, on_gpu=True, util=80, sites=(line,))
    assert isinstance(host_sync_stall.judge(one), RuledOut)


def test_reads_by_design_on_a_busy_gpu_are_harmless():
    # A GradScaler's check waits 8 of 10 ms for a GPU that is never without work.
    steps = make_steps(
        100,
        {"gpu_wait": 8, "forward": 2},
        exposed={"sync": 0.02, "data_wait": 0, "h2d": 0},
        dry=0.01,
        syncs=2,
    )
    lines = (read(49, "scaler.step(opt)", blocked=800, idle=1), read(50, "loss.item()", blocked=5))
    made = window(steps, on_gpu=True, util=97, sites=lines)
    assert isinstance(host_sync_stall.judge(made), RuledOut)
    told = diagnose(made)
    assert told.status == "healthy"
    assert "host-sync-stall" not in [f.id for f in told.also]


def test_a_host_bound_loop_with_a_read_at_its_end_is_not_blamed_on_the_read():
    # Measured on an H200: an .item() behind the whole step cost 0.1 ms of 40.
    steps = make_steps(
        100,
        {"sync": 0.1, "forward": 16, "backward": 20, "optimizer": 4},
        exposed={"sync": 0.1, "data_wait": 0},
        dry=0.95,
        syncs=1,
    )
    made = window(
        steps, on_gpu=True, util=45, sites=(read(49, "loss.item()", blocked=10, idle=10),)
    )
    assert isinstance(host_sync_stall.judge(made), RuledOut)
    assert diagnose(made).verdict.id == "launch-bound"


def test_lines_that_share_the_cost_are_all_named_up_to_three():
    lines = [read(n, f"v{n}.item()", blocked=100, idle=95) for n in (10, 20, 30, 40)]
    found = host_sync_stall.judge(stalled(*lines))
    assert isinstance(found, Finding)
    assert [w.line for w in found.where] == [10, 20, 30]
    assert len(found.advice) <= 3


@pytest.mark.parametrize(("blocked", "verdict"), [(0.6, "host-compute"), (30, "host-sync-stall")])
def test_idle_time_while_the_host_computes_on_what_it_read_is_not_the_reads(blocked, verdict):
    """As recorded on an H200: 103 of 134 ms idle behind a read that blocks 0.6, in a metric."""
    other = 102 if blocked < 1 else 4
    usual = {"sync": blocked, "forward": 10, "backward": 17, "other": other}
    steps = make_steps(100, usual, exposed={"sync": blocked + other}, dry=0.4, syncs=1)
    metric = site(
        "sample", 32, label="host_compute", func="mean_average_precision", count=90,
        call="np.argsort(-sim[row])",
    )  # fmt: skip
    places = (read(70, "z.cpu()", blocked=100 * blocked, idle=9_000), metric)
    told = diagnose(window(steps, on_gpu=True, util=3 if blocked < 1 else 50, sites=places))
    assert told.verdict.id == verdict
