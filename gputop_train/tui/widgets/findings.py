"""The findings: what stands, what the whole run says, the history, and the grounds of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gputop_train.report.format import duration
from gputop_train.tui.facts import without_exponents
from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, plain, spread, width_of, wrap
from gputop_train.tui.text import count, percent
from gputop_train.tui.views.findings import Claim, FindingsView, Whole
from gputop_train.tui.widgets.board import Board
from gputop_train.tui.widgets.finding_words import (
    STATUS,
    grounds,
    idle_rows,
    name_of,
    sign_of,
    unjudged,
    wrapped,
)

#: From this width on grounds and what was ruled out stand side by side.
SIDE_BY_SIDE = 110
#: Rows of the history at most.
HISTORY = 7


@dataclass(frozen=True, slots=True)
class Looking:
    """Where the reader is.

    Attributes:
        begin_s: Of the claim that is looked at; ``None`` = the newest, whichever that becomes.
        top: First row of the grounds shown.
    """

    begin_s: float | None = None
    top: int = 0


def place_of(view: FindingsView, looking: Looking) -> int:
    """Which claim is looked at, by its place in the history."""
    newest = len(view.claims) - 1
    if looking.begin_s is None:
        return newest
    at = [n for n, claim in enumerate(view.claims) if claim.begin_s <= looking.begin_s]
    return at[-1] if at else min(0, newest)


def findings_rows(
    view: FindingsView, looking: Looking, width: int, height: int, glyphs: Glyphs
) -> tuple[list[Row], int]:
    """The page's body.

    Args:
        view: What there is.
        looking: Where the reader is.
        width: Cells.
        height: Rows.
        glyphs: The alphabet.

    Returns:
        Rows, and the first row of the grounds shown.
    """
    if not view.claims:
        return [(), *wrapped("Nothing has been diagnosed yet.", "muted", width, glyphs)], 0
    place = place_of(view, looking)
    claim = view.claims[place]
    rows = _standing(view, width, height, glyphs)
    rows += _history(view, place, width, height, glyphs)
    if height >= 9:
        rows.append(((glyphs.rule * width, "faint"),))
    body = _grounds(view, claim, width, glyphs)
    room = max(1, height - len(rows))
    top = max(0, min(looking.top, len(body) - room))
    shown = body[top : top + room]
    left = len(body) - top - room
    if left > 0 and room >= 3:
        more = f" {glyphs.ellipsis} {left + 1} more rows: page down"
        shown = [*shown[:-1], fit([(more, "faint")], width, glyphs)]
    return [*rows, *shown], top


def _standing(view: FindingsView, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """What stands, and beside it what the whole run says."""
    newest = view.claims[-1]
    since = f"for {_span(view.now_s - newest.begin_s)}"
    words = "last live" if view.over else "live"
    rows = [_headline(words, newest, "" if view.over else since, width, glyphs)]
    if height >= 16 and newest.diagnosis is not None and newest.diagnosis.note:
        rows.append(_sentence(newest.diagnosis.note, width, glyphs))
    whole = view.whole
    if whole is None:
        rows.append(fit([(" whole run   ", "muted"), ("being judged", "faint")], width, glyphs))
        return rows
    rows.append(_headline("whole run", whole, whole.basis, width, glyphs))
    if height >= 16 and whole.summary and not _same(newest, whole):
        rows.append(_sentence(whole.summary, width, glyphs))
    return rows


def _same(claim: Claim, whole: Whole) -> bool:
    """Whether both say the same but for their numbers: one sentence is enough then."""
    return (claim.status, claim.id, claim.refined) == (whole.status, whole.id, whole.refined)


def _headline(words: str, said: Claim | Whole, aside: str, width: int, glyphs: Glyphs) -> Row:
    sign, ink = sign_of(said.status, said.severity, glyphs)
    left: list[Span] = [
        (f" {words}".ljust(13), "muted"),
        (f"{sign} ", ink),
        (name_of(said.status, said.id, said.refined, glyphs), "strong"),
    ]
    lost = said.lost if isinstance(said, Whole) else said.lost_last
    parts = [said.severity, f"confidence {said.confidence}" if said.confidence else ""]
    parts.append(f"{percent(lost)} of wall" if lost is not None and lost >= 0.005 else "")
    return _beside(left, (*parts, aside), width, glyphs)


def _beside(left: list[Span], parts: Sequence[str], width: int, glyphs: Glyphs) -> Row:
    """A row with the last of its parts at the right edge, as many as leave a gap."""
    kept = [part for part in parts if part]
    while kept and width_of(left) + len(glyphs.sep.join(kept)) + 3 > width:
        kept.pop(0)
    return spread(left, [(glyphs.sep.join(kept), "muted"), (" ", "text")], width, glyphs)


def _sentence(text: str, width: int, glyphs: Glyphs) -> Row:
    (line,) = wrap(without_exponents(text), width - 16, 1, glyphs) or [""]
    return fit([(" " * 15, "text"), (line, "text")], width, glyphs)


def _history(view: FindingsView, place: int, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The claims, newest first, as many as fit around the one that is looked at."""
    size = max(1, min(HISTORY, height // 5, len(view.claims)))
    newest_first = list(reversed(list(enumerate(view.claims))))
    here = len(view.claims) - 1 - place
    top = max(0, min(here - size // 2, len(newest_first) - size))
    rows = [_history_head(view, width, glyphs)] if height >= 12 else []
    if rows and height >= 20:
        rows.insert(0, ())
    return rows + [
        _history_row(view, claim, n == place, width, glyphs)
        for n, claim in newest_first[top : top + size]
    ]


def _history_head(view: FindingsView, width: int, glyphs: Glyphs) -> Row:
    total = len(view.claims) + view.earlier
    times = f"{count(total)} so far" if total > 1 else ""
    note = "~ to the minute" if any(c.coarse for c in view.claims) else ""
    left: list[Span] = [
        (" history".ljust(13), "strong"),
        ("began".rjust(9), "muted"),
        ("lasted".rjust(10), "muted"),
        (f"   {times}", "muted"),
    ]
    return spread(left, [(note if width >= 70 else "", "muted"), (" ", "text")], width, glyphs)


def _history_row(view: FindingsView, claim: Claim, here: bool, width: int, glyphs: Glyphs) -> Row:
    end = claim.end_s if claim.end_s is not None else view.now_s
    about = "~" if claim.coarse else ""
    sign, ink = sign_of(claim.status, claim.severity, glyphs)
    wide = width >= 60
    lasted = f"{about}{_span(end - claim.begin_s)}"
    left: list[Span] = [
        (f"{glyphs.play} " if here else "  ", "key"),
        (
            ("stands" if claim.end_s is None and not view.over else "").ljust(11 if wide else 0)[
                : 11 if wide else 0
            ],
            "muted",
        ),
        (f"{about}{_span(claim.begin_s)}".rjust(9 if wide else 7), "text"),
        (lasted.rjust(10 if wide else 8), "text"),
        (f"   {sign} ", ink),
        (name_of(claim.status, claim.id, claim.refined, glyphs), "strong" if here else "text"),
    ]
    if not claim.id:
        note = claim.diagnosis.note if claim.diagnosis is not None else ""
        note = "" if note.rstrip(".") == STATUS.get(claim.status) else note
        room = width - width_of(left) - 4
        if room >= 12:
            left.append((f"   {clip(plain(note, glyphs), room, glyphs)}", "muted"))
        return fit(left, width, glyphs)
    return _beside(left, (claim.severity, claim.confidence, _lost(claim)), width, glyphs)


def _lost(claim: Claim) -> str:
    """What it cost meanwhile: one share, or from the least to the most."""
    if claim.lost is None or claim.lost[1] < 0.005:
        return ""
    least, most = (percent(share) for share in claim.lost)
    return f"{most} of wall" if least == most else f"{least} to {most} of wall"


def _span(seconds: float) -> str:
    return duration(max(0.0, seconds))


def _grounds(view: FindingsView, claim: Claim, width: int, glyphs: Glyphs) -> list[Row]:
    """Evidence, idle time and what was ruled out: in two columns where there is room."""
    diagnosis = claim.diagnosis
    side = width if width < SIDE_BY_SIDE else width // 2
    if diagnosis is None:
        text = "Of so long ago the store keeps what was claimed, not the numbers."
        return [*wrapped(text, "muted", width, glyphs), (), *idle_rows(view, side, glyphs)]
    left = grounds(diagnosis, side - 1, glyphs)
    right = [*idle_rows(view, width - side if side < width else width, glyphs)]
    other = unjudged(diagnosis, width - side if side < width else width, glyphs)
    if other:
        right += [(), *other]
    if side == width:
        return [*left, *([()] if left else []), *right]
    return _columns(left, right, side, glyphs)


def _columns(left: Sequence[Row], right: Sequence[Row], side: int, glyphs: Glyphs) -> list[Row]:
    return [
        (*fit(one or (), side, glyphs), *(other or ())) for one, other in zip_longest(left, right)
    ]


class FindingsBoard(Board):
    """See `findings_rows`."""

    view: FindingsView | None = None
    looking = Looking()
    top = 0

    def show(self, view: FindingsView, looking: Looking) -> None:
        """Show this part of it, repainting the rows that differ."""
        self.view, self.looking = view, looking
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The body at this size."""
        if self.view is None:
            return [(), ((" Reading what was found.", "muted"),)]
        rows, self.top = findings_rows(self.view, self.looking, width, height, self.glyphs)
        return rows
