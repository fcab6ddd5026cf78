"""How the screen was left, for the command that opened it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gputop_train.launch.options import Setting

Action = Literal["detached", "stopped", "ended", "rerun"]


@dataclass(frozen=True, slots=True)
class TuiResult:
    """How the screen was left.

    Attributes:
        action: ``detached`` (the script goes on, as far as the screen knows), ``stopped`` (it was
            stopped from here), ``ended`` (it had ended by itself, or this was a replay) or
            ``rerun`` (it has ended, and the script is to run again with ``settings`` besides those
            it had).
        exit_code: What the caller should exit with: 0 after detaching or a replay, 128+n after a
            signal, else the script's own; ``None`` when nobody knows that.
        error: One sentence when the screen failed; the caller may go on in plain mode.
    """

    action: Action
    exit_code: int | None
    error: str | None = None
    settings: tuple[Setting, ...] = ()
