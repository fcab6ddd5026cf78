"""Hooks that are out of the way while steps are not recorded, and come back."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from gputop_train.probe import quiet
from gputop_train.probe.state import LOG_CAPACITY, S, ident, log, now
from gputop_train.probe.words import STEP_TICK


class Optimizer:
    pass


@pytest.fixture
def tables() -> Iterator[tuple[dict[int, Any], dict[int, Any], list[Any]]]:
    """A pre hook's and a post hook's table, and the steps the post hook itself was told of."""
    told: list[Any] = []
    pre: dict[int, Any] = {7: lambda *args: told.append("before"), 8: "somebody else's"}
    post: dict[int, Any] = {9: lambda opt, args, kwargs: told.append(opt)}
    quiet.add_table({"pre": pre}, "pre", 7, pre[7])
    quiet.add_tick(post, 9, post[9])
    kept = (S.thread_id, S.stepped, S.quiet_until_ns, S.steps, S.optimizers, S.nests)
    yield pre, post, told
    quiet.drop(pre)
    quiet.drop(post)
    (S.thread_id, S.stepped, S.quiet_until_ns, S.steps, S.optimizers, S.nests) = kept
    log.clear()


def be_quiet(opt: Any, ns: int = 10**10) -> None:
    S.thread_id, S.stepped, S.quiet_until_ns = ident(), id(opt), now() + ns
    S.optimizers, S.nests, S.steps = {id(opt): {"id": 1}}, False, 5
    log.clear()
    quiet.forget()
    quiet.take_out()


def drained() -> list[int]:
    """What the helper thread takes and writes."""
    return quiet.words([log.popleft() for _ in range(len(log))])


def test_a_tick_is_one_word_and_counts(tables: Any) -> None:
    pre, post, told = tables
    opt = Optimizer()
    be_quiet(opt)
    begin = now()
    for _ in range(3):
        assert pre[7](opt, (), {}) is None
        assert post[9](opt, (), {}) is None
    end = now()
    assert told == [] and len(log) == 3
    words = drained()
    assert [word & 63 for word in words] == [STEP_TICK] * 3
    assert begin - 1 <= words[0] >> 6 < words[1] >> 6 < words[2] >> 6 <= end + 1
    assert S.steps == 5  # counted once the hooks are back
    quiet.put_back()
    assert S.steps == 8
    post[9](opt, (), {})
    assert told == [opt]


def test_ticks_count_once_whoever_has_taken_them_meanwhile(tables: Any) -> None:
    _, post, _ = tables
    opt = Optimizer()
    be_quiet(opt)
    for taken in (True, False, True):
        post[9](opt, (), {})
        assert quiet.ticked() == 1
        if taken:
            drained()
            assert quiet.ticked() == 1
        quiet.put_back()
        assert quiet.ticked() == 0
        quiet.take_out()
    assert S.steps == 8
    drained()
    assert quiet.ticked() == 0 and S.steps == 8


def test_after_an_overrun_new_ticks_count_again(tables: Any) -> None:
    _, post, _ = tables
    opt = Optimizer()
    be_quiet(opt)
    for _ in range(5):
        post[9](opt, (), {})
    quiet.put_back()
    assert S.steps == 10
    log.extend([STEP_TICK] * LOG_CAPACITY)  # so many words that these are dropped
    drained()
    assert quiet.ticked() == 0
    quiet.take_out()
    post[9](opt, (), {})
    quiet.put_back()
    assert S.steps == 11


def test_ticks_between_two_hands_are_counted_once(tables: Any) -> None:
    """The helper thread has taken them and not counted them yet when the hooks come back."""
    _, post, _ = tables
    opt = Optimizer()
    be_quiet(opt)
    for _ in range(4):
        post[9](opt, (), {})
    quiet.put_back()
    assert S.steps == 9
    taken = [log.popleft() for _ in range(4)]
    quiet.take_out()
    post[9](opt, (), {})
    quiet.put_back()
    quiet.words(taken)
    quiet.take_out()
    quiet.put_back()
    assert S.steps == 10


def test_words_that_are_no_ticks_stay_as_they_are() -> None:
    assert quiet.words([5, 1.5, 7]) == [5, 1_500_000_000 << 6 | STEP_TICK, 7]
    quiet.forget()


@pytest.mark.parametrize("days", [0.001, 1, 40, 300])
def test_the_time_of_a_tick_is_right_to_the_nanosecond_for_a_month_of_uptime(days: float) -> None:
    ns = int(days * 86_400e9) + 123_456_789
    (word,) = quiet.words([ns / 1e9])
    assert abs((word >> 6) - ns) <= (1 if days < 50 else 4)
    quiet.forget()


def test_an_optimizer_is_not_kept_alive_by_its_ticks(tables: Any) -> None:
    _, post, _ = tables
    opt = Optimizer()
    be_quiet(opt)
    post[9](opt, (), {})
    gone = weakref.ref(opt)
    del opt
    assert gone() is None


def test_the_hook_is_back_for_the_step_that_ends_the_quiet_time(tables: Any) -> None:
    _, post, told = tables
    opt = Optimizer()
    be_quiet(opt, ns=-1)
    post[9](opt, (), {})
    assert told == [opt] and not log


def test_an_optimizer_it_does_not_know_is_left_to_the_hook(tables: Any) -> None:
    _, post, told = tables
    opt, other = Optimizer(), Optimizer()
    be_quiet(opt)
    post[9](opt, (), {})
    post[9](other, (), {})
    assert told == [other] and len(log) == 1 and S.steps == 6


def test_two_optimizers_are_told_apart_by_the_hook(tables: Any) -> None:
    _, post, told = tables
    opt = Optimizer()
    S.optimizers = {1: {}, 2: {}}
    S.thread_id, S.stepped, S.quiet_until_ns, S.nests = ident(), id(opt), now() + 10**10, False
    quiet.take_out()
    post[9](opt, (), {})
    assert told == [opt]


@pytest.mark.parametrize("why", ["nests", "scaler"])
def test_nothing_is_taken_out_where_every_call_counts(tables: Any, why: str) -> None:
    pre, _, told = tables
    opt = Optimizer()
    S.optimizers = {id(opt): {"id": 1}}
    S.nests, at_update = why == "nests", S.steps_at_update
    S.steps_at_update = 3 if why == "scaler" else 0
    quiet.take_out()
    S.steps_at_update = at_update
    pre[7](opt, (), {})
    assert told == ["before"]


def test_what_somebody_else_put_there_stays(tables: Any) -> None:
    pre, _, _ = tables
    opt, theirs = Optimizer(), object()
    be_quiet(opt)
    pre[7] = theirs
    quiet.put_back()
    assert pre[7] is theirs


@pytest.fixture
def module() -> Iterator[dict[str, Any]]:
    """A module whose table of pre hooks holds ours alone."""
    names: dict[str, Any] = {"pre": OrderedDict({7: "ours"})}
    quiet.add_table(names, "pre", 7, "ours")
    kept = (S.thread_id, S.stepped, S.quiet_until_ns, S.steps, S.optimizers, S.nests)
    yield names
    quiet.drop(names["pre"])
    quiet.shared[0] = False
    (S.thread_id, S.stepped, S.quiet_until_ns, S.steps, S.optimizers, S.nests) = kept


def test_a_table_of_ours_alone_is_empty_meanwhile(module: dict[str, Any]) -> None:
    ours = module["pre"]
    be_quiet(Optimizer())
    assert module["pre"] == {} and ours == {7: "ours"}  # who iterates over it meets no change
    be_quiet(Optimizer())
    assert module["pre"] == {}
    quiet.put_back()
    assert module["pre"] is ours and ours == {7: "ours"}


def test_a_hook_registered_meanwhile_stays_in_the_table_its_handle_knows(
    module: dict[str, Any],
) -> None:
    be_quiet(Optimizer())
    theirs = module["pre"]
    theirs[9] = "theirs"
    quiet.put_back()
    assert module["pre"] is theirs and theirs == {9: "theirs", 7: "ours"}
    be_quiet(Optimizer())
    assert module["pre"] is theirs and theirs[9] == "theirs"
    assert theirs[7](None, (), {}) is None
    del theirs[9]
    quiet.put_back()
    assert module["pre"] is theirs and theirs == {7: "ours"}
    be_quiet(Optimizer())
    assert module["pre"] == {} and module["pre"] is not theirs
    quiet.put_back()
    assert module["pre"] is theirs


def test_an_optimizer_that_two_threads_step_is_left_to_the_hooks(module: dict[str, Any]) -> None:
    quiet.shared[0] = True
    be_quiet(Optimizer())
    assert module["pre"][7] != "ours" and len(module["pre"]) == 1
    quiet.put_back()
    assert module["pre"] == {7: "ours"}


class Hooked:
    pass


class Unhooked(Hooked):
    pass


def test_an_object_is_of_the_class_without_hooks_meanwhile(tables: Any) -> None:
    one, other = Hooked(), Hooked()
    quiet.add_object(one, Unhooked)
    assert type(one) is Hooked
    be_quiet(Optimizer())
    assert type(one) is Unhooked and type(other) is Hooked
    quiet.add_object(other, Unhooked)  # a new one, while nothing is recorded
    assert type(other) is Unhooked
    quiet.put_back()
    assert type(one) is type(other) is Hooked


def test_an_object_that_took_another_class_or_went_is_left_alone(tables: Any) -> None:
    one, gone = Hooked(), Hooked()
    quiet.add_object(one, Unhooked)
    quiet.add_object(gone, Unhooked)
    del gone
    be_quiet(Optimizer())
    one.__class__ = Optimizer  # type: ignore[assignment]
    quiet.put_back()
    assert type(one) is Optimizer
    quiet.add_object(Hooked(), Unhooked)
    assert len(quiet._objects) <= 2  # the dead are forgotten
