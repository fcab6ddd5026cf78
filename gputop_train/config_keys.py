"""What a person can keep in the config file: every key with the values it takes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from gputop_train.look import HZ_MAX, HZ_MIN, THEMES, WINDOWS

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True}
_BOOLEANS |= {"false": False, "no": False, "off": False, "0": False}

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that can be kept.

    Attributes:
        name: In the file; ``GPUTOP_NAME`` is its variable.
        param: The parameter of click that it is the default of.
        default: What holds when nobody says anything; ``None`` = nothing in particular.
        allowed: The values it takes, in words that follow "it takes".
        check: Gives the value from TOML as it is used; raises `ValueError` where it is not allowed.
        read: Makes a variable's text a value of TOML; raises `ValueError`.
        note: For a person who fills the file in.
    """

    name: str
    param: str
    default: Value | None
    allowed: str
    check: Callable[[object], Value]
    read: Callable[[str], object]
    note: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"GPUTOP_{self.name.upper()}"


def _one_of(names: tuple[str, ...]) -> Callable[[object], Value]:
    def check(value: object) -> Value:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    return check


def _switch(value: object) -> Value:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _number(low: float, high: float, *, above: bool = False) -> Callable[[object], Value]:
    def check(value: object) -> Value:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        if not math.isfinite(value) or not low <= value <= high or (above and value == low):
            raise ValueError
        return float(value)

    return check


def _whole(low: int, high: int, among: tuple[int, ...] = ()) -> Callable[[object], Value]:
    def check(value: object) -> Value:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        if not low <= value <= high or (among and value not in among):
            raise ValueError
        return value

    return check


def _place(value: object) -> Value:
    if not isinstance(value, str) or "\0" in value or not value:
        raise ValueError
    # A relative one would be another place in every working directory.
    place = os.path.expanduser(value)  # noqa: PTH111 - Path.expanduser raises without a home
    if not os.path.isabs(place):  # noqa: PTH117
        raise ValueError
    return place


def _boolean(text: str) -> object:
    return _BOOLEANS.get(text.lower(), text)


_A_PLACE = "an absolute path; ~ is your home"

KEYS = (
    Key(
        "theme",
        "theme",
        "auto",
        f"one of {', '.join(THEMES)}",
        _one_of(THEMES),
        str,
        "Colours of the screen; auto goes by the terminal. NO_COLOR has the last word.",
    ),
    Key(
        "ascii",
        "ascii_only",
        False,
        "true or false",
        _switch,
        _boolean,
        "Draw with ASCII characters only. Chosen by itself where the terminal needs it.",
    ),
    Key(
        "mouse",
        "mouse",
        True,
        "true or false",
        _switch,
        _boolean,
        "false leaves wheel, clicks and selecting text to the terminal.",
    ),
    Key(
        "window",
        "window",
        60,
        f"one of {', '.join(map(str, WINDOWS))}",
        _whole(WINDOWS[0], WINDOWS[-1], WINDOWS),
        int,
        "Seconds the time axis covers when the screen opens.",
    ),
    Key(
        "hz",
        "hz",
        None,
        f"a number from {HZ_MIN:g} to {HZ_MAX:g}",
        _number(HZ_MIN, HZ_MAX),
        float,
        "Repaints a second. Without it 4, and 2 over SSH.",
    ),
    Key(
        "run_root",
        "run_root",
        None,
        _A_PLACE,
        _place,
        str,
        "Where runs are kept.",
    ),
    Key(
        "keep_runs",
        "keep_runs",
        50,
        "a whole number from 1 on",
        _whole(1, 10**9),
        int,
        "How many runs without a name stay; older ones are removed when a run ends.",
    ),
    Key(
        "keep_gb",
        "keep_gb",
        5.0,
        "a number above 0",
        _number(0, 1e9, above=True),
        float,
        "How many GB they may take together.",
    ),
    Key(
        "overhead_budget",
        "overhead_budget",
        1.0,
        "a number above 0, to 100",
        _number(0, 100, above=True),
        float,
        "What watching may cost, in percent of a step.",
    ),
    Key(
        "burst",
        "may_burst",
        True,
        "true or false",
        _switch,
        _boolean,
        "false: never trace three steps unless asked for.",
    ),
    Key(
        "python",
        "python",
        None,
        _A_PLACE,
        _place,
        str,
        "The interpreter that runs scripts.",
    ),
    Key(
        "price_per_hour",
        "price_per_hour",
        None,
        "a number above 0",
        _number(0, 1e9, above=True),
        float,
        "What this machine costs; trial and compare then say what a million samples cost.",
    ),
)
BY_NAME = {key.name: key for key in KEYS}


def toml(value: Value | None) -> str:
    """A value as the file would have it; empty for none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in quoted) + '"'
    return f"{value:g}" if isinstance(value, float) else str(value)
