"""The config file: what it may say, who wins, and what is told of one that makes no sense."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_train import cli, config
from gputop_train.config import ConfigProblem, Held
from gputop_train.config_keys import KEYS
from tests.unprivileged import NOBODY, open_to_all, run_as_nobody


def written(place: Path, text: str | bytes, mode: int = 0o600) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    place.chmod(mode)
    return place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file is to be, for this process and every command."""
    monkeypatch.delenv("GPUTOP_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for key in KEYS:
        monkeypatch.delenv(key.variable, raising=False)
    return tmp_path / "gputop-train" / "config.toml"


def told(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_without_a_file_the_defaults_hold(place: Path) -> None:
    assert {held.source for held in config.load().values()} == {"default"}


def test_every_key_is_read_as_what_it_is(place: Path) -> None:
    written(
        place,
        """
        theme = "light"
        ascii = true
        mouse = false
        window = 300
        hz = 1
        run_root = "~/runs"
        keep_runs = 200
        keep_gb = 12.5
        overhead_budget = 2
        burst = false
        python = "/opt/venv/bin/python"
        price_per_hour = 3.5
        """,
    )
    held = config.load({**os.environ, "HOME": "/home/me"})
    assert {entry.source for entry in held.values()} == {"config"}
    assert held["window"].value == 300
    assert held["hz"].value == 1.0
    assert held["run_root"].value == os.path.expanduser("~/runs")
    assert set(held) == {key.name for key in KEYS}


def test_the_environment_wins_over_the_file(place: Path) -> None:
    written(place, 'theme = "light"\nmouse = true\n')
    held = config.load({**os.environ, "GPUTOP_THEME": "ansi", "GPUTOP_MOUSE": "off"})
    assert held["theme"] == Held("ansi", "environment")
    assert held["mouse"] == Held(False, "environment")


def test_the_command_line_wins_over_both(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    monkeypatch.setattr(cli, "run_front", lambda options: seen.append(options) or 0)
    written(place, 'theme = "light"\nascii = true\nhz = 1\noverhead_budget = 3\n')
    monkeypatch.setenv("GPUTOP_HZ", "2")
    assert told("--theme", "dark", "--no-ascii", "train.py") == 0
    (options,) = seen
    assert (options.look.theme, options.ascii) == ("dark", False)
    assert (options.look.hz, options.overhead_budget_pct) == (2.0, 3.0)


def test_what_stays_of_old_runs_reaches_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(cli, "run_front", lambda options: seen.append(options) or 0)
    written(place, "keep_runs = 7\nkeep_gb = 1\n")
    assert told("train.py") == 0
    assert (seen[0].keep_runs, seen[0].keep_gb) == (7, 1.0)


WRONG = [
    ('theme = "blue"', "theme", "one of auto, dark"),
    ("theme = 3", "theme", "one of auto, dark"),
    ('ascii = "yes"', "ascii", "true or false"),
    ("mouse = 1", "mouse", "true or false"),
    ("window = 61", "window", "one of 15, 30"),
    ("window = true", "window", "one of 15, 30"),
    ("hz = 0", "hz", "from 0.2 to 10"),
    ("hz = nan", "hz", "from 0.2 to 10"),
    ('run_root = "runs"', "run_root", "an absolute path"),
    ('run_root = ""', "run_root", "an absolute path"),
    ("keep_runs = 0", "keep_runs", "from 1 on"),
    ("keep_runs = 2.5", "keep_runs", "from 1 on"),
    ("keep_gb = inf", "keep_gb", "above 0"),
    ("overhead_budget = 101", "overhead_budget", "above 0, to 100"),
    ("overhead_budget = 0", "overhead_budget", "above 0, to 100"),
    ("python = []", "python", "an absolute path"),
    ("price_per_hour = -1", "price_per_hour", "above 0"),
    ("burst = 2024-01-01", "burst", "true or false"),
    ("colour = 1", "colour", "It knows theme"),
    ("over-head-budget = 1", "over-head-budget", "Did you mean overhead_budget?"),
    ("[screen]\ntheme = 'dark'", "screen", "without a table"),
    ("theme = dark", "not TOML", "line 1"),
    ("theme = 'dark'\ntheme = 'light'", "not TOML", "text in quotes"),
]


@pytest.mark.parametrize(("text", "names", "allowed"), WRONG)
def test_what_makes_no_sense_is_one_line_that_names_file_key_and_what_is_allowed(
    place: Path,
    text: str,
    names: str,
    allowed: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    written(place, text)
    script = written(tmp_path / "train.py", f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert told("--no-tui", "--run-root", str(tmp_path / "runs"), str(script)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"gputop-train: {place} ")
    assert said.count("\n") == 1
    assert names in said
    assert allowed in said
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "runs").exists()


def test_a_wrong_variable_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUTOP_WINDOW", "soon")
    assert told("train.py") == 2
    said = capsys.readouterr().err
    assert "GPUTOP_WINDOW is 'soon'" in said
    assert "one of 15, 30" in said


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_file_that_others_can_write_is_refused(place: Path, mode: int) -> None:
    written(place, 'theme = "dark"\n', mode)
    with pytest.raises(ConfigProblem, match="chmod 600"):
        config.load()


def test_a_file_of_somebody_else_is_refused(place: Path) -> None:
    theirs = Path("/etc/passwd")  # root's, and only root's to write
    if os.geteuid() == 0:
        theirs = written(place, 'python = "/tmp/evil"\n', 0o644)
        os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(ConfigProblem, match="belongs to another user"):
        config.load({"GPUTOP_CONFIG": str(theirs)})


READS = """
import sys
from gputop_train import config
try:
    print(config.read_file(config.Path(sys.argv[1])))
except config.ConfigProblem as problem:
    print(problem)
"""


def test_a_file_that_cannot_be_read_is_told(place: Path, tmp_path: Path) -> None:
    written(place, 'theme = "dark"\n', 0o000)
    if os.geteuid() == 0:  # whom every door is open to
        os.chown(place, NOBODY, NOBODY)
        open_to_all(place.parent)
        told = run_as_nobody(READS, str(place))
    else:
        told = subprocess.run(
            [sys.executable, "-c", READS, str(place)], capture_output=True, text=True, check=False
        )
    assert "cannot be read: Permission denied" in told.stdout, told.stderr


@pytest.mark.parametrize("kind", ["directory", "pipe", "large", "bytes"])
def test_what_is_no_config_file_is_refused_and_never_waited_for(place: Path, kind: str) -> None:
    place.parent.mkdir(parents=True)
    if kind == "directory":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place, 0o600)
    else:
        written(place, b"#" * 70_000 if kind == "large" else b'theme = "\xff"')
    with pytest.raises(ConfigProblem, match=re.escape(str(place))):
        config.load()


def test_a_link_to_a_file_of_ones_own_is_followed(place: Path, tmp_path: Path) -> None:
    mine = written(tmp_path / "dotfiles" / "gputop.toml", "window = 900\n")
    place.parent.mkdir()
    place.symlink_to(mine)
    assert config.load()["window"] == Held(900, "config")


def test_help_comes_even_with_a_broken_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(place, "theme = ")
    assert told("--help") == 0
    assert told("runs", "--help") == 0
    assert told("completion", "bash") == 0
    assert told("config") == 2


def test_a_variable_names_another_file_or_none(place: Path, tmp_path: Path) -> None:
    written(place, "theme = ")
    other = written(tmp_path / "other.toml", "window = 15\n")
    assert config.load({"GPUTOP_CONFIG": str(other)})["window"].value == 15
    assert config.load({"GPUTOP_CONFIG": ""})["window"].source == "default"


def test_a_home_for_config_that_is_not_absolute_is_ignored(tmp_path: Path) -> None:
    from gputop_train import paths

    found = paths.config_file({"XDG_CONFIG_HOME": "here"})
    assert found == Path(os.path.expanduser("~/.config/gputop-train/config.toml"))


def test_the_command_shows_what_holds_and_who_says_so(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(place, 'theme = "light"\n')
    monkeypatch.setenv("GPUTOP_HZ", "1")
    assert told("config") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{place}\n")
    assert re.search(r'^theme +"light" +config$', said, re.M)
    assert re.search(r"^hz +1 +GPUTOP_HZ$", said, re.M)
    assert re.search(r"^mouse +true +default$", said, re.M)


def test_the_file_that_is_written_sets_nothing_and_every_line_of_it_is_allowed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told("config", "--init") == 0
    assert place.stat().st_mode & 0o777 == 0o600
    assert config.read_file(place) == {}
    everything = re.sub(r"^#(\w+ = )", r"\1", place.read_text(), flags=re.M)
    written(place, everything)
    assert set(config.read_file(place)) == {key.name for key in KEYS}
    assert told("config", "--init") == 1
    assert "left as it is" not in place.read_text()
    assert place.read_text() == everything
    assert "was left as it is" in capsys.readouterr().err


def test_a_key_is_the_default_of_the_option_it_is_named_after_and_of_no_other() -> None:
    params = {key.param: key.name for key in KEYS}
    met = set()
    for command in [cli.launch_command, *cli.commands().values()]:
        for param in command.params:
            if param.name in params:
                assert f"--{params[param.name].replace('_', '-')}" in param.opts, command.name
                assert param.name != "burst"
                met.add(param.name)
    assert met == set(params)


def test_attach_traces_only_when_told_to_at_the_keyboard(place: Path) -> None:
    written(place, "burst = true\n")
    attach = cli.commands()["attach"]
    assert "burst" not in config.defaults(frozenset(param.name or "" for param in attach.params))
