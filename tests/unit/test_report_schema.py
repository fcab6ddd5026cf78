"""``validate`` accepts what the report module writes and sees every way to break it."""

from __future__ import annotations

import copy

import pytest
from report_runs import Recorded, ended, feeding_loader, steps_of

from gputop_train.report.schema import REPORT, Maybe, validate

STARVED = {"data_wait": 60, "forward": 20, "backward": 20}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The report of a starved run."""
    recorded = Recorded(tmp_path_factory.mktemp("run"))
    recorded.writer.put_loaders([feeding_loader()], 0)
    return recorded.train(steps_of(60, STARVED)).report(ended())


def paths(value, path=()):
    """Every key of a report, as the path to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from paths(item, (*path, key))


def changed(report, path, change):
    """A copy of a report in which ``change(parent, key)`` was done."""
    result = copy.deepcopy(report)
    parent = result
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return result


def test_the_report_is_valid(good):
    assert validate(good) == []


def test_each_key_of_the_schema_must_be_there(good):
    free = {("run", "overrides")}
    for path in paths({k: v for k, v in good.items() if k in REPORT}):
        if path[:2] in free and len(path) > 2:
            continue
        without = changed(good, path, lambda parent, key: parent.pop(key))
        assert validate(without) == [f"report.{'.'.join(path)} is absent."], path


def test_no_key_may_hold_a_stranger(good):
    for path in paths(good):
        strange = changed(good, path, lambda parent, key: parent.__setitem__(key, {1, 2}))
        assert validate(strange) != [], path


def test_null_is_allowed_only_where_something_may_be_unmeasured(good):
    assert isinstance(REPORT["healthy"], Maybe)
    nothing = changed(good, ("steps", "median_ms"), lambda p, k: p.__setitem__(k, None))
    assert validate(nothing) == []
    nothing = changed(good, ("run", "attempts"), lambda p, k: p.__setitem__(k, None))
    assert validate(nothing) == ["report.run.attempts is None, not integer."]


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("schema",), 2, "schema"),
        (("status",), "healthy", "verdict"),
        (("status",), "fine", "not one of"),
        (("healthy",), True, "healthy"),
        (("verdict",), None, "verdict"),
        (("time", "shares", "other"), 0.5, "add up"),
        (("verdict", "where"), None, "neither a line nor the reason"),
        (("steps", "count"), True, "not integer"),
        (("steps", "median_ms"), float("nan"), "not number"),
    ],
)
def test_statements_that_contradict_each_other_are_told(good, path, value, word):
    broken = changed(good, path, lambda parent, key: parent.__setitem__(key, value))
    assert any(word in problem for problem in validate(broken))


def test_something_that_is_no_report_is_told():
    assert validate([]) == ["report is [], not an object."]


def test_a_newer_version_may_say_more(good):
    assert validate(good | {"kernels": []}) == []
