"""A hostile recording on a real terminal: its pages are drawn, and obeyed is nothing."""

from __future__ import annotations

import re
from pathlib import Path

from gputop_train.tui.pages import key_of
from tests.security.hostile import disturbing, make_run, recording
from tests.terminal.screen_pty import Terminal

CLI = "import sys; from gputop_train.cli import main; main(sys.argv[1:])"
#: What the screen itself says to the terminal: control sequences, character sets, keypad, pointer.
_OWN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78]|\]22;[a-z-]*(?:\x07|\x1b\\))")


def test_the_pages_of_a_hostile_recording_are_drawn_and_none_of_it_is_obeyed(
    tmp_path: Path,
) -> None:
    file = recording(make_run(tmp_path / "runs" / "3f2a91"), tmp_path / "evil.zip")
    with Terminal(CLI, "replay", str(file)) as terminal:
        terminal.wait_for("[1 overview]")
        for name in ("lines", "memory", "devices", "findings", "log"):
            terminal.type(key_of(name))
            terminal.wait_for(f"[{key_of(name)} {name}]")
            terminal.wait_for("owned")  # each shows the run's name at least
        terminal.type("?")
        terminal.wait_for("On every page")
        terminal.type("\x1b")
        terminal.wait_for(lambda text: "On every page" not in text, "the help gone")
        terminal.type("q")
        assert terminal.wait_exit() == 0
        assert terminal.restored()
        written = terminal.raw.decode()
    left = _OWN.sub("", written)
    assert left.count("[link=file:") > 20, "the hostile words never came"
    # What a terminal's own line ends and our leaving it bring.
    assert not disturbing(left) - set("\r")
    assert "passwd" not in "".join(re.findall(r"\x1b\]8;[^\x1b\x07]*", written))
