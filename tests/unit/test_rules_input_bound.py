from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import MS, loader, make_steps, probe, site, window

from gputop_train.diagnose.loading_model import load_model, plan_workers
from gputop_train.diagnose.refining import refine
from gputop_train.diagnose.rules import input_bound
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Fetch, Finding, HostSample

STARVED = {"data_wait": 6.4, "forward": 1.6, "backward": 2.0}


def judge(*args, **kwargs):
    """The finding with its closest cause, as the engine names it."""
    seen = window(*args, **kwargs)
    found = input_bound.judge(seen)
    return refine(seen, found)[0] if isinstance(found, Finding) else found


def test_a_loop_that_waits_for_its_own_loading_is_named_with_its_line():
    found = judge(make_steps(100, STARVED), loaders=(loader(),))
    assert isinstance(found, Finding)
    assert (found.id, found.refined) == ("input-bound", "main-process-loading")
    assert found.severity == "critical"
    assert [(w.file, w.line) for w in found.where] == [("/home/ann/train.py", 41)]
    assert found.lost_share == pytest.approx(0.64)
    assert "64%" in found.summary
    assert "6.4 ms of 10 ms" in found.summary


def test_the_advice_is_the_setting_that_the_gain_models():
    found = judge(make_steps(100, STARVED), loaders=(loader(),), cores=8)
    assert isinstance(found, Finding) and found.gain is not None and found.gain.expected
    setting = found.advice[0].setting
    assert setting is not None and set(setting) == {"num_workers"}
    assert f"0 -> {setting['num_workers']}" in found.advice[0].text
    low, high = found.gain.expected
    assert 1 < low <= high <= found.gain.ceiling == pytest.approx(1 / 0.36)


def test_on_two_cores_that_also_train_the_forecast_is_below_the_ceiling():
    found = judge(make_steps(100, {"data_wait": 9, "backward": 1}), loaders=(loader(),), cores=2)
    assert isinstance(found, Finding) and found.gain and found.gain.expected
    assert found.gain.ceiling == pytest.approx(10)
    # 10 ms of CPU work a step on 2 cores: never below 5 ms, by a model that may be a tenth wrong.
    assert found.gain.expected[1] <= 2.0 * 1.1 + 1e-9
    assert found.gain.expected[0] > 1.0


def test_no_workers_without_a_wait_is_fine():
    found = judge(make_steps(100, {"data_wait": 0.3, "forward": 9.7}), loaders=(loader(),))
    assert isinstance(found, RuledOut)


def test_a_wait_while_the_gpu_works_costs_nothing():
    steps = make_steps(100, STARVED, exposed={"data_wait": 0.01})
    found = judge(steps, on_gpu=True, util=97, loaders=(loader(num_workers=4),))
    assert isinstance(found, RuledOut)
    assert "works meanwhile" in found.why


def test_on_a_gpu_the_exposed_wait_counts_not_the_host_wait():
    steps = make_steps(100, STARVED, exposed={"data_wait": 3.0})
    found = judge(steps, on_gpu=True, util=50, loaders=(loader(),))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.3)
    assert found.confidence == "high"


def test_without_events_a_lower_bound_from_utilisation_is_said_to_be_one():
    found = judge(make_steps(100, STARVED), on_gpu=True, util=30, loaders=(loader(),))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.34)
    assert found.confidence == "medium"
    assert found.gain is not None and found.gain.at_least


def test_without_events_and_utilisation_it_abstains_and_names_them():
    found = judge(make_steps(100, STARVED), on_gpu=True, loaders=(loader(),))
    assert isinstance(found, Abstention)
    assert "GPU events" in found.missing and "utilisation" in found.missing


def test_without_its_hook_it_abstains():
    found = judge(make_steps(100, STARVED), probe=probe(False, without=("data",)))
    assert isinstance(found, Abstention)
    assert "data hook" in found.missing


def test_one_long_wait_is_not_a_pattern():
    steps = make_steps(
        100,
        {"forward": 9.8, "data_wait": 0.2},
        extra=lambda i: {"data_wait": 400} if i == 50 else {},
    )
    assert isinstance(judge(steps, loaders=(loader(),)), RuledOut)


def test_busy_workers_and_an_empty_queue_are_a_prep_stall():
    found = judge(
        make_steps(100, STARVED),
        loaders=(loader(num_workers=2, ready=0),),
        workers=(0.99, 0.97),
        depths=[0] * 20,
        cores=16,
    )
    assert isinstance(found, Finding)
    assert found.refined == "prep-stall"
    assert found.advice[0].setting == {"num_workers": 6}


def test_busy_workers_on_a_full_machine_are_not_told_to_be_more():
    found = judge(
        make_steps(100, STARVED),
        loaders=(loader(num_workers=3),),
        workers=(0.99, 0.99, 0.99),
        depths=[0] * 20,
        cores=4,
    )
    assert isinstance(found, Finding)
    assert found.refined == "prep-stall"
    assert all(a.setting is None for a in found.advice)


def test_one_busy_worker_of_eight_holds_up_the_others_and_more_workers_are_not_advised():
    found = judge(
        make_steps(100, STARVED),
        loaders=(loader(num_workers=8),),
        workers=(0.99, *[0.0] * 7),
        depths=[0] * 20,
        cores=16,
    )
    assert isinstance(found, Finding)
    assert found.refined == "slow-worker"  # a map-style dataset deals out in turn
    assert found.confidence == "medium"
    assert "other 7 wait for their turn" in found.summary
    assert all("num_workers" not in (a.setting or {}) for a in found.advice)


def test_sleeping_workers_of_an_old_store_stay_the_parent_and_are_not_told_to_be_more():
    found = judge(
        make_steps(100, STARVED),
        loaders=(loader(num_workers=4),),
        workers=(0.1, 0.1, 0.2, 0.1),
        depths=[0] * 20,
    )
    assert isinstance(found, Finding)
    assert found.refined is None
    assert all(a.setting is None for a in found.advice)


def test_waits_at_epoch_starts_only_are_not_answered_with_more_workers():
    steps = make_steps(
        200,
        {"forward": 9.9, "data_wait": 0.1},
        extra=lambda i: {"data_wait": 200} if i % 20 == 0 else {},
    )
    found = judge(
        steps,
        loaders=(loader(num_workers=2, epochs=10, batches=200),),
        workers=(0.9, 0.9),
        depths=[4] * 20,
    )
    assert isinstance(found, Finding)
    assert found.refined == "worker-respawn"
    assert found.confidence == "medium"
    settings = [a.setting for a in found.advice if a.setting]
    assert settings == [{"persistent_workers": True}]
    assert found.advice[0].setting == {"persistent_workers": True}
    assert "for every epoch" in found.summary


def test_slow_epoch_starts_of_workers_that_are_kept_are_not_answered_with_keeping_them():
    found = judge(
        epochs_of(20),
        loaders=(loader(num_workers=2, epochs=10, batches=200, persistent_workers=True),),
    )
    assert isinstance(found, Finding)
    assert [a.setting for a in found.advice] == [None]
    assert "epoch starts" in found.advice[0].text


def test_slow_epoch_starts_in_the_training_process_are_not_answered_with_workers():
    found = judge(epochs_of(20), loaders=(loader(epochs=10, batches=200, length=20),))
    assert isinstance(found, Finding)
    assert found.refined is None
    assert all("num_workers" not in (a.setting or {}) for a in found.advice)
    assert found.gain is not None and found.gain.expected is None


def epochs_of(length):
    return make_steps(
        200,
        {"forward": 9.9, "data_wait": 0.1},
        extra=lambda i: {"data_wait": 200} if i % length == 0 else {},
    )


def test_workers_that_deliver_in_rounds_are_too_few_and_no_burst():
    # Eight busy workers are ready at the same time: seven batches in eight are there at once.
    found = judge(
        epochs_of(8),
        loaders=(loader(num_workers=8, batches=210, epochs=1),),
        workers=[0.97] * 8,
        depths=[0] * 20,
        cores=32,
    )
    assert isinstance(found, Finding)
    assert found.refined == "prep-stall"
    assert found.advice[0].setting is not None


def test_batches_behind_the_one_that_is_due_do_not_make_a_round_in_time():
    # Four workers, one late in each round: polls between rounds find the rest (seen on an H200).
    found = judge(
        make_steps(
            200,
            {"forward": 24.9, "data_wait": 0.1},
            extra=lambda i: {"data_wait": 130} if i % 4 == 0 else {},
        ),
        loaders=(loader(num_workers=4, batches=210, epochs=1),),
        workers=[0.97] * 4,
        depths=[3] * 8,
        cores=16,
    )
    assert isinstance(found, Finding)
    assert found.severity == "critical"
    assert "more workers will not help" not in found.advice[0].text


def test_single_slow_items_are_told_apart_from_a_slow_loader():
    found = judge(
        epochs_of(37),
        loaders=(loader(num_workers=2, batches=210, epochs=1),),
        workers=(0.5, 0.5),
        depths=[4] * 20,
    )
    assert isinstance(found, Finding)
    assert "single slow items" in found.advice[0].text
    assert all(a.setting is None for a in found.advice)


def test_the_idle_workers_of_an_evaluation_are_not_taken_for_those_of_training():
    # `window` numbers worker processes from 20 on.
    training = loader(num_workers=2, worker_pids=(20, 21))
    evaluating = loader(id=2, line=60, num_workers=2, worker_pids=(22, 23), feeds_training=False)
    found = judge(
        make_steps(100, STARVED),
        loaders=(training, evaluating),
        workers=(0.99, 0.98, 0.0, 0.0),
        depths=[0] * 20,
        cores=16,
    )
    assert isinstance(found, Finding)
    assert found.refined == "prep-stall"


def test_one_half_busy_worker_beside_sleepers_has_all_the_work():
    found = judge(
        make_steps(100, STARVED),
        loaders=(loader(num_workers=4, iterable=True),),
        workers=(0.6, 0.0, 0.0, 0.01),
        depths=[0] * 20,
    )
    assert isinstance(found, Finding)
    assert found.refined == "idle-workers"
    assert "3 of 4 workers have nothing to do" in found.summary


def test_an_iterable_dataset_is_never_given_workers_by_a_setting():
    found = judge(make_steps(100, STARVED), loaders=(loader(iterable=True),))
    assert isinstance(found, Finding)
    assert found.refined == "main-process-loading"
    assert all(a.setting is None for a in found.advice)
    assert found.gain is not None and found.gain.expected is None


def test_a_loop_without_a_loader_is_pointed_at_the_function_that_makes_batches():
    sites = (
        site("sample", 33, label="data_wait", func="get_batch", call="get_batch()", count=120),
        site("sample", 70, label="forward", func="forward", count=300),
    )
    found = judge(make_steps(100, STARVED), sites=sites)
    assert isinstance(found, Finding)
    assert found.refined is None
    assert [(w.line, w.what) for w in found.where] == [(33, "get_batch()")]
    assert all("num_workers" not in a.text for a in found.advice)


def test_two_loaders_that_share_the_wait_are_both_named():
    pair = (
        loader(wait_ns=600 * MS),
        loader(id=2, line=52, num_workers=4, wait_ns=400 * MS),
    )
    found = judge(make_steps(100, STARVED), loaders=pair)
    assert isinstance(found, Finding)
    assert found.refined is None
    assert [w.line for w in found.where] == [41, 52]


def test_a_call_over_several_lines_is_shown_as_one():
    found = judge(make_steps(100, STARVED), loaders=(loader(call="train_loader = DataLoader("),))
    assert [w.what for w in found.where] == ["DataLoader(...)"]


def test_a_wait_in_a_cpu_run_is_not_blamed_on_a_gpu():
    assert judge(make_steps(100, STARVED), loaders=(loader(),)).summary.startswith("Training waits")


def test_an_evaluation_loader_does_not_stand_in_for_the_training_one():
    found = judge(
        make_steps(100, STARVED),
        loaders=(loader(id=2, line=99, feeds_training=False, wait_ns=9_000 * MS), loader()),
    )
    assert isinstance(found, Finding)
    assert [w.line for w in found.where] == [41]


def test_seven_percent_is_information_and_a_warning_needs_ten():
    def found(wait):
        return judge(
            make_steps(100, {"data_wait": wait, "forward": 10 - wait}), loaders=(loader(),)
        )

    assert found(0.7).severity == "info"
    assert found(1.2).severity == "warn"
    assert found(2.5).severity == "critical"


def test_critical_needs_50_steps():
    assert judge(make_steps(49, STARVED), loaders=(loader(),)).severity == "warn"
    assert judge(make_steps(50, STARVED), loaders=(loader(),)).severity == "critical"


def test_busy_workers_behind_a_full_queue_are_not_what_is_waited_for():
    found = judge(
        make_steps(100, STARVED),
        loaders=(loader(num_workers=2),),
        workers=(0.99, 0.97),
        depths=[4] * 20,
        cores=16,
    )
    assert isinstance(found, Finding)
    assert found.refined == "loader-ipc-overhead"
    assert found.severity == "info"  # whether the trainer had its core is not known
    assert found.confidence == "medium"


def test_batches_that_were_ready_are_not_waited_for():
    # next() takes a tenth of the step although the queue is full: no warning, and no more workers.
    found = judge(
        make_steps(100, {"data_wait": 1.2, "forward": 8.8}),
        loaders=(loader(num_workers=2),),
        workers=(0.2, 0.2),
        # One poll a second: five of them must do, or the first live verdict would be a wrong one.
        depths=[4, 4, 3, 4, 4],
    )
    assert isinstance(found, Finding)
    assert found.severity == "info"
    assert found.refined == "loader-ipc-overhead"
    assert "although batches are there" in found.advice[0].text
    assert all(a.setting is None for a in found.advice)


def test_other_programs_that_use_the_cores_are_named():
    def neighbours(cpu_busy, allowed):
        host = HostSample(0, cpu_busy=cpu_busy, cpus_total=8, cpus_allowed=allowed)
        found = judge(make_steps(100, STARVED), loaders=(loader(),), host=(host,), trainer=1.0)
        return {e.what: e.value for e in found.evidence}.get("kept busy by other programs")

    assert neighbours(cpu_busy=5.0, allowed=8) == pytest.approx(4.0)
    assert neighbours(cpu_busy=1.1, allowed=8) is None
    # With a narrower mask nobody knows whether they sit on our CPUs.
    assert neighbours(cpu_busy=5.0, allowed=4) is None


# --- on a CPU, workers that are never late take the cores that training wants ----------------------


def crowded(*, workers=(0.28,) * 4, trainer=0.85, denied=0.56, threads=2, reads=21_000.0, **more):
    """Four workers that read 96 small files an item beside a model, on two cores, as measured."""
    steps = make_steps(60, {"data_wait": 3, "forward": 60, "backward": 100, "optimizer": 9})
    made = window(
        steps,
        cores=more.pop("cores", 2),
        trainer=trainer,
        workers=workers,
        depths=(8,) * 10,
        loaders=(
            loader(
                num_workers=4,
                batch_size=32,
                worker_pids=(20, 21, 22, 23),
                fetch=tuple(
                    Fetch(w, 20 + w, 17, 8_500 * MS, 480 * MS, items=544) for w in range(4)
                ),
            ),
        ),
        probe=probe(more.pop("on_gpu", False), flags={"threads": threads}),
        **more,
    )
    own = {"reads_per_s": reads, "rchar_per_s": reads * 4_000.0, "threads": 3}
    procs = [
        replace(p, run_delay=denied) if p.role == "trainer" else replace(p, run_delay=0.4, **own)
        for p in made.procs
    ]
    return replace(made, procs=tuple(procs))


def test_workers_that_take_the_cores_of_a_cpu_training_are_named_though_no_batch_is_late():
    found = input_bound.judge(crowded())
    assert isinstance(found, Finding)
    assert (found.refined, found.severity, found.confidence) == (
        "fetch-stall",
        "critical",
        "medium",
    )
    # 0.85 cores train; with those of the workers it would be 1.97: 57% of a step.
    assert found.lost_share == pytest.approx(1 - 0.85 / 1.97, abs=0.01)
    assert "num_workers stays 4" in found.advice[0].text
    assert found.gain.ceiling == pytest.approx(1.97 / 0.85, rel=0.02)
    assert [w.line for w in found.where] == [41]


def test_some_loading_there_must_be():
    found = input_bound.judge(crowded(workers=(0.09,) * 4, trainer=1.49, denied=0.2))
    assert isinstance(found, Finding)
    assert found.severity == "info"


@pytest.mark.parametrize(
    "change",
    [
        {"cores": 8},  # cores to spare: the training has what it wants
        {"denied": 0.02},  # it never waited for one
        {"workers": (0.05,) * 4, "trainer": 0.5},  # other programs have the cores
        {"threads": 1, "trainer": 1.0},  # it could not use more
    ],
)
def test_workers_beside_a_training_that_could_not_go_faster_are_left_alone(change):
    assert not isinstance(input_bound.judge(crowded(**change)), Finding)


def test_workers_with_threads_of_their_own_are_named_without_a_closer_cause():
    made = crowded()
    procs = tuple(replace(p, threads=10) if p.role == "worker" else p for p in made.procs)
    found = input_bound.judge(replace(made, procs=procs))
    assert isinstance(found, Finding)
    assert found.refined is None


def test_the_ceiling_is_by_the_largest_loss_there_can_be():
    # Events saw a fifth, the host waited for half, the GPU computes for a quarter at most.
    steps = make_steps(100, {"data_wait": 5, "forward": 5}, exposed={"data_wait": 2.0})
    found = judge(steps, on_gpu=True, util=25, loaders=(loader(num_workers=4),))
    assert isinstance(found, Finding) and found.gain is not None
    assert found.lost_share == pytest.approx(0.2)
    assert found.gain.ceiling == pytest.approx(2.0)
    # Where the GPU is busier than that it is what training comes down to.
    busy = judge(steps, on_gpu=True, util=72, loaders=(loader(num_workers=4),))
    assert isinstance(busy, Finding) and busy.gain is not None
    assert busy.gain.ceiling == pytest.approx(1 / (0.72 / 1.2))


# --- what the loop itself does to a batch that it was handed ---------------------------------------

#: As measured: `images = augment(images)` behind a loader that is in time, 64.6 ms of 77.7 ms.
AUGMENTED = {"data_wait": 64.6, "forward": 5.1, "backward": 8.0}


def loop_sites(own=89, asks=5, func="main"):
    return (
        site("sample", 58, label="data_wait", func=func, call="augment(images)", count=own),
        site("sample", 57, label="data_wait", call="for images, labels in loader:", count=asks),
        site("sample", 62, label="backward", call="loss.backward()", count=13),
    )


def augmenting(workers, wait_ms=3.4, **more):
    """100 batches that next() takes ``wait_ms`` for; the trainer lacks a core, as it did."""
    rows = (Fetch(workers - 1, 20, 100, 280 * MS, 190 * MS, 8 * MS, 2400),)
    seen = window(
        make_steps(100, AUGMENTED),
        loaders=(loader(num_workers=workers, wait_ns=round(wait_ms * 100 * MS), fetch=rows),),
        workers=[0.1] * workers,
        depths=[2] * 20 if workers else (),
        cores=2,
        sites=more.pop("sites", loop_sites()),
        **more,
    )
    procs = [replace(p, run_delay=0.29) if p.role == "trainer" else p for p in seen.procs]
    return replace(seen, procs=tuple(procs))


@pytest.mark.parametrize("workers", [0, 1])
def test_preparation_in_the_loop_is_named_by_its_line_and_not_the_loader(workers):
    seen = augmenting(workers)
    found = input_bound.judge(seen)
    assert isinstance(found, Finding)
    found, said = refine(seen, found)
    assert (found.refined, found.severity, found.confidence) == (None, "critical", "high")
    assert found.lost_share == pytest.approx(0.83, abs=0.01)
    assert [w.line for w in found.where] == [58, 41]
    assert "The loop itself spends 61.2 ms a step on what the loader handed it" in found.summary
    assert "Move augment(images) (train.py:58) into the Dataset" in found.advice[0].text
    assert "next() of the loader 3.4 ms" in found.advice[0].text
    assert all(a.setting is None for a in found.advice)
    assert found.gain is not None and found.gain.expected is None
    rows = {e.what: e.value for e in found.evidence}
    assert rows["wait in next(), mean"] == pytest.approx(3.4)
    assert rows["preparation in the loop itself, mean"] == pytest.approx(61.2, abs=0.1)
    assert any("the loop's own preparation" in getattr(a, "why", "") for a in said)


def test_a_worker_gets_the_loops_preparation_only_where_a_core_is_left_for_it():
    taken = (HostSample(0, cpu_busy=2.0, cpus_total=2, cpus_allowed=2),)
    found = input_bound.judge(augmenting(1, host=taken))
    assert isinstance(found, Finding)
    assert found.advice[0].text.startswith("Make augment(images) cheaper")


def test_workers_are_not_modelled_to_take_along_what_the_loop_does():
    plan = plan_workers(load_model(augmenting(0), 0.83))
    assert plan.high < 1.1


@pytest.mark.parametrize(
    "change",
    [
        {"wait_ms": 60.0},  # next() takes it, by the loader's own clock
        {"sites": loop_sites(own=3, asks=90)},  # or by the samples: a window slower than the run
        {"sites": ()},
    ],
)
def test_a_wait_in_next_is_still_the_loaders(change):
    found = input_bound.judge(augmenting(0, **change))
    assert isinstance(found, Finding)
    assert found.where[0].line == 41
    assert "itself" not in found.summary


def test_the_datasets_code_in_the_training_process_is_not_the_loops():
    found = input_bound.judge(augmenting(0, sites=loop_sites(func="__getitem__")))
    assert isinstance(found, Finding)
    assert "itself" not in found.summary
