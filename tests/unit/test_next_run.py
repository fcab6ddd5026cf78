"""Choosing what the next run has: which values are offered, what is refused, what is typed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_train.launch import again
from gputop_train.launch.options import SETTINGS, Setting, UsageProblem
from gputop_train.model import Advice, Diagnosis, Finding, Gain, Loader, Site, Where
from gputop_train.tui import next_run, settings_seen
from gputop_train.tui.snapshot import SettingGroup, SettingSeen

TRAIN = Loader(
    rank=0, id=1, file="/home/me/train.py", line=41, call="DataLoader", dataset="Pictures",
    num_workers=2, batch_size=64, pin_memory=False, persistent_workers=False, prefetch_factor=2,
    iterable=False, batches=50, feeds_training=True,
)  # fmt: skip
VALID = replace(TRAIN, id=2, line=58, batches=5, feeds_training=False)
STREAM = replace(VALID, id=3, line=70, num_workers=0, iterable=True, batch_size=None)
ADVICE = Finding(
    "input-bound", "", "warn", "high", 0.6,
    where=(Where("train.py", 41, ""),),
    advice=(Advice("Raise it.", {"num_workers": 7}), Advice("Pin it.", {"pin_memory": True})),
    gain=Gain(2.8, (2.1, 2.7), ""),
)  # fmt: skip
VERDICT = Diagnosis("verdict", False, ADVICE)
CPU = {"cuda": {"initialized": False}, "flags": {"threads": 8, "tf32": False}}


def groups(*loaders: Loader, run=None, probe=None, diagnosis=None, sites=()):
    return settings_seen.groups(run or {}, probe, loaders, diagnosis, sites)


def row_of(group: SettingGroup, key: str) -> SettingSeen:
    return next(row for row in group.rows if row.key == key)


def test_every_setting_there_is_can_be_found_once_for_each_thing_it_belongs_to():
    train, valid, whole = groups(VALID, TRAIN)
    keys = [row.key for row in train.rows]
    assert [row.key for row in valid.rows] == keys
    assert sorted([*keys, *(row.key for row in whole.rows)]) == sorted(SETTINGS)


def test_the_loader_that_feeds_training_is_first_and_needs_no_place():
    train, valid, _ = groups(VALID, TRAIN)
    assert (train.title, train.place) == ("loader train.py:41", None)
    assert (valid.title, valid.place) == ("loader train.py:58", "train.py:58")
    assert "feeds training" in train.note


def test_two_loaders_that_feed_training_are_named_by_their_lines():
    other = replace(TRAIN, id=4, line=44)
    assert [group.place for group in groups(TRAIN, other)[:2]] == ["train.py:41", "train.py:44"]


def test_files_of_one_name_are_told_apart_by_their_paths():
    other = replace(VALID, file="/elsewhere/train.py", line=41)
    assert groups(TRAIN, other)[1].place == "/elsewhere/train.py:41"


def test_a_loader_built_anew_each_epoch_is_one_group_with_its_newest_values():
    train, *_ = groups(TRAIN, replace(TRAIN, id=9, num_workers=4))
    assert row_of(train, "num_workers").value == 4
    assert len(groups(TRAIN, replace(TRAIN, id=9))) == 2


def test_advice_stands_beside_the_setting_with_the_gain_of_the_first_remedy_alone():
    train, valid, _ = groups(TRAIN, VALID, diagnosis=VERDICT)
    workers = row_of(train, "num_workers")
    assert (workers.suggested, workers.gain) == (7, "2.1 to 2.7x")
    assert (row_of(train, "pin_memory").suggested, row_of(train, "pin_memory").gain) == (True, "")
    assert all(row.suggested is None for row in valid.rows)
    assert next_run.advised((train, valid)) == {
        ("num_workers", None): 7,
        ("pin_memory", None): True,
    }


def test_advice_that_is_followed_already_is_none():
    train, *_ = groups(replace(TRAIN, num_workers=7), diagnosis=VERDICT)
    assert row_of(train, "num_workers").suggested is None


def test_what_the_script_rules_out_is_said_in_words():
    (stream, _) = groups(STREAM)
    assert "IterableDataset" in row_of(stream, "num_workers").cannot
    assert "sampler" in row_of(stream, "batch_size").cannot
    assert "num_workers" in next_run.cannot(stream, row_of(stream, "prefetch_factor"), {})
    assert next_run.cannot(stream, row_of(stream, "pin_memory"), {}) == ""


def test_choosing_workers_makes_what_needs_them_possible():
    train, *_ = groups(replace(TRAIN, num_workers=0))
    prefetch = row_of(train, "prefetch_factor")
    assert next_run.cannot(train, prefetch, {})
    assert not next_run.cannot(train, prefetch, {("num_workers", None): 4})


def test_what_nobody_measured_is_not_taken_for_off():
    *_, whole = groups(TRAIN, probe=CPU)
    seen = {row.key: (row.known, row.value) for row in whole.rows}
    assert seen["omp_threads"] == (True, 8)
    assert seen["tf32"] == (True, False)
    assert seen["expandable_segments"][0] is seen["non_blocking"][0] is False
    assert seen["bf16"][0] is False
    assert next_run.value_words(None, known=False) == "not measured"


def test_what_the_allocator_and_the_copies_were_told_is_seen():
    copy = Site(0, 1, "h2d", "/home/me/train.py", 50, "main", "x.to(d)", count=9, bytes=900)
    probe = {"cuda": {"initialized": True}, "flags": {"expandable_segments": True}}
    *_, whole = groups(TRAIN, probe=probe, sites=[copy])
    seen = {row.key: (row.known, row.value) for row in whole.rows}
    assert seen["expandable_segments"] == (True, True)
    assert seen["non_blocking"] == (True, False)
    *_, whole = groups(TRAIN, probe=probe, sites=[replace(copy, call="x.cuda(0, True)")])
    assert row_of(whole, "non_blocking").cannot == "the script does it itself"


def test_what_the_script_does_itself_is_left_to_it_unless_it_was_set_for_this_run():
    probe = {"amp": {"autocast": [{"dtype": "bfloat16", "enabled": True}]}, **CPU}
    *_, whole = groups(TRAIN, probe=probe)
    assert row_of(whole, "bf16").cannot == "the script does it itself"
    told = {"key": "bf16", "value": True, "loader": None, "status": "applied", "why": ""}
    *_, whole = groups(
        TRAIN, run={"overrides": {"bf16": True}}, probe={**probe, "overrides": [told]}
    )
    mine = row_of(whole, "bf16")
    assert (mine.cannot, mine.value, mine.override) == ("", True, True)
    off = next_run.with_choice({}, whole, mine, False)
    assert off == {("bf16", None): None}
    assert next_run.settings((whole,), off) == (Setting("bf16", None),)
    assert again.merged([Setting("bf16", True)], [Setting("bf16", None)]) == ()


def test_what_a_run_asked_for_in_vain_is_shown_with_the_reason():
    told = {"key": "bf16", "value": True, "loader": None, "status": "refused", "why": "no way"}
    *_, whole = groups(TRAIN, run={"overrides": {"bf16": True}}, probe={**CPU, "overrides": [told]})
    assert row_of(whole, "bf16").cannot == "no way"


def test_without_a_gpu_what_only_a_gpu_has_cannot_be_set():
    *_, whole = groups(TRAIN, probe=CPU)
    assert row_of(whole, "tf32").cannot == "it needs a GPU"
    assert row_of(whole, "fused").cannot == ""


WORKERS = SettingSeen("num_workers", 2, suggested=7)


def test_workers_step_through_what_the_cores_allow_and_what_is_advised():
    values = next_run.offered(WORKERS, 8.0)
    assert values == (0, 1, 2, 4, 6, 7, 8)
    assert next_run.stepped(WORKERS, 6, 1, 8.0) == 7
    assert next_run.stepped(WORKERS, 8, 1, 8.0) == 8
    assert next_run.stepped(WORKERS, 0, -1, 8.0) == 0
    assert next_run.stepped(WORKERS, 3, 1, 8.0) == 4
    assert next_run.stepped(WORKERS, 3, -1, 8.0) == 2


def test_one_key_goes_to_the_advice_and_back():
    assert next_run.toggled(WORKERS, 2, 8.0) == 7
    assert next_run.toggled(WORKERS, 7, 8.0) == 2
    assert next_run.toggled(SettingSeen("pin_memory", False), False, None) is True
    assert next_run.toggled(SettingSeen("pin_memory", None, known=False), None, None) is True
    assert next_run.toggled(replace(WORKERS, suggested=None), 8, 8.0) == 0


@pytest.mark.parametrize("key", SETTINGS)
def test_every_value_that_is_offered_is_one_that_set_takes(key: str):
    for value in (None, False, True, 3):
        row = SettingSeen(key, value, suggested=None)
        for offered in next_run.offered(row, 4.0):
            if offered is False:
                continue  # what cannot be off is left to the script instead
            next_run.typed(row, again.shown(offered))
        assert next_run.toggled(row, value, 4.0) in (*next_run.offered(row, 4.0), value)


def test_a_number_that_makes_no_sense_is_refused_in_words():
    with pytest.raises(UsageProblem, match="out of range"):
        next_run.typed(SettingSeen("batch_size", 64), "0")


def test_choosing_what_is_in_force_is_no_choice():
    (train, *_) = groups(TRAIN)
    workers = row_of(train, "num_workers")
    chosen = next_run.with_choice({}, train, workers, 4)
    assert chosen == {("num_workers", None): 4}
    assert next_run.with_choice(chosen, train, workers, 2) == {}
    assert next_run.reset(chosen, train, workers) == {}


def test_only_what_can_be_set_is_handed_on():
    (train, *_) = groups(TRAIN)
    choices = {("num_workers", None): 0, ("prefetch_factor", None): 4}
    assert next_run.settings((train,), choices) == (Setting("num_workers", 0),)
    assert next_run.changing_results([Setting("num_workers", 0)]) == ("num_workers",)


# The command that does the same

RUN = {
    "command": ["/usr/bin/python", "train.py", "--lr", "0.1", "--name", "a b"],
    "mode": "script",
    "overrides": {"num_workers": 2, "pin_memory@train.py:9": True},
}


def test_the_command_line_is_what_a_person_would_type():
    both = again.merged(again.recorded(RUN), [Setting("num_workers", 7)])
    line = again.command_line(RUN, [again.typed(one) for one in both])
    assert line == (
        "gputop-train --set num_workers=7 --set pin_memory@train.py:9=true "
        "train.py --lr 0.1 --name 'a b'"
    )


def test_a_command_and_a_module_are_run_as_they_were():
    run = {"command": ["torchrun", "train.py"], "mode": "command"}
    assert again.command_line(run, []) == "gputop-train -- torchrun train.py"
    run = {"command": ["python", "-m", "pkg.train"], "mode": "module"}
    assert again.command_line(run, [], verb="trial") == "gputop-train trial -m pkg.train"


def test_a_trial_tries_each_change_and_then_all_together_on_top_of_what_was_set():
    base = (Setting("omp_threads", 4),)
    chosen = (Setting("num_workers", 7), Setting("pin_memory", True))
    assert again.candidates(chosen, base) == (
        "omp_threads=4,num_workers=7",
        "omp_threads=4,pin_memory=true",
        "omp_threads=4,num_workers=7,pin_memory=true",
    )
    assert again.candidates(chosen[:1]) == ("num_workers=7",)
    assert again.candidates([Setting("omp_threads", None)], base) == ()
