"""What is to be measured, and how it is split between machines or lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIZES_MS = (0.5, 1.0, 2.0, 10.0, 50.0)
BUSY_MS = (10.0,)
PART_LIMIT_S = 540.0  # a part stays under nine minutes


@dataclass(frozen=True, slots=True)
class Item:
    """The smallest piece that is measured in one go.

    Attributes:
        kind: ``inprocess``, ``peers`` or ``busy``.
        step_ms: The step asked for.
        round: Number of the round; 0 in process.
        estimate_s: How long it should take.
    """

    kind: str
    step_ms: float
    round: int
    estimate_s: float


def plan(
    *,
    sizes: Sequence[float],
    inprocess_s: float | None,
    peers: tuple[int, float] | None,
    busy: tuple[int, float] | None,
) -> list[Item]:
    """Every item of one command.

    Args:
        sizes: Steps in ms.
        inprocess_s: Seconds a size takes in process; None for none.
        peers: (rounds, seconds a round takes); None for none.
        busy: The same for the two busy cores.
    """
    items = [Item("inprocess", ms, 0, inprocess_s) for ms in sizes] if inprocess_s else []
    for kind, wanted, steps in (("peers", peers, tuple(sizes)), ("busy", busy, BUSY_MS)):
        if wanted is not None:
            rounds, seconds = wanted
            items += [Item(kind, ms, r, seconds) for r in range(1, rounds + 1) for ms in steps]
    return items


def part(items: Sequence[Item], number: int, parts: int) -> list[Item]:
    """The items of part ``number`` of ``parts``, counted from 1: every item is in exactly one.

    The longest items are dealt first, each to the part that has least to do, so that parts take
    about the same time.

    Raises:
        ValueError: There is no such part.
    """
    if not 1 <= number <= parts:
        raise ValueError(f"there is no part {number} of {parts}")
    loads = [0.0] * parts
    owner: dict[int, int] = {}
    for index in sorted(range(len(items)), key=lambda i: (-items[i].estimate_s, i)):
        least = min(range(parts), key=lambda p: (loads[p], p))
        loads[least] += items[index].estimate_s
        owner[index] = least
    return [item for index, item in enumerate(items) if owner[index] == number - 1]


def parse_part(text: str) -> tuple[int, int]:
    """``2/4`` as (2, 4).

    Raises:
        ValueError: It is not of that form.
    """
    number, slash, parts = text.partition("/")
    if not slash or not number.isdigit() or not parts.isdigit() or int(parts) < 1:
        raise ValueError(f"a part is written i/n, such as 1/2, not {text}")
    if not 1 <= int(number) <= int(parts):
        raise ValueError(f"there is no part {number} of {parts}")
    return int(number), int(parts)
