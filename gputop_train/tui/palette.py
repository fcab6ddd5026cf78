"""Inks to colours, for each theme.

Blue tones are work of the training itself, warm tones are time lost, so the screen can be read by
temperature. Every colour has a second carrier (a word, a glyph or a position).
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

_DARK = {
    "text": "#c9d1d9",
    "strong": "bold #f0f3f6",
    "muted": "#8b96a5",
    "faint": "#4a5462",
    "good": "#63c088",
    "warn": "#e3a844",
    "critical": "#f0705c",
    "info": "#6cb2eb",
    "key": "bold #9cc4ee",
    "gpu": "#4fb8a8",
    "gpu_band": "#2c6a62",
    "cpu": "#6fa8dc",
    "cpu_band": "#3c5f80",
    "data_wait": "#f0883e",
    "h2d": "#d98fd0",
    "forward": "#6cb2eb",
    "backward": "#4a8bd6",
    "optimizer": "#93b8e0",
    "gpu_wait": "#4fb8a8",
    "sync": "#f0705c",
    "comm": "#b792ea",
    "checkpoint": "#e3c14f",
    "eval": "#8fd8a8",
    "logging": "#c79a6b",
    "gc": "#b38867",
    "compile": "#a79be0",
    "restart": "#9aa4b0",
    "other": "#76828f",
}

_LIGHT = {
    "text": "#24292f",
    "strong": "bold #0b0f14",
    "muted": "#5b6570",
    "faint": "#a8b1bb",
    "good": "#1a7f43",
    "warn": "#9a6200",
    "critical": "#c0301c",
    "info": "#0b62b3",
    "key": "bold #0b4f91",
    "gpu": "#0d8373",
    "gpu_band": "#7fbfb5",
    "cpu": "#2a6db0",
    "cpu_band": "#93b6d8",
    "data_wait": "#c4560a",
    "h2d": "#9b3f91",
    "forward": "#2374c6",
    "backward": "#0f4f9e",
    "optimizer": "#5a8ac4",
    "gpu_wait": "#0d8373",
    "sync": "#c0301c",
    "comm": "#6f42c1",
    "checkpoint": "#8a6d00",
    "eval": "#2c8a4b",
    "logging": "#8a5a2b",
    "gc": "#7a5238",
    "compile": "#5b4bb0",
    "restart": "#6a737d",
    "other": "#7d8792",
}


# Only what every terminal has, in the colours its owner gave them, on whatever background there is:
# so no white, no black, and plain text in the terminal's own colour. Yellow and bright colours are
# the ones that differ most between schemes; nothing rests on telling them apart.
_ANSI = {
    "text": "default",
    "strong": "bold default",
    "muted": "default",
    "faint": "dim default",
    "good": "green",
    "warn": "bold yellow",
    "critical": "bold red",
    "info": "cyan",
    "key": "bold cyan",
    "gpu": "cyan",
    "gpu_band": "dim cyan",
    "cpu": "bright_blue",
    "cpu_band": "dim bright_blue",
    "data_wait": "yellow",
    "h2d": "magenta",
    "forward": "bright_blue",
    "backward": "blue",
    "optimizer": "cyan",
    "gpu_wait": "bright_cyan",
    "sync": "red",
    "comm": "bright_magenta",
    "checkpoint": "bright_yellow",
    "eval": "green",
    "logging": "bright_red",
    "gc": "red",
    "compile": "magenta",
    "restart": "bright_green",
    "other": "dim default",
}

# On black, with at least 7:1 for everything that is read (WCAG 2.2, success criterion 1.4.6).
_HIGH_CONTRAST = {
    "text": "#ffffff",
    "strong": "bold #ffffff",
    "muted": "#d8d8d8",
    "faint": "#a0a0a0",
    "good": "#4dff88",
    "warn": "bold #ffd000",
    "critical": "bold #ff8a80",
    "info": "#7fd4ff",
    "key": "bold #ffff66",
    "gpu": "#40e0d0",
    "gpu_band": "#2aa198",
    "cpu": "#7fb8ff",
    "cpu_band": "#5a8fd6",
    "data_wait": "#ff9d3c",
    "h2d": "#ff9df5",
    "forward": "#7fd4ff",
    "backward": "#70a8ff",
    "optimizer": "#b8d4ff",
    "gpu_wait": "#40e0d0",
    "sync": "#ff8a80",
    "comm": "#cda8ff",
    "checkpoint": "#ffe45c",
    "eval": "#8fffb0",
    "logging": "#ffc48a",
    "gc": "#e0b090",
    "compile": "#c0b8ff",
    "restart": "#d8d8d8",
    "other": "#c0c0c0",
}

#: Inks by theme; ``high-contrast`` and the like are what ``--theme`` takes.
PALETTES: Mapping[str, Mapping[str, str]] = {
    "dark": _DARK,
    "light": _LIGHT,
    "ansi": _ANSI,
    "high-contrast": _HIGH_CONTRAST,
}


def palette(theme: str) -> Mapping[str, Style]:
    """Styles by ink. Unknown inks are drawn as plain text by the caller."""
    inks = PALETTES.get(theme, _DARK)
    return {ink: Style.parse(spec) for ink, spec in inks.items()}
