"""The palette finds every key's action by name; what is in front can be copied; themes."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from textual.binding import Binding

from gputop_train.look import THEMES
from gputop_train.tui import clipboard, pages, themes
from gputop_train.tui.application import GputopApp
from gputop_train.tui.palette import PALETTES
from gputop_train.tui.screens import texts
from gputop_train.tui.screens.compare import Compare
from gputop_train.tui.screens.settings import Settings
from gputop_train.tui.screens.trial import Trial

from . import trials
from .driving import app_of, lines, settle, until
from .fakes import RUN
from .made_findings import FindingsSource
from .made_lines import LinesSource
from .test_changing import two_runs

SIZE = (120, 40)
#: Keys that go from page to page, each of which has a name of its own.
TURNS = {"page", "turn"}
#: Keys that move in what is shown.
MOVES = {"up", "down", "left", "right", "pageup", "pagedown", "home", "end", "escape", *"hjkl"}


async def named(app: GputopApp) -> dict[str, str]:
    """Titles of the palette's commands with the action of each."""
    found = app.get_system_commands(app.screen)
    return {command.title: command.callback.args[0] for command in found}  # type: ignore[attr-defined]


@pytest.mark.parametrize("state", ["starved", "replay"])
async def test_every_key_of_the_app_has_a_name_in_the_palette(state: str) -> None:
    app = app_of(state, run=RUN)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        actions = set((await named(app)).values())
        for kind in GputopApp.__mro__:
            if not kind.__module__.startswith("gputop_train"):
                continue
            for binding in vars(kind).get("BINDINGS", []):
                assert isinstance(binding, Binding)
                name = binding.action.partition("(")[0]
                if name in TURNS or (name in ("seek", "speed") and state != "replay"):
                    continue
                assert binding.action in actions, binding


async def test_pages_themes_and_the_keys_of_the_page_in_front_are_found() -> None:
    app = app_of("starved", run=RUN)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for name, page in pages.by_name().items():
            app.action_page(name)
            await until(pilot, lambda name=name: app.screen is app.front and name == app.front.NAME)
            titles = await named(app)
            assert {f"Page: {name}" for name in pages.by_name()} <= set(titles)
            assert {f"Theme: {name}" for name in PALETTES} <= set(titles)
            for binding in vars(page).get("BINDINGS", []):
                made = binding if isinstance(binding, Binding) else Binding(*binding)
                if not MOVES.issuperset(made.key.split(",")):
                    assert made.action in titles.values(), made


async def test_the_bar_names_what_is_copied_on_each_page() -> None:
    app = app_of("starved", run=RUN)
    async with app.run_test(size=(240, 40)) as pilot:
        await settle(pilot)
        for name, page in pages.by_name().items():
            app.action_page(name)
            await until(pilot, lambda name=name: app.screen is app.front and name == app.front.NAME)
            words = f" y copy {page.COPIES} "
            await until(pilot, lambda words=words: any(words in line for line in lines(app)[-1:]))
            assert (page.COPIES == "advice") == ("to_copy" not in vars(page))


async def test_a_command_chosen_by_name_does_what_the_key_does() -> None:
    app = app_of("starved", run=RUN)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"settings")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Settings))
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"advice")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.choices))


async def test_a_theme_chosen_by_name_recolours_the_page_in_front() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for name in PALETTES:
            await app.run_action(f"theme('{name}')")
            await pilot.pause()
            assert app.front._header.inks == app.inks
            assert app.current_theme.name == name


async def test_the_help_begins_with_the_keys_of_the_page_in_front() -> None:
    app = app_of("replay")
    async with app.run_test(size=(120, 60)) as pilot:
        await settle(pilot)
        for name, page in pages.by_name().items():
            app.action_page(name)
            await until(pilot, lambda name=name: app.screen is app.front and name == app.front.NAME)
            await pilot.press("question_mark")
            await until(pilot, lambda: any("On every page" in line for line in lines(app)))
            shown = "\n".join(lines(app))
            assert (f"On this page: {name}" in shown) == bool(page.KEYS)
            assert all(means in shown for _, means in page.KEYS)
            assert "In a replay" in shown
            await pilot.press("escape")
            await pilot.pause()


def test_every_page_is_described() -> None:
    assert set(texts.PAGES) == set(pages.names())


async def copied(app: GputopApp, pilot: object, word: str) -> str:
    await pilot.press("y")  # type: ignore[attr-defined]
    await until(pilot, lambda: any(f"{word} copied" in line for line in lines(app)))  # type: ignore[arg-type]
    return app.clipboard


async def test_settings_copy_their_command_line(tmp_path: Path) -> None:
    app = app_of("starved", run=RUN, run_dir=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t", "a")
        await until(pilot, lambda: isinstance(app.screen, Settings))
        text = await copied(app, pilot, "Command")
    assert text.startswith("gputop-train --set ")
    assert (tmp_path / "next-run.txt").read_text() == text
    assert (tmp_path / "next-run.txt").stat().st_mode & 0o777 == 0o600


async def test_a_trial_copies_its_table(tmp_path: Path) -> None:
    place = trials.write(tmp_path, trials.done())
    app = app_of("ended", run=RUN, run_dir=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        app.watch_trial(place)
        await until(pilot, lambda: isinstance(app.screen, Trial) and app.screen.page is not None)
        text = await copied(app, pilot, "Table")
    rows = text.splitlines()
    assert any(row.startswith(" baseline") for row in rows)
    assert all(row == row.rstrip() for row in rows)
    assert (tmp_path / "trial.txt").read_text() == text


async def test_a_comparison_is_copied_as_markdown(tmp_path: Path) -> None:
    two_runs(tmp_path)
    app = app_of("ended", run=RUN, root=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        app._compare(tmp_path, ("aaaaaa", "bbbbbb"))
        await until(pilot, lambda: isinstance(app.screen, Compare))
        await until(pilot, lambda: app.to_copy(app.screen) is not None)
        text = await copied(app, pilot, "Comparison")
    assert "|---" in text.replace(" ", "")


async def test_a_line_copies_its_place_and_a_finding_its_grounds(tmp_path: Path) -> None:
    app = app_of("starved", run_dir=tmp_path, source=LinesSource("starved", "whole"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("3")
        await until(pilot, lambda: app.to_copy(app.screen).what == "Place")  # type: ignore[union-attr]
        place = await copied(app, pilot, "Place")
    assert re.fullmatch(r"/\S+\.py:\d+", place)
    app = app_of("starved", run_dir=tmp_path, source=FindingsSource("starved", "changing"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("8")
        await until(pilot, lambda: app.to_copy(app.screen).what == "Finding")  # type: ignore[union-attr]
        finding = await copied(app, pilot, "Finding")
    assert "train.py:41" in finding
    assert (tmp_path / "finding.txt").read_text() == finding


async def test_what_is_too_long_for_a_clipboard_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipboard, "MOST_BYTES", 20)
    app = app_of("starved", run_dir=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("y")
        await until(pilot, lambda: any("too long for a clipboard" in line for line in lines(app)))
        assert app.clipboard == ""
    assert (tmp_path / "advice.txt").stat().st_size > 20


def test_the_clipboard_is_wrapped_for_what_lies_between_and_only_there() -> None:
    text = "num_workers 2 → 7\n" * 40
    coded = base64.b64encode(text.encode()).decode()
    assert clipboard.wrapped(text, {}) == ""
    assert clipboard.wrapped(text, {"TMUX": "/tmp/tmux-0/default,1,0"}) == (
        f"\x1bPtmux;\x1b\x1b]52;c;{coded}\a\x1b\\"
    )
    pieces = clipboard.wrapped(text, {"STY": "1.pts-0"}).split("\x1b\\")
    assert pieces.pop() == ""
    assert all(piece.startswith("\x1bP") and len(piece) < 768 for piece in pieces)
    assert "".join(piece[2:] for piece in pieces) == f"\x1b]52;c;{coded}\a"


@pytest.mark.parametrize(
    ("environ", "theme"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "dark"),
        ({"TERM": "xterm-256color"}, "dark"),
        ({"TERM": "xterm"}, "ansi"),
        ({"TERM": "linux"}, "ansi"),
        ({"TERM": "screen"}, "ansi"),
        ({"TERM": "xterm-16color"}, "ansi"),
        ({"TERM": "xterm", "COLORTERM": "24bit"}, "dark"),
        ({"TERM": "xterm-256color", "COLORFGBG": "0;15"}, "light"),
        ({"TERM": "xterm-256color", "COLORFGBG": "15;default;0"}, "dark"),
        ({"TERM": "xterm", "COLORFGBG": "0;15"}, "ansi"),
        ({"TERM": "xterm-256color", "TEXTUAL_COLOR_SYSTEM": "standard"}, "ansi"),
    ],
)
def test_the_terminal_says_which_theme_suits_it(environ: dict[str, str], theme: str) -> None:
    assert themes.chosen("auto", environ) == theme
    assert themes.chosen("light", environ) == "light"


def test_every_name_of_the_option_is_a_theme_with_every_ink() -> None:
    assert set(THEMES) == {"auto", *PALETTES} == {"auto", *themes.WORDS}
    assert [theme.name for theme in themes.THEMES] == list(PALETTES)
    assert len({frozenset(inks) for inks in PALETTES.values()}) == 1


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


#: Inks of words; the others draw, where 3:1 is asked for (1.4.11), or only separate.
WORDS = ("text", "strong", "muted", "good", "warn", "critical", "info", "key")
ONLY_SEPARATES = {"faint", "gpu_band", "cpu_band"}


@pytest.mark.parametrize(
    ("theme", "words", "drawn"), [("dark", 4.5, 3), ("light", 4.5, 3), ("high-contrast", 7, 7)]
)
def test_every_ink_stands_out_from_its_background(theme: str, words: float, drawn: float) -> None:
    background = next(t.background for t in themes.THEMES if t.name == theme)
    assert background
    for ink, spec in PALETTES[theme].items():
        found = contrast(spec.split()[-1], background)
        if ink in ONLY_SEPARATES and theme != "high-contrast":
            continue
        assert found >= (words if ink in WORDS else 3 if ink in ONLY_SEPARATES else drawn), (
            ink,
            found,
        )


def test_the_ansi_theme_uses_nothing_but_the_sixteen_colours() -> None:
    for spec in PALETTES["ansi"].values():
        assert "#" not in spec
        assert "white" not in spec and "black" not in spec
