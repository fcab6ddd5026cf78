"""comm-bound and straggler-rank: communication, and waiting for one rank, told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_runs import SECOND, START, Recorded, probe_state
from synthetic_windows import MS, loader, make_steps, probe, site, window

from gputop_train.diagnose import evidence
from gputop_train.diagnose.rules import comm_bound, straggler_rank
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.diagnose.steady import totals_of
from gputop_train.diagnose.window import RankView
from gputop_train.model import Abstention, Finding, GpuSample
from gputop_train.store.reader import RunReader

#: 100 ms a step on every rank, for the ranks meet in backward.
EVEN = {"data_wait": 5, "forward": 35, "backward": 55, "optimizer": 5}
SLOW = {"data_wait": 35, "forward": 35, "backward": 25, "optimizer": 5}
N = 300


def ddp(exposed_ms, *, per_step=1.0, device="cpu", backend="gloo", **more):
    return {
        "device": device,
        "backend": backend,
        "world_size": 2,
        "exposed_ns": round(exposed_ms * MS),
        "per_step": per_step,
        "samples": 8,
        "bucket_bytes": [100_000_000],
        "comm_hook": None,
        "find_unused_parameters": False,
        **more,
    }


def view(usual, parts=10, clock=None, turn=None):
    steps = make_steps(N, usual)
    chunk = totals_of(steps[: N // 10])
    other = totals_of(make_steps(N // 10, turn)) if turn else chunk
    return RankView(
        totals_of(steps), tuple(other if turn and k % 2 else chunk for k in range(parts)), clock
    )


def made(views, modules, *, on_gpu=False, usual=EVEN, **more):
    states = {
        rank: probe(on_gpu, ddp=[module] if module else None, world_size=len(views))
        for rank, module in modules.items()
    }
    whole = window(make_steps(N, usual), on_gpu=on_gpu, util=95 if on_gpu else None, **more)
    return replace(whole, ranks=views, probe=states[0], probe_states=states)


def talking(*exposed, per_step=1.0, micro=1, **more):
    views = {r: view(EVEN) for r in range(len(exposed))}
    modules = {r: ddp(ms, per_step=per_step, **more) for r, ms in enumerate(exposed)}
    return made(views, modules)


# --- comm-bound ------------------------------------------------------------------------------------


def test_what_every_rank_waits_is_communication():
    found = comm_bound.judge(talking(32, 30))
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("critical", "high")
    assert found.lost_share == pytest.approx(0.30)
    assert "100 MB of gradients become 50 MB" in found.advice[0].text


def test_what_only_one_rank_waits_is_no_communication():
    found = comm_bound.judge(talking(40, 2))
    assert isinstance(found, RuledOut)
    assert "2%" in found.why


def test_communication_that_backward_hides_costs_nothing():
    assert isinstance(comm_bound.judge(talking(1, 0)), RuledOut)


def test_exchanges_of_every_micro_batch_are_to_become_one():
    found = comm_bound.judge(talking(8, 8, per_step=4.0))
    assert found.lost_share == pytest.approx(0.32)
    assert "no_sync(): around the first 3 of 4 backwards" in found.advice[0].text
    assert found.gain.expected == pytest.approx((1 / 0.76, 1 / 0.68), rel=0.01)


def test_small_gradients_cost_latency_that_no_smaller_type_shortens():
    texts = [a.text for a in comm_bound.judge(talking(30, 30, bucket_bytes=[1_600_000])).advice]
    assert not any("bf16_compress_hook" in t for t in texts)
    assert "latency rather than bytes" in texts[0]
    assert "GLOO_SOCKET_IFNAME" in texts[-1]


def test_settings_that_cost_are_named_from_the_run_itself():
    wrong = talking(30, 30, device="cuda", find_unused_parameters=True, comm_hook="powerSGD_hook")
    texts = [a.text for a in comm_bound.judge(wrong).advice]
    assert '"gloo" -> "nccl"' in texts[0]
    assert "find_unused_parameters=True -> False" in texts[1]
    assert not any("bf16_compress_hook" in t for t in texts)
    used = talking(30, 30, find_unused_parameters=True, unused_parameter_size=4096)
    assert not any("find_unused" in a.text for a in comm_bound.judge(used).advice)


def test_the_line_is_the_backward_that_waits():
    there = replace(talking(30, 30), sites=(site("backward", 77, call="loss.backward()"),))
    assert [w.line for w in comm_bound.judge(there).where] == [77]


def test_one_rank_alone_cannot_tell_communication_from_waiting():
    alone = talking(30, 30)
    alone = replace(alone, ranks={}, probe_states={0: alone.probe})
    assert isinstance(comm_bound.judge(alone), Abstention)
    unheard = made({0: view(EVEN), 1: view(EVEN)}, {0: None, 1: None})
    assert isinstance(comm_bound.judge(unheard), Abstention)


def test_a_single_process_talks_to_nobody_and_waits_for_nobody():
    single = window(make_steps(N, EVEN))
    assert isinstance(comm_bound.judge(single), RuledOut)
    assert isinstance(straggler_rank.judge(single), RuledOut)


# --- straggler-rank --------------------------------------------------------------------------------


def lagging(views=None, modules=None, **more):
    views = views or {0: view(EVEN), 1: view(SLOW)}
    modules = modules or {0: ddp(31), 1: ddp(1)}
    return straggler_rank.judge(made(views, modules, **more))


def test_the_rank_that_waits_least_is_the_culprit_and_its_loader_is_named():
    slow = loader(rank=1, id=4, line=52, call="DataLoader(shard)")
    found = lagging(loaders=(loader(), slow))
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("critical", "high")
    assert found.lost_share == pytest.approx(0.30)
    assert "rank 1" in found.summary and "waiting for its data" in found.summary
    assert [w.line for w in found.where] == [52]
    assert "loader of rank 1" in found.advice[0].text


def test_ranks_that_take_turns_are_noise():
    found = lagging({0: view(EVEN, turn=SLOW), 1: view(SLOW, turn=EVEN)})
    assert isinstance(found, RuledOut)
    assert "changes" in found.why


def test_a_rank_that_saves_while_the_others_wait_is_no_straggler():
    saves = {"checkpoint": 30, "data_wait": 5, "forward": 35, "backward": 25, "optimizer": 5}
    assert isinstance(lagging({0: view(saves), 1: view(EVEN)}), RuledOut)


def test_equal_waits_are_communication():
    assert isinstance(lagging({0: view(EVEN), 1: view(EVEN)}, {0: ddp(30), 1: ddp(30)}), RuledOut)


def test_a_difference_without_a_single_cause_is_told_without_one():
    spread = {"data_wait": 15, "forward": 50, "backward": 25, "optimizer": 10}
    found = lagging({0: view(EVEN), 1: view(spread)})
    assert found.confidence == "medium"
    assert "Nothing measured explains rank 1" in found.advice[0].text


def test_too_short_a_run_and_unseen_ranks_are_not_judged():
    short = {0: view(EVEN, parts=0), 1: view(SLOW, parts=0)}
    assert isinstance(lagging(short), Abstention)
    elsewhere = made({0: view(EVEN), 1: view(SLOW)}, {0: ddp(31), 1: ddp(1)})
    state = {**elsewhere.probe, "world_size": 4}
    assert isinstance(straggler_rank.judge(replace(elsewhere, probe=state)), Abstention)


def test_on_a_gpu_ddps_own_timing_decides_and_a_slow_clock_is_a_cause():
    same = {"gpu_wait": 50, "forward": 25, "backward": 25}
    views = {r: view(same, clock=1980.0 if r != 2 else 1400.0) for r in range(3)}
    modules = {r: ddp(28 if r != 2 else 2, device="cuda", backend="nccl") for r in range(3)}
    found = straggler_rank.judge(made(views, modules, on_gpu=True, usual=same))
    assert isinstance(found, Finding)
    assert "rank 2" in found.summary
    assert "1400 MHz, the others at 1980" in found.advice[0].text


def test_a_gpu_rank_that_did_not_tell_leaves_it_open():
    views = {0: view(EVEN), 1: view(SLOW)}
    modules = {0: ddp(28, device="cuda"), 1: None}
    found = straggler_rank.judge(made(views, modules, on_gpu=True))
    assert isinstance(found, Abstention)


# --- from a store ----------------------------------------------------------------------------------


def shifted(usual, rank):
    moved = START - 1_000 * MS
    return [
        replace(s, rank=rank, t0_ns=s.t0_ns + moved, t1_ns=s.t1_ns + moved)
        for s in make_steps(N, usual)
    ]


def test_a_store_of_two_ranks_gives_both_beside_each_other(tmp_path):
    run = Recorded(tmp_path)
    run.train(shifted(EVEN, 0), rank=0).train(shifted(SLOW, 1), rank=1)
    for rank, exposed in ((0, 31), (1, 1)):
        state = {**probe_state(False), "world_size": 2, "ddp": [ddp(exposed)]}
        run.writer.put_probe_state(rank, state, START + 30 * SECOND)
    cards = ("GPU-x", "GPU-y")
    run.writer.add_gpu([GpuSample(START + SECOND, uuid, memory_used=0) for uuid in cards])
    run.writer.commit()
    with RunReader(run.path) as reader:
        seen = evidence.build(reader, final=True)
    assert set(seen.ranks) == {0, 1}
    assert len(seen.ranks[1].parts) == 10
    assert tuple(card.uuid for card in seen.cards) == cards
    found = straggler_rank.judge(seen)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.30, abs=0.02)
    assert isinstance(comm_bound.judge(seen), RuledOut)


def test_a_store_of_one_rank_has_nothing_beside_it(tmp_path):
    run = Recorded(tmp_path).train(shifted(EVEN, 0))
    run.writer.commit()
    with RunReader(run.path) as reader:
        assert evidence.build(reader, final=True).ranks == {}
