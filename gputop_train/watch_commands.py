"""What ``attach`` joins besides runs: trials, and processes that were not started by us."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gputop_train.launch import again
from gputop_train.look import Look
from gputop_train.report.format import printable
from gputop_train.trial import store


def find_trial(name: str, root: Path) -> Path | None:
    """The directory of a trial by its id or the beginning of it; ``None`` = no such trial."""
    found = [trial for trial in store.trials(root) if trial.id.startswith(name)] if name else []
    exact = [trial for trial in found if trial.id == name]
    chosen = exact or found
    return chosen[0].trial_dir if len(chosen) == 1 else None


def watch(trial_dir: Path, *, screen: bool, ascii_only: bool, look: Look | None = None) -> int:
    """Show a trial until it is left; without a screen, print how it stands.

    Returns:
        0, or 128+n after a signal.
    """
    if not screen:
        return _print(trial_dir, ascii_only=ascii_only)
    from gputop_train.tui.app import run_trial

    result = run_trial(trial_dir, ascii=ascii_only, look=look)
    if result.settings:
        given = [again.typed(setting) for setting in result.settings]
        line = keep(store.read(trial_dir) or {}, given)
        click.echo(f"gputop-train: Run with what was proved: {printable(line)}", err=True)
    return result.exit_code or 0


def keep(body: Mapping[str, Any], given: Sequence[str]) -> str:
    """The command that runs a trial's script with settings.

    Args:
        body: ``trial.json``.
        given: Values of ``--set``.
    """
    command = [str(word) for word in body.get("command") or []]
    if body.get("mode") == "command":
        return again.command_line({"command": command, "mode": "command"}, given)
    # ``run.json`` names the interpreter first; here it is the one that will be chosen.
    return again.command_line({"command": ["python", *command], "mode": "script"}, given)


def show_trainings(root: Path) -> int:
    """List the processes that train here; ``attach`` alone."""
    from gputop_train.launch.outside import listing

    found = listing.find(root)
    shown = listing.lines(found, shutil.get_terminal_size((100, 24)).columns)
    if not found:
        raise click.ClickException(shown[0])
    for line in shown:
        click.echo(line)
    return 0


def pick(root: Path) -> str:
    """What ``attach auto`` means now; says which.

    Raises:
        ClickException: There is nothing to take, or too much to choose from.
    """
    from gputop_train.launch.outside import listing
    from gputop_train.launch.outside.target import Refused
    from gputop_train.launch.runs import list_runs

    try:
        chosen = listing.choose(listing.find(root), list_runs(root))
    except Refused as refused:
        raise click.ClickException(str(refused)) from None
    if isinstance(chosen, int):
        click.echo(f"gputop-train: taking process {chosen}, the only one that trains", err=True)
        return str(chosen)
    click.echo(f"gputop-train: taking run {chosen.id}, the newest that is alive", err=True)
    return chosen.id


def process_outside(word: str, root: Path) -> int | None:
    """The process a person named, if it is of no run. One that exists is no beginning of an id."""
    from gputop_train.launch.attach import AttachError, resolve, run_of_pid
    from gputop_train.launch.runs import list_runs

    if not word.isascii() or not word.isdigit():
        return None
    pid, runs = int(word), list_runs(root)
    if any(word in (run.id, run.name) for run in runs) or run_of_pid(pid, runs) is not None:
        return None
    if Path(f"/proc/{pid}").exists():
        return pid
    try:
        resolve(word, root)
    except AttachError:
        return pid
    return None


def join_outside(pid: int, root: Path) -> Path | None:
    """Bring the probe into a process that takes it; ``None`` where only stacks can be had.

    Raises:
        ClickException: The process cannot be seen at all.
    """
    from gputop_train.launch.outside import remote
    from gputop_train.launch.outside.target import Refused, look_at

    try:
        target = look_at(pid)
    except Refused as refused:
        raise click.ClickException(str(refused)) from None
    if not remote.takes_code(target.python):
        return None
    try:
        return remote.join(target, root)
    except Refused as refused:
        said = printable(str(refused))
        click.echo(f"gputop-train: {said} Its stacks are looked at instead.", err=True)
        return None


def look_outside(
    pid: int, duration_s: float | None, json_path: str | None, *, burst: bool, ascii_only: bool
) -> int:
    """Look at a process from outside until told to leave.

    Raises:
        ClickException: Its stacks cannot be read.
    """
    from gputop_train.launch.outside import session
    from gputop_train.launch.outside.target import Refused, look_at

    if burst:
        raise click.ClickException(
            f"Process {pid} was not started by gputop-train, so nothing in it can trace its steps. "
            "Leave --burst out to see it from outside."
        )
    try:
        return session.attach(
            look_at(pid), duration_s=duration_s, json_path=json_path, ascii_only=ascii_only
        )
    except Refused as refused:
        raise click.ClickException(str(refused)) from None


def _print(trial_dir: Path, *, ascii_only: bool) -> int:
    from rich.console import Console

    from gputop_train.launch.streams import speaks_utf8
    from gputop_train.trial.table import table

    body = store.read(trial_dir) or {}
    gone = body.get("state") == "running" and not store.is_running(body)
    now = str(body.get("now") or body.get("state") or "")
    click.echo("It was killed." if gone else printable(now))
    rows = [row for row in _list(body.get("table")) if isinstance(row, dict)]
    if rows:
        width = shutil.get_terminal_size((100, 24)).columns if os.isatty(1) else 160
        ascii_only = ascii_only or not speaks_utf8()
        Console(width=width, highlight=False).print(table(rows, width=width, ascii_only=ascii_only))
    told = [row.get("sentence") for row in _list(body.get("candidates")) if isinstance(row, dict)]
    for sentence in [*told, *_list(body.get("sentences")), body.get("stop_hint")]:
        if isinstance(sentence, str) and sentence:
            click.echo(printable(sentence))
    return 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
