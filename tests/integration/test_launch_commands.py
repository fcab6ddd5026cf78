"""The subcommands find a run again and say the same about it as the launch did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.demos_index import DEMOS
from gputop_train.store.recording import export_recording
from tests.launching import World, world

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def command(here: World, *words: str) -> tuple[int, bytes, bytes]:
    done = here.run(*words, root=False)
    return done.returncode, done.stdout, done.stderr


def test_a_run_is_listed_reported_and_recorded_as_it_was_launched(here: World) -> None:
    here.script("import sys; sys.exit(3)")
    here.run("--name", "mine", "--json", "out.json", "train.py", "--api-key", "s3cr3t")
    root = ("--run-root", str(here.root))
    run_dir = here.run_dir()

    code, listed, _ = command(here, "runs", *root)
    assert code == 0
    assert run_dir.name.encode() in listed
    assert b"exit 3" in listed
    assert b"s3cr3t" not in listed
    found = json.loads(command(here, "runs", "--json", *root)[1])
    assert [(run["id"], run["name"], run["exit_code"]) for run in found] == [
        (run_dir.name, "mine", 3)
    ]

    report = json.loads((here.place / "out.json").read_bytes())
    for named in (run_dir.name, run_dir.name[:4], "mine", f"{run_dir}/"):
        code, told, _ = command(here, "report", "--json", "-", *root, named)
        assert (code, json.loads(told)) == (0, report), named
    assert run_dir.name.encode() in command(here, "report", "mine", *root)[1]

    recording = export_recording(run_dir, here.place / "mine.zip")
    code, told, _ = command(here, "report", "--json", "-", str(recording))
    assert code == 0
    assert json.loads(told)["run"]["exit_code"] == 3


def test_a_run_that_does_not_exist_is_said_in_one_line(here: World) -> None:
    for words in (
        ("report", "nosuch"),
        ("attach", "nosuch"),
        ("attach", "--no-tui"),
        ("replay", "nosuch"),
    ):
        code, told, said = command(here, *words, "--run-root", str(here.root))
        assert code != 0
        assert told == b""
        assert said.startswith(b"gputop-train: ")
        assert said.count(b"\n") == 1


def test_a_file_that_is_no_recording_is_said_in_one_line(here: World) -> None:
    (here.place / "odd.zip").write_bytes(b"not a zip")
    code, _, said = command(here, "report", "odd.zip")
    assert code == 1
    assert said.count(b"\n") == 1


def test_without_runs_the_list_says_how_to_start_one(here: World) -> None:
    code, told, said = command(here, "runs", "--run-root", str(here.root))
    assert (code, told) == (0, b"")
    assert b"gputop-train train.py" in said


def test_attach_follows_a_live_run_to_its_end_and_exits_with_its_code(here: World) -> None:
    here.script(
        """
        import os, sys, time
        print("ready", flush=True)
        while not os.path.exists("leave"): time.sleep(0.02)
        print("left", flush=True); sys.exit(5)
        """
    )
    front = here.start("--no-tui", "train.py")
    here.wait_for_output(b"ready")
    front.kill()
    front.wait()
    joined = here.start("attach", "--run-root", str(here.root), "--no-tui", root=False)
    assert joined.stdout is not None
    assert joined.stdout.readline() == b"ready\n"
    (here.place / "leave").touch()
    assert joined.stdout.read() == b"left\n"
    assert joined.wait(60) == 5


def test_the_demos_are_listed_and_an_unknown_one_is_a_usage_error(here: World) -> None:
    code, told, _ = command(here, "demo")
    assert code == 0
    for demo in DEMOS:
        assert f"{demo.name} ".encode() in told
    code, _, said = command(here, "demo", "nosuch")
    assert code == 2
    assert b"starved" in said


def test_a_root_that_cannot_be_read_is_not_one_without_runs(here: World) -> None:
    here.root.write_text("a file")
    done = here.run("runs", "--run-root", str(here.root), root=False)
    assert done.returncode == 1
    assert b"cannot be read" in done.stderr
    assert b"There are no runs" not in done.stderr


def test_the_way_back_names_the_run_root(here: World) -> None:
    here.script("print('x')")
    done = here.run("--no-tui", "train.py")
    again = f"gputop-train report {here.run_dir().name} --run-root {here.root}"
    assert again.encode() in b" ".join(done.stderr.split())
    usual = here.run("--no-tui", "train.py", root=False)
    assert b"--run-root" not in usual.stderr
