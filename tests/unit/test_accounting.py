from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_windows import MS, make_steps, probe, window

from gputop_train.diagnose.accounting import account, lost_share, natural_experiment, shares
from gputop_train.diagnose.window import Totals
from gputop_train.model import LABELS, GpmSample, GpuSample

durations = st.dictionaries(st.sampled_from(LABELS), st.integers(0, 10**12), max_size=len(LABELS))


@given(durations, st.integers(0, 10**13))
@settings(max_examples=200, deadline=None)
def test_the_shares_of_any_time_at_all_add_up_to_one(labels, wall):
    found = shares(Totals(steps=1, wall_ns=wall, labels=labels))
    if wall == 0 and sum(labels.values()) == 0:
        assert found == {}
    else:
        assert set(found) == set(LABELS)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
        assert all(0 <= share <= 1 for share in found.values())


def test_time_that_no_label_claims_is_other():
    found = shares(Totals(steps=1, wall_ns=100, labels={"forward": 60}))
    assert found["forward"] == 0.6
    assert found["other"] == pytest.approx(0.4)


def test_shares_read_the_planted_durations():
    acc = account(window(make_steps(150, {"data_wait": 6, "forward": 1, "backward": 3})))
    assert acc.shares["data_wait"] == pytest.approx(0.6)
    assert acc.shares["backward"] == pytest.approx(0.3)
    assert acc.step_ms == pytest.approx(10)
    assert acc.coverage == 1.0


def test_what_no_event_measured_is_none_not_zero():
    acc = account(window(make_steps(150, {"forward": 10}), on_gpu=True))
    assert set(acc.exposed.values()) == {None}
    assert acc.busy_share is None
    assert acc.idle_share is None


def test_exposed_idle_is_a_share_of_the_steps_that_carried_events():
    with_events = make_steps(10, {"data_wait": 5, "forward": 5}, exposed={"data_wait": 4})
    without = make_steps(90, {"data_wait": 5, "forward": 5})
    acc = account(window(with_events + without, on_gpu=True, util=60))
    assert acc.exposed["data_wait"] == pytest.approx(0.4)
    assert acc.exposed["unattributed"] == pytest.approx(0.0)
    assert acc.exposed["sync"] is None


def test_idle_time_that_no_label_explains_is_unattributed():
    steps = make_steps(150, {"data_wait": 2, "forward": 8}, exposed={"data_wait": 2})
    acc = account(window(steps, on_gpu=True, util=30))
    assert acc.exposed["unattributed"] == pytest.approx(0.5)


def test_event_pairs_bound_a_utilisation_that_over_states():
    steps = make_steps(150, {"data_wait": 8, "forward": 2}, exposed={"data_wait": 8})
    acc = account(window(steps, on_gpu=True, util=60))
    assert acc.busy_share == pytest.approx(0.2)
    assert "bounded" in acc.busy_basis


def test_a_neighbour_on_the_gpu_makes_its_utilisation_no_measure_of_ours():
    shared = window(
        make_steps(150, {"forward": 10}),
        on_gpu=True,
        util=95,
        gpu=(GpuSample(0, "GPU-aaaa", foreign_processes=1),),
    )
    assert account(shared).busy_share is None
    assert "other processes" in account(shared).busy_basis


def test_steps_with_events_that_waited_more_than_the_others_do_not_speak_for_them():
    # Events came in steps that wait 4 ms, half of it exposed; every other step waits 1 ms.
    with_events = make_steps(10, {"data_wait": 4, "forward": 6}, exposed={"data_wait": 2})
    without = make_steps(90, {"data_wait": 1, "forward": 9})
    acc = account(window(with_events + without, on_gpu=True, util=60))
    assert acc.shares["data_wait"] == pytest.approx(0.13)
    assert acc.exposed["data_wait"] == pytest.approx(0.065)


def test_idle_time_is_never_made_larger_because_other_steps_waited_longer():
    with_events = make_steps(10, {"data_wait": 1, "forward": 9}, exposed={"data_wait": 0.5})
    without = make_steps(90, {"data_wait": 3, "forward": 7})
    acc = account(window(with_events + without, on_gpu=True, util=60))
    assert acc.exposed["data_wait"] == pytest.approx(0.05)


def test_a_wait_beyond_all_that_the_gpu_was_busy_is_idle_time_whatever_the_events_saw():
    quick = make_steps(10, {"data_wait": 1, "forward": 9}, exposed={"data_wait": 0.1})
    slow = make_steps(90, {"data_wait": 8, "forward": 2})
    acc = account(window(quick + slow, on_gpu=True, util=10))
    # 73% of the time in next(), a GPU busy for at most 13%.
    assert acc.exposed["data_wait"] == pytest.approx(0.73 - 0.13)


def test_a_save_that_no_step_with_events_had_was_not_measured():
    with_events = make_steps(10, {"forward": 10}, exposed={"checkpoint": 0, "data_wait": 0})
    saving = make_steps(10, {"forward": 10, "checkpoint": 5})
    acc = account(window(with_events + saving, on_gpu=True, util=50))
    assert acc.exposed["checkpoint"] is None
    assert acc.exposed["data_wait"] == 0


def test_busy_time_and_exposed_idle_never_exceed_the_whole():
    steps = make_steps(150, {"data_wait": 8, "forward": 2}, exposed={"data_wait": 8, "h2d": 1})
    for util in (5, 40, 100):
        acc = account(window(steps, on_gpu=True, util=util))
        told = acc.busy_share + sum(v for v in acc.exposed.values() if v is not None)
        assert told == pytest.approx(1.0, abs=0.001)


def test_on_a_cpu_the_whole_wait_is_lost():
    share, basis = lost_share(window(make_steps(150, {"data_wait": 6, "forward": 4})), "data_wait")
    assert share == pytest.approx(0.6)
    assert "CPU is the device" in basis


def test_an_exposed_time_beyond_the_wait_itself_is_cut_to_it():
    steps = make_steps(150, {"data_wait": 1, "forward": 9}, exposed={"data_wait": 7})
    share, _ = lost_share(window(steps, on_gpu=True, util=20), "data_wait")
    assert share == pytest.approx(0.1)


def test_the_natural_experiment_leaves_interruptions_out():
    steps = make_steps(
        200,
        {"forward": 10},
        extra=lambda i: {"checkpoint": 500.0} if i % 4 == 0 else {"sync": 5.0} if i % 2 else {},
    )
    found = natural_experiment(window(steps), [s.labels["sync"] > 0 for s in steps])
    assert found is not None
    assert found.difference == pytest.approx(5)
    assert found.n_with + found.n_without == 150


def test_milliseconds_of_a_share():
    steps = make_steps(20, {"forward": 10})
    assert account(window(steps)).ms(0.25) == pytest.approx(2.5)
    assert steps[0].wall_ns == 10 * MS


BURST = {
    "state": "done",
    "step_ms": 10.0,
    "busy_share": 0.3,
    "traced_busy_share": 0.25,
    "copy_share": 0.0,
    "host_idle_share": 0.70,
    "sync_idle_share": 0.0,
    "kernels_per_step": 1200,
    "kernel_us": 2.5,
}


def burst_window(**changes):
    steps = make_steps(150, {"forward": 9, "data_wait": 1}, exposed={"data_wait": 0.5}, dry=0.9)
    state = probe(True, burst=BURST | changes)
    return window(steps, on_gpu=True, util=60, probe=state)


def test_a_burst_tells_busy_time_where_the_driver_over_states_it():
    acc = account(burst_window())
    assert acc.busy_share == pytest.approx(0.3)
    assert "burst" in acc.busy_basis
    assert acc.burst.kernels == 1200


def test_launch_idle_of_a_burst_is_the_hosts_late_launches_less_what_labels_explain():
    # Idle when traced: 75%, of it 70 with a late launch; idle untraced: 70%, so 65.3 of it.
    acc = account(burst_window())
    assert acc.exposed["launch"] == pytest.approx(0.70 / 0.75 * 0.7 - 0.05)
    assert acc.exposed["unattributed"] == pytest.approx(1 - 0.3 - 0.05 - acc.exposed["launch"])


def test_idle_time_behind_blocking_calls_is_no_launch_idle():
    acc = account(burst_window(sync_idle_share=0.6))
    assert acc.burst.sync == pytest.approx(0.6 / 0.75 * 0.7)
    assert acc.exposed["launch"] == pytest.approx(0.1 / 0.75 * 0.7 - 0.05)


def test_a_burst_of_another_regime_says_nothing_about_this_window():
    acc = account(burst_window(step_ms=5.0))
    assert acc.burst is None
    assert acc.busy_share == pytest.approx(0.6)
    assert acc.exposed["launch"] is None


def test_a_burst_that_was_refused_or_is_torn_is_none():
    assert account(burst_window(state="refused")).burst is None
    assert account(burst_window(kernel_us=None)).burst is None
    assert account(burst_window(busy_share="x")).burst is None


def test_event_pairs_that_over_state_are_cut_to_the_idle_time_of_a_burst():
    steps = make_steps(150, {"forward": 5, "data_wait": 5}, exposed={"data_wait": 4, "sync": 1})
    state = probe(True, burst=BURST | {"busy_share": 0.8})
    acc = account(window(steps, on_gpu=True, util=60, probe=state))
    assert acc.exposed["data_wait"] == pytest.approx(0.16)
    told = acc.busy_share + sum(v for v in acc.exposed.values() if v is not None)
    assert told == pytest.approx(1.0)


def test_kernels_too_short_for_the_driver_leave_the_busy_share_untold_but_bounded():
    steps = make_steps(150, {"forward": 10}, exposed={"data_wait": 0.0}, dry=1.0)
    gpm = tuple(GpmSample(steps[0].t0_ns + i, "GPU-aaaa", sm=0.6) for i in range(5))
    acc = account(window(steps, on_gpu=True, util=22, gpm=gpm))
    assert acc.busy_share is None
    assert "too short" in acc.busy_basis
    assert acc.idle_share == pytest.approx(0.78)  # at least
    assert acc.exposed["unattributed"] is None


def test_kernels_that_keep_the_sms_at_work_are_told_by_the_driver():
    steps = make_steps(150, {"forward": 10}, exposed={"data_wait": 0.0}, dry=1.0)
    gpm = tuple(GpmSample(steps[0].t0_ns + i, "GPU-aaaa", sm=14.0) for i in range(5))
    assert account(window(steps, on_gpu=True, util=25, gpm=gpm)).busy_share == 0.25


def test_reads_that_wait_for_the_gpu_show_that_it_is_busy():
    steps = make_steps(150, {"gpu_wait": 9, "forward": 1}, exposed={"sync": 0.2}, dry=0.5)
    acc = account(window(steps, on_gpu=True, util=70))
    assert acc.busy_share == pytest.approx(0.9)
    assert "reads waited" in acc.busy_basis


@pytest.mark.parametrize(
    ("dry", "exposed", "busy"),
    [
        (0.0, {"data_wait": 2, "h2d": 0, "sync": 0}, 0.8),
        (0.3, {"data_wait": 2, "h2d": 0, "sync": 0}, 0.6),  # at times it had nothing to do
        (None, {"data_wait": 2, "h2d": 0, "sync": 0}, 0.6),
        (0.0, {"data_wait": 2}, 0.6),  # what reads and copies cost is not known
    ],
)
def test_a_queue_that_was_never_empty_shows_the_gpu_busy_but_for_the_waits(dry, exposed, busy):
    steps = make_steps(150, {"data_wait": 2, "forward": 8}, exposed=exposed, dry=dry)
    acc = account(window(steps, on_gpu=True, util=60))
    assert acc.busy_share == pytest.approx(busy)


def test_utilisation_of_steps_shorter_than_it_looks_back_is_not_theirs():
    steps = make_steps(90, {"forward": 10}, exposed={"data_wait": 0.0}, dry=1.0)
    acc = account(window(steps, on_gpu=True, util=20))
    assert (acc.busy_share, acc.idle_share) == (None, None)
    assert "looks back" in acc.busy_basis
    longer = make_steps(110, {"forward": 10}, exposed={"data_wait": 0.0}, dry=1.0)
    assert account(window(longer, on_gpu=True, util=20)).busy_share == pytest.approx(0.2)


def test_idle_time_behind_a_read_that_an_unplaced_wait_may_be_is_not_the_reads():
    """A loop without a DataLoader: the sampler knows how long it waits, and not from when."""
    labels = {"data_wait": 8, "forward": 2}
    steps = make_steps(150, labels, exposed={"sync": 1.0})
    assert account(window(steps, on_gpu=True, util=19)).exposed["sync"] == pytest.approx(0.01)
    placed = make_steps(150, labels, exposed={"sync": 1.0, "data_wait": 7.0})
    assert account(window(placed, on_gpu=True, util=19)).exposed["sync"] == pytest.approx(0.1)
    little = make_steps(150, {"data_wait": 3, "forward": 7}, exposed={"sync": 1.0})
    assert account(window(little, on_gpu=True, util=19)).exposed["sync"] == pytest.approx(0.1)
