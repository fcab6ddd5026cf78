"""Start a trial of the command that was launched here, in a process of its own.

It outlives the screen that asked for it, as the training does: a session of its own, its words in a
file, nothing of the terminal.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import gputop_train
from gputop_train import paths
from gputop_train.launch.options import Options

#: A trial writes its record before its first leg; imports on a cold disk come before that.
_PATIENCE_S = 30.0
_TICK_S = 0.05
#: Our own package, without the working directory in front of the path: a script's own module may be
#: called like one of ours or of the standard library.
_MAIN = (
    "import sys; sys.path[:1] = []; sys.path.append({root!r}); "
    "from gputop_train.cli import main; main()"
)


class StartError(Exception):
    """The trial could not be started; the message is one sentence and what to do."""


def words(options: Options, candidates: Sequence[str], trial_id: str) -> list[str]:
    """The arguments of ``gputop-train`` for a trial of what was launched.

    Args:
        options: Of the launch.
        candidates: Values of ``--set``, one for each candidate.
        trial_id: The id the trial is to have.
    """
    given = ["trial", "--id", trial_id, "--ascii"]
    for name, value in (("--run-root", options.run_root), ("--python", options.python)):
        if value is not None:
            given += [name, value]
    for candidate in candidates:
        given += ["--set", candidate]
    lead = {"script": [], "module": ["-m"], "command": ["--"]}[options.target.mode]
    return [*given, *lead, *options.target.arguments]


def start(
    options: Options, candidates: Sequence[str], environ: Mapping[str, str], log: Path
) -> Path:
    """Start it, and wait until it has made its directory.

    Args:
        options: Of the launch whose command is tried.
        candidates: As in `words`.
        environ: Its environment.
        log: Where its output goes; replaced.

    Returns:
        The trial's directory.

    Raises:
        StartError: It ended at once, or never made its directory.
    """
    trial_id = f"t{os.urandom(3).hex()}"
    place = paths.run_root(options.run_root) / "trials" / trial_id
    root = str(Path(gputop_train.__file__).parent.parent)
    command = [sys.executable, "-c", _MAIN.format(root=root), *words(options, candidates, trial_id)]
    try:
        log.unlink(missing_ok=True)
        output = paths.open_private_file(log)
        try:
            process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            os.close(output)
    except OSError as failure:
        raise StartError(
            f"The trial could not be started: {failure.strerror or failure}. "
            "Free some space and processes, or start it in another terminal."
        ) from failure
    deadline = time.monotonic() + _PATIENCE_S
    while not (place / "trial.json").exists():
        if process.poll() is not None:
            raise StartError(f"The trial ended at once. {_last_line(log)}")
        if time.monotonic() > deadline:
            with contextlib.suppress(OSError):
                process.terminate()
            raise StartError(f"The trial did not begin in {_PATIENCE_S:.0f} s. {_last_line(log)}")
        time.sleep(_TICK_S)
    # Reaped when it ends; nobody waits for it.
    process.returncode = 0
    return place


def _last_line(log: Path) -> str:
    """What it said last."""
    with contextlib.suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line.removeprefix("gputop-train: ") for line in lines if line.strip()]
        if said:
            return said[-1]
    return f"Its output is in {log}."
