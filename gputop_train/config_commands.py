"""``config``: what is kept between runs, and who says so. ``completion``: for the shell."""

from __future__ import annotations

import os

import click

from gputop_train import completion, config, paths
from gputop_train.config_keys import BY_NAME, toml


@click.command("config")
@click.option("--init", "init", is_flag=True, help="Write a file that explains every key.")
def config_(*, init: bool) -> int:
    """Show where the config file is, what holds, and who says so."""
    place = paths.config_file()
    if init:
        return _init()
    held = config.load()
    if place is None:
        click.echo("There is no config file: GPUTOP_CONFIG is empty, or you have no home.")
    elif place.exists():
        click.echo(place)
    else:
        click.echo(f"{place} (not there: gputop-train config --init writes it)")
    click.echo()
    wide = max(len(name) for name in held)
    values = {name: toml(entry.value) or _usual(name) for name, entry in held.items()}
    middle = max(map(len, values.values()))
    for name, entry in held.items():
        said = BY_NAME[name].variable if entry.source == "environment" else entry.source
        click.echo(f"{name:<{wide}}  {values[name]:<{middle}}  {said}")
    return 0


def _usual(name: str) -> str:
    """What happens where nothing is said."""
    if name == "run_root":
        return toml(str(paths.run_root()))
    return "-"


def _init() -> int:
    place = paths.config_file()
    if place is None:
        raise click.ClickException(
            "There is no place for a config file: GPUTOP_CONFIG is empty, or you have no home. "
            "Name one: GPUTOP_CONFIG=FILE gputop-train config --init"
        )
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = paths.open_private_file(place)
    except FileExistsError:
        raise click.ClickException(f"{place} is there already and was left as it is.") from None
    except OSError as failure:
        raise click.ClickException(
            f"{place} cannot be written: {failure.strerror or failure}. Mend its directory, or "
            "name another file with GPUTOP_CONFIG."
        ) from None
    try:
        with open(fd, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor, no path
            stream.write(config.template())
    except OSError as failure:
        os.unlink(place)  # noqa: PTH108
        raise click.ClickException(
            f"{place} cannot be written: {failure.strerror or failure}. Free some space."
        ) from None
    click.echo(f"{place} explains every key and sets none: take the # off a line to set it.")
    return 0


@click.command("completion")
@click.argument("shell", type=click.Choice(completion.SHELLS))
def completion_(shell: str) -> int:
    """Print what completes our command lines in bash, zsh or fish."""
    click.echo(completion.source(shell), nl=False)
    return 0


COMMANDS: dict[str, click.Command] = {"config": config_, "completion": completion_}
