"""What a screen may start besides looking: another run, a trial. Handed in by who can do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop_train.launch import again
from gputop_train.launch.options import Setting
from gputop_train.launch.start_trial import StartError

#: What the screen of a run that somebody else started says.
NOT_OURS = "This screen did not start the run, and its command is recorded without its secrets."


@dataclass(frozen=True, slots=True)
class Doors:
    """What can be started from here.

    Attributes:
        run: ``run.json``.
        root: Where runs are kept; ``None`` = there are no others to compare with.
        rerun: Whether whoever opened the screen runs the script again when asked to.
        why_not: Why not, in one sentence.
        start_trial: Starts a trial of candidates, each a ``--set`` of its own, and gives its
            directory; may take a while and may raise `StartError`.
    """

    run: Mapping[str, Any] = field(default_factory=dict)
    root: Path | None = None
    rerun: bool = False
    why_not: str = NOT_OURS
    start_trial: Callable[[Sequence[str]], Path] | None = None

    def command(self, chosen: Sequence[Setting], verb: str = "") -> str:
        """The command that does the same, as a person would type it; empty where none is known."""
        if not self.run.get("command"):
            return ""
        had = again.recorded(self.run)
        if verb == "trial":
            given = again.candidates(chosen, had)
            return again.command_line(self.run, given, verb=verb, root=self.root)
        given = tuple(map(again.typed, again.merged(had, chosen)))
        return again.command_line(self.run, given, root=self.root)


__all__ = ["Doors", "StartError"]
