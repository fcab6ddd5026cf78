"""The environment of the script and of our own supervisor: pure functions of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import gputop_train

#: What keeps progress bars and colour alive although stdout is a file: Rich reads the two switches
#: (https://rich.readthedocs.io/en/stable/console.html), tqdm and argparse read the size.
_TERMINAL_LINES = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}


def script_environment(
    environ: Mapping[str, str],
    probe_dir: Path,
    *,
    lines: bool,
    terminal: tuple[int, int] | None,
) -> dict[str, str]:
    """Return the environment of the script.

    Args:
        environ: Ours; the script gets all of it, and whatever it sets already stays as it is.
        probe_dir: Put first on ``PYTHONPATH``.
        lines: Add the lines for unbuffered output and colour (not with ``--no-env``).
        terminal: Columns and lines of the terminal that shows the output; ``None`` when it goes to
            a file or a pipe, where a script without us would find no terminal and no colour either.
    """
    result = dict(environ)
    inherited = environ.get("PYTHONPATH", "")
    result["PYTHONPATH"] = os.pathsep.join(filter(None, (str(probe_dir), inherited)))
    if not lines:
        return result
    # Otherwise a script's first line comes seconds late, and its last never if it is killed.
    result.setdefault("PYTHONUNBUFFERED", "1")
    if terminal is not None:
        if not environ.get("NO_COLOR"):
            for name, value in _TERMINAL_LINES.items():
                result.setdefault(name, value)
        result.setdefault("COLUMNS", str(terminal[0]))
        result.setdefault("LINES", str(terminal[1]))
    return result


def supervisor_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the supervisor: ours, with its libraries kept to one thread."""
    result = dict(environ)
    # numpy's BLAS would start a thread per core beside a training that wants all of them.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        result[name] = "1"
    result.pop("PYTHONUNBUFFERED", None)
    checkout = Path(gputop_train.__file__).parent.parent
    if (checkout / "pyproject.toml").is_file():
        # The supervisor is not started where we were, so a path like "." would not find us again.
        inherited = environ.get("PYTHONPATH", "")
        result["PYTHONPATH"] = os.pathsep.join(filter(None, (str(checkout), inherited)))
    return result
