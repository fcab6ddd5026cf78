"""How the rows of the terminal are shared out. Pure, so that every size can be tested.

Priority when rows are short: header, verdict card, chart with the phase lanes, step, memory, log.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Below this many rows the chart is one line of text.
TINY_ROWS = 18
#: From this many rows on the pages are named and a blank row sets the steps apart.
ROOMY_ROWS = 34


@dataclass(frozen=True, slots=True)
class Plan:
    """Rows of each panel from top to bottom; 0 hides it. ``gap`` is a blank row above the steps."""

    header: int
    tabs: int
    card: int
    chart: int
    ribbon: int
    gap: int
    step: int
    memory: int
    workers: int
    gpus: int
    log: int
    notice: int
    keys: int

    @property
    def total(self) -> int:
        """Rows used."""
        return sum(getattr(self, name) for name in self.__slots__)


def plan(
    height: int,
    *,
    card_wants: int,
    lanes: int,
    memory_wants: int = 1,
    tabs: bool = False,
    gpus_want: int = 0,
) -> Plan:
    """Share ``height`` rows out.

    Args:
        height: Rows of the terminal.
        card_wants: Rows the verdict card would fill, borders included.
        lanes: Phase lanes there is something to show for.
        memory_wants: Rows of memory: a second one shows how it grew.
        tabs: Whether there are other pages to name.
        gpus_want: Rows that all GPUs of several would fill.
    """
    if height < TINY_ROWS:
        keys = 1 if height >= 6 else 0
        line = 1 if height >= 8 else 0
        return Plan(1, 0, max(0, height - 1 - keys - line), line, 0, 0, 0, 0, 0, 0, 0, 0, keys)
    roomy = height >= ROOMY_ROWS
    most = 13 if height >= 50 else 10 if height >= 38 else 9 if roomy else 8 if height >= 24 else 7
    card = max(4, min(card_wants, most))
    ribbon = max(1, min(lanes, 8 if height >= 50 else 6 if height >= 38 else 4 if roomy else 2))
    memory = min(memory_wants, 2) if height >= 22 else 1
    step = 2 if height >= (28 if memory > 1 else 22) else 1
    notice, gap = 1, 1 if roomy else 0
    workers = 1 if height >= 28 else 0
    gpus = min(gpus_want, 8 if height >= 50 else 4 if height >= 38 else 2 if roomy else 0)
    names = 1 if tabs and roomy else 0
    fixed = 1 + names + card + ribbon + gap + step + memory + workers + gpus + notice + 1
    left = height - fixed
    # The chart grows first, up to what a share of a second can be told apart in; the log gets the
    # rest, and at least a line under its rule where the chart keeps three rows of plot.
    log = max(min(left - 5, 3), 0)
    chart = max(4, min(left - log, 6 + max(0, height - 24) // 3, 18))
    log = max(0, height - fixed - chart)
    return Plan(1, names, card, chart, ribbon, gap, step, memory, workers, gpus, log, notice, 1)
