"""A hostile recording on a real terminal: its pages are drawn, and obeyed is nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gputop_train.model import Where
from gputop_train.tui.clipboard import Copy
from gputop_train.tui.pages import key_of
from gputop_train.tui.picture import portable
from gputop_train.tui.snapshot import View
from gputop_train.tui.widgets.verdict import advice_block
from tests.security.hostile import EVIL, disturbing, make_run, recording
from tests.terminal.screen_pty import Terminal
from tests.tui.driving import app_of, settle
from tests.tui.fakes import FakeSource, starved

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
    assert left.count("[link=file:") > 5, "the hostile words never came"
    # What a terminal's own line ends and our leaving it bring.
    assert not disturbing(left) - set("\r")
    assert "passwd" not in "".join(re.findall(r"\x1b\]8;[^\x1b\x07]*", written))


async def test_what_is_copied_does_nothing_where_it_is_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ESC [ 201 ~`` ends what a shell takes for pasted, and a line end then runs it."""
    hostile = f"one\x1b[201~\rrm -rf ~{EVIL}\ntwo"
    app = app_of("starved", run_dir=tmp_path)
    async with app.run_test() as pilot:
        await settle(pilot)
        monkeypatch.setattr(app, "to_copy", lambda _: Copy("Line", hostile, "line.txt"))
        app.action_copy()
        kept = (tmp_path / "line.txt").read_text()
        app.copy_to_clipboard(hostile)
    for copied in (kept, app.clipboard):
        assert copied.startswith("one?[201~ rm -rf ~") and copied.endswith("\ntwo")
        assert not disturbing(copied)


def test_the_advice_of_a_hostile_finding_has_no_lines_of_its_own() -> None:
    snap = starved(View())
    assert snap.diagnosis is not None and snap.diagnosis.verdict is not None
    plain = advice_block(snap)
    finding = snap.diagnosis.verdict
    evil = replace(
        finding,
        summary=EVIL,
        where=tuple(Where(EVIL, 1, EVIL) for _ in finding.where),
        advice=tuple(replace(advice, text=EVIL) for advice in finding.advice),
    )
    told = advice_block(replace(snap, diagnosis=replace(snap.diagnosis, verdict=evil)))
    assert told.count("\n") == plain.count("\n")
    assert "owned" in told and not disturbing(told)


async def test_a_picture_of_a_hostile_screen_is_words_and_nothing_else() -> None:
    source = FakeSource("starved")
    source.make = lambda view: replace(
        starved(view),
        run=replace(starved(view).run, name="<img onerror=y>&\"']]>"),
        log=(EVIL,),
        notes=(EVIL,),
    )
    app = app_of("starved", source=source)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        picture = portable(app.export_screenshot())
    drawn = ElementTree.fromstring(picture)
    tags = {element.tag.rpartition("}")[2] for element in drawn.iter()}
    assert tags <= {
        "svg",
        "style",
        "defs",
        "clipPath",
        "rect",
        "text",
        "tspan",
        "g",
        "circle",
        "title",
    }
    named = {name.rpartition("}")[2] for element in drawn.iter() for name in element.attrib}
    assert not {name for name in named if name.startswith("on") or name == "href"}
    assert "<img" in "".join(drawn.itertext()), "the hostile words are not there"
    assert not disturbing("".join(drawn.itertext()))
