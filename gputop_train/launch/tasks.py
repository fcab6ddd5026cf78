"""Several tasks of one step on one node: the first one's run is everybody's.

``srun -n 8 gputop-train train.py`` starts us eight times. The node's first task launches the run as
ever. The others find it in the run root and become the script, with its probe: their rings lie
beside the first one's, so one supervisor watches all ranks of the node and samples it once, and
nothing of ours stands between them and SLURM.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputop_train import paths
from gputop_train.launch import runfile
from gputop_train.launch.environment import script_environment
from gputop_train.launch.options import Options
from gputop_train.launch.threshold import Command

#: The first task starts when we do; its interpreter may come from a slow file system.
_PATIENCE_S = 10.0


def step_of(environ: Mapping[str, str]) -> str | None:
    """Return what names this node's part of a step of several tasks, ``None`` outside one.

    A batch script, and a step of one task, are no such thing; see srun(1), "OUTPUT ENVIRONMENT
    VARIABLES".
    """
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if not job or not step or not tasks.isdigit() or int(tasks) < 2:
        return None
    again = environ.get("SLURM_RESTART_COUNT") or "0"
    return f"{job}.{step}.{again}@{os.uname().nodename}"


def attempt(environ: Mapping[str, str]) -> int:
    """Return which attempt of a requeued job this is, from 1."""
    again = environ.get("SLURM_RESTART_COUNT", "")
    return int(again) + 1 if again.isdigit() and environ.get("SLURM_JOB_ID") else 1


def is_first(environ: Mapping[str, str]) -> bool:
    """Return whether this is the node's first task."""
    return environ.get("SLURM_LOCALID", "0") == "0"


def report_file(named: str, environ: Mapping[str, str]) -> str:
    """Return where ``--json`` goes: from the second node on beside the first one's file."""
    node = environ.get("SLURM_NODEID", "0")
    if named == "-" or step_of(environ) is None or not node.isdigit() or node == "0":
        return named
    path = Path(named)
    return str(path.with_name(f"{path.stem}-node{node}{path.suffix}"))


def join(options: Options, command: Command, environ: Mapping[str, str]) -> None:
    """Become the script, as a part of the first task's run; return where there is none to join."""
    step = step_of(environ)
    if step is None or is_first(environ):
        return
    run_dir = _await_run(paths.run_root(options.run_root), step)
    if run_dir is None:
        return
    child_environ = script_environment(
        environ,
        paths.RunPaths(run_dir).probe_dir,
        lines=options.env_lines,
        terminal=None,
        settings=options.settings,
    )
    # Python ignores them for itself, and what is ignored stays so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(command.executable, command.argv, child_environ)


def _await_run(root: Path, step: str) -> Path | None:
    deadline = time.monotonic() + _PATIENCE_S
    known: dict[str, Any] = {}
    while True:
        try:
            names = os.listdir(root)  # noqa: PTH208  only the names matter
        except OSError:
            names = []
        for name in names:
            if known.get(name) is None:
                known[name] = runfile.read_json(root / name / "run.json")
            if (known[name] or {}).get("step") == step and _is_ours_to_join(root / name):
                return root / name
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.05)


def _is_ours_to_join(run_dir: Path) -> bool:
    """Whether a run is this user's, whose code we put into the script, and goes on."""
    return paths.is_private_dir(run_dir) and not (run_dir / "exit.json").exists()
