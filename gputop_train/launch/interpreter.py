"""Which Python runs the script: the one a person would expect, which need not be ours."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class CommandProblem(Exception):
    """Something cannot be run; ``code`` is the exit code a shell would give (126 or 127, or 2)."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def choose_interpreter(named: str | None, environ: Mapping[str, str]) -> str:
    """Return the path of the interpreter for a script.

    In this order: ``--python`` (a path, a name on PATH or a virtual environment's directory); the
    Python of the active virtual or conda environment, of two the one that PATH has first; the first
    ``python`` or ``python3`` on PATH. Where no environment is active, that one has no torch and the
    environment gputop-train was started from has, it is the latter:
    ``.venv/bin/gputop-train train.py`` means that environment.

    Raises:
        CommandProblem: There is none, or the one named cannot be run.
    """
    if named is not None:
        return _named(named, environ)
    active = [
        python
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if (prefix := environ.get(variable)) and (python := _python_in(Path(prefix)))
    ]
    if active:
        # Of two, one was activated on top of the other: `python` is the one that comes first.
        first = _on_path("python", environ)
        beside = (
            python for python in active if first and Path(python).parent == Path(first).parent
        )
        return next(beside, active[0])
    on_path = _on_path("python", environ) or _on_path("python3", environ)
    if on_path is None:
        if _own_has_torch():
            return sys.executable
        raise CommandProblem(
            "There is no python on PATH. Activate the environment your script runs in, "
            "or name its interpreter with --python PATH.",
            127,
        )
    if _own_has_torch() and not _is_ours(on_path) and not _has_torch(on_path):
        return sys.executable
    return on_path


def interpreter_with_torch(named: str | None, environ: Mapping[str, str]) -> str:
    """Return an interpreter that has torch: the expected one, else ours.

    Raises:
        CommandProblem: Neither has.
    """
    expected = choose_interpreter(named, environ)
    if _has_torch(expected):
        return expected
    if named is None and _own_has_torch():
        return sys.executable
    raise CommandProblem(
        f"{expected} has no torch. Install it there with pip install torch, or name another "
        "interpreter with --python PATH.",
        2,
    )


def _named(named: str, environ: Mapping[str, str]) -> str:
    place = Path(named).expanduser()
    if place.is_dir():
        python = _python_in(place)
        if python:
            return python
        raise CommandProblem(
            f"{named} holds no bin/python. Give --python the path of an interpreter.", 127
        )
    found = find_command(str(place), environ)
    # A relative path would mean something else to a script that is started from elsewhere.
    return os.path.abspath(found)  # noqa: PTH100  keeps the link that makes it a virtual environment


def find_command(command: str, environ: Mapping[str, str]) -> str:
    """Return the path that running ``command`` would execute.

    Raises:
        CommandProblem: It does not exist (127) or is not executable (126).
    """
    if "/" in command:
        path = Path(command)
        if path.is_file() and os.access(path, os.X_OK):
            return command
        if path.exists():
            raise CommandProblem(
                f"{command} cannot be executed. Make it executable with chmod +x, "
                "or run it through its interpreter.",
                126,
            )
    else:
        found = _on_path(command, environ)
        if found:
            return found
    raise CommandProblem(
        f"There is no command {command}. Check its spelling and that its environment is active.",
        127,
    )


def _python_in(prefix: Path) -> str | None:
    for name in ("python", "python3"):
        path = prefix / "bin" / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def _on_path(name: str, environ: Mapping[str, str]) -> str | None:
    found = shutil.which(name, path=environ.get("PATH", os.defpath))
    return os.path.abspath(found) if found else None  # noqa: PTH100  keeps symlinks


def _is_ours(python: str) -> bool:
    # Two environments may share one binary; the directory it is called from is what differs.
    return Path(python).parent == Path(sys.executable).parent


def _own_has_torch() -> bool:
    try:
        return bool(sys.executable) and importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def _has_torch(python: str) -> bool:
    """Ask another interpreter, without importing torch there."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    try:
        answer = subprocess.run(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0
