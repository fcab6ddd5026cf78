"""What each page reads besides the overview's parts, only while it is in front.

A page's module here gives one pure function of `Asked` that makes the page's fields of the
`Snapshot`; it is entered below under the page's name. All of it runs on the reading thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputop_train.tui.gather.asked import Asked

#: Module and function by the page's name; loaded when the page is first read for.
GATHERERS: Mapping[str, str] = {
    "steps": "steps:steps_page",
    "lines": "lines:parts",
    "memory": "memory:parts",
    "workers": "workers:parts",
    "devices": "devices:parts",
    "trials": "trials:trials_page",
    "findings": "findings:parts",
}


def page_parts(asked: Asked) -> dict[str, Any]:
    """The fields of a `Snapshot` that only the page in front needs."""
    if asked.view.page not in GATHERERS:
        return {}
    module, _, function = GATHERERS[asked.view.page].partition(":")
    gather = getattr(import_module(f"{__name__}.{module}"), function)
    found: dict[str, Any] = gather(asked)
    return found
