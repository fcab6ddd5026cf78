"""In which order the legs of a round run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gputop_train.trial.standing import Candidate


def blocks(
    candidates: Sequence[Candidate], at: int, *, opens: bool
) -> Iterator[list[Candidate | None]]:
    """The legs of one round, cut into blocks around one leg of the baseline (``None``).

    Every candidate runs right before or right after the baseline, and changes sides from round to
    round, so that a drift of the host favours neither.

    Args:
        candidates: Those still wanted.
        at: The round, from 1.
        opens: A leg of the baseline has just ended and begins the round.
    """
    turn = (at - 1) % len(candidates) if candidates else 0
    rest = [*candidates[turn:], *candidates[:turn]]
    if opens and rest:
        yield [None, rest.pop(0)]
    while len(rest) >= 2:
        yield [rest.pop(0), None, rest.pop(0)]
    if rest:
        yield [None, rest[0]] if at % 2 else [rest[0], None]
