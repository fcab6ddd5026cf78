"""The subcommands: thin doors to what other modules do. Everything is imported when it is used."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gputop_train import (
    check_commands,
    config_commands,
    demo_commands,
    doctor_commands,
    serve_commands,
    trial_commands,
)
from gputop_train.cli import wants_screen
from gputop_train.script_command import ASCII, completed_by, keeping, look_of, screen

if TYPE_CHECKING:
    from gputop_train.launch.runs import RunInfo
    from gputop_train.look import Look

_ROOT_HELP = "Where runs are kept."


def _say(message: str) -> None:
    click.echo(f"gputop-train: {message}", err=True)


def _root(run_root: str | None) -> Path:
    from gputop_train import paths

    return paths.run_root(run_root)


def find(run: str | None, run_root: str | None) -> Path:
    """Return the directory of a run named by id, prefix, name, PID or path."""
    from gputop_train.launch.attach import AttachError, resolve

    if run is not None and "/" in run and (Path(run) / "run.json").is_file():
        _refuse_anothers(Path(run))
        return Path(run).resolve()
    try:
        return Path(resolve(run, _root(run_root)).path)
    except AttachError as problem:
        raise click.ClickException(str(problem)) from None


def _refuse_anothers(run_dir: Path) -> None:
    """Only root reads runs of others: they could name our processes and files as theirs."""
    owner = run_dir.stat().st_uid
    if owner != os.geteuid() and os.geteuid() != 0:
        raise click.ClickException(
            f"The run {run_dir} belongs to another user (uid {owner}). Copy it to a directory of "
            "your own, or ask for a recording of it."
        )


@contextlib.contextmanager
def opened(run: str, run_root: str | None) -> Iterator[Path]:
    """Yield the directory of a run, or of a recording that was given as a file."""
    if not run.endswith(".zip"):
        yield find(run, run_root)
        return
    from gputop_train.store.errors import RecordingError
    from gputop_train.store.recording import import_recording

    with tempfile.TemporaryDirectory(prefix="gputop-train-") as scratch:
        try:
            run_dir = import_recording(Path(run), Path(scratch) / Path(run).stem)
        except RecordingError as problem:
            raise click.ClickException(str(problem)) from None
        yield run_dir


@click.command()
@click.argument(
    "run", metavar="[RUN, TRIAL, PID or auto]", required=False, shell_complete=completed_by("jobs")
)
@click.option(
    "--duration", type=click.FloatRange(min=0), metavar="S", help="Leave after S seconds."
)
@click.option("--no-tui", is_flag=True, help="Plain lines instead of the screen.")
@click.option(
    "--burst",
    is_flag=True,
    help="Trace three steps, print what the kernels did, and leave. On a GPU later launches stay "
    "slower unless TEARDOWN_CUPTI=1 is set.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write the report; - is stdout.")
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
@ASCII
@screen
def attach(
    run: str | None,
    duration: float | None,
    no_tui: bool,
    burst: bool,
    json_path: str | None,
    run_root: str | None,
    ascii_only: bool,
    **given: Any,
) -> int:
    """Join a running job, or a trial, again, or look at any training process from outside.

    Without RUN, list what trains here and how well it can be seen; with options alone, and with
    auto, take the newest job that is alive.
    """
    from gputop_train import watch_commands
    from gputop_train.launch import attach as joining

    root = _root(run_root)
    if run is None and not (duration is not None or no_tui or burst or json_path):
        return watch_commands.show_trainings(root)
    if run == "auto":
        run = watch_commands.pick(root)
    named_trial = run is not None and re.fullmatch("t[0-9a-f]+", run)
    if named_trial and (trial := watch_commands.find_trial(str(run), root)) is not None:
        shown = wants_screen(no_tui=no_tui, json_path=json_path)
        return watch_commands.watch(trial, screen=shown, ascii_only=ascii_only, look=look_of(given))
    if run is not None and (pid := watch_commands.process_outside(run, root)) is not None:
        run_dir = watch_commands.join_outside(pid, root)
        if run_dir is None:
            return watch_commands.look_outside(
                pid, duration, json_path, burst=burst, ascii_only=ascii_only
            )
    else:
        run_dir = find(run, run_root)
    if burst:
        from gputop_train.launch import bursting
        from gputop_train.report.format import safe

        try:
            for line in bursting.take(run_dir):
                click.echo(safe(line))
        except bursting.BurstError as problem:
            raise click.ClickException(str(problem)) from None
        return 0
    from gputop_train.launch import keeping

    plain = no_tui or duration is not None
    if not wants_screen(no_tui=plain, json_path=json_path):
        with keeping.repeated(keeping.Replacement(run_dir)):
            return joining.attach_plain(run_dir, duration_s=duration, json_path=json_path)
    from gputop_train import paths
    from gputop_train.tui.app import run_live

    joining.ensure_supervised(run_dir)
    with keeping.repeated(keeping.Replacement(run_dir)):
        result = run_live(run_dir, ascii=ascii_only, look=look_of(given))
    if result.action == "detached" and result.error is None:
        again = paths.come_back("attach", run_dir)
        _say(f"Detached; training goes on. Come back with: {again}")
        return result.exit_code or 0
    return joining.attach_plain(run_dir, json_path=json_path, from_end=True)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--prune", is_flag=True, help="Remove old runs.")
@keeping()
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
@ASCII
def runs(
    as_json: bool,
    prune: bool,
    keep_runs: int,
    keep_gb: float,
    run_root: str | None,
    ascii_only: bool,
) -> int:
    """List the runs of this user."""
    from gputop_train.launch import runs as listing

    root = _root(run_root)
    _check_readable(root)
    if prune:
        from gputop_train.launch import housekeeping

        pruned = housekeeping.prune(root, keep_runs=keep_runs, keep_bytes=int(keep_gb * 10**9))
        _say(f"removed {len(pruned.removed)} runs ({pruned.freed_bytes / 1e6:.0f} MB)")
    found = listing.list_runs(root)
    if as_json:
        click.echo(json.dumps(listing.runs_json(found), indent=1))
        return 0
    if not found:
        _say(f"There are no runs in {root}. Start one with: gputop-train train.py")
        return 0
    _print_table(found, ascii_only=ascii_only)
    return 0


def _check_readable(root: Path) -> None:
    """Tell a root that cannot be read from one without runs."""
    try:
        with os.scandir(root):
            return
    except FileNotFoundError:
        return
    except OSError as failure:
        raise click.ClickException(
            f"The runs in {root} cannot be read ({failure.strerror or failure}). "
            "Check its owner and mode, or name another directory with --run-root."
        ) from None


def _print_table(found: list[RunInfo], *, ascii_only: bool) -> None:
    from rich.console import Console

    from gputop_train.launch import runs as listing

    # A pipe has no width; cutting commands at 80 columns there would only lose text.
    width = None if os.isatty(1) else 200
    Console(width=width).print(listing.runs_table(found, ascii_only=ascii_only))


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completed_by("runs"))
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
@ASCII
@screen
def replay(run: str, run_root: str | None, ascii_only: bool, **given: Any) -> int:
    """Play a run, or a recording (a .zip file), back with pause, seek and speed."""
    with opened(run, run_root) as run_dir:
        return play(run_dir, recording=_recording(run), ascii_only=ascii_only, look=look_of(given))


def _recording(run: str) -> str | None:
    return run if run.endswith(".zip") else None


def play(run_dir: Path, *, recording: str | None, ascii_only: bool, look: Look) -> int:
    """Play a run back on the screen."""
    from gputop_train.launch.ending import report_command
    from gputop_train.tui.app import run_replay
    from gputop_train.tui.terminal import can_run

    reason = can_run()
    if reason is not None:
        again = report_command(run_dir, recording)
        _say(f"A replay needs a screen, and {reason}. Read it with: {again}")
        return 1
    # A recording is unpacked for the time of the replay; its pictures are to outlast that.
    pictures = Path.cwd() if recording is not None else None
    return run_replay(run_dir, ascii=ascii_only, look=look, pictures=pictures).exit_code or 0


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completed_by("runs"))
@click.option("--json", "json_path", metavar="FILE", help="Write the report; - is stdout.")
@click.option("--lines", "lines", is_flag=True, help="Print what each line cost instead.")
@click.option("--memory", "memory", is_flag=True, help="Print what held memory instead.")
@click.option("--diff", "diff", is_flag=True, help="Print the advice as a diff of your files.")
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
@ASCII
def report(
    run: str,
    json_path: str | None,
    run_root: str | None,
    *,
    lines: bool,
    memory: bool,
    diff: bool,
    ascii_only: bool,
) -> int:
    """Print the summary of a run or a recording (a .zip file), or write its report."""
    if json_path is not None and (lines or memory or diff):
        raise click.UsageError("--json writes the report; --lines, --memory and --diff only print.")
    if diff and (lines or memory):
        raise click.UsageError("--diff prints nothing but a diff: leave --lines and --memory out.")
    with opened(run, run_root) as run_dir:
        if diff:
            from gputop_train import edit_commands

            return edit_commands.show_diff(run_dir, recording=run.endswith(".zip"))
        if lines or memory:
            return _report_detail(run_dir, lines=lines, memory=memory, ascii_only=ascii_only)
        return print_report(run_dir, json_path, recording=_recording(run), ascii_only=ascii_only)


@click.command("apply")
@click.argument("run", metavar="RUN", shell_complete=completed_by("runs"))
@click.option(
    "--only", type=click.IntRange(min=1), metavar="N", help="The Nth piece of advice alone."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
def apply_(run: str, only: int | None, run_root: str | None, *, yes: bool) -> int:
    """Make the changes of report --diff in your files; keeps a backup of each."""
    from gputop_train import edit_commands

    if run.endswith(".zip"):
        raise click.UsageError("A recording is not tied to files here: name a run.")
    return edit_commands.apply_advice(find(run, run_root), only=only, yes=yes)


@click.command()
@click.argument(
    "diagnosis", metavar="[ID]", required=False, shell_complete=completed_by("diagnoses")
)
def explain(diagnosis: str | None) -> int:
    """Print what a diagnosis means, by which thresholds, and how it is mended."""
    from gputop_train.diagnose import pages

    known = {rule.id: (rule, page) for rule, page in pages.documented()}
    if diagnosis is None:
        for rule, page in known.values():
            click.echo(f"{rule.id:<26} {page.title}")
        return 0
    if diagnosis not in known:
        raise click.UsageError(f"There is no diagnosis {diagnosis}. Without ID all are listed.")
    for line in pages.plain_text(*known[diagnosis]):
        click.echo(line)
    return 0


def _report_detail(run_dir: Path, *, lines: bool, memory: bool, ascii_only: bool) -> int:
    from gputop_train import paths
    from gputop_train.diagnose import evidence
    from gputop_train.launch import attach as joining
    from gputop_train.launch import runfile
    from gputop_train.launch.printed import printed
    from gputop_train.launch.runs import store_path
    from gputop_train.launch.streams import speaks_utf8
    from gputop_train.report import line_facts
    from gputop_train.report import lines as by_line
    from gputop_train.report import memory as held
    from gputop_train.store.reader import RunReader, StoreError

    joining.report_of(run_dir)  # of a run that has ended, this brings the store home
    run = runfile.read_json(run_dir / "run.json") or {}
    width = shutil.get_terminal_size((100, 24)).columns
    ascii_only = ascii_only or not speaks_utf8()
    text: list[str] = []
    try:
        with RunReader(store_path(run_dir, run)) as reader:
            if lines:
                output = printed(paths.RunPaths(run_dir).output_log)
                facts = line_facts.gather(reader, str(run.get("id", run_dir.name)), output)
                text += by_line.lines(facts, width, ascii_only=ascii_only)
            if memory:
                known = held.gather(reader, evidence.build(reader, final=True))
                text += held.lines(known, width, ascii_only=ascii_only)
    except StoreError as problem:
        raise click.ClickException(str(problem)) from None
    for line in text:
        click.echo(line)
    return 0


def print_report(
    run_dir: Path, json_path: str | None, *, recording: str | None, ascii_only: bool = False
) -> int:
    """Print the summary of a run, or write its report."""
    from gputop_train import paths
    from gputop_train.launch import attach as joining
    from gputop_train.launch import ending
    from gputop_train.launch.streams import Voice

    found, reason = joining.report_or_reason(run_dir)
    if found is None:
        raise click.ClickException(
            reason
            or f"Nothing was recorded yet of {run_dir.name}. "
            f"Look at its output with: {paths.come_back('attach', run_dir)}"
        )
    if json_path is not None:
        return 0 if ending.deliver(found, json_path, Voice()) else 1
    for line in ending.summary_lines(
        run_dir, found, fd=1, recording=recording, ascii_only=ascii_only
    ):
        click.echo(line)
    return 0


COMMANDS: dict[str, click.Command] = {
    command.name or "": command for command in (attach, runs, replay, report, apply_, explain)
}
COMMANDS |= demo_commands.COMMANDS | trial_commands.COMMANDS | check_commands.COMMANDS
COMMANDS |= serve_commands.COMMANDS | config_commands.COMMANDS | doctor_commands.COMMANDS
