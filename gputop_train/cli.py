"""The command line. Imports lazily: nothing heavy for ``--version``, no Textual without a screen.

Everything after the script's name belongs to the script, so the command line is cut there before
click sees any of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gputop_train import __version__
from gputop_train.script_command import (
    ASCII,
    OPTIONS_METAVAR,
    PYTHON,
    ScriptCommand,
    completed_by,
    keeping,
    look_of,
    screen,
    target_of,
    valued_options,
)

if TYPE_CHECKING:
    from gputop_train.launch.options import Options, Target


class _LaunchCommand(click.Command):
    """The main job; its help also names the subcommands and the argument boundary."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Other commands (gputop-train COMMAND --help says more)"):
            formatter.write_dl(
                [(name, command.get_short_help_str(70)) for name, command in commands().items()]
            )
        formatter.write_paragraph()
        formatter.write_text(
            "Everything after SCRIPT, MODULE or -- belongs to the script, byte for byte. A script "
            "that is called like a command is reached as ./NAME."
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``gputop-train`` and exit; the entry point of the console script."""
    _open_standard_streams()
    if asked := os.environ.get("_GPUTOP_TRAIN_COMPLETE"):
        sys.exit(_complete(asked))
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(given)
    except click.exceptions.Exit as left:
        code = left.exit_code
    except click.Abort:
        code = 130
    except click.UsageError as problem:
        code = _complain(f"{problem.format_message()} See: {_help_command(problem)}", 2)
    except click.ClickException as problem:
        code = _complain(problem.format_message(), problem.exit_code)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # Whoever read us has seen enough; the interpreter must not complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception as failure:
        # A person can do more with one line than with our stack; GPUTOP_DEBUG shows that too.
        if os.environ.get("GPUTOP_DEBUG"):
            raise
        code = _complain(
            f"Something here failed: {type(failure).__name__}: {failure}. "
            "Run again with GPUTOP_DEBUG=1 for the details, and please report them.",
            125,
        )
    sys.exit(code)


def _complete(asked: str) -> int:
    """Answer the shell's question at a Tab; nothing that fails then may be seen."""
    try:
        from gputop_train import completion

        return completion.answer(asked, launch_command, commands())
    except Exception:
        if os.environ.get("GPUTOP_DEBUG"):
            raise
        return 1


def _dispatch(given: list[str]) -> int:
    if sys.platform != "linux":
        return _complain("gputop-train runs on Linux only. Run it on the machine that trains.", 1)
    known = commands()
    if not given or given[0] not in known:
        # Nothing typed at all is a person who wants to know what to type.
        return _with_target(launch_command, given or ["--help"], "gputop-train")
    command, called = known[given[0]], f"gputop-train {given[0]}"
    if isinstance(command, ScriptCommand):
        return _with_target(command, given[1:], called)
    return _run(command, given[1:], called, None)


def _run(command: click.Command, given: list[str], called: str, target: Target | None) -> int:
    from gputop_train.config import ConfigProblem, defaults
    from gputop_train.launch.options import UsageProblem

    # Help is wanted most when something is wrong.
    asks = not {"--help", "--version"}.isdisjoint(given)
    names = frozenset(param.name or "" for param in command.params)
    try:
        kept = {} if asks else defaults(names)
        result = command.main(
            given, prog_name=called, standalone_mode=False, obj=target, default_map=kept
        )
    except (ConfigProblem, UsageProblem) as problem:
        return _complain(str(problem), 2)
    return int(result or 0)


def _with_target(command: click.Command, given: list[str], called: str) -> int:
    """Run a command that launches something; from that on, nothing typed is ours."""
    from gputop_train.launch.options import UsageProblem, split_command_line

    try:
        own, target = split_command_line(given, valued_options(command))
    except UsageProblem as problem:
        return _complain(str(problem), 2)
    return _run(command, own, called, target)


@click.command(
    cls=_LaunchCommand,
    options_metavar=OPTIONS_METAVAR,
)
@click.option("--no-tui", is_flag=True, help="Plain lines instead of the screen.")
@click.option("--json", "json_path", metavar="FILE", help="Write the report; - is stdout.")
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Stop after N optimizer steps."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completed_by("settings"),
    help="Change a setting without an edit, such as num_workers=4, num_workers@train.py:41=4 "
    "or compile=true (all of them: docs/settings.md).",
)
@click.option("--run-root", metavar="DIR", help="Where runs are kept.")
@click.option("--name", metavar="NAME", help="A name for the run; named runs are never pruned.")
@PYTHON
@click.option(
    "--overhead-budget",
    type=click.FloatRange(min=0, min_open=True, max=100),
    default=1.0,
    show_default=True,
    metavar="PCT",
    help="What watching may cost, in percent of a step.",
)
@ASCII
@screen
@keeping(hidden=True)
@click.option("--no-env", is_flag=True, help="Do not set PYTHONUNBUFFERED and FORCE_COLOR.")
@click.option(
    "--burst/--no-burst",
    "may_burst",
    default=True,
    help="Whether three steps may be traced without being asked (only with TEARDOWN_CUPTI=1).",
)
@click.version_option(__version__, prog_name="gputop-train")
@click.pass_context
def launch_command(ctx: click.Context, /, **given: Any) -> int:
    """Launch a PyTorch training script and say why it leaves the GPU idle."""
    return run_front(options_for(target_of(ctx), given))


def options_for(target: Target, given: Mapping[str, Any]) -> Options:
    """Return the options of a launch from what click parsed.

    Raises:
        UsageProblem: A ``--set`` makes no sense.
    """
    from gputop_train.launch.options import Options, parse_settings

    settings = parse_settings(given["settings"])
    return Options(
        target=target,
        tui=wants_screen(no_tui=given["no_tui"], json_path=given["json_path"]),
        json_path=given["json_path"],
        steps=given["steps"],
        settings=settings,
        run_root=given["run_root"],
        name=given["name"],
        python=given["python"],
        overhead_budget_pct=given["overhead_budget"],
        ascii=given["ascii_only"],
        env_lines=not given["no_env"],
        burst=given["may_burst"],
        keep_runs=given["keep_runs"],
        keep_gb=given["keep_gb"],
        look=look_of(given),
    )


def run_front(options: Options) -> int:
    """Launch with ``options``, and turn what can go wrong before the start into one line."""
    from gputop_train.launch import front
    from gputop_train.launch.interpreter import CommandProblem
    from gputop_train.launch.spawn import LaunchError

    try:
        return front.run(options, dict(os.environ))
    except (CommandProblem, LaunchError) as problem:
        return _complain(str(problem), problem.code)


def wants_screen(*, no_tui: bool, json_path: str | None) -> bool:
    """Return whether to show the screen; says why not where one would expect it."""
    if no_tui or json_path == "-" or not os.isatty(1):
        return False
    try:
        from gputop_train.tui.terminal import can_run
    except ImportError as failure:
        reason: str | None = str(failure)
    else:
        reason = can_run()
    if reason is not None:
        click.echo(f"gputop-train: no screen here ({reason}); plain lines instead.", err=True)
    return reason is None


def commands() -> dict[str, click.Command]:
    """Return the subcommands by name."""
    from gputop_train import commands as module

    return module.COMMANDS


def _complain(message: str, code: int) -> int:
    from gputop_train.report.format import safe

    # A name in it may be anybody's: of a run, of a file, of a process.
    told = "\n".join(map(safe, message.split("\n")))
    click.echo(f"gputop-train: {told}", err=True)
    return code


def _help_command(problem: click.UsageError) -> str:
    path = problem.ctx.command_path if problem.ctx is not None else "gputop-train"
    return f"{path} --help"


def _open_standard_streams() -> None:
    """See to it that 0, 1 and 2 are open, or the next files opened would be taken for them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


if __name__ == "__main__":
    main()
