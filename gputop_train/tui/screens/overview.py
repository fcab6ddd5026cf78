"""The overview: everything about the run on one screen."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.app import ComposeResult
from textual.events import Resize
from textual.screen import Screen

from gputop_train.tui.layout import plan
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.header import Header
from gputop_train.tui.widgets.keys import Keys
from gputop_train.tui.widgets.logpane import LogPane
from gputop_train.tui.widgets.memory import MemoryBar, memory_wants
from gputop_train.tui.widgets.notice import Notice
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.ribbon import PhaseRibbon
from gputop_train.tui.widgets.stepbar import StepBar
from gputop_train.tui.widgets.timechart import TimeChart
from gputop_train.tui.widgets.verdict import VerdictCard, card_height
from gputop_train.tui.widgets.workers import Workers


class Overview(Screen[None]):
    """Stacks the panels and shares the rows out among them."""

    AUTO_FOCUS = ""

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._inks = inks
        self._snapshot: Snapshot | None = None
        self._wishes: tuple[int, ...] = ()
        self._header = Header(id="header")
        self._step = StepBar(id="step")
        self._notice = Notice(id="notice")
        # Held by reference: a snapshot may still arrive while the screen is being taken down.
        self._panels: tuple[Panel, ...] = (
            self._header,
            VerdictCard(id="card"),
            TimeChart(id="chart"),
            PhaseRibbon(id="ribbon"),
            self._step,
            MemoryBar(id="memory"),
            Workers(id="workers"),
            LogPane(id="log"),
            self._notice,
            Keys(id="keys"),
        )

    def compose(self) -> ComposeResult:
        """The panels from top to bottom."""
        yield from self._panels

    def on_mount(self) -> None:
        """Dress the panels."""
        self.restyle(self._glyphs, self._inks)

    def on_resize(self, _event: Resize) -> None:
        """Share the rows out anew."""
        self._wishes = ()
        self._arrange()

    def restyle(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        """Use another alphabet or other colours."""
        self._glyphs, self._inks = glyphs, inks
        for panel in self._panels:
            panel.restyle(glyphs, inks)

    def show(self, snapshot: Snapshot, *, frozen: bool = False) -> None:
        """Show a snapshot in every panel."""
        self._snapshot = snapshot
        self._arrange()
        self._header.frozen = frozen
        with self.app.batch_update():
            for panel in self._panels:
                panel.show(snapshot)

    def say(self, message: str) -> None:
        """Answer a key press in the notice row."""
        self._notice.say(message)

    def standing(self, message: str) -> None:
        """Say what is to come, until it is replaced."""
        self._notice.stand(message)

    def _arrange(self) -> None:
        snapshot = self._snapshot
        width, height = self.size
        if snapshot is None or not height:
            return
        # The layout moves only with the size of the terminal or with the card's need of rows.
        card = card_height(snapshot, width, self._glyphs)
        wishes = (width, height, card, len(snapshot.lanes), memory_wants(snapshot))
        if wishes == self._wishes:
            return
        self._wishes = wishes
        rows = plan(height, card_wants=card, lanes=wishes[3], memory_wants=wishes[4])
        for panel in self._panels:
            size = getattr(rows, str(panel.id))
            panel.styles.height = size
            panel.display = size > 0
        self._step.styles.margin = (rows.gap, 0, 0, 0)
