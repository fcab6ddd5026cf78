"""What each page reads besides the overview's parts, only while it is in front.

A page's module here gives one pure function of `Asked` that makes the page's fields of the
`Snapshot`; it is entered below under the page's name. All of it runs on the reading thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from gputop_train.tui.gather.asked import Asked

    Gatherer = Callable[[Asked], dict[str, Any]]

#: Module and function by the page's name; loaded when the page is first read for.
GATHERERS: Mapping[str, str] = {
    "steps": "steps:steps_page",
    "lines": "lines:parts",
    "memory": "memory:parts",
    "workers": "workers:parts",
    "devices": "devices:parts",
    "trials": "trials:trials_page",
    "findings": "findings:FINDINGS.parts",
}


def page_parts(asked: Asked) -> dict[str, Any]:
    """The fields of a `Snapshot` that only the page in front needs."""
    return gatherer(asked.view.page)(asked) if asked.view.page in GATHERERS else {}


def gatherer(page: str) -> Gatherer:
    """What reads for a page."""
    module, _, function = GATHERERS[page].partition(":")
    return cast("Gatherer", attrgetter(function)(import_module(f"{__name__}.{module}")))
