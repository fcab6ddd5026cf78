"""Tab in real shells: our words before the script's name, files from there on, runs by id and name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train import cli, completion
from gputop_train.diagnose.rules import all_rules
from tests.terminal.screen_pty import Terminal

# Shells want a terminal of their own, so that they can hand it to what they start.
EXEC = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
STARTS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
LOADS = {
    "bash": "PS1='ready> '; source <(gputop-train completion bash)",
    "zsh": "PS1='ready> '; autoload -U compinit; compinit -u -D; source <(gputop-train completion zsh)",
    "fish": "function fish_prompt; echo 'ready> '; end; gputop-train completion fish | source",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory to type in, with a run in the root beside it."""
    run = tmp_path / "runs" / "3f2a9c"
    run.mkdir(parents=True)
    (run / "run.json").write_text(
        json.dumps({"id": "3f2a9c", "name": "baseline-a", "script": "/x/train.py"})
    )
    here = tmp_path / "here"
    (here / "train_dir").mkdir(parents=True)
    (here / "training.py").write_text("")
    (here / "data.json").write_text("")
    (tmp_path / "bin").mkdir()
    mine = tmp_path / "bin" / "gputop-train"
    mine.write_text(f"#!{sys.executable}\nfrom gputop_train.cli import main\nmain()\n")
    mine.chmod(0o755)
    return tmp_path


@pytest.fixture(params=[shell for shell in STARTS if shutil.which(shell)])
def shell(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    env = {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder),
        "GPUTOP_CONFIG": "",
        "GPUTOP_RUN_ROOT": str(folder / "runs"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "INPUTRC": "/dev/null",
    }
    with Terminal(EXEC, *STARTS[request.param], env=env) as terminal:
        # What the shell says of itself before it is ready may swallow keys.
        terminal.pump(0.5)
        terminal.type(f"cd {folder / 'here'}; {LOADS[request.param]}; clear; echo l''oaded\r")
        terminal.wait_for("loaded")
        terminal.wait_for("ready>")
        terminal.type("\x0c")
        yield terminal


def test_tab_completes_what_may_stand_there(shell: Terminal) -> None:
    """One shell for all of it: each costs a start of Python."""
    for typed, *completed in [
        ("gputop-train rep\t\t", "replay", "report"),
        ("gputop-train attach 3f\t", "attach 3f2a9c"),
        ("gputop-train replay base\t", "replay baseline-a"),
        ("gputop-train --theme high\t", "--theme high-contrast"),
        ("gputop-train --theme dark traini\t", "dark training.py"),
        ("gputop-train training.py --data da\t", "--data data.json"),
        ("gputop-train -- ./traini\t", "-- ./training.py"),
        ("gputop-train explain input-b\t", "explain input-bound"),
        ("gputop-train completion f\t", "completion fish"),
    ]:
        shell.type(typed)
        for word in completed:
            shell.wait_for(word)
        shell.type("\x15\x0c")  # the line is given up
        shell.wait_for(lambda text: text.strip() == "ready>", "an empty prompt")


def words(*typed: str) -> set[str]:
    *args, incomplete = typed
    found = completion.completions(list(args), incomplete, cli.launch_command, cli.commands())
    return {f"<{item.type}>" if item.type != "plain" else item.value for item in found}


def test_the_first_word_is_a_command_an_option_or_a_script() -> None:
    assert {"attach", "config", "trial", "<file>"} <= words("")
    assert words("att") == {"attach", "<file>"}
    assert {"--theme", "--no-tui", "--mouse", "--no-mouse"} <= words("--")
    assert "--keep-runs" not in words("--")  # for the config file
    assert words("--no-tui", "") == {"<file>"}


def test_from_the_scripts_name_on_all_words_are_files() -> None:
    assert words("train.py", "--th") == {"<file>"}
    assert words("--theme", "dark", "train.py", "att") == {"<file>"}
    assert words("trial", "train.py", "--th") == {"<file>"}
    assert words("-m", "") == {"<file>"}
    assert words("--", "torchrun", "--n") == {"<file>"}


def test_values_are_completed_by_what_they_are() -> None:
    assert words("--json", "") == {"<file>"}
    assert words("--run-root", "") == {"<dir>"}
    assert words("--set", "num") == {"num_workers="}
    assert words("trial", "--search", "w") == {"workers"}
    assert words("demo", "sta") >= {"starved"}


def test_every_diagnosis_is_offered_without_loading_one() -> None:
    assert words("explain", "") == {rule.id for rule in all_rules()}


def test_attach_takes_trials_too_and_replay_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUTOP_RUN_ROOT", str(folder / "runs"))
    trial = folder / "runs" / "trials" / "t1a2b3c"
    trial.mkdir(parents=True)
    (trial / "trial.json").write_text('{"id": "t1a2b3c", "script": "train.py"}')
    assert words("attach", "t") == {"t1a2b3c"}
    assert words("attach", "") == {"t1a2b3c", "3f2a9c", "baseline-a", "auto"}
    assert words("replay", "t") == {"<file>"}


def test_what_is_no_run_may_be_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTOP_RUN_ROOT", str(tmp_path))
    assert words("replay", "rec") == {"<file>"}
    monkeypatch.setenv("GPUTOP_RUN_ROOT", str(tmp_path / "nowhere"))
    assert words("replay", "") == {"<file>"}


def test_damaged_runs_and_hostile_names_offer_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUTOP_RUN_ROOT", str(tmp_path))
    for number, content in enumerate(
        [
            "",
            "[]",
            '{"name": "a\\nplain,evil"}',
            '{"name": 3, "script": 4}',
            '{"name": "$(reboot)"}',
        ]
    ):
        run = tmp_path / f"{number}aaaaa"
        run.mkdir()
        (run / "run.json").write_text(content)
    assert words("attach", "") == {"2aaaaa", "3aaaaa", "4aaaaa", "auto"}


def test_a_tab_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom gputop_train import cli\n"
        "try:\n    cli.main()\nexcept SystemExit as left:\n    assert not left.code\n"
        "print(sorted({'textual', 'numpy', 'torch', 'rich', 'sqlite3', 'msgspec'} & set(sys.modules)))"
    )
    env = {
        "_GPUTOP_TRAIN_COMPLETE": "bash_complete",
        "COMP_WORDS": "gputop-train attach ",
        "COMP_CWORD": "2",
        "GPUTOP_CONFIG": "",
    }
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert told.stdout.splitlines()[-1] == "[]"


def test_what_fails_at_a_tab_is_not_seen(tmp_path: Path) -> None:
    code = "from gputop_train import cli\ncli.main()"
    for asked in ("bash_complete", "bash_nonsense", "tcsh_complete"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env={"_GPUTOP_TRAIN_COMPLETE": asked},  # no words at all
        )
        assert (told.returncode, told.stdout, told.stderr) == (1, "", "")
