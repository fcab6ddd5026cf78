"""The list of trials with what each came to, and the words of the one selected."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, wrap
from gputop_train.tui.text import wall_time
from gputop_train.tui.views.trials import TrialSeen, TrialsView
from gputop_train.tui.widgets.board import Board

#: Rows the selected trial's words get, below the list.
_DETAIL_ROWS = 9


@dataclass(frozen=True, slots=True)
class TrialsState:
    """The list as it stands; ``view`` is ``None`` while it is read."""

    view: TrialsView | None = None
    cursor: int = 0
    all_scripts: bool = False
    script: str = ""

    @property
    def shown(self) -> tuple[TrialSeen, ...]:
        """The trials to choose from."""
        found = self.view.trials if self.view is not None else ()
        return tuple(trial for trial in found if self.all_scripts or trial.same_script)

    @property
    def selected(self) -> TrialSeen | None:
        """The one under the cursor."""
        shown = self.shown
        return shown[min(self.cursor, len(shown) - 1)] if shown else None


def trials_rows(state: TrialsState, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The list, then the selected one's words where there is room."""
    if state.view is None:
        return [fit([(" Reading the trials.", "muted")], width, glyphs)]
    shown, selected = state.shown, state.selected
    if selected is None:
        return _none(state, width, height, glyphs)
    # The words follow the list, with a blank row between, however short it is.
    detail = max(min(_DETAIL_ROWS, height // 2), height - 1 - len(shown)) if height >= 8 else 0
    room = max(1, height - 1 - detail)
    cursor = min(state.cursor, len(shown) - 1)
    first = max(0, min(len(shown) - room, cursor - room // 2))
    now_ns = state.view.now_wall_ns
    head = _line(" started", "trial", "state", "result", "muted", width, glyphs)
    rows = [head] + [
        _trial(trial, number == cursor, now_ns, width, glyphs)
        for number, trial in enumerate(shown[first : first + room], first)
    ]
    if not detail:
        return rows[:height]
    blank: Row = ()
    return [*rows, blank, *_detail(selected, width, detail - 1, glyphs)][:height]


def _none(state: TrialsState, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    others = bool(state.view and state.view.trials)
    what = f"No trial of {state.script or 'this script'} is kept here."
    lines = [*wrap(what, width - 2, 2, glyphs)]
    lines += wrap(
        "p proves what is advised: the script runs a few dozen steps at a time, as it is "
        "and changed, in turns.",
        width - 2,
        4,
        glyphs,
    )
    if others:
        lines += wrap("a shows the trials of all scripts.", width - 2, 2, glyphs)
    return [fit([(f" {line}", "muted")], width, glyphs) for line in lines][:height]


def _trial(trial: TrialSeen, here: bool, now_ns: int, width: int, glyphs: Glyphs) -> Row:
    started = wall_time(trial.started_wall_ns, now_ns, short=width < 100)
    return _line(
        f"{'>' if here else ' '}{started}",
        trial.id if trial.same_script else f"{trial.id} {trial.title}",
        trial.state,
        result(trial),
        "strong" if here else "text",
        width,
        glyphs,
    )


def _line(
    started: str, name: str, state: str, came_to: str, ink: str, width: int, glyphs: Glyphs
) -> Row:
    cells = [(started, 19 if width >= 100 else 12), (name, 26 if width >= 100 else 10)]
    if width >= 60:
        cells.append((state, 10))
    spans: list[Span] = [(clip(text, size - 1, glyphs).ljust(size), ink) for text, size in cells]
    return fit([*spans, (came_to, ink)], width, glyphs)


def result(trial: TrialSeen) -> str:
    """What a trial came to, or is at, in a few words."""
    if trial.best and trial.speedup is not None:
        interval = f" ({between(trial.interval)})" if trial.interval is not None else ""
        marks = ", changes results" if trial.changes_results else ""
        return f"{factor(trial.speedup)} as fast{interval} {trial.best}{marks}"
    if trial.now:
        return trial.now
    if trial.problem:
        return trial.problem
    tried = len(trial.changes)
    return f"{tried} change{'s' if tried != 1 else ''}, none proved faster" if tried else "-"


def _detail(trial: TrialSeen, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """What was tried, what was predicted, what each change came to."""
    title = f"{glyphs.rule} {trial.id}  {trial.title} "
    keys = " enter: open "
    fill = glyphs.rule * max(0, width - len(title) - len(keys) - 1)
    rows = [
        fit(
            [(title, "muted"), (fill, "faint"), (keys, "muted"), (glyphs.rule, "faint")],
            width,
            glyphs,
        )
    ]
    texts = [("", sentence) for sentence in trial.sentences]
    if not texts and trial.predicted is not None:
        low, high = trial.predicted
        said = between(trial.predicted) + "x" if low != high else factor(low)
        texts.append(("best", f"{result(trial)}; predicted {said}"))
    texts += [("why", trial.problem)] if trial.problem else []
    texts += [("now", trial.now)] if trial.now else []
    texts += [("hint", trial.stop_hint)] if trial.stop_hint else []
    texts.append(("tried", "; ".join(trial.changes) or "nothing yet"))
    for label, text in texts:
        for number, line in enumerate(wrap(text, width - 10, 3, glyphs)):
            lead = f" {label if not number else '':<7} "
            rows.append(fit([(lead, "muted"), (line, "text")], width, glyphs))
    return rows[:height]


def factor(value: float) -> str:
    """A speed-up with as many digits as a trial can tell, in the words of `trial.words`.

    Whose module takes a tenth of a second to import, which the first picture would wait for.
    """
    return f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"


def between(interval: tuple[float, float]) -> str:
    """``2.41 to 2.83``."""
    low, high = (factor(end)[:-1] for end in interval)
    return f"{low} to {high}"


class TrialsBoard(Board):
    """See `trials_rows`."""

    state: TrialsState | None = None

    def show(self, state: TrialsState) -> None:
        """Show a state, repainting the rows that differ."""
        self.state = state
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The list at this size."""
        if self.state is None:
            return None
        return trials_rows(self.state, width, height, self.glyphs)
