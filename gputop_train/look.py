"""How the screen is to look, as a person asked for it; what opens a screen passes it on unread."""

from __future__ import annotations

from dataclasses import dataclass

#: Names of ``--theme``. ``auto`` goes by what the terminal says of itself.
THEMES = ("auto", "dark", "light", "ansi", "high-contrast")
#: Widths of the time axis, in seconds.
WINDOWS = (15, 30, 60, 120, 300, 900, 3600)
#: Repaints a second that make sense: slower looks stuck, faster than eyes are.
HZ_MIN, HZ_MAX = 0.2, 10.0


@dataclass(frozen=True, slots=True)
class Look:
    """Options of the screen.

    Attributes:
        theme: One of `THEMES`.
        mouse: Whether wheel and clicks are the screen's; else the terminal keeps them.
        window_s: Width of the time axis at the start, one of `WINDOWS`.
        hz: Repaints a second; ``None`` = as suits the terminal.
    """

    theme: str = "auto"
    mouse: bool = True
    window_s: int = 60
    hz: float | None = None
