"""What each page reads besides the overview's parts, only while it is in front.

A page's module here gives one pure function of `Asked` that makes the page's fields of the
`Snapshot`; it is entered below under the page's name. All of it runs on the reading thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gputop_train.tui.gather import devices, lines, memory, workers
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.findings import FINDINGS
from gputop_train.tui.gather.steps import steps_page
from gputop_train.tui.gather.trials import trials_page

Gatherer = Callable[[Asked], dict[str, Any]]

#: By the page's name.
GATHERERS: dict[str, Gatherer] = {
    "trials": trials_page,
    "steps": steps_page,
    "lines": lines.parts,
    "findings": FINDINGS.parts,
    "devices": devices.parts,
    "memory": memory.parts,
    "workers": workers.parts,
}


def page_parts(asked: Asked) -> dict[str, Any]:
    """The fields of a `Snapshot` that only the page in front needs."""
    gather = GATHERERS.get(asked.view.page)
    return gather(asked) if gather is not None else {}


__all__ = ["GATHERERS", "Asked", "Gatherer", "page_parts"]
