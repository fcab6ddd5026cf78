"""Whether this machine can keep a leg's changes apart, found out by doing it once."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

from gputop_train import paths
from gputop_train.launch.diversion import attempt
from gputop_train.launch.diversion.way import way
from gputop_train.launch.options import TrialLeg

Guard = Literal["overlay", "refuse"]
#: A network file system that hangs would let us wait for ever.
PATIENCE_S = 30.0


def guard_available(
    cwd: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    over: tuple[tuple[str, str], ...] = (),
) -> tuple[Guard, str]:
    """Return how a script that runs in ``cwd`` can be kept from changing files, and why so.

    A throwaway process enters such a world and writes, replaces and removes there.

    Args:
        cwd: The script's working directory.
        root: The run root, where changes would be kept; ``None`` = the usual one.
        over: As in ``TrialLeg``.

    Returns:
        ``("overlay", "")``, or ``("refuse", why no overlay)`` with a clause without a full stop.
    """
    from gputop_train.trial.scratch import Scratch, ScratchError

    try:
        with Scratch(paths.run_root(root)) as scratch, scratch.leg() as leg:
            why = _why_not(Path(cwd), leg.path, over)
    except (ScratchError, OSError) as error:
        why = str(error)
    return ("overlay", "") if why is None else ("refuse", why)


def _why_not(cwd: Path, scratch: Path, over: tuple[tuple[str, str], ...]) -> str | None:
    name = f".gputop-train-{secrets.token_hex(6)}"
    python = sys.executable or "python3"
    argv = (python, "-I", "-S", attempt.__file__, name)
    leg = TrialLeg(warmup=0, steps=0, scratch=str(scratch), over=over)
    with way(leg, python, argv, ()) as entry:
        process = subprocess.Popen(
            entry.argv,
            executable=entry.executable,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=entry.pass_fds,
            start_new_session=True,
        )
        entry.started()
        try:
            out, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            return f"trying it took more than {PATIENCE_S:.0f} s"
        failed = entry.failure()
    if failed is not None:
        return str(failed.get("world") or "Python cannot be started in it")
    if os.path.lexists(cwd / name):
        return "what was written in it reached the real directory"
    if process.returncode != 0:
        return out.decode("utf-8", "replace") or "what was tried in it failed"
    return None


def world_of(scratch: Path) -> dict[str, object] | None:
    """Return what a leg's world turned out to be (``world.json``); ``None`` when it has none."""
    from gputop_train.launch.diversion.way import RESULT

    with contextlib.suppress(OSError, ValueError):
        told = json.loads((scratch / RESULT).read_text("utf-8", "surrogateescape"))
        return told if isinstance(told, dict) else None
    return None
