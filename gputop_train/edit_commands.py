"""``report --diff`` and ``apply``: advice as changes of the user's files.

Nothing else of gputop-train writes a file of the user's, and ``apply`` only after being told to.
"""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gputop_train.edits.plan import Plan, Proposal

#: Files that ``apply`` left for a run, by digest: they are newer than the run, but known.
_APPLIED = "applied.json"
_COLUMNS = 100


def plan_of(run_dir: Path, only: int | None = None) -> tuple[dict[str, Any], Plan]:
    """The report of a run, and its advice as changes.

    Raises:
        click.ClickException: Nothing was recorded of the run.
    """
    from gputop_train.edits import plan
    from gputop_train.launch import attach as joining
    from gputop_train.launch import runfile
    from gputop_train.launch.runs import store_path
    from gputop_train.store.reader import RunReader, StoreError

    report = joining.report_of(run_dir)
    if report is None:
        raise click.ClickException(f"Nothing was recorded yet of {run_dir.name}.")
    run = runfile.read_json(run_dir / "run.json") or {}
    try:
        with RunReader(store_path(run_dir, run)) as reader:
            loaders = tuple(reader.loaders())
    except StoreError:
        loaders = ()
    script, started = _text(run.get("script")), run.get("started_wall_ns")
    ours = (runfile.read_json(run_dir / _APPLIED) or {}).values()
    facts = plan.Run(
        cwd=_text(run.get("cwd")),
        script=script if script is not None and script.endswith(".py") else None,
        command=tuple(w for w in run.get("command") or () if isinstance(w, str)),
        started_ns=started if isinstance(started, int) else None,
        loaders=loaders,
        ours=frozenset(digest for digest in ours if isinstance(digest, str)),
    )
    return report, plan.make(report, facts, only)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def show_diff(run_dir: Path, *, recording: bool = False) -> int:
    """Print a run's advice as a diff that ``patch -p1`` takes; what it cannot hold is a comment.

    Args:
        run_dir: The run.
        recording: Whether it was unpacked from a recording, which ``apply`` does not take.
    """
    from gputop_train import paths

    report, plan = plan_of(run_dir)
    lines = diff_lines(report, plan)
    if plan.edited and not recording:
        where = paths.come_back("report", run_dir)
        lines.append(
            f"# To make these changes, with a backup: {paths.come_back('apply', run_dir)}\n"
        )
        lines.append(f"# Or in {plan.base}: {where} --diff | patch -p1\n")
    _print(lines)
    return 0


def diff_lines(report: Mapping[str, Any], plan: Plan) -> list[str]:
    """Each piece of advice as a comment, with its diff or why there is none."""
    if not plan.proposals:
        return [f"# There is no advice to make a diff of (status: {report['status']}).\n"]
    lines: list[str] = []
    for proposal in plan.proposals:
        lines += _comment(f"{proposal.number}. {proposal.finding}: {proposal.text}")
        if proposal.diff:
            lines.append(proposal.diff)
        for remark in (proposal.why_not, proposal.results):
            if remark is not None:
                lines += _comment(remark, "   ")
    return lines


def _comment(text: str, indent: str = "") -> list[str]:
    from gputop_train.report.format import printable

    wrapped = textwrap.wrap(printable(text), _COLUMNS - 2 - len(indent), break_on_hyphens=False)
    return [f"# {indent}{line}\n" for line in wrapped]


def _print(lines: Iterable[str]) -> None:
    """Print as UTF-8 whatever the locale: a diff in another encoding would not apply."""
    sys.stdout.flush()
    sys.stdout.buffer.write("".join(lines).encode("utf-8"))
    sys.stdout.buffer.flush()


def apply_advice(run_dir: Path, *, only: int | None, yes: bool) -> int:
    """Show the changes, ask, make them, and say how to undo them.

    Returns:
        0 when they were made or the person said no; 1 when there was none to make.

    Raises:
        click.ClickException: The run still trains, or a file could not be written.
        click.UsageError: No such advice; or nobody can be asked and ``--yes`` was not given.
    """
    from gputop_train import paths
    from gputop_train.launch.runs import read_run

    info = read_run(run_dir)
    if info is not None and info.alive:
        raise click.ClickException(
            f"{run_dir.name} still trains, and new processes of it would read a changed file. "
            "Apply when it has ended. The changes: "
            f"{paths.come_back('report', run_dir)} --diff"
        )
    report, plan = plan_of(run_dir, only)
    if only is not None and not plan.proposals:
        raise click.UsageError(f"This run has no advice number {only}.")
    _print(diff_lines(report, plan))
    if not plan.edited:
        click.echo("gputop-train: There is nothing to apply.", err=True)
        return 1
    names = " and ".join(str(e.original.path) for e in plan.edited)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("There is nobody to ask. Say --yes to make these changes.")
        if not click.confirm(f"Change {names}?", default=False, err=True):
            click.echo("gputop-train: Nothing was changed.", err=True)
            return 0
    return _write(run_dir, plan)


def _write(run_dir: Path, plan: Plan) -> int:
    from gputop_train.edits import files
    from gputop_train.edits.errors import EditError

    for edited in plan.edited:
        path = edited.original.path
        try:
            backup = files.write(edited.original, edited.text)
        except EditError as problem:
            raise click.ClickException(str(problem)) from None
        _remember(run_dir, path, edited.original.digest_of(edited.text))
        click.echo(f"gputop-train: Changed {path}.", err=True)
        click.echo(f"gputop-train: To undo it: mv {_quoted(backup)} {_quoted(path)}", err=True)
    by_hand: list[Proposal] = [p for p in plan.proposals if p.why_not is not None]
    if by_hand:
        numbers = ", ".join(str(p.number) for p in by_hand)
        click.echo(f"gputop-train: Left to you, as said above: {numbers}.", err=True)
    return 0


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


def _remember(run_dir: Path, path: Path, digest: str) -> None:
    """Note what we left, so that more advice of the same run can follow. Losing it loses that."""
    from gputop_train import paths
    from gputop_train.launch import runfile

    known = runfile.read_json(run_dir / _APPLIED) or {}
    temporary = run_dir / f".{_APPLIED}"
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        fd = paths.open_private_file(temporary)
        with open(fd, "w", encoding="ascii") as stream:  # noqa: PTH123 - a descriptor, no path
            stream.write(json.dumps(known | {str(path): digest}, indent=1))
        temporary.replace(run_dir / _APPLIED)
