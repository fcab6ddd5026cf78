"""The pages there are, in the order of their keys; each is loaded when it is first opened.

Loading all of them would take longer than all else until the first picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from gputop_train.tui.page import Page

_SCREENS = "gputop_train.tui.screens"
#: Module and class of each page by its name; its key is its place in this list.
PAGES: Mapping[str, str] = {
    "overview": f"{_SCREENS}.overview:Overview",
    "steps": f"{_SCREENS}.steps:StepsPage",
    "lines": f"{_SCREENS}.lines:LinesPage",
    "memory": f"{_SCREENS}.memory:MemoryPage",
    "workers": f"{_SCREENS}.workers:WorkersPage",
    "devices": f"{_SCREENS}.devices:DevicesPage",
    "trials": f"{_SCREENS}.trials:TrialsPage",
    "findings": f"{_SCREENS}.findings:FindingsPage",
    "log": f"{_SCREENS}.log:LogPage",
}


def names() -> tuple[str, ...]:
    """Every page's name."""
    return tuple(PAGES)


def key_of(name: str) -> str:
    """The key that opens a page: ``1`` to ``9``."""
    return str(names().index(name) + 1)


def page(name: str) -> type[Page]:
    """A page's class."""
    module, _, of = PAGES[name].partition(":")
    return cast("type[Page]", getattr(import_module(module), of))


def by_name() -> dict[str, type[Page]]:
    """All of them, loaded."""
    return {name: page(name) for name in PAGES}
