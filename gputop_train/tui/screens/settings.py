"""The settings of the run, to be changed for the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from gputop_train.launch.options import Setting, UsageProblem
from gputop_train.tui import next_run
from gputop_train.tui.clipboard import Copy
from gputop_train.tui.messages import ChoicesMade, RerunAsked, TrialAsked
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.snapshot import SettingGroup, SettingSeen, Snapshot
from gputop_train.tui.widgets.settings import SettingsPage, SettingsTable

#: More digits than any setting has.
_MAX_DIGITS = 7


class Settings(Screen[None]):
    """Choices are told to the app with every change, so that closing this loses none.

    Args:
        choices: What was chosen before.
        command: Gives the command that runs the script with settings.
    """

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up"),
        Binding("down,j", "move(1)", "down"),
        Binding("pageup", "move(-8)", "up"),
        Binding("pagedown", "move(8)", "down"),
        Binding("home", "move(-10000)", "first"),
        Binding("end", "move(10000)", "last"),
        Binding("space,enter", "flip", "change"),
        Binding("left,h,minus", "step(-1)", "less"),
        Binding("right,l,plus", "step(1)", "more"),
        Binding("backspace,delete", "reset", "reset"),
        Binding("a", "advice", "take advice"),
        Binding("r", "rerun", "rerun"),
        Binding("p", "trial", "trial"),
        Binding("escape,t", "close", "close"),
        *(Binding(digit, f"digit('{digit}')", "type") for digit in "0123456789"),
    ]

    def __init__(
        self, choices: next_run.Choices, command: Callable[[Sequence[Setting]], str]
    ) -> None:
        super().__init__()
        self._command = command
        self._page = SettingsPage("", choices=dict(choices))
        self._table = SettingsTable(id="settings")

    def compose(self) -> ComposeResult:
        """One table that fills the terminal."""
        yield self._table

    def restyle(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        """Use another alphabet or other colours."""
        self._table.restyle(glyphs, inks)

    def show(self, snapshot: Snapshot) -> None:
        """Show what the run has now."""
        host = snapshot.host
        here = self._here()
        self._turn(
            title=f"{snapshot.run.name or snapshot.run.script}  run {snapshot.run.id}",
            groups=snapshot.settings or self._page.groups,
            cores=host.cores_allowed if host is not None else self._page.cores,
        )
        # A loader that shows up later must not move another setting under the keys.
        mine = next_run.key_of(*here) if here is not None else None
        for number, row in enumerate(self._page.flat):
            if next_run.key_of(*row) == mine and number != self._page.cursor:
                self._turn(cursor=number)

    def say(self, message: str) -> None:
        """Answer a key press."""
        self._turn(message=message)

    def to_copy(self) -> Copy | None:
        """The command that does the same."""
        line = self._page.command
        return Copy("Command", f"{line}\n", "next-run.txt") if line else None

    def _turn(self, **changes: object) -> None:
        page = replace(self._page, **changes)  # type: ignore[arg-type]
        last = max(0, len(page.flat) - 1)
        page = replace(page, cursor=max(0, min(last, page.cursor)))
        chosen = next_run.settings(page.groups, page.choices)
        self._page = replace(page, command=self._command(chosen))
        self._table.show(self._page)

    def _here(self) -> tuple[SettingGroup, SettingSeen] | None:
        flat = self._page.flat
        return flat[self._page.cursor] if flat else None

    def _choose(self, value: object) -> None:
        here = self._here()
        if here is None:
            return
        why = next_run.cannot(*here, self._page.choices)
        if why:
            self._turn(typing="", message=f"{here[1].key} cannot be set: {why}.")
            return
        choices = next_run.with_choice(self._page.choices, *here, value)  # type: ignore[arg-type]
        self._turn(choices=choices, typing="", message="")
        self.post_message(ChoicesMade(choices))

    # Keys

    def action_move(self, by: int) -> None:
        """Go to another row; what was typed is taken."""
        self._take_typed()
        self._turn(cursor=self._page.cursor + by, message="")

    def action_flip(self) -> None:
        """Flip a switch, or go to the advised value and back."""
        here = self._here()
        if self._take_typed() or here is None:
            return
        now = next_run.wanted(*here, self._page.choices)
        self._choose(next_run.toggled(here[1], now, self._page.cores))

    def action_step(self, by: int) -> None:
        """The next larger or smaller value."""
        here = self._here()
        if self._take_typed() or here is None:
            return
        now = next_run.wanted(*here, self._page.choices)
        self._choose(next_run.stepped(here[1], now, by, self._page.cores))

    def action_reset(self) -> None:
        """Take back a digit, or the choice."""
        if self._page.typing:
            self._turn(typing=self._page.typing[:-1])
            return
        here = self._here()
        if here is None:
            return
        choices = next_run.reset(self._page.choices, *here)
        self._turn(choices=choices, message="")
        self.post_message(ChoicesMade(choices))

    def action_advice(self) -> None:
        """Choose all that is advised."""
        advised = next_run.advised(self._page.groups)
        if not advised:
            self._turn(message="Nothing is advised that can be set here.")
            return
        choices = {**self._page.choices, **advised}
        self._turn(choices=choices, typing="", message="")
        self.post_message(ChoicesMade(choices))

    def action_rerun(self) -> None:
        """Ask for a run with these settings."""
        self._take_typed()
        self.post_message(RerunAsked())

    def action_trial(self) -> None:
        """Ask for a trial of these settings."""
        self._take_typed()
        self.post_message(TrialAsked())

    def action_close(self) -> None:
        """Back to the overview; the choices stay. While typing, forget the digits."""
        if self._page.typing:
            self._turn(typing="")
            return
        self.dismiss()

    def action_digit(self, digit: str) -> None:
        """Digits make a number."""
        here = self._here()
        if here is None:
            return
        why = next_run.cannot(*here, self._page.choices)
        if why or not next_run.takes_digits(here[1]):
            self._turn(
                message=f"{here[1].key} {'cannot be set: ' + why if why else 'is on or off'}."
            )
            return
        self._turn(typing=(self._page.typing + digit)[:_MAX_DIGITS], message="")

    def _take_typed(self) -> bool:
        """Take the number that was being typed; whether there was one."""
        here = self._here()
        if not self._page.typing or here is None:
            return False
        try:
            value = next_run.typed(here[1], self._page.typing)
        except UsageProblem as problem:
            self._turn(typing="", message=str(problem).removeprefix("--set "))
            return True
        self._choose(value)
        return True
