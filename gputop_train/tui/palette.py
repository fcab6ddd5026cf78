"""Inks to colours, for dark and light terminals.

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


def palette(*, dark: bool) -> Mapping[str, Style]:
    """Styles by ink. Unknown inks are drawn as plain text by the caller."""
    return {ink: Style.parse(spec) for ink, spec in (_DARK if dark else _LIGHT).items()}
