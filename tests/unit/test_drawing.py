"""A sampler's own work in next(), told apart from waits for workers."""

from __future__ import annotations

import pytest
from synthetic_windows import MS, loader, make_steps, site, window
from test_rules_loading import ITEMS, fetches, named

from gputop_train.diagnose.drawing import drawing
from gputop_train.diagnose.loading_advice import distinct
from gputop_train.diagnose.rules import input_bound
from gputop_train.diagnose.supply import supply_of
from gputop_train.model import Finding, Where

LOOP = site("sample", 62, func="run_epoch", label="data_wait", call="for x, y in loader:", count=13)
TRAIN = site("sample", 65, func="run_epoch", label="backward", call="loss.backward()", count=66)
SORT = site("sample", 20, func="length", label="data_wait", call="text.split()", count=16)
EACH_STEP = make_steps(200, {"data_wait": 12, "forward": 8})


def sampling(**changes):
    values = {
        "num_workers": 2,
        "persistent_workers": True,
        "custom_batch_sampler": True,
        "batch_size": None,
        "fetch": fetches(1.2, 1.2, batches=100),
        "source": ITEMS,
        "batches": 200,
        "wait_ns": 2_400 * MS,
    }
    return loader(**(values | changes))


def at_epoch_starts(pause_ms=1_570):
    """Epochs of 40 steps whose first batch is waited for."""
    return make_steps(
        240,
        {"data_wait": 0.2, "forward": 30},
        extra=lambda i: {"data_wait": pause_ms} if i % 40 == 0 else {},
    )


@pytest.mark.parametrize("depths", [[4] * 20, [0] * 20, ()])
def test_a_slow_batch_sampler_is_named_by_its_line_whatever_lies_ready(depths):
    seen = {"loaders": (sampling(),), "workers": (0.1, 0.1), "depths": depths}
    found, _ = named(EACH_STEP, sites=(LOOP, TRAIN, SORT), **seen)
    assert (found.refined, found.severity) == (None, "critical")
    assert "sampler's own work" in found.summary
    assert [w.line for w in found.where] == [20, 41]
    assert all(advice.setting is None for advice in found.advice)
    assert "num_workers" in found.advice[0].text


def test_a_sampler_that_keeps_all_waiting_is_not_put_down_to_what_batches_cost_the_workers():
    # As recorded on an H200: collate is half of 2.2 ms a batch; the sampler takes 57 ms for its order.
    loaders = (sampling(fetch=fetches(2.2, 2.2, batches=100, collate=0.54)),)
    twice = (SORT, site("sample", 20, func="length", label="data_wait", call="len(text)", count=9))
    found, _ = named(EACH_STEP, sites=(LOOP, TRAIN, *twice), loaders=loaders, workers=(0.1, 0.1))
    assert found.refined is None
    assert [w.line for w in found.where] == [20, 41]


def test_waits_in_the_loop_itself_are_for_workers():
    sites = (LOOP, TRAIN, site("sample", 9, func="cycle", label="data_wait", call="yield from dl"))
    seen = window(EACH_STEP, loaders=(sampling(),), workers=(0.1, 0.1), sites=sites)
    assert drawing(seen, supply_of(seen)) is None


def test_a_loader_without_a_sampler_of_its_own_draws_nothing():
    plain = sampling(custom_batch_sampler=False, batch_size=64)
    seen = window(EACH_STEP, loaders=(plain,), sites=(LOOP, TRAIN, SORT))
    assert drawing(seen, supply_of(seen)) is None


def test_waits_at_epoch_starts_that_no_batch_took_are_the_samplers():
    drawn = sampling(
        call="DataLoader(rows, batch_size=128, sampler=weighted, num_workers=1)",
        custom_batch_sampler=False,
        num_workers=1,
        batch_size=128,
        fetch=fetches(1.0, batches=240),
        length=19_532,
        batches=240,
        epochs=6,
    )
    found, _ = named(at_epoch_starts(), loaders=(drawn,), workers=(0.1,), sites=(TRAIN,))
    assert found.refined is None
    assert "num_samples=5120" in found.advice[0].text
    assert "about 40 of them are used" in found.advice[0].text
    assert "1.57 s at the start of an epoch" in found.advice[1].text


def test_long_first_batches_of_workers_are_not_the_samplers():
    filled = sampling(fetch=fetches(20.0, 20.0, batches=120, longest=1_500.0), epochs=6)
    seen = window(at_epoch_starts(), loaders=(filled,), sites=(TRAIN,))
    assert drawing(seen, supply_of(seen)) is None


def test_without_workers_the_sampler_takes_what_the_batch_does_not():
    alone = sampling(num_workers=0, fetch=(), persistent_workers=False)
    slow = loader(**{**vars_of(alone), "fetch": made(200, 1.2)})
    found, _ = named(EACH_STEP, loaders=(slow,), sites=(LOOP, TRAIN, SORT))
    assert found.refined is None
    items = loader(**{**vars_of(alone), "fetch": made(200, 11.5)})
    seen = window(EACH_STEP, loaders=(items,), sites=(LOOP, TRAIN, SORT))
    assert drawing(seen, supply_of(seen)) is None
    assert isinstance(input_bound.judge(seen), Finding)


def vars_of(row):
    return {name: getattr(row, name) for name in row.__slots__}


def made(batches, batch_ms):
    """What the training process itself made."""
    one = fetches(batch_ms, batches=batches)[0]
    return (type(one)(-1, *(getattr(one, name) for name in one.__slots__[1:])),)


def test_a_line_met_twice_is_told_once_where_it_comes_first():
    first, other, again = Where("a.py", 1, "x"), Where("a.py", 2, "y"), Where("a.py", 1, "z")
    assert distinct((first, other, again)) == (first, other)
