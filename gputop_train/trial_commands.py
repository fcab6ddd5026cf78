"""``gputop-train trial``: bounded runs of a script with and without a change."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gputop_train.script_command import (
    ASCII,
    GUARD,
    MAX_MINUTES,
    OPTIONS_METAVAR,
    PYTHON,
    SEED,
    WARMUP,
    ScriptCommand,
    let_go_of_stdin,
    target_of,
)

if TYPE_CHECKING:
    from gputop_train.launch.options import Target
    from gputop_train.trial.plan import Plan
    from gputop_train.trial.standing import Standing

_ROOT_HELP = "Where runs and trials are kept."
_COLUMNS = 100


@click.command(
    cls=ScriptCommand,
    options_metavar=OPTIONS_METAVAR,
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="K=V[,K=V]",
    help="A candidate: these settings, such as num_workers=4. Each --set is one more.",
)
@click.option(
    "--what-if",
    "what_ifs",
    multiple=True,
    metavar="K[=N]",
    help="A candidate that falsifies training to learn from it: replay_batch, sync_every, "
    "skip_checkpoint, no_eval.",
)
@click.option(
    "--search",
    type=click.Choice(["workers", "batch", "suggestions"]),
    help="Let candidates be found. Without --set and --what-if: suggestions.",
)
@click.option(
    "--steps", type=click.IntRange(min=10), metavar="N", help="Measured steps of a leg (60)."
)
@WARMUP
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Pairs of legs for each candidate; without it, until the result is clear.",
)
@MAX_MINUTES
@click.option(
    "--price-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    metavar="P",
    help="What this machine costs, for the cost of a million samples.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write the result; - is stdout.")
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
@click.option("--name", metavar="NAME", help="A name for the trial; named trials are never pruned.")
@PYTHON
@GUARD
@SEED
@click.option("--id", "trial_id", metavar="ID", hidden=True)
@ASCII
@click.pass_context
def trial(ctx: click.Context, /, **given: Any) -> int:
    """Run a script with and without a change, turn by turn, and say what the change brings.

    No file that exists before a trial is changed by it.
    """
    target = target_of(ctx)
    asked = _plan(target, given)
    json_path: str | None = given["json_path"]
    if json_path not in (None, "-"):
        _check_json_path(Path(str(json_path)))
    return _run(asked, json_path, trial_id=given["trial_id"], ascii_only=given["ascii_only"])


def _plan(target: Target, given: dict[str, Any]) -> Plan:
    from gputop_train.trial.plan import Plan, parse_arms

    arms = parse_arms(given["settings"], given["what_ifs"])
    search = given["search"]
    if arms and search:
        raise click.UsageError("--search finds candidates: give it alone, or name them with --set.")
    return Plan(
        target=target,
        arms=arms,
        search=search if arms or search else "suggestions",
        steps=given["steps"],
        warmup=given["warmup"],
        rounds=given["rounds"],
        max_minutes=given["max_minutes"],
        guard=given["guard"],
        seed=given["seed"],
        python=given["python"],
        run_root=given["run_root"],
        name=given["name"],
        price_per_hour=given["price_per_hour"],
    )


def _check_json_path(path: Path) -> None:
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise click.UsageError(
            f"The result cannot be written to {path}. Give --json a file in a directory that "
            "exists and is writable."
        )


def _run(asked: Plan, json_path: str | None, *, trial_id: str | None, ascii_only: bool) -> int:
    from gputop_train import paths
    from gputop_train.launch import spawn
    from gputop_train.launch.interpreter import CommandProblem
    from gputop_train.launch.options import Options
    from gputop_train.launch.streams import Voice
    from gputop_train.trial import store
    from gputop_train.trial.interrupts import Interrupts
    from gputop_train.trial.plan import script_of

    voice = Voice()
    try:
        spawn.resolve_command(Options(asked.target, python=asked.python), os.environ)
    except CommandProblem as problem:
        voice.say(str(problem))
        return problem.code
    root = paths.run_root(asked.run_root)
    let_go_of_stdin()
    with Interrupts(voice.say) as interrupts:
        # Imported here: threads that numpy starts are to block what we fetch, as we do.
        from gputop_train.trial.runner import Runner

        try:
            place = store.make(root, trial_id)
        except store.TrialStoreError as problem:
            voice.say(str(problem))
            return 125  # 1 says that the script failed
        voice.say(f"trial {place.id} of {script_of(asked.target)}; it is kept in {place.trial_dir}")
        runner = Runner(asked, place, dict(os.environ), interrupts, voice.say)
        try:
            code = runner.run()
        finally:
            with contextlib.suppress(OSError):
                store.prune(root)
        _show(runner.standing, runner.desk.closing, json_path, ascii_only=ascii_only)
        _deliver(runner.standing, json_path, voice)
        if runner.standing.problem is not None:
            voice.say(runner.standing.problem)
        return code


def _show(
    standing: Standing, closing: list[str], json_path: str | None, *, ascii_only: bool
) -> None:
    """Print the table and what it means, on stdout unless the JSON goes there."""
    from rich.console import Console

    from gputop_train.launch.streams import speaks_utf8
    from gputop_train.report.format import printable, to_ascii
    from gputop_train.trial.table import table

    body = standing.body()
    if not standing.baseline_legs:
        if standing.state == "stopped":
            click.echo("gputop-train: Nothing was measured yet.", err=True)
        return
    ascii_only = ascii_only or not speaks_utf8()
    stream = sys.stderr if json_path == "-" else sys.stdout
    width = shutil.get_terminal_size((_COLUMNS, 24)).columns
    console = Console(file=stream, width=width, highlight=False)
    console.print(table(body["table"], width=width, ascii_only=ascii_only))
    found = [c["sentence"] for c in body["candidates"]]
    for sentence in [*found, *closing, body["stop_hint"] or ""]:
        if sentence:
            told = printable(to_ascii(sentence) if ascii_only else sentence)
            console.print(told, markup=False, soft_wrap=False)


def _deliver(standing: Standing, json_path: str | None, voice: Any) -> None:
    from gputop_train.launch.ending import deliver
    from gputop_train.trial import store

    if json_path is not None:
        deliver(store.plain(standing.body()), json_path, voice)


COMMANDS: dict[str, click.Command] = {"trial": trial}
