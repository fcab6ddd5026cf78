"""``serve``: the screen of a run in a browser, read-only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gputop_train.script_command import ASCII, completed_by, look_of, screen

if TYPE_CHECKING:
    from gputop_train.look import Look

#: The version whose page and processes `tui.serving` knows; the extra ``serve`` pins the same.
NEEDS = "textual-serve==1.1.3"


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completed_by("runs"))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Where it listens: 8765, or any free port where that is taken.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Another address lets other machines in, unencrypted.",
)
@click.option("--run-root", metavar="DIR", help="Where runs are kept.")
@ASCII
@screen
def serve(
    run: str, port: int | None, host: str, run_root: str | None, ascii_only: bool, **given: Any
) -> int:
    """Show a run, or a recording (a .zip file), in a browser: read-only, on this machine."""
    try:
        from gputop_train.tui import serving
    except ImportError as missing:
        raise click.ClickException(
            f"Serving needs textual-serve, which is not here ({missing}). "
            f"Say: {sys.executable} -m pip install {NEEDS}"
        ) from None
    from gputop_train import commands

    with commands.opened(run, run_root) as run_dir:
        try:
            address = serving.listen(host, port)
        except serving.ServeProblem as problem:
            raise click.ClickException(str(problem)) from None
        key = serving.new_key()
        click.echo(f"Open {address.url(key)}")
        if address.loopback:
            click.echo(
                "From another machine, with this line there first: "
                f"ssh -L {address.port}:127.0.0.1:{address.port} {_this_host()}"
            )
        else:
            click.echo(
                f"gputop-train: Other machines can connect to {host}: who learns this address "
                "watches the run and its output, and nothing is encrypted. Without --host only "
                "this machine can.",
                err=True,
            )
        click.echo("It shows and changes nothing. Ctrl-C ends it; the run goes on.")
        sys.stdout.flush()
        options = _words(look_of(given), ascii_only=ascii_only)
        serving.serve(address, serving.command(run_dir, options), f"run {run_dir.name}", key)
    return 0


def _words(look: Look, *, ascii_only: bool) -> list[str]:
    words = ["--theme", look.theme, "--window", str(look.window_s)]
    if look.hz is not None:
        words += ["--hz", str(look.hz)]
    return [*words, *(["--ascii"] if ascii_only else [])]


def _this_host() -> str:
    import socket

    return socket.gethostname() or "HOST"


COMMANDS: dict[str, click.Command] = {"serve": serve}
