"""``demo``: a bundled script to try things on, or a recording of it where there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from gputop_train.cli import launch_command, options_for, run_front
from gputop_train.script_command import completed_by, look_of


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--replay", "recorded", is_flag=True, help="Play the bundled recording instead.")
@click.argument("which", metavar="[NAME]", required=False, shell_complete=completed_by("demos"))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def demo(recorded: bool, which: str | None, arguments: tuple[str, ...], **given: Any) -> int:
    """Run a bundled demo, or play a recording of it; without NAME, list them."""
    from gputop_train import demos_index

    if which is None:
        return _list_demos()
    try:
        script = demos_index.path(which)
    except demos_index.DemoError as problem:
        raise click.UsageError(str(problem)) from None
    if recorded or arguments == ("--replay",):
        return _replay_demo(which, given)
    from gputop_train.launch.interpreter import CommandProblem, interpreter_with_torch
    from gputop_train.launch.options import Target

    target = Target("script", (str(script), *arguments))
    try:
        python = interpreter_with_torch(given["python"], os.environ)
    except CommandProblem as problem:
        text = f"{problem} Or watch a recording: gputop-train demo --replay {which}"
        click.echo(f"gputop-train: {text}", err=True)
        return problem.code
    return run_front(options_for(target, {**given, "python": python}))


def _list_demos() -> int:
    from gputop_train import demos_index

    for demo in demos_index.DEMOS:
        click.echo(f"{demo.name:<14} {demo.description}")
    click.echo("\nRun one: gputop-train demo starved")
    return 0


def _replay_demo(name: str, given: Mapping[str, Any]) -> int:
    """Play a recording; without a screen, print what it came to."""
    from gputop_train import commands, demos_index
    from gputop_train.tui.terminal import can_run

    recording = demos_index.recording(name)
    if recording is None:
        raise click.ClickException(
            f"There is no recording of {name} in this release. Run it: gputop-train demo {name}"
        )
    place = str(recording)
    with commands.opened(place, None) as run_dir:
        if can_run() is not None:
            return commands.print_report(run_dir, None, recording=place)
        return commands.play(
            run_dir, recording=place, ascii_only=given["ascii_only"], look=look_of(given)
        )


# The demo is a launch like any other, so it takes the same options.
demo.params[1:1] = [
    option
    for option in launch_command.params
    if isinstance(option, click.Option) and not option.is_eager
]

COMMANDS: dict[str, click.Command] = {"demo": demo}
