"""The screen's one way to act on a run: ask its supervisor to stop it."""

from __future__ import annotations

from pathlib import Path

from gputop_train.launch import runs
from gputop_train.launch.control import Client, ControlError


def request_stop(run_dir: Path) -> str | None:
    """Ask for the stop ladder. Blocks for a few seconds at most.

    Returns:
        ``None`` when the supervisor took the request, else why not, in words.
    """
    run = runs.read_json(run_dir / "run.json") or {}
    socket = run.get("control_socket")
    if not isinstance(socket, str) or not socket:
        return "This run has no control socket, so it cannot be stopped from here."
    try:
        Client(socket).stop()
    except ControlError as error:
        return str(error)
    return None
