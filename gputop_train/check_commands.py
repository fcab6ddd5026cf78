"""``compare``: runs side by side. ``check``: old and new code, or a stored baseline, for CI.

Like ``commands.py`` these are thin doors: everything is imported when it is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
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
    completed_by,
    let_go_of_stdin,
    target_of,
)

if TYPE_CHECKING:
    from gputop_train.launch.options import Target
    from gputop_train.launch.streams import Voice
    from gputop_train.report.compare import RunSide
    from gputop_train.trial.check import Outcome
    from gputop_train.trial.check_record import Check
    from gputop_train.trial.interrupts import Interrupts

_ROOT_HELP = "Where runs are kept."
#: A report takes some tens of kilobytes; a file of anyone's may be anything.
_REPORT_BYTES = 16 << 20


class _Trouble(click.ClickException):
    """Something of ours went wrong: 1 would say that the script failed."""

    exit_code = 125


@click.command()
@click.argument("runs", metavar="A B...", nargs=-1, shell_complete=completed_by("runs"))
@click.option("--json", "json_path", metavar="FILE", help="Write it as JSON; - is stdout.")
@click.option("--markdown", "markdown_path", metavar="FILE", help="As Markdown; - is stdout.")
@click.option(
    "--price-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Of all a run occupies; adds what a million samples cost.",
)
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
@ASCII
def compare(
    runs: tuple[str, ...],
    json_path: str | None,
    markdown_path: str | None,
    price_per_hour: float | None,
    run_root: str | None,
    *,
    ascii_only: bool,
) -> int:
    """Put runs, recordings (.zip) or reports (.json) side by side; the first is the reference."""
    if len(runs) < 2:
        raise click.UsageError("A comparison needs two runs. gputop-train runs lists them.")
    if json_path == "-" and markdown_path == "-":
        raise click.UsageError("Both --json and --markdown cannot go to stdout. Name a file.")
    from gputop_train.launch.streams import speaks_utf8
    from gputop_train.report import compare as comparing
    from gputop_train.report import compare_text

    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(_side(run, run_root)) for run in runs]
        found = comparing.compare(_told_apart(sides), price_per_hour=price_per_hour)
    if json_path is not None:
        _write(json_path, json.dumps(compare_text.as_json(found), indent=1) + "\n")
    if markdown_path is not None:
        _write(markdown_path, compare_text.markdown(found))
    if "-" not in (json_path, markdown_path):
        width = shutil.get_terminal_size((100, 24)).columns
        for line in compare_text.lines(found, width, ascii_only=ascii_only or not speaks_utf8()):
            click.echo(line)
    return 0


@contextlib.contextmanager
def _side(run: str, run_root: str | None) -> Iterator[RunSide]:
    from gputop_train.commands import opened
    from gputop_train.launch import attach, runfile
    from gputop_train.launch.runs import store_path
    from gputop_train.report import compare as comparing
    from gputop_train.store.reader import RunReader, StoreError

    title = Path(run).stem if run.endswith((".zip", ".json")) else None
    if run.endswith(".json"):
        yield comparing.side(_report_file(Path(run)), title=title)
        return
    with opened(run, run_root) as run_dir:
        report = attach.report_of(run_dir)
        if not comparing.readable(report) or report is None:
            raise click.ClickException(
                f"There is no report of {run} to compare: nothing was recorded of it, or another "
                "version wrote it."
            )
        known = runfile.read_json(run_dir / "run.json") or {}
        try:
            with RunReader(store_path(run_dir, known)) as reader:
                made = comparing.side(report, reader, title=title)
        except StoreError:
            # Its report still says most of it; the comparison says what it lacks.
            made = comparing.side(report, title=title)
        yield made


def _report_file(path: Path) -> dict[str, Any]:
    from gputop_train.report.compare import readable

    try:
        # Without O_NONBLOCK a named pipe of that name would hold us for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:  # noqa: PTH123
            content = stream.read(_REPORT_BYTES + 1) or b""
        report: Any = json.loads(content) if len(content) <= _REPORT_BYTES else None
    except (OSError, ValueError, RecursionError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else "it is not JSON"
        raise click.ClickException(
            f"{path} cannot be read: {why}. Name a run, a recording or a report of --json."
        ) from None
    if not readable(report):
        raise click.ClickException(
            f"{path} is no report of gputop-train. Make one with: gputop-train report RUN --json "
            f"{path}"
        )
    return dict(report)


def _told_apart(sides: list[RunSide]) -> list[RunSide]:
    """Give sides of one title their ids, and those of one id a number."""
    from dataclasses import replace

    seen: dict[str, int] = {}
    titles = [side.title for side in sides]
    found = []
    for side in sides:
        title = side.title if titles.count(side.title) == 1 else side.id
        seen[title] = seen.get(title, 0) + 1
        found.append(replace(side, title=title if seen[title] == 1 else f"{title} ({seen[title]})"))
    return found


@click.command(
    cls=ScriptCommand,
    options_metavar=OPTIONS_METAVAR,
)
@click.option(
    "--baseline-ref",
    metavar="PATH|GITREF",
    help="Older code: a commit of git, another directory or another script. Runs beside the "
    "newer code, turn by turn.",
)
@click.option(
    "--baseline",
    "baseline_file",
    metavar="FILE",
    help="A stored baseline. Time is judged on the same machine alone.",
)
@click.option("--save-baseline", metavar="FILE", help="Measure, and store it as a baseline.")
@click.option(
    "--max-slowdown",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PCT",
    help="How much longer a sample may take.",
)
@click.option(
    "--max-memory",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    metavar="PCT",
    help="How much more memory the peak may take.",
)
@click.option("--no-time", is_flag=True, help="Judge only what does not drift with the host.")
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Measured steps of a leg (60)."
)
@WARMUP
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Pairs of legs; without it, until the result is clear.",
)
@MAX_MINUTES
@click.option("--json", "json_path", metavar="FILE", help="Write the result; - is stdout.")
@click.option("--markdown", "markdown_path", metavar="FILE", help="Append it as Markdown.")
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
@PYTHON
@GUARD
@SEED
@ASCII
@click.pass_context
def check(ctx: click.Context, /, **given: Any) -> int:
    """Say whether a script became slower or takes more than before: a gate for CI.

    Exits with 0 = pass, 1 = the script failed, 3 = inconclusive, 4 = regression.
    """
    target = target_of(ctx)
    from gputop_train.trial.measure import MIN_STEPS

    modes = [given[name] for name in ("baseline_ref", "baseline_file", "save_baseline")]
    if sum(mode is not None for mode in modes) != 1:
        raise click.UsageError(
            "Name one thing to check against: --baseline-ref PATH|GITREF or --baseline FILE. "
            "--save-baseline FILE makes such a file."
        )
    if (given["steps"] or MIN_STEPS) < MIN_STEPS and given["save_baseline"]:
        raise click.UsageError(f"A baseline needs --steps {MIN_STEPS} at least.")
    if given["no_time"] and given["save_baseline"]:
        raise click.UsageError("--save-baseline judges nothing: leave --no-time out.")
    for name in ("json_path", "markdown_path", "save_baseline"):
        _check_writable(given[name])
    return _check(target, given)


def _check_writable(named: str | None) -> None:
    if named is None or named == "-":
        return
    path = Path(named)
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise click.UsageError(
            f"{path} cannot be written. Name a file in a directory that exists and is writable."
        )


def _check(target: Target, given: dict[str, Any]) -> int:
    from gputop_train import paths
    from gputop_train.launch import spawn
    from gputop_train.launch.interpreter import CommandProblem
    from gputop_train.launch.options import Options
    from gputop_train.launch.streams import Voice
    from gputop_train.trial.interrupts import Interrupts
    from gputop_train.trial.measure import MIN_STEPS

    voice = Voice()
    if (given["steps"] or MIN_STEPS) < MIN_STEPS:
        few = f"{given['steps']} measured steps are too few: a leg needs {MIN_STEPS} at least."
        return _show(_inconclusive(few, given), given)
    try:
        spawn.resolve_command(Options(target, python=given["python"]), os.environ)
    except CommandProblem as problem:
        voice.say(str(problem))
        return problem.code
    root = paths.run_root(given["run_root"])
    let_go_of_stdin()
    with Interrupts(voice.say) as interrupts:
        outcome = _run(target, given, root, interrupts, voice)
    return _conclude(outcome, target, given, voice)


def _run(
    target: Target, given: dict[str, Any], root: Path, interrupts: Interrupts, voice: Voice
) -> Outcome:
    # Imported here: threads that numpy starts are to block the signals we fetch, as we do.
    from gputop_train.trial import baseline, store
    from gputop_train.trial import check as checking
    from gputop_train.trial.check_record import Limits
    from gputop_train.trial.plan import Plan
    from gputop_train.trial.versions import VersionProblem

    file, stored = given["baseline_file"], None
    if file is not None:
        try:
            stored = baseline.load(Path(file))
        except baseline.BaselineProblem as problem:
            raise click.UsageError(str(problem)) from None
    common = ("steps", "warmup", "rounds", "max_minutes", "guard", "seed", "python", "run_root")
    plan = Plan(target=target, **{name: given[name] for name in common})
    limits = Limits(given["max_slowdown"] / 100, given["max_memory"] / 100, not given["no_time"])
    try:
        checking.sweep(root)
        place = store.make(root)
    except store.TrialStoreError as problem:
        raise _Trouble(str(problem)) from None
    checker = checking.Checker(target, plan, limits, place, dict(os.environ), interrupts, voice.say)
    try:
        if given["baseline_ref"] is not None:
            return checker.against_code(given["baseline_ref"])
        return checker.by_itself() if stored is None else checker.against_stored(stored)
    except VersionProblem as problem:
        shutil.rmtree(place.trial_dir, ignore_errors=True)
        raise click.UsageError(str(problem)) from None
    except store.TrialStoreError as problem:
        raise _Trouble(str(problem)) from None
    finally:
        with contextlib.suppress(OSError):
            store.prune(root)


def _inconclusive(reason: str, given: dict[str, Any]) -> Check:
    from gputop_train.trial.check_record import Check

    against = str(given["baseline_ref"] or given["baseline_file"])
    return Check("inconclusive", against, (reason,))


def _conclude(outcome: Outcome, target: Target, given: dict[str, Any], voice: Voice) -> int:
    from gputop_train.trial import baseline

    found, measured = outcome.check, outcome.measured
    if found is None and outcome.problem is not None:
        voice.say(outcome.problem)
        return outcome.code
    if found is None and measured is not None:
        content = baseline.encode(
            measured.side, measured.machine, script=target.name, warmup=measured.warmup
        )
        _write(given["save_baseline"], content.decode("ascii"))
        voice.say(
            f"{given['save_baseline']} holds {len(measured.side.step_ms)} legs of "
            f"{measured.side.steps} steps in all. Check against it with: gputop-train check "
            f"--baseline {given['save_baseline']} {target.name}"
        )
        return 0
    return outcome.code or 125 if found is None else _show(found, given)


def _show(found: Check, given: dict[str, Any]) -> int:
    from gputop_train.launch.streams import speaks_utf8
    from gputop_train.trial import check_words

    if given["json_path"] is not None:
        _write(given["json_path"], json.dumps(check_words.as_json(found), indent=1) + "\n")
    if given["markdown_path"] is not None:
        _append(given["markdown_path"], check_words.markdown(found))
    width = shutil.get_terminal_size((100, 24)).columns
    ascii_only = given["ascii_only"] or not speaks_utf8()
    for line in check_words.lines(found, width, ascii_only=ascii_only):
        click.echo(line, err="-" in (given["json_path"], given["markdown_path"]))
    return found.exit_code


def _append(target: str, text: str) -> None:
    """Add to a file, as a CI's summary wants it: other steps write there too."""
    if target == "-":
        _write(target, text)
        return
    try:
        with Path(target).open("a", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
    except OSError as failure:
        raise _Trouble(
            f"{target} cannot be written: {failure.strerror or failure}. Name another file."
        ) from None


def _write(target: str, text: str) -> None:
    from gputop_train.launch.ending import write_file
    from gputop_train.launch.streams import write_all

    content = text.encode("utf-8", "backslashreplace")
    if target == "-":
        write_all(1, content)
        return
    try:
        write_file(Path(target), content)
    except OSError as failure:
        raise _Trouble(
            f"{target} cannot be written: {failure.strerror or failure}. Name another file."
        ) from None


COMMANDS: dict[str, click.Command] = {command.name or "": command for command in (compare, check)}
