"""What commands share that end with a script, whose own arguments they never see."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gputop_train.launch.options import Target

OPTIONS_METAVAR = "[OPTIONS] SCRIPT [ARGS]... | -m MODULE [ARGS]... | -- COMMAND [ARGS]..."

#: Options of commands that run a script more than once, each to be used as a decorator.
WARMUP = click.option(
    "--warmup", type=click.IntRange(min=1), metavar="W", help="Steps before them."
)
MAX_MINUTES = click.option(
    "--max-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="M",
    help="What it may take in all.",
)
PYTHON = click.option("--python", metavar="PATH", help="The interpreter that runs the script.")
GUARD = click.option(
    "--guard",
    type=click.Choice(["auto", "overlay", "refuse"]),
    default="auto",
    show_default=True,
    help="How your files are kept as they are: writes diverted, or refused.",
)
SEED = click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Of every leg."
)
ASCII = click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")


class ScriptCommand(click.Command):
    """Its command line is cut where the script begins; ``obj`` of the context is the target."""


def target_of(ctx: click.Context) -> Target:
    """Return what to run.

    Raises:
        click.UsageError: Nothing was named.
    """
    target: Target | None = ctx.obj
    if target is None:
        raise click.UsageError("There is nothing to run: name a script, -m MODULE or -- COMMAND.")
    return target


def let_go_of_stdin() -> None:
    """Legs read nothing: what is on stdin can be read once, and legs are many."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
