"""Numbers as people read them. Pure; one place so that the screen speaks with one voice."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from gputop_train.model import LABELS
from gputop_train.report.format import whole_seconds

#: Words for the labels of host time: the long one where there is room, the short one elsewhere.
LABEL_WORDS: dict[str, tuple[str, str]] = {
    "data_wait": ("data wait", "data"),
    "h2d": ("H2D copy", "h2d"),
    "forward": ("forward", "fwd"),
    "backward": ("backward", "bwd"),
    "optimizer": ("optimizer", "opt"),
    "gpu_wait": ("GPU wait", "gpu"),
    "sync": ("host sync", "sync"),
    "comm": ("comm", "comm"),
    "checkpoint": ("checkpoint", "save"),
    "eval": ("evaluation", "eval"),
    "logging": ("logging", "log"),
    "gc": ("gc", "gc"),
    "compile": ("compile", "comp"),
    "restart": ("restart", "rest"),
    "other": ("other", "other"),
}
assert set(LABEL_WORDS) == set(LABELS)


def label_word(label: str, *, short: bool = False) -> str:
    """A label of host time in words; unknown labels are shown as they are."""
    words = LABEL_WORDS.get(label)
    return words[1 if short else 0] if words else label.replace("_", " ")


def run_title(run: Mapping[str, Any]) -> str:
    """What runs, by ``run.json``: the script's name, else the command; empty if neither is told."""
    script = run.get("script")
    if isinstance(script, str) and script:
        return PurePath(script).name
    return " ".join(str(word) for word in run.get("command") or [])


def duration(seconds: float) -> str:
    """A span of wall time: ``42s``, ``4m12s``, ``3h05m``, ``2d04h``."""
    if not math.isfinite(seconds):
        return "?"
    return whole_seconds(max(0, int(seconds)))


def moment(seconds: float) -> str:
    """A time of the run, to a tenth of a second where steps can be that short: ``34.2s``."""
    return f"{max(0.0, seconds):.1f}s" if seconds < 59.95 else duration(seconds)


def wall_time(wall_ns: int | None, now_ns: int, *, short: bool = False) -> str:
    """When something began, by the wall clock: the time, with the date unless that is today's.

    ``short`` leaves the time out where there is a date.
    """
    if wall_ns is None:
        return "-"
    try:
        then, today = time.localtime(wall_ns / 1e9), time.localtime(now_ns / 1e9)
    except (OverflowError, OSError, ValueError):
        return "-"
    same = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    day = "%Y-%m-%d" if short else "%Y-%m-%d %H:%M"
    return time.strftime("%H:%M:%S" if same else day, then)


def milliseconds(ms: float) -> str:
    """A step or a part of one: ``0.42 ms``, ``8.3 ms``, ``268 ms``, ``1.32 s``."""
    if ms >= 9_995:
        return f"{ms / 1000:,.1f} s"
    if ms >= 999.5:
        return f"{ms / 1000:.2f} s"
    if ms >= 99.5:
        return f"{ms:.0f} ms"
    if ms >= 0.995:
        return f"{ms:.1f} ms"
    return f"{ms:.2f} ms"


def compact_ms(ms: float) -> str:
    """Milliseconds where there is no room for a unit: ``0.42``, ``8.3``, ``268``; ``1.3s``."""
    if ms >= 999.5:
        seconds = ms / 1000
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    return f"{ms:.0f}" if ms >= 9.95 else f"{ms:.1f}" if ms >= 0.995 else f"{ms:.2f}"


def gib(count: float, total: float | None = None) -> str:
    """Bytes without their unit, in the unit that suits ``total`` (or the number itself)."""
    divisor, _ = _unit(total if total is not None else count)
    value = count / divisor
    return f"{value:.0f}" if value >= 999.5 else f"{value:.1f}"


def byte_unit(count: float) -> str:
    """The unit `gib` uses for a number of bytes."""
    return _unit(count)[1]


def _unit(count: float) -> tuple[float, str]:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(count) >= 1024**power:
            return float(1024**power), unit
    return 1.0, "B"


def size(count: float) -> str:
    """Bytes with their unit: ``41.2 GiB``."""
    divisor, unit = _unit(count)
    value = count / divisor
    if unit == "B":
        return f"{value:.0f} B"
    return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.1f} {unit}"


def count(number: int) -> str:
    """A count with thousands separators."""
    return f"{number:,}"


def rate(per_s: float) -> str:
    """A rate in digits worth reading: ``3.71``, ``412``, ``1,150``, ``62.8k``, ``1.19M``."""
    for divisor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_s >= 0.9995 * divisor and per_s >= 9_999.5:
            return f"{_three(per_s / divisor)}{unit}"
    return f"{per_s:,.0f}" if per_s >= 999.5 else _three(per_s)


def _three(value: float) -> str:
    """Three digits, the last of them rounded."""
    return (
        f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


def factor(number: float) -> str:
    """A speed-up: ``2.8x``."""
    return f"{number:.1f}x" if number < 9.95 else f"{number:.0f}x"


def percent(share: float) -> str:
    """A share of 0..1 in whole percent; ``<1%`` for what would round to nothing."""
    value = share * 100
    return "<1%" if 0 < value < 0.5 else f"{value:.0f}%"
