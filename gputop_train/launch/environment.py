"""The environment of the script and of our own supervisor: pure functions of ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import gputop_train
from gputop_train.launch.options import Setting

#: Where the options of torch's CUDA allocator are read from; the first one goes before the second.
ALLOCATOR_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
#: What keeps progress bars and colour alive although stdout is a file: Rich reads the two switches
#: (https://rich.readthedocs.io/en/stable/console.html), tqdm and argparse read the size.
_TERMINAL_LINES = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}


def script_environment(
    environ: Mapping[str, str],
    probe_dir: Path,
    *,
    lines: bool,
    terminal: tuple[int, int] | None,
    settings: Sequence[Setting] = (),
) -> dict[str, str]:
    """Return the environment of the script.

    Args:
        environ: Ours; the script gets all of it, and whatever it sets already stays as it is.
        probe_dir: Put first on ``PYTHONPATH``.
        lines: Add the lines for unbuffered output and colour (not with ``--no-env``).
        terminal: Columns and lines of the terminal that shows the output; ``None`` when it goes to
            a file or a pipe, where a script without us would find no terminal and no colour either.
        settings: Those of ``--set``; two of them are read from the environment, before any code.
    """
    result = {**environ, **_of_settings(environ, settings)}
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


def _of_settings(environ: Mapping[str, str], settings: Sequence[Setting]) -> dict[str, str]:
    """Return the lines that ``omp_threads`` and ``expandable_segments`` need."""
    lines: dict[str, str] = {}
    for setting in settings:
        if setting.key == "omp_threads":
            lines |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(setting.value))
        elif setting.key == "expandable_segments":
            lines |= _allocator(environ, on=setting.value is True)
    return lines


def _allocator(environ: Mapping[str, str], *, on: bool) -> dict[str, str]:
    """Return the allocator's options with ``expandable_segments`` among them.

    Under both names: torch reads the second one up to 2.9 and warns of it from then on, unless
    there is the first. Options that say otherwise are left alone, and the probe tells that
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage).
    """
    given = environ.get(ALLOCATOR_NAMES[0]) or environ.get(ALLOCATOR_NAMES[1]) or ""
    if "expandable_segments" in given or "backend:cuda" in given.replace(" ", ""):
        return {}
    options = ",".join(filter(None, (given.strip(" ,"), f"expandable_segments:{on}")))
    return dict.fromkeys(ALLOCATOR_NAMES, options)


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
