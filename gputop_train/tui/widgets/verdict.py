"""The verdict card: what is lost, why, where in the code, what to change, what it brings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from rich.cells import cell_len

from gputop_train.model import Advice, Diagnosis, Finding, Gain, Where, ids_by_reason
from gputop_train.report.format import printable
from gputop_train.tui.facts import brief, card_facts, pack, without_exponents
from gputop_train.tui.paint import Glyphs, Row, Span, fit, plain, spread
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import factor, percent, rate
from gputop_train.tui.widgets.panel import Panel

#: Headlines a tired reader takes in at once; other ids are shown as they are, in capitals.
HEADLINES = {
    "input-bound": "STARVED",
    "host-sync-stall": "STALLED BY HOST SYNC",
    "checkpoint-stall": "STALLED BY CHECKPOINTS",
    "eval-stall": "STALLED BY EVALUATION",
    "cpu-training": "TRAINING ON THE CPU",
    "gpu-bound": "GPU-BOUND",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A labelled line of the card: one text, or parts of which as many are shown as fit whole."""

    label: str
    parts: tuple[str, ...]
    ink: str = "text"
    joint: str = ""

    def laid_out(self, width: int, lines: int, glyphs: Glyphs) -> list[str]:
        """The line on at most ``lines`` rows."""
        if len(self.parts) == 1:
            return brief(self.parts[0], width, lines, glyphs)
        return pack(self.parts, self.joint or glyphs.sep, width, lines, glyphs)


@dataclass(frozen=True, slots=True)
class Card:
    """The card's words, before layout: headline, promise, labelled lines, keys that lead on."""

    headline: str
    ink: str
    glyph: str
    promise: str
    lead: str
    aside: str
    lines: tuple[Line, ...]
    keys: tuple[str, ...] = ()


def card(snap: Snapshot, glyphs: Glyphs) -> Card:
    """What the card says about a snapshot."""
    diagnosis = snap.diagnosis
    if diagnosis is not None and diagnosis.verdict is not None:
        return _verdict(diagnosis, diagnosis.verdict, snap, glyphs)
    status = diagnosis.status if diagnosis is not None else "no-steps"
    note = diagnosis.note if diagnosis is not None else ""
    over = snap.state in ("ended", "lost")
    if status == "no-steps" and snap.step.count and not over:
        # Steps are seen at once, and judged every few seconds.
        status, note = "too-early", "The first steps have ended. Measuring."
    if status == "healthy":
        return Card(
            "HEALTHY",
            "good",
            glyphs.ok,
            "",
            note or "Nothing measured here is worth changing.",
            "",
            (*_also(diagnosis), *_hidden_waits(diagnosis, snap))
            or (Line("", ("The time goes into training itself.",), "muted"),),
            _keys((), snap),
        )
    if status == "abstained":
        lead = note or "A signal is missing, so no cause is named and none is excluded."
        return Card("NO VERDICT", "info", glyphs.wait, "", lead, "", _missing(diagnosis))
    if status == "too-early":
        lead = note or ("The run was too short for a verdict." if over else "Measuring.")
        hint = "A verdict needs 20 measured steps; until then nothing is blamed."
        lines = _missing(diagnosis) or (Line("", (hint,), "muted"),)
        return Card("TOO EARLY", "info", glyphs.wait, "", lead, "", lines)
    lead = (
        (note or "No optimizer step was seen.") if over else "Waiting for the first optimizer step."
    )
    hint = "Imports, data set-up and warm-up come first."
    first = () if over else (Line("", (hint,), "muted"),)
    return Card("NO STEPS" if over else "STARTING", "info", glyphs.wait, "", lead, "", first)


def _verdict(diagnosis: Diagnosis, finding: Finding, snap: Snapshot, glyphs: Glyphs) -> Card:
    ink = {"critical": "critical", "warn": "warn"}.get(finding.severity, "info")
    glyph = {"critical": glyphs.critical, "warn": glyphs.warn}.get(finding.severity, glyphs.wait)
    headline = HEADLINES.get(finding.id, finding.id.replace("-", " ").upper())
    lines = [Line("where", _where(finding))]
    if facts := card_facts(finding):
        lines.append(Line("why", tuple(facts)))
    lines.extend(
        Line("then", (_upper(text.removeprefix("Then ")),))
        if position
        else Line("do", (text,), "strong")
        for position, text in enumerate(advice_texts(finding.advice)[:3])
    )
    if finding.gain is not None and finding.gain.basis:
        lines.append(Line("gain", gain_parts(finding.gain), joint="; "))
    lines.extend(_also(diagnosis))
    return Card(
        headline,
        ink,
        glyph,
        _promise(finding.gain, snap.step.samples_per_s),
        without_exponents(finding.summary),
        f"confidence {finding.confidence}",
        tuple(lines),
        _keys(finding.advice, snap, line=bool(finding.where)),
    )


def _keys(advice: tuple[Advice, ...], snap: Snapshot, *, line: bool = False) -> tuple[str, ...]:
    """The keys that lead on from the card: only what somebody who watches can do."""
    its_line = ("[g] its line",) if line else ()
    if snap.replay is None and any(item.setting for item in advice):
        return ("[t] change and rerun", "[p] prove it in a trial", *its_line, "[c] compare")
    return ("[t] settings", *its_line, "[c] compare")


def _upper(text: str) -> str:
    """A capital to begin with, unless the first word is code."""
    word = text.split(" ", 1)[0].rstrip(".,:;")
    return text[:1].upper() + text[1:] if word.isalpha() else text


def _where(finding: Finding) -> tuple[str, ...]:
    if not finding.where:
        return (finding.where_missing or "no single line",)
    return tuple(map(_place, finding.where[:2]))


def _place(where: Where) -> str:
    return f"{short_path(where.file)}:{where.line}  {where.what}".rstrip()


def short_path(path: str) -> str:
    """The last two parts of a path: enough to know the file, short enough for a card."""
    parts = path.replace("\\", "/").split("/")
    return "/".join(parts[-2:]) if len(parts) > 3 else path


def advice_texts(advice: tuple[Advice, ...]) -> list[str]:
    """Advice as lines; a setting that can be flipped without an edit says how."""
    out = []
    for item in advice:
        flags = " ".join(f"--set {key}={value}" for key, value in (item.setting or {}).items())
        out.append(f"{item.text}  [{flags}]" if flags else item.text)
    return out


def gain_text(gain: Gain) -> str:
    """What a mend brings, with what the number rests on."""
    return "; ".join(gain_parts(gain))


def gain_parts(gain: Gain) -> tuple[str, ...]:
    """The numbers, then each clause of what they rest on."""
    numbers = []
    if gain.expected is not None:
        low, high = gain.expected
        numbers.append(f"{_range(factor(low), factor(high))} expected")
    if gain.ceiling is not None:
        numbers.append(f"{'at least' if gain.at_least else 'at most'} {factor(gain.ceiling)}")
    return tuple(filter(None, (", ".join(numbers), *gain.basis.split("; "))))


def _range(low: str, high: str) -> str:
    """``1.8x``, or ``1.8x to 2.4x`` where the two differ as printed."""
    return high if low.removesuffix("x") == high.removesuffix("x") else f"{low} to {high}"


def _promise(gain: Gain | None, samples_per_s: float | None) -> str:
    """The title's promise: the expected range where there is a model, else the ceiling."""
    if gain is None:
        return ""
    if gain.expected is not None:
        low, high = gain.expected
        if high < 1.05:
            return ""
        words = f"expect {_range(factor(low).removesuffix('x'), factor(high))} faster"
        if samples_per_s:
            rates = _range(_about(samples_per_s * low), _about(samples_per_s * high))
            words += f" ({rates} samples/s)"
        return words
    if gain.ceiling is None or gain.ceiling < 1.02:
        return ""
    words = f"{'at least' if gain.at_least else 'up to'} {factor(gain.ceiling)} faster"
    if samples_per_s:
        words += f" ({_about(samples_per_s * gain.ceiling)} samples/s)"
    return words


def _about(per_s: float) -> str:
    """A predicted rate: in no more digits than a prediction is worth."""
    return rate(float(f"{per_s:.2g}"))


def _also(diagnosis: Diagnosis | None) -> tuple[Line, ...]:
    if diagnosis is None:
        return ()
    return tuple(Line("also", _also_parts(finding)) for finding in diagnosis.also[:2])


def _also_parts(finding: Finding) -> tuple[str, ...]:
    summary = without_exponents(finding.summary)
    lost = percent(finding.lost_share)
    known = finding.lost_share < 0.005 or lost in summary
    said = f"{finding.id}{'' if known else f' ({lost} of time)'}: {summary}"
    # Another cause is named in a single row, so its place is the file and the line alone.
    places = (f"{PurePath(w.file).name}:{w.line}" for w in finding.where[:1])
    return (said.removesuffix("."), *places)


#: Labels of host time that look like trouble, and are none while the GPU has work queued up.
_WAITS = ("data_wait", "h2d", "sync")


def _hidden_waits(diagnosis: Diagnosis | None, snap: Snapshot) -> tuple[Line, ...]:
    """Why a lane shows waiting in a healthy run: the GPU computed meanwhile."""
    if diagnosis is None or all(finding.id != "gpu-bound" for finding in diagnosis.also):
        return ()
    if all(lane.share < 0.1 for lane in snap.lanes if lane.label in _WAITS):
        return ()
    text = "The waits in the lanes below are the host's; the GPU had work queued meanwhile."
    return (Line("", (text,), "muted"),)


def _missing(diagnosis: Diagnosis | None) -> tuple[Line, ...]:
    if diagnosis is None:
        return ()
    lacks = ids_by_reason((item.id, item.missing) for item in diagnosis.abstained)
    return tuple(Line("missing", (f"{why} ({', '.join(ids)})",)) for why, ids in lacks.items())


def card_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The card in its box, lines dropped from the end when there is no room."""
    words = card(snap, glyphs)
    if height < 3 or width < 12:
        return [
            fit(
                [(f"{words.glyph} {words.headline}: ", words.ink), (words.lead, "text")],
                width,
                glyphs,
            )
        ]
    inner = width - 4
    body = _body(words, inner, height - 2, glyphs)
    body.extend([()] * (height - 2 - len(body)))
    side = (glyphs.side, words.ink)
    rows = [_top(words, width, glyphs)]
    rows += [(side, (" ", "text"), *fit(row, inner, glyphs), (" ", "text"), side) for row in body]
    rows.append(_bottom(words, width, glyphs))
    return rows


def _bottom(words: Card, width: int, glyphs: Glyphs) -> Row:
    """The lower edge, with as many keys in it as fit whole."""
    spans: list[Span] = [(glyphs.corner[2] + glyphs.rule, words.ink)]
    room = width - 4
    for key in words.keys:
        need = len(key) + 3
        if need > room:
            break
        spans += [(f" {key} ", "key"), (glyphs.rule, words.ink)]
        room -= need
    spans.append((glyphs.rule * (room + 1) + glyphs.corner[3], words.ink))
    return tuple(spans)


def _top(words: Card, width: int, glyphs: Glyphs) -> Row:
    head = f"{glyphs.corner[0]}{glyphs.rule} "
    title = f"{words.glyph} {words.headline} "
    tail = f" {glyphs.rule}{glyphs.corner[1]}"
    room = width - cell_len(head + title + tail) - 3
    promise = plain(words.promise, glyphs)
    if promise and cell_len(promise) > room:
        promise = promise.split(" (")[0]
    if promise and cell_len(promise) > room:
        promise = ""
    fill = width - cell_len(head + title + tail) - cell_len(promise) - (1 if promise else 0)
    spans: list[Span] = [(head, words.ink), (title, f"{words.ink}")]
    spans.append((glyphs.rule * fill + (" " if promise else ""), words.ink))
    if promise:
        spans.append((promise, "strong"))
    return (*spans, (tail if promise else glyphs.rule + glyphs.rule + glyphs.corner[1], words.ink))


def _body(words: Card, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """Lead and labelled lines, each with the rows it was granted."""
    label_width = max((len(line.label) for line in words.lines), default=0)
    label_width = label_width + 2 if label_width and width >= 50 else 0
    room = width - label_width
    lead_width = width - (len(words.aside) + 2 if words.aside and width >= 60 else 0)
    lead = brief(words.lead, lead_width, min(3, height), glyphs)
    needs = [len(line.laid_out(room, 4, glyphs)) for line in words.lines]
    granted = _grant([line.label for line in words.lines], needs, height - len(lead))
    rows: list[Row] = []
    for position, text in enumerate(lead):
        aside = [(words.aside, "muted")] if position == 0 and lead_width < width else []
        rows.append(spread([(text, "strong")], aside, width, glyphs))
    for line, lines in zip(words.lines, granted, strict=True):
        for position, text in enumerate(line.laid_out(room, lines, glyphs) if lines else []):
            head = [((line.label if position == 0 else "").ljust(label_width), "muted")]
            rows.append((*(head if label_width else []), (text, line.ink)))
    return rows


#: Who gets rows first: what to change in full, then where and why, then everything else. A second
#: cause matters more than a second remedy for the first, whose gain the title names already.
_IMPORTANCE = ("do", "where", "why", "missing", "", "also", "then", "gain")


def _grant(labels: list[str], needs: list[int], rows: int) -> list[int]:
    """Rows for each line: essentials first, then the advice in full, then all the others."""
    order = sorted(range(len(labels)), key=lambda i: _IMPORTANCE.index(labels[i]))
    granted = [0] * len(labels)
    # Three passes: a row for the essential lines, the rest of the advice, then all the others.
    first = [i for i in order if labels[i] in _IMPORTANCE[:3]]
    advice = [i for i in order if labels[i] == "do" for _ in range(needs[i] - 1)]
    one_each = [i for i in order if i not in first]
    # A reason that breaks onto another row is worth less than a line of another kind.
    rest = [i for i in order if labels[i] != "do" for _ in range(needs[i] - 1)]
    for i in [*first, *advice, *one_each, *rest][: max(0, rows)]:
        granted[i] += 1
    return granted


def advice_block(snap: Snapshot) -> str:
    """The verdict as plain text for a note or a colleague; empty when there is none."""
    diagnosis = snap.diagnosis
    if diagnosis is None or diagnosis.verdict is None:
        return ""
    finding = diagnosis.verdict
    lines = [without_exponents(finding.summary), f"where: {', '.join(_where(finding))}"]
    lines += [f"do: {text}" for text in advice_texts(finding.advice)]
    if finding.gain is not None:
        lines.append(f"gain: {gain_text(finding.gain)}")
    return "\n".join(map(printable, lines)) + "\n"


def card_height(snap: Snapshot, width: int, glyphs: Glyphs) -> int:
    """Rows the card would like, borders included."""
    words = card(snap, glyphs)
    return 2 + len(_body(words, width - 4, 20, glyphs))


class VerdictCard(Panel):
    """See `card_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """The card at this size."""
        return card_rows(snapshot, width, height, self.glyphs)
