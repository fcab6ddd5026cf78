"""``compare``: runs side by side. ``check``: old and new code, or a stored baseline, for CI.

Like ``commands.py`` these are thin doors: everything is imported when it is used.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gputop_train.report.compare import RunSide

_ROOT_HELP = "Where runs are kept."
_ASCII_HELP = "Draw with ASCII characters only."


@click.command()
@click.argument("runs", metavar="A B...", nargs=-1)
@click.option("--json", "json_path", metavar="FILE", help="Write it as JSON; - is stdout.")
@click.option("--markdown", "markdown_path", metavar="FILE", help="As Markdown; - is stdout.")
@click.option(
    "--price-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Of all a run occupies; adds what a million samples cost.",
)
@click.option("--run-root", metavar="DIR", help=_ROOT_HELP)
@click.option("--ascii", "ascii_only", is_flag=True, help=_ASCII_HELP)
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
    from gputop_train.commands import _opened
    from gputop_train.launch import attach, runfile
    from gputop_train.launch.runs import store_path
    from gputop_train.report import compare as comparing
    from gputop_train.store.reader import RunReader, StoreError

    title = Path(run).stem if run.endswith((".zip", ".json")) else None
    if run.endswith(".json"):
        yield comparing.side(_report_file(Path(run)), title=title)
        return
    with _opened(run, run_root) as run_dir:
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
        report = json.loads(path.read_bytes())
    except (OSError, ValueError) as failure:
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
        raise click.ClickException(
            f"{target} cannot be written: {failure.strerror or failure}. Name another file."
        ) from None


COMMANDS: dict[str, click.Command] = {command.name or "": command for command in (compare,)}
