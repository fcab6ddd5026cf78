"""What one line costs, in words. Pure."""

from __future__ import annotations

from gputop_train.report import format as fmt
from gputop_train.tui.text import label_word, milliseconds, percent
from gputop_train.tui.views.lines import EVALUATION, HOST_CODE, LOADER, WORKERS, Line, Part

#: Kinds beside the labels of host time: long word, short word, ink.
_WORDS = {
    HOST_CODE: ("host code", "host", "other"),
    LOADER: ("loader", "loader", "data_wait"),
    WORKERS: ("items", "items", "muted"),
}
#: Of wall; what is below reads as less than it.
TINY_SHARE, TINY_MS = 0.0005, 0.005
#: In place of a lower bound that says nothing.
NOT_TOLD = "-"
_AT_LEAST = "only calls over 20 us were counted by the release that recorded this run"


def kind_word(kind: str, *, short: bool = False) -> str:
    """A kind of cost in words."""
    if kind in _WORDS:
        return _WORDS[kind][short]
    return label_word(kind, short=short)


def kind_ink(kind: str) -> str:
    """Its colour."""
    return _WORDS[kind][2] if kind in _WORDS else kind


def share_text(share: float | None, *, estimated: bool = False, at_least: bool = False) -> str:
    """A share of wall time: ``53%``, ``~6.3%``, ``<0.1%``; empty where there is none."""
    if share is None:
        return ""
    if share < TINY_SHARE:
        return NOT_TOLD if at_least else "<0.1%"
    return _mark(estimated, at_least) + fmt.percent(share)


def _mark(estimated: bool, at_least: bool) -> str:
    return "~" if estimated else "≥" if at_least else ""


def time_text(ms: float | None, *, at_least: bool = False) -> str:
    """Host time; empty where there is none."""
    if ms is None:
        return ""
    if ms < TINY_MS:
        return NOT_TOLD if at_least else "<0.01 ms"
    return ("≥" if at_least else "") + milliseconds(ms)


def calls_text(calls: float | None, *, estimated: bool = False, at_least: bool = False) -> str:
    """Calls a step: ``1.0``, ``~1,024``, ``1 in 20``; empty where there are none."""
    if not calls:
        return ""
    mark = _mark(estimated, at_least)
    if calls < 0.095:
        return f"{mark}1 in {max(1, round(1 / calls)):,}"
    return mark + (f"{calls:,.0f}" if calls >= 99.5 else f"{calls:.1f}")


def rate_text(part: Part | None) -> str:
    """How fast a copy went; empty where no GPU event enclosed one."""
    return "" if part is None or part.gb_per_s is None else f"{part.gb_per_s:.3g} GB/s"


def moved_text(part: Part | None) -> str:
    """What one call moved or wrote; empty where that is not known."""
    return "" if part is None or part.bytes_each is None else fmt.size(part.bytes_each)


def kinds_text(line: Line, width: int) -> str:
    """The kinds of a line on so many cells, costliest first, whole words only."""
    parts = [part for part in line.parts if part.own] or list(line.parts[:1])
    for short in (False, True):
        words = [kind_word(part.kind, short=short) for part in parts]
        if len(text := " + ".join(words)) <= width:
            return text
    more = f" +{len(parts) - 1}" if len(parts) > 1 else ""
    long = kind_word(parts[0].kind) + more
    return long if len(long) <= width else (kind_word(parts[0].kind, short=True) + more)[:width]


def part_text(part: Part) -> str:
    """All that is known of one kind of cost, in a sentence of clauses."""
    if part.kind == WORKERS:
        where = f"in {part.workers} workers" if part.workers else "in the training process"
        each = f"{time_text(part.ms)} an item, made {where}"
        return f"{each}; {part.calls:,.0f} items so far" if part.calls else each
    if part.kind == LOADER:
        waits = f"training waits {time_text(part.ms)} a step for its batches"
        of = f", {percent(part.share)} of wall" if part.share is not None else ""
        return f"{waits}{of}; counted at the lines that wait"
    marks = {"estimated": part.estimated, "at_least": part.at_least}
    about = "~" if part.estimated else ""
    took = about + time_text(part.ms, at_least=part.at_least)
    out = [f"{took} a step, {share_text(part.share, **marks)} of wall"]
    if part.at_least:
        less = (part.share or 0.0) < TINY_SHARE
        out = [f"not measured: {_AT_LEAST}"] if less else [*out, _AT_LEAST]
    if part.kind == EVALUATION:
        out[0] += ", everything in it; counted at its own lines"
    if part.calls:
        calls = calls_text(part.calls, **marks)
        rare = part.calls < 0.095
        each = f", {time_text(part.each_ms)} each" if part.each_ms is not None else ""
        out.append((f"{calls} steps" if rare else f"{calls} calls a step") + each)
    if part.idle_ms is not None:
        out.append(f"GPU idle {time_text(part.idle_ms)} a step")
    if moved := moved_text(part):
        out.append(" ".join(filter(None, (moved, "each", part.memory))))
    if how_fast := rate_text(part):
        out.append(how_fast)
    if part.samples is not None:
        times = "once" if part.samples == 1 else f"{part.samples:,} times"
        out.append(f"seen {times} by the sampler")
    return " · ".join(out)
