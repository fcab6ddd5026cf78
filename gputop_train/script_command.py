"""What commands share that end with a script, whose own arguments they never see."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gputop_train.look import HZ_MAX, HZ_MIN, THEMES, WINDOWS, Look

if TYPE_CHECKING:
    from gputop_train.launch.options import Target

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def completed_by(name: str) -> Callable[[click.Context, click.Parameter, str], Any]:
    """A ``shell_complete`` that loads what it needs when a shell asks, and not with every command.

    Args:
        name: A function of `completion`.
    """

    def ask(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        completion = importlib.import_module("gputop_train.completion")
        return getattr(completion, name)(ctx, param, incomplete)

    return ask


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
ASCII = click.option(
    "--ascii/--no-ascii",
    "ascii_only",
    default=False,
    help="Draw with ASCII characters only (chosen by itself where the terminal needs it).",
)


def _window(_ctx: click.Context, _param: click.Parameter, value: int) -> int:
    if value not in WINDOWS:
        raise click.BadParameter(f"{value} is not one of {', '.join(map(str, WINDOWS))}.")
    return value


_SCREEN = (
    click.option(
        "--theme",
        type=click.Choice(THEMES),
        default="auto",
        show_default=True,
        help="Colours of the screen.",
    ),
    click.option(
        "--mouse/--no-mouse",
        default=True,
        help="Whether wheel and clicks are the screen's or stay the terminal's.",
    ),
    click.option(
        "--window",
        type=int,
        default=60,
        show_default=True,
        metavar="S",
        callback=_window,
        help=f"Seconds the time axis covers at first: {', '.join(map(str, WINDOWS))}.",
    ),
    click.option(
        "--hz",
        type=click.FloatRange(min=HZ_MIN, max=HZ_MAX),
        metavar="HZ",
        help="Repaints a second (4, and 2 over SSH).",
    ),
)


def keeping(*, hidden: bool = False) -> Callable[[Decorated], Decorated]:
    """Give a command the options of what stays when old runs are removed."""

    def decorate(command: Decorated) -> Decorated:
        runs = click.option(
            "--keep-runs",
            type=click.IntRange(min=1),
            default=50,
            show_default=True,
            hidden=hidden,
            metavar="N",
            help="Runs without a name that stay.",
        )
        size = click.option(
            "--keep-gb",
            type=click.FloatRange(min=0, min_open=True),
            default=5.0,
            show_default=True,
            hidden=hidden,
            metavar="GB",
            help="What they may take together.",
        )
        return runs(size(command))

    return decorate


def screen(command: Decorated) -> Decorated:
    """Give a command the options of the screen."""
    for option in reversed(_SCREEN):
        command = option(command)
    return command


def look_of(given: Mapping[str, Any]) -> Look:
    """Return the options of the screen from what click parsed."""
    return Look(given["theme"], given["mouse"], given["window"], given["hz"])


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


def valued_options(command: click.Command) -> set[str]:
    """Return the options of a command that are followed by a value."""
    return {
        name
        for option in command.params
        if isinstance(option, click.Option) and not option.is_flag and not option.is_eager
        for name in option.opts
    }


def let_go_of_stdin() -> None:
    """Legs read nothing: what is on stdin can be read once, and legs are many."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
