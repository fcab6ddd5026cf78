"""Joins a trial again: its screen, or where there is none, what it came to so far."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gputop_train.launch import again
from gputop_train.look import Look
from gputop_train.trial import store


def find_trial(name: str, root: Path) -> Path | None:
    """The directory of a trial by its id or the beginning of it; ``None`` = no such trial."""
    found = [trial for trial in store.trials(root) if trial.id.startswith(name)] if name else []
    exact = [trial for trial in found if trial.id == name]
    chosen = exact or found
    return chosen[0].trial_dir if len(chosen) == 1 else None


def watch(trial_dir: Path, *, screen: bool, ascii_only: bool, look: Look) -> int:
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
        click.echo(f"gputop-train: Run with what was proved: {line}", err=True)
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


def _print(trial_dir: Path, *, ascii_only: bool) -> int:
    from rich.console import Console

    from gputop_train.launch.streams import speaks_utf8
    from gputop_train.trial.table import table

    body = store.read(trial_dir) or {}
    gone = body.get("state") == "running" and not store.is_running(body)
    click.echo("It was killed." if gone else str(body.get("now") or body.get("state") or ""))
    rows = [row for row in _list(body.get("table")) if isinstance(row, dict)]
    if rows:
        width = shutil.get_terminal_size((100, 24)).columns if os.isatty(1) else 160
        ascii_only = ascii_only or not speaks_utf8()
        Console(width=width, highlight=False).print(table(rows, width=width, ascii_only=ascii_only))
    told = [row.get("sentence") for row in _list(body.get("candidates")) if isinstance(row, dict)]
    for sentence in [*told, *_list(body.get("sentences")), body.get("stop_hint")]:
        if isinstance(sentence, str) and sentence:
            click.echo(sentence)
    return 0


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
