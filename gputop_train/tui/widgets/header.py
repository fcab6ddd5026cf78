"""The top row: what runs, for how long, how far, how fast, and whether this is live."""

from __future__ import annotations

from gputop_train.tui.paint import Glyphs, Row, Span, spread, width_of
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import count, duration, rate
from gputop_train.tui.widgets.panel import Panel


def header_row(snap: Snapshot, width: int, glyphs: Glyphs, *, frozen: bool = False) -> Row:
    """The header, its parts dropped from the least important on until they fit."""
    state = _state(snap, glyphs, frozen=frozen)
    parts = _parts(snap)
    kept = list(parts)
    for victim in sorted(parts, key=lambda part: -part[0]):
        if _total(kept) + width_of(state) + 3 <= width or len(kept) == 1:
            break
        kept.remove(victim)
    left: list[Span] = [(" ", "text")]
    for position, (_, spans) in enumerate(kept):
        left += [("   ", "text")] if position else []
        left += spans
    return spread(left, [*state, (" ", "text")], width, glyphs)


def _compared(snap: Snapshot) -> list[Span]:
    """The run this one repeats with other settings."""
    return [(f" compared with {snap.run.compared_with}", "muted")] if snap.run.compared_with else []


def _total(parts: list[tuple[int, list[Span]]]) -> int:
    return 1 + sum(width_of(spans) for _, spans in parts) + 3 * max(0, len(parts) - 1)


def _parts(snap: Snapshot) -> list[tuple[int, list[Span]]]:
    """Parts in reading order, each with a rank: the higher, the sooner it gives way."""
    step = snap.step
    title = snap.run.name or snap.run.script
    parts: list[tuple[int, list[Span]]] = [
        (6, [("gputop-train", "muted")]),
        (0, [(title, "strong")]),
        (5, [("run ", "muted"), (snap.run.id, "text"), *_compared(snap)]),
    ]
    if snap.elapsed_s is not None:
        parts.append((2, [(duration(snap.elapsed_s), "text")]))
    if step.count:
        of = f"/{count(step.total)}" if step.total else ""
        parts.append((1, [("step ", "muted"), (count(step.count) + of, "text")]))
    if step.samples_per_s is not None:
        parts.append((3, [(rate(step.samples_per_s), "text"), (" samples/s", "muted")]))
    parts += [(4, spans) for spans in (_left(snap),) if spans]
    if snap.run.changed:
        parts.append((7, [("set ", "muted"), (", ".join(snap.run.changed), "warn")]))
    return parts


def _left(snap: Snapshot) -> list[Span]:
    """How far the run is and when it ends: by ``--steps``, else by the script's own count.

    Of a count that may be one pass of several the end is not called the run's.
    """
    step, told = snap.step, snap.progress
    if snap.state != "live":
        return []
    if step.total:
        # With the pauses in between: saves and evaluations are part of the mean step.
        mean_ms = sum(ms for _, ms in step.parts) or step.median_ms
        if not mean_ms or step.total <= step.count:
            return []
        left_s = (step.total - step.count) * mean_ms / 1000
        return [("ETA ", "muted"), (duration(left_s), "text")]
    if told is None:
        return []
    of = f"{count(told.done)}/{count(told.total)}"
    # Its steps may be counted late, or be other ones than those counted here.
    whose = "script's " if told.unit == "step" else ""
    spans: list[Span] = [(f"{whose}{told.unit} ", "muted"), (of, "text")]
    if told.left_s is None:
        return spans
    if told.whole:
        return [*spans, ("   ETA ", "muted"), (duration(told.left_s), "text")]
    return [*spans, (f", {duration(told.left_s)} left of it", "muted")]


def _state(snap: Snapshot, glyphs: Glyphs, *, frozen: bool) -> list[Span]:
    if frozen:
        return [(f"{glyphs.frozen} frozen", "warn")]
    if snap.state == "ended":
        failed = snap.exit_code not in (0, None)
        word = snap.exit_text or ("ended" if snap.exit_code is None else f"exit {snap.exit_code}")
        return [(f"{glyphs.ended} ended, {word}", "critical" if failed else "good")]
    if snap.state == "replay":
        return [(f"{glyphs.play} replay", "info")]
    words = {
        "starting": (f"{glyphs.wait} starting", "muted"),
        "stopping": (f"{glyphs.wait} stopping", "warn"),
        "lost": (f"{glyphs.warn} lost", "warn"),
    }
    return [words.get(snap.state, (f"{glyphs.live} live", "good"))]


class Header(Panel):
    """See `header_row`."""

    frozen = False
    title = ""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """One row."""
        return [header_row(snapshot, width, self.glyphs, frozen=self.frozen)]

    def early_rows(self, width: int, height: int) -> list[Row]:
        """What is going to be shown."""
        state = [(f"{self.glyphs.wait} reading the run ", "muted")]
        left = [(" gputop-train   ", "muted"), (self.title, "strong")]
        if width_of([*left, *state]) >= width:
            left = [(f" {self.title}", "strong")]
        return [spread(left, state, width, self.glyphs)]
