"""``doctor``: what on this machine would break a run or blind us to it, and the remedy."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.text import Text


# The config file's values are read by the examination itself, which must come about with a file
# that is wrong: parameters are therefore not called like the file's keys.
@click.command()
@click.option(
    "--python", "interpreter", metavar="PATH", help="The interpreter that would run the script."
)
@click.option("--run-root", "root", metavar="DIR", help="Where runs would be kept.")
@click.option(
    "--timeout",
    "limit_s",
    type=click.FloatRange(min=1, max=3600),
    default=60.0,
    show_default=True,
    metavar="S",
    help="What importing torch may take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option("--ascii/--no-ascii", "only_ascii", default=None, help="Draw with ASCII only.")
def doctor(
    interpreter: str | None,
    root: str | None,
    limit_s: float,
    as_json: bool,
    strict: bool,
    only_ascii: bool | None,
) -> int:
    """Check what would break a run or blind us to it, with remedies.

    Exit code 0: all well; 1: something will break a run or leave us blind to it.
    """
    from gputop_train.doctor import as_json as told
    from gputop_train.doctor import examine
    from gputop_train.doctor.findings import exit_code

    environ = dict(os.environ)
    facts = examine.gather(interpreter, root, environ, limit_s=limit_s)
    checks = examine.judge(facts)
    if as_json:
        click.echo(json.dumps(told.document(checks, strict=strict), indent=1))
    else:
        from gputop_train.doctor.text import lines

        asked = examine.kept(environ).get("ascii") if only_ascii is None else only_ascii
        ascii_only = bool(asked) or not facts.terminal.utf8
        # A pipe has no width; 80 columns are what every log shows.
        width = shutil.get_terminal_size((80, 24)).columns if os.isatty(1) else 80
        _print(lines(checks, width, ascii_only=ascii_only), width)
    return exit_code(checks, strict=strict)


def _print(lines: Sequence[Text], width: int) -> None:
    from rich.console import Console

    console = Console(width=width, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)


COMMANDS: dict[str, click.Command] = {"doctor": doctor}
