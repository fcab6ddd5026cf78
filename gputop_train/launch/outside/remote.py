"""The probe in a process that already runs: Python 3.14 and newer take code from outside.

``sys.remote_exec`` (PEP 768) has another interpreter of the same version write a script's path
into the target, which runs it at its next safe point. The caller must be of the target's own
version, so it is the target's own interpreter. From there on the process is a run like any other:
ring, supervisor, screen, report; only its beginning and its output are not seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from gputop_train import __version__, paths
from gputop_train.launch import identity, runfile, spawn
from gputop_train.launch.options import Options, Target, probe_config
from gputop_train.launch.outside import target as outside
from gputop_train.launch.outside.target import Refused
from gputop_train.launch.probe_dir import PACKAGE, install_probe
from gputop_train.launch.sampling import environment_of

#: The first version that takes code (PEP 768).
SINCE = (3, 14)
#: What switches it off in the target.
_OFF = "PYTHON_DISABLE_REMOTE_DEBUG"
_CALL = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
_CALL_S = 30.0
#: Left while the target has been told of the script.
_ASKED = ".asked"
#: A safe point comes between two bytecodes; a long call into C puts it off.
_ARRIVAL_S = 15.0
JOIN = "join.py"
#: Runs in the target: nothing it does may be seen there, least of all a failure.
_SCRIPT = '''"""gputop-train: start the probe in this process."""


def _join(here):
    import sys

    sys.path.insert(0, here)
    try:
        import {package}

        {package}.install()
    finally:
        if here in sys.path:
            sys.path.remove(here)


try:
    _join({here!r})
except Exception:
    pass
finally:
    del _join
'''


def takes_code(version: tuple[int, int] | None) -> bool:
    """Whether an interpreter of this version takes code from outside."""
    return version is not None and version >= SINCE


def join(
    target: outside.Target,
    root: Path,
    *,
    interpreter: str | None = None,
    wait_s: float = _ARRIVAL_S,
) -> Path:
    """Start the probe in a process and a supervisor beside it.

    Args:
        target: The process.
        root: The run root.
        interpreter: What to call ``sys.remote_exec`` with; ``None`` = the target's own.
        wait_s: How long the probe may take to arrive.

    Returns:
        The directory of the run it is from now on.

    Raises:
        Refused: It does not take code; nothing is left behind.
    """
    if _OFF in environment_of(target.pid):
        raise Refused(f"Process {target.pid} was started with {_OFF} set, so it takes no code.")
    if outside.owner_of(target.pid) != os.geteuid():
        raise Refused(f"Process {target.pid} is another user's, who could not read our probe.")
    try:
        run_dir = _make_run_dir(root)
        ring_dir = paths.make_runtime_dir(run_dir.name, fallback=run_dir)
    except paths.PathError as failure:
        raise Refused(f"{failure}. Name a directory for runs with --run-root.") from None
    try:
        _set_up(target, run_dir, ring_dir)
        _call(target, interpreter or f"/proc/{target.pid}/exe", run_dir)
        _await(target, run_dir, wait_s)
    except BaseException as failure:
        _withdraw(run_dir, ring_dir)
        if isinstance(failure, OSError):
            raise Refused(f"The run could not be set up: {failure.strerror}.") from None
        raise
    (run_dir / _ASKED).unlink(missing_ok=True)
    spawn.start_supervisor(run_dir, dict(os.environ))
    return run_dir


def _withdraw(run_dir: Path, ring_dir: Path) -> None:
    """Leave nothing; but a process that was told of the script may come for it yet."""
    shutil.rmtree(ring_dir, ignore_errors=True)
    script = paths.RunPaths(run_dir).probe_dir / JOIN
    if not script.exists() or not any(run_dir.glob(_ASKED)):
        shutil.rmtree(run_dir, ignore_errors=True)
        return
    # It would complain, in the training's own output, of a script that is gone.
    script.write_text("", encoding="utf-8")
    for entry in (*run_dir.iterdir(), *script.parent.iterdir()):
        if entry.is_dir() and entry != script.parent:
            shutil.rmtree(entry, ignore_errors=True)
        elif not entry.is_dir() and entry != script:
            entry.unlink(missing_ok=True)


def _make_run_dir(root: Path) -> Path:
    taken = set(os.listdir(root)) if root.is_dir() else set()  # noqa: PTH208  only the names
    while (name := os.urandom(3).hex()) in taken:
        continue
    return paths.make_run_dir(root, name)


def _set_up(target: outside.Target, run_dir: Path, ring_dir: Path) -> None:
    script = next((word for word in target.command[1:] if word.endswith(".py")), "")
    asked = Options(target=Target("script", target.command[1:] or ("-",)), burst=False)
    process = target.process
    run = {
        "schema": 1,
        "id": run_dir.name,
        "name": None,
        "command": list(target.command),
        "cwd": target.directory,
        "script": script,
        "mode": "script",
        "python": target.command[0] if target.command else None,
        "started_wall_ns": time.time_ns(),
        "started_mono_ns": time.monotonic_ns(),
        "host": os.uname().nodename,
        "boot_id": process.boot_id,
        "pid_ns": identity.pid_namespace(),
        "uid": os.geteuid(),
        "attached": True,
        "shim": None,
        "child": {
            "pid": process.pid,
            "start_ticks": process.start_ticks,
            "pgid": process.pgid,
            "sid": process.pid,
        },
        "ring_dir": str(ring_dir),
        "control_socket": str(paths.socket_path(ring_dir)),
        "store": str(paths.choose_store(run_dir)),
        "overrides": {},
        "changes_results": [],
        "what_if": [],
        "options": {"steps": None, "overhead_budget": 1.0, "tui": False, "burst": False},
        "compared_with": None,
        "attempt": 1,
        "version": __version__,
    }
    own = paths.RunPaths(run_dir)
    install_probe(own.probe_dir, probe_config(asked, run_dir.name, str(ring_dir)))
    runfile.commit_run_json(runfile.reserve_run_json(run_dir, run), run)
    os.close(paths.open_private_file(own.output_log))
    text = _SCRIPT.format(package=PACKAGE, here=str(own.probe_dir))
    with os.fdopen(paths.open_private_file(own.probe_dir / JOIN), "w", encoding="utf-8") as file:
        file.write(text)


def _call(target: outside.Target, interpreter: str, run_dir: Path) -> None:
    script = str(paths.RunPaths(run_dir).probe_dir / JOIN)
    try:
        called = subprocess.run(
            [interpreter, "-I", "-S", "-c", _CALL, str(target.pid), script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise Refused(
            f"The interpreter of process {target.pid} cannot be called: {failure}."
        ) from None
    if called.returncode != 0:
        said = called.stderr.strip().splitlines()
        what = said[-1].rstrip(".") if said else f"exit code {called.returncode}"
        raise Refused(f"Process {target.pid} takes no code from outside ({what}).")
    (run_dir / _ASKED).touch(0o600)


def _await(target: outside.Target, run_dir: Path, wait_s: float) -> None:
    """Until the probe has left its mark: it saw torch, which is loaded."""
    mark = paths.RunPaths(run_dir).probe_dir / PACKAGE / "seen-torch"
    deadline = time.monotonic() + wait_s
    while not mark.exists():
        if not identity.is_alive(target.process):
            raise Refused(f"Process {target.pid} has ended meanwhile.")
        if time.monotonic() >= deadline:
            raise Refused(f"Process {target.pid} took no code within {wait_s:.0f} s.")
        time.sleep(0.05)
