"""The pages there are, in the order of their keys."""

from __future__ import annotations

from gputop_train.tui.page import Page
from gputop_train.tui.screens.devices import DevicesPage
from gputop_train.tui.screens.findings import FindingsPage
from gputop_train.tui.screens.lines import LinesPage
from gputop_train.tui.screens.log import LogPage
from gputop_train.tui.screens.memory import MemoryPage
from gputop_train.tui.screens.overview import Overview
from gputop_train.tui.screens.steps import StepsPage
from gputop_train.tui.screens.trials import TrialsPage
from gputop_train.tui.screens.workers import WorkersPage

#: Every page's name; its key is its place in this list.
NAMES = (
    "overview",
    "steps",
    "lines",
    "memory",
    "workers",
    "devices",
    "trials",
    "findings",
    "log",
)

#: The pages that can be opened, in any order.
PAGES: tuple[type[Page], ...] = (
    Overview,
    StepsPage,
    LinesPage,
    FindingsPage,
    DevicesPage,
    MemoryPage,
    WorkersPage,
    LogPage,
    TrialsPage,
)


def key_of(name: str) -> str:
    """The key that opens a page: ``1`` to ``9``."""
    return str(NAMES.index(name) + 1)


def by_name() -> dict[str, type[Page]]:
    """The pages that can be opened, in the order of their keys."""
    return {page.NAME: page for page in sorted(PAGES, key=lambda page: NAMES.index(page.NAME))}
