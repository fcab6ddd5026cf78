"""After the script's end: wait for the report, print the summary, hand over the JSON."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gputop_train import paths
from gputop_train.launch import runfile
from gputop_train.launch.logtail import open_regular
from gputop_train.launch.streams import Voice, speaks_utf8, write_all

#: Seconds the supervisor gets for draining, the last diagnosis and the report.
REPORT_WAIT_S = 10.0
_TAIL_BYTES = 4096


class Interrupted(Exception):
    """The person does not want to wait any longer."""


def await_report(
    run_dir: Path,
    *,
    supervisor_gone: Callable[[], bool],
    pause: Callable[[float], None],
    voice: Voice,
) -> dict[str, Any] | None:
    """Return the report of a run that has ended; build it here if the supervisor cannot.

    Args:
        run_dir: The run.
        supervisor_gone: Whether nobody is left who would write it.
        pause: Wait a moment, handling signals meanwhile; may raise ``Interrupted``.
        voice: Where trouble is told.
    """
    deadline = time.monotonic() + REPORT_WAIT_S
    while True:
        gone = supervisor_gone()
        report = runfile.read_report(run_dir)
        if report is not None:
            return report
        if gone:
            break
        if time.monotonic() >= deadline:
            voice.say(
                f"The report is not ready after {REPORT_WAIT_S:.0f} s. "
                f"Look again with: {paths.come_back('report', run_dir)}"
            )
            return None
        pause(0.1)
    voice.say("The supervisor of this run is gone; its report is built from what it recorded.")
    return _build_report(run_dir, voice)


def _build_report(run_dir: Path, voice: Voice) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = importlib.import_module(
            "gputop_train.launch.conclude"
        ).report_anyway(run_dir)
    except Exception as failure:
        voice.say(
            f"There is no report of this run: {str(failure).rstrip('.')}. "
            f"What was recorded is kept in {run_dir}; its output is in output.log."
        )
        return None
    if runfile.read_report(run_dir) is None:
        voice.say(
            f"The report could not be kept in {run_dir}, whose disk is full or cannot be written. "
            f"Once it can, ask again with: {paths.come_back('report', run_dir)}"
        )
    return report


def print_summary(
    run_dir: Path, report: Mapping[str, Any], voice: Voice, *, ascii_only: bool = False
) -> None:
    """Print the exit summary on stderr. Never raises."""
    try:
        voice.lines(summary_lines(run_dir, report, fd=2, ascii_only=ascii_only))
    except Exception as failure:
        voice.say(
            f"The summary cannot be shown ({failure}). The report itself is in "
            f"{paths.RunPaths(run_dir).report_json}."
        )


def summary_lines(
    run_dir: Path,
    report: Mapping[str, Any],
    *,
    fd: int,
    ascii_only: bool = False,
    recording: str | None = None,
) -> list[str]:
    """Return the exit summary, as wide as the terminal behind ``fd``.

    Args:
        run_dir: The run.
        report: Its report.
        fd: Where it will be shown.
        ascii_only: Use no character beyond ASCII.
        recording: The file the run was read from, if it is no run that is kept here.
    """
    try:
        width = os.get_terminal_size(fd).columns or 100
    except OSError:
        width = 100
    from gputop_train.report import text

    return text.summary(
        report,
        width,
        log_path=str(paths.RunPaths(run_dir).output_log) if recording is None else None,
        more=report_command(run_dir, recording),
        ascii_only=ascii_only or not speaks_utf8(),
    )


def report_command(run_dir: Path, recording: str | None = None) -> str:
    """Return the command that shows the summary again, of a run or of a recording's file."""
    if recording is None:
        return paths.come_back("report", run_dir)
    return f"gputop-train report {shlex.quote(recording)}"


def deliver_json(
    run_dir: Path, target: str, voice: Voice, report: Mapping[str, Any] | None = None
) -> None:
    """Copy the report to where ``--json`` said; ``-`` is stdout.

    Args:
        run_dir: The run.
        target: The file, or ``-``.
        voice: Where trouble is told.
        report: The report, for when the run's directory took none.
    """
    try:
        content = paths.RunPaths(run_dir).report_json.read_bytes()
    except OSError:
        content = b""
    if not content and report is not None:
        content = _encoded(report)
    if not content:
        voice.say(
            f"There is no report to write to {target}. "
            f"Ask for it later with: {paths.come_back('report', run_dir)} "
            f"--json {shlex.quote(target)}"
        )
        return
    where = paths.RunPaths(run_dir).report_json
    kept = f"It is in {where}." if where.exists() else "Free some space and ask for it again."
    _deliver(content, target, voice, kept)


def deliver(report: Mapping[str, Any], target: str, voice: Voice) -> bool:
    """Write a report that is in no file, such as one of a run that goes on; whether that worked."""
    return _deliver(_encoded(report), target, voice, "Name another file with --json.")


def _encoded(report: Mapping[str, Any]) -> bytes:
    return json.dumps(report, indent=1).encode("utf-8", "backslashreplace") + b"\n"


def _deliver(content: bytes, target: str, voice: Voice, otherwise: str) -> bool:
    if target == "-":
        return write_all(1, content)
    try:
        write_file(Path(target), content)
    except OSError as failure:
        why = failure.strerror or failure
        voice.say(f"The report could not be written to {target}: {why}. {otherwise}")
        return False
    return True


def write_file(target: Path, content: bytes) -> None:
    """Write a file a person named, so that a reader sees the old one or the whole new one.

    Raises:
        OSError: It cannot be written.
    """
    try:
        regular = stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        regular = True
    if not regular or target.is_symlink():
        target.write_bytes(content)  # a device, a pipe, or a link the person set up
        return
    # In a directory shared with others, a name they can foresee may be a link of theirs by now.
    temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def hint_at_failure(run_dir: Path, run: Mapping[str, Any], voice: Voice) -> None:
    """Say what to do where a script died of something that is about how it was launched."""
    tail = _tail(paths.RunPaths(run_dir).output_log)
    python = run.get("python") or "the command's own Python"
    if b"No module named 'torch'" in tail or b"No module named torch" in tail:
        voice.say(
            f"The script ran with {python}, which has no torch. "
            "Activate the environment that has it, or name its interpreter with --python PATH."
        )
    if _is_full(run_dir):
        voice.say(
            f"The disk of {run_dir} is full, so a print of the script may have failed and ended "
            "it. Free some space there, or name another directory with --run-root."
        )
    options = run.get("options")
    in_screen = isinstance(options, Mapping) and options.get("tui")
    if in_screen and (b"EOFError" in tail or b"BdbQuit" in tail):
        voice.say("Your script reads the keyboard, which the screen keeps. Run it with --no-tui.")


def _is_full(directory: Path) -> bool:
    """Whether not even a block is free, of disks that have blocks to count."""
    try:
        room = os.statvfs(directory)
    except OSError:
        return False
    return room.f_blocks > 0 and room.f_bavail == 0


def _tail(log: Path) -> bytes:
    fd = open_regular(log)
    if fd is None:
        return b""
    with os.fdopen(fd, "rb") as stream:
        stream.seek(max(0, os.fstat(fd).st_size - _TAIL_BYTES))
        # The last lines only: a script may print the word and go on for hours.
        return b"\n".join(stream.read().splitlines()[-3:])
