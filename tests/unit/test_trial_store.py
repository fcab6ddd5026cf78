"""A trial's directory: private, whole at any moment, pruned without touching what is in use."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gputop_train.launch import identity
from gputop_train.trial import store


def head(**more: Any) -> dict[str, Any]:
    given = {"schema": 1, "state": "done", "host": os.uname().nodename, "started_wall_ns": 1}
    return given | more


def test_a_trial_is_private_and_read_back(tmp_path: Path) -> None:
    made = store.make(tmp_path)
    store.write(made, head(candidates=[{"speedup": float("inf")}]))
    assert stat.S_IMODE(made.trial_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.json.stat().st_mode) == 0o600
    assert store.read(made.trial_dir) == head(candidates=[{"speedup": None}])
    store.write(made, head(state="running"))
    assert [p.name for p in made.trial_dir.iterdir() if p.is_file()] == ["trial.json"]


def test_an_id_that_is_taken_is_refused(tmp_path: Path) -> None:
    store.make(tmp_path, "t1")
    with pytest.raises(store.TrialStoreError, match="There is a trial t1"):
        store.make(tmp_path, "t1")


def test_a_root_that_is_no_directory_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(store.TrialStoreError, match="--run-root"):
        store.make(tmp_path / "root")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 99}'])
def test_what_is_damaged_or_foreign_is_no_trial(tmp_path: Path, content: str) -> None:
    made = store.make(tmp_path)
    made.json.write_text(content)
    assert store.read(made.trial_dir) is None
    assert list(store.trials(tmp_path)) == []


def test_a_killed_trial_does_not_run(tmp_path: Path) -> None:
    me = identity.identify(os.getpid())
    assert me is not None
    mine = head(state="running", pid=me.pid, start_ticks=me.start_ticks, boot_id=me.boot_id)
    assert store.is_running(mine)
    assert not store.is_running(mine | {"start_ticks": me.start_ticks + 1})
    assert not store.is_running(mine | {"state": "done"})
    assert not store.is_running(head(state="running"))


def test_old_trials_go_but_none_that_is_named_or_runs(tmp_path: Path) -> None:
    me = identity.identify(os.getpid())
    assert me is not None
    running = {"state": "running", "pid": me.pid, "start_ticks": me.start_ticks}
    bodies: list[dict[str, Any]] = [
        head(started_wall_ns=1, **(running | {"boot_id": me.boot_id})),
        head(started_wall_ns=2, name="kept"),
        head(started_wall_ns=3, host="elsewhere"),
        *(head(started_wall_ns=10 + n) for n in range(5)),
    ]
    bodies[0]["state"] = "running"
    made = []
    for body in bodies:
        made.append(store.make(tmp_path))
        store.write(made[-1], body)
    removed = store.prune(tmp_path, keep=2)
    assert sorted(removed) == sorted(trial.id for trial in made[3:6])
    left = {p.name for p in (tmp_path / "trials").iterdir()}
    assert left == {trial.id for trial in [*made[:3], *made[6:]]}
    assert json.loads(made[7].json.read_bytes())["started_wall_ns"] == 14


def test_the_newest_trial_stays_however_large(tmp_path: Path) -> None:
    made = store.make(tmp_path)
    store.write(made, head())
    assert store.prune(tmp_path, keep_bytes=0) == []
