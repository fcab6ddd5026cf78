"""A report says what became of a setting, not what was asked for."""

from __future__ import annotations

import pytest

from gputop_train.model import Loader
from gputop_train.report import settings


def row(key="num_workers", value=2, loader="train.py:41", status="applied", why=""):
    return {"key": key, "value": value, "loader": loader, "status": status, "why": why}


def outcome(label="num_workers", value=2, rows=None, changing=True):
    run = {"overrides": {label: value}, "changes_results": [label] if changing else []}
    states = [] if rows is None else [{"overrides": rows}]
    (found,) = settings.outcomes(run, states)
    return found


def test_an_applied_setting_names_its_loaders():
    refused = row(loader="train.py:50", status="refused", why="it looks like evaluation")
    found = outcome(rows=[row(), row(), refused])
    assert (found["status"], found["where"], found["why"]) == ("applied", ["train.py:41"], None)
    assert settings.words(found) == "num_workers=2 (applied at train.py:41, changes results)"
    assert settings.mark(found) == "num_workers=2 (changes results)"


def test_a_refused_setting_says_why_and_changes_nothing():
    found = outcome(rows=[row(status="refused", why="it reads a stream")])
    assert (found["status"], found["changes_results"]) == ("refused", False)
    assert settings.words(found) == "num_workers=2 (refused at train.py:41: it reads a stream)"
    assert settings.mark(found) == "num_workers=2 (refused)"


def test_an_applied_setting_may_carry_a_remark():
    found = outcome(rows=[row(why="2 workers on 1 CPU")], changing=False)
    assert settings.words(found) == "num_workers=2 (applied at train.py:41: 2 workers on 1 CPU)"


def test_a_setting_of_the_process_has_no_place():
    found = outcome("tf32", True, [row("tf32", True, None)])
    assert settings.words(found) == "tf32=True (applied, changes results)"


def test_what_a_place_was_typed_as_decides_where_the_probe_tells_it():
    told = {**row(loader="train.py:41"), "named": None}
    assert outcome("num_workers@train.py:41", rows=[told])["status"] == "no effect"
    assert outcome("num_workers", rows=[told])["status"] == "applied"


def test_a_place_without_a_loader_is_told_with_the_lines_of_those_there_are():
    loader = Loader(0, 1, "/a/train.py", 12, "", "", 0, 8, False, False, None, False)
    run = {"overrides": {"num_workers@train.py:7": 2, "batch_size": 4}}
    named, unnamed = settings.outcomes(run, [{"overrides": []}], [loader])
    assert named["why"] == "no DataLoader was built at train.py:7, but at train.py:12"
    assert "train.py:12" in unnamed["why"]


@pytest.mark.parametrize(
    ("label", "value", "status", "shown"),
    [
        ("replay_batch=8", 8, "applied", "what_if:replay_batch=8 (changes results)"),
        ("no_eval", True, "inconclusive", "what_if:no_eval=True (inconclusive)"),
        ("skip_checkpoint", True, None, "what_if:skip_checkpoint=True (no effect)"),
    ],
)
def test_a_what_if_is_a_setting_of_its_own_name(label, value, status, shown):
    told = {"key": label.split("=")[0], "value": value, "place": "a.py:3", "status": status}
    rows = [] if status is None else [{**told, "why": "it met a NaN"}]
    (found,) = settings.outcomes({"what_if": [label]}, [{"what_if": rows}])
    assert settings.mark(found) == shown


def test_a_what_if_that_was_applied_tells_where_it_was_not():
    told = {"key": "sync_every", "value": 10}
    rows = [
        {**told, "place": "a.py:3", "status": "applied", "why": ".item() is real 1 time in 10"},
        *(
            {**told, "place": f"a.py:{n}", "status": "refused", "why": f"why {n}"}
            for n in range(4, 10)
        ),
    ]
    (found,) = settings.outcomes({"what_if": ["sync_every=10"]}, [{"what_if": rows}])
    assert (found["status"], found["where"]) == ("applied", ["a.py:3"])
    assert found["why"] == (
        ".item() is real 1 time in 10; not at a.py:4: why 4; at a.py:5: why 5; "
        "at a.py:6: why 6; at a.py:7: why 7; and at 2 more"
    )


@pytest.mark.parametrize(
    ("label", "rows"),
    [
        ("num_workers", []),
        ("num_workers", [row(key="batch_size")]),
        ("num_workers", [row(value=4)]),
        ("num_workers@train.py:7", [row()]),
    ],
)
def test_a_setting_that_met_no_loader_had_no_effect(label, rows):
    found = outcome(label, rows=rows)
    assert (found["status"], found["changes_results"]) == ("no effect", False)
    assert settings.mark(found) == f"{label}=2 (no effect)"
    assert "no DataLoader" in settings.words(found)


def test_a_named_loader_is_met_whatever_path_was_typed():
    assert outcome("num_workers@src/train.py:41", rows=[row()])["status"] == "applied"


def test_what_no_probe_told_is_not_known():
    found = outcome(rows=None)
    assert found["status"] is None
    assert "not confirmed" in settings.words(found)
    assert settings.mark(found) == "num_workers=2 (changes results)"


def test_one_rank_is_enough_to_apply_a_setting():
    run = {"overrides": {"num_workers": 2}}
    states = [{"overrides": []}, {"overrides": [row()]}, {"torch": "2.13"}]
    assert settings.outcomes(run, states)[0]["status"] == "applied"
