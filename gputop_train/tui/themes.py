"""The colour themes: what is behind the inks, and which one suits a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping

from rich.console import Console
from textual.theme import BUILTIN_THEMES, Theme

THEMES = (
    Theme(
        "dark",
        primary="#6cb2eb",
        warning="#e3a844",
        error="#f0705c",
        success="#63c088",
        foreground="#c9d1d9",
        background="#0e1217",
        surface="#161c24",
        panel="#1d2530",
    ),
    Theme(
        "light",
        primary="#0b62b3",
        warning="#9a6200",
        error="#c0301c",
        success="#1a7f43",
        foreground="#24292f",
        background="#fbfcfd",
        surface="#eef1f4",
        panel="#e3e8ed",
        dark=False,
    ),
    Theme(
        "ansi",
        ansi=True,
        primary="ansi_cyan",
        secondary="ansi_blue",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        accent="ansi_cyan",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables=dict(BUILTIN_THEMES["ansi-dark"].variables),
    ),
    Theme(
        "high-contrast",
        primary="#ffff66",
        warning="#ffd000",
        error="#ff8a80",
        success="#4dff88",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#202020",
    ),
)
#: What the palette of commands says of each.
WORDS: Mapping[str, str] = {
    "dark": "Colours for a dark terminal",
    "light": "Colours for a light terminal",
    "ansi": "The terminal's own 16 colours",
    "high-contrast": "White on black, colours of at least 7:1",
}


def chosen(asked: str = "auto", environ: Mapping[str, str] | None = None) -> str:
    """The theme to begin with.

    A terminal that says of itself no more than 16 colours gets those; one that says that its
    background is light gets the light theme. Others say nothing, and most of them are dark.

    Args:
        asked: ``--theme``.
        environ: The environment.
    """
    env = os.environ if environ is None else environ
    if asked != "auto":
        return asked
    # Rich translates colours for Textual, so it is asked how many there are.
    system = env.get("TEXTUAL_COLOR_SYSTEM", "auto")
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system=None if system != "auto" else "auto",
        _environ=env,
    )
    if (console.color_system if system == "auto" else system) == "standard":
        return "ansi"
    # As rxvt, Konsole and others set it: foreground;background, numbers of the 16 colours.
    background = env.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"
