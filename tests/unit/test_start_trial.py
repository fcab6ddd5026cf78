"""Starting a trial of what was launched, and joining one again without a screen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputop_train import watch_commands
from gputop_train.launch import start_trial
from gputop_train.launch.options import Options, Target
from gputop_train.launch.start_trial import StartError
from tests.tui import trials


def options(root: Path, *arguments: str, mode: str = "script") -> Options:
    return Options(Target(mode, arguments), run_root=str(root))  # type: ignore[arg-type]


def test_the_scripts_own_arguments_come_last_and_untouched(tmp_path: Path) -> None:
    words = start_trial.words(
        options(tmp_path, "train.py", "--set", "x=1"), ["num_workers=4", "pin_memory=true"], "t1"
    )
    assert words[0] == "trial"
    assert words[-7:] == [
        "--set", "num_workers=4", "--set", "pin_memory=true", "train.py", "--set", "x=1",
    ]  # fmt: skip
    assert words[words.index("--run-root") + 1] == str(tmp_path)
    module = start_trial.words(options(tmp_path, "pkg.train", "--a", mode="module"), [], "t1")
    assert module[-3:] == ["-m", "pkg.train", "--a"]
    command = start_trial.words(options(tmp_path, "torchrun", "x.py", mode="command"), [], "t1")
    assert command[-3:] == ["--", "torchrun", "x.py"]


def test_a_trial_that_makes_no_sense_says_in_words_why_it_did_not_start(tmp_path: Path) -> None:
    log = tmp_path / "trial.log"
    log.write_text("of an earlier one")
    with pytest.raises(StartError, match=r"ended at once.*num_workers") as failed:
        start_trial.start(
            options(tmp_path, "train.py"), ["num_workers=many"], dict(os.environ), log
        )
    assert "Traceback" not in str(failed.value)
    assert "earlier" not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="could not be started"):
        start_trial.start(
            options(tmp_path, "train.py"), [], dict(os.environ), tmp_path / "none" / "trial.log"
        )


def test_a_trial_is_found_by_its_id_or_the_beginning_of_it(tmp_path: Path) -> None:
    place = trials.write(tmp_path, trials.done())
    assert watch_commands.find_trial(trials.ID, tmp_path) == place
    assert watch_commands.find_trial(trials.ID[:3], tmp_path) == place
    assert watch_commands.find_trial("t0", tmp_path) is None
    assert watch_commands.find_trial("", tmp_path) is None


def test_without_a_screen_it_is_printed_how_a_trial_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = trials.write(tmp_path, trials.done())
    assert watch_commands.watch(place, screen=False, ascii_only=True) == 0
    said = capsys.readouterr().out
    assert "num_workers=4" in said
    assert "stop tuning this" in said
    assert said.isascii()
    trials.write(tmp_path, trials.running() | {"start_ticks": 1})
    watch_commands.watch(place, screen=False, ascii_only=True)
    assert "It was killed" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1, "table": 5, "sentences": 3}'])
def test_a_damaged_record_of_a_trial_is_no_traceback(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "trials" / trials.ID
    place.mkdir(parents=True)
    (place / "trial.json").write_text(content)
    assert watch_commands.watch(place, screen=False, ascii_only=False) == 0
    assert capsys.readouterr().err == ""


def test_the_command_to_keep_what_was_proved_is_that_of_the_trial() -> None:
    body = {"command": ["train.py", "--lr", "0.1"], "mode": "script"}
    assert watch_commands.keep(body, ["num_workers=4"]) == (
        "gputop-train --set num_workers=4 train.py --lr 0.1"
    )
    body = {"command": ["-m", "pkg.train"], "mode": "module"}
    assert watch_commands.keep(body, []) == "gputop-train -m pkg.train"
    body = {"command": ["torchrun", "train.py"], "mode": "command"}
    assert watch_commands.keep(body, []) == "gputop-train -- torchrun train.py"
