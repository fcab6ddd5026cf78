"""Themes, mouse and clipboard in a real terminal, by options, variables and the config file."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.terminal.screen_pty import Terminal, home
from tests.tui.made_run import START, S, exit_json, run_json, write_store

REPLAY = """
import sys
sys.path.insert(0, sys.argv[1])
from gputop_train.cli import main
main(["replay", *sys.argv[2:]])
"""
#: Colours beyond the 16 that every terminal has: 256 of them, or any.
MANY = re.compile(rb"[34]8;[25];")
MOUSE = b"\x1b[?1000h"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    place = tmp_path / "runs" / "3f2a9c"
    place.mkdir(parents=True)
    run_json(place)
    write_store(place)
    exit_json(place, START + 60 * S)
    return place


def replayed(run_dir: Path, *options: str, **env: str) -> Terminal:
    return Terminal(REPLAY, str(home()), *options, f"{run_dir}/", env={"GPUTOP_CONFIG": "", **env})


def shown(terminal: Terminal) -> str:
    """The screen at the end of the replay."""
    terminal.wait_for("replay")
    terminal.type("\x1b[F")
    return terminal.wait_for("STARVED")


def seen(terminal: Terminal) -> bytes:
    """Everything written until the screen was left again."""
    shown(terminal)
    terminal.type("q")
    assert terminal.wait_exit() == 0
    assert terminal.restored()
    return bytes(terminal.raw)


def test_a_terminal_of_16_colours_gets_no_others(run_dir: Path) -> None:
    with replayed(run_dir, TERM="xterm", COLORTERM="") as terminal:
        raw = seen(terminal)
    assert not MANY.search(raw)
    assert re.search(rb"\x1b\[[\d;]*3[1-6]", raw)  # but those


def test_the_mouse_is_taken_and_given_back_and_left_alone_if_asked(run_dir: Path) -> None:
    with replayed(run_dir) as terminal:
        raw = seen(terminal)
    assert MANY.search(raw)
    assert MOUSE in raw
    # Moves are not asked for: nothing follows the pointer.
    assert raw.rfind(MOUSE) > raw.find(b"\x1b[?1003l") > raw.rfind(b"\x1b[?1003h") > 0
    assert raw.rfind(b"\x1b[?1000l") > raw.rfind(MOUSE)
    with replayed(run_dir, "--no-mouse", "--theme", "ansi") as terminal:
        raw = seen(terminal)
    assert MOUSE not in raw
    assert not MANY.search(raw)


def test_the_config_file_dresses_the_screen(run_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('theme = "light"\nmouse = false\nascii = true\nwindow = 15\n')
    config.chmod(0o600)
    with replayed(run_dir, GPUTOP_CONFIG=str(config)) as terminal:
        text = shown(terminal)
        raw = seen(terminal)
    assert MOUSE not in raw
    assert b"48;2;251;252;253" in raw  # the light theme's background
    assert text.isascii()
    assert " 45s " in text.replace("+", " ").replace("-", " ")  # of a minute, the last 15 s


def test_a_wrong_config_file_is_told_before_the_screen_opens(run_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('theme = "pink"\n')
    config.chmod(0o600)
    with replayed(run_dir, GPUTOP_CONFIG=str(config)) as terminal:
        assert terminal.wait_exit() == 2
        assert 'has theme = "pink"' in " ".join(terminal.text.split())
        assert b"\x1b[?1049h" not in terminal.raw


TMUX = """
import os, shlex, sys
folder, conf, *command = sys.argv[1:]
os.environ.pop("TMUX", None)
os.execvp("tmux", ["tmux", "-S", folder + "/socket", "-f", conf, "new-session", "-x", "120",
                   "-y", "40", shlex.join([sys.executable, "-c", *command])])
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("way", ["set-clipboard", "allow-passthrough"])
def test_what_is_copied_reaches_the_terminal_around_tmux(
    way: str, run_dir: Path, tmp_path: Path
) -> None:
    conf = tmp_path / "tmux.conf"
    conf.write_text(f"set -g set-clipboard off\nset -g {way} on\n")
    env = {"GPUTOP_CONFIG": "", "TMUX_TMPDIR": str(tmp_path), "LC_ALL": "C.UTF-8"}
    inside = (REPLAY, str(home()), f"{run_dir}/")
    with Terminal(TMUX, str(tmp_path), str(conf), *inside, env=env) as terminal:
        try:
            shown(terminal)
            terminal.type("y")
            terminal.wait_for("Advice copied")
            advice = (run_dir / "advice.txt").read_bytes()
            wanted = base64.b64encode(advice)
            terminal.wait_for(lambda _: wanted in bytes(terminal.raw), "OSC 52 in what tmux writes")
        finally:
            subprocess.run(
                ["tmux", "-S", f"{tmp_path}/socket", "kill-server"],
                check=False,
                env={**os.environ, "TMUX": ""},
            )
