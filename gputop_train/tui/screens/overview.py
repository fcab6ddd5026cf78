"""The overview: everything about the run on one screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Resize

from gputop_train.tui.layout import ROOMY_ROWS, plan
from gputop_train.tui.page import Page
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.gpus import Gpus, gpus_want
from gputop_train.tui.widgets.logpane import LogPane
from gputop_train.tui.widgets.memory import MemoryBar, memory_wants
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.ribbon import PhaseRibbon
from gputop_train.tui.widgets.stepbar import StepBar
from gputop_train.tui.widgets.timechart import TimeChart
from gputop_train.tui.widgets.verdict import VerdictCard, card_height
from gputop_train.tui.widgets.workers import Workers


class Overview(Page):
    """Stacks the panels and shares the rows out among them."""

    NAME = "overview"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter", "app.page('devices')", "the GPUs closely"),
        ("up,k", "scroll_log(1)", "older output"),
        ("down,j", "scroll_log(-1)", "newer output"),
        ("pageup", "scroll_log(10)", "older output"),
        ("pagedown", "scroll_log(-10)", "newer output"),
        ("end", "newest", "newest output"),
        ("slash", "app.search_log", "search the output"),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._wishes: tuple[object, ...] = ()
        self._step = StepBar(id="step")
        self._log = LogPane(id="log")
        self._panels: tuple[Panel, ...] = (
            self._header,
            self._tabs,
            VerdictCard(id="card"),
            TimeChart(id="chart"),
            PhaseRibbon(id="ribbon"),
            self._step,
            MemoryBar(id="memory"),
            Workers(id="workers"),
            Gpus(id="gpus"),
            self._log,
            self._notice,
            self._keys,
        )

    def compose(self) -> ComposeResult:
        """The panels from top to bottom."""
        yield from self._panels

    def on_resize(self, _event: Resize) -> None:
        """Share the rows out anew."""
        self._wishes = ()
        self._arrange()

    def show(self, snapshot: Snapshot, *, frozen: bool = False) -> None:
        """Show a snapshot in every panel; of one made for another page, how the run stands."""
        whole = snapshot.page == self.NAME
        if whole:
            self._snapshot = snapshot
        self._arrange()
        self._header.frozen = frozen
        around = (self._header, self._tabs, self._notice, self._keys)
        with self.app.batch_update():
            for panel in self._panels if whole else around:
                panel.show(snapshot)

    def action_scroll_log(self, lines: int) -> None:
        """Move towards older output."""
        self._log.scroll_back(lines)

    async def action_newest(self) -> None:
        """Follow the output again; in a replay that follows it, go to the run's end."""
        if self._log.back:
            self._log.follow()
        else:
            await self.run_action("app.seek(1e12)")

    def _arrange(self) -> None:
        snapshot = self._snapshot
        width, height = self.size
        if not height:
            return
        if snapshot is None:
            self._arrange_early(height)
            return
        # The layout moves only with the size of the terminal or with the card's need of rows.
        card = card_height(snapshot, width, self._glyphs)
        lanes, memory = len(snapshot.lanes), memory_wants(snapshot)
        tabs = len(self._tabs.pages) > 1
        gpus = gpus_want(len(snapshot.gpus), width)
        wishes = (width, height, card, lanes, memory, tabs, gpus)
        if wishes == self._wishes:
            return
        self._wishes = wishes
        rows = plan(
            height,
            card_wants=card,
            lanes=lanes,
            memory_wants=memory,
            tabs=tabs,
            gpus_want=gpus,
        )
        for panel in self._panels:
            size = getattr(rows, str(panel.id))
            panel.styles.height = size
            panel.display = size > 0
        self._step.styles.margin = (rows.gap, 0, 0, 0)

    def _arrange_early(self, height: int) -> None:
        """The frame, before there is anything to put into it."""
        early = (self._header, self._tabs, self._notice, self._keys)
        for panel in self._panels:
            panel.display = panel in early
        self._header.styles.height = 1
        self._tabs.styles.height = 1 if height >= ROOMY_ROWS else 0
        self._notice.styles.height = "1fr"
