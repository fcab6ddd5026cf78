"""Start a run: directories, probe, shim, child, supervisor, in an order that loses nothing.

Everything that needs room on a disk is written before the child exists, so a full disk is an error
of ours at the start and never a surprise to the training. The child waits at the threshold until
``run.json`` names it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train import __version__, paths
from gputop_train.launch import identity, runfile, shim, tasks
from gputop_train.launch.diversion.way import NoWay, Way, way
from gputop_train.launch.environment import script_environment, supervisor_environment
from gputop_train.launch.identity import ProcessId
from gputop_train.launch.interpreter import CommandProblem, choose_interpreter, find_command
from gputop_train.launch.offline import offline_environment
from gputop_train.launch.options import Options, changed_results, probe_config
from gputop_train.launch.probe_dir import install_probe
from gputop_train.launch.runfile import ReservedFile
from gputop_train.launch.secrets import mask_arguments
from gputop_train.launch.threshold import (
    Command,
    LaunchError,
    PlaceError,
    Threshold,
    WorldError,
    cannot_execute,
)


@dataclass(frozen=True, slots=True)
class Launched:
    """A run that has begun."""

    run_dir: Path
    run: Mapping[str, Any]
    child: ProcessId
    shim_pid: int
    supervisor_pid: int | None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.run_dir.name


def resolve_command(options: Options, environ: Mapping[str, str]) -> Command:
    """Return what to execute, having looked that it exists.

    Raises:
        CommandProblem: No interpreter, no such command (127), not executable (126), no script (2).
    """
    target = options.target
    if target.mode == "command":
        executable = find_command(target.name, environ)
        python = executable if Path(target.name).name.startswith("python") else None
        return Command(executable, target.arguments, python)
    python = choose_interpreter(options.python, environ)
    if target.mode == "module":
        return Command(python, (python, "-m", *target.arguments), python)
    if target.name != "-" and not Path(target.name).exists():
        raise CommandProblem(
            f"There is no script {target.name} here. Check its path; "
            "a command goes behind two dashes: gputop-train -- COMMAND.",
            2,
        )
    return Command(python, (python, *target.arguments), python)


def launch(options: Options, command: Command, environ: Mapping[str, str]) -> Launched:
    """Start a run and its supervisor, and return while it runs.

    The caller's signal mask is the shim's too; the child starts with an empty one and default
    dispositions.

    Raises:
        PlaceError: The run root cannot be written or its disk is full.
        LaunchError: The command cannot be run, or there is no place for the probe's data. Nothing
            has run then, and nothing of the run is left on the disk.
        WorldError: The same, since a leg of a trial cannot have its overlay.
    """
    run_dir, ring_dir = _make_directories(options)
    try:
        return _launch_in(run_dir, ring_dir, options, command, environ)
    except BaseException as failure:
        for directory in (run_dir, ring_dir):
            shutil.rmtree(directory, ignore_errors=True)
        if isinstance(failure, NoWay):
            raise WorldError(f"It cannot be kept from changing files: {failure}.") from None
        if isinstance(failure, OSError):
            raise PlaceError(
                f"The run could not be set up in {run_dir.parent}: {failure.strerror or failure}",
                "Free some space there, or name another directory with --run-root; the script was "
                "not started.",
            ) from failure
        raise


def _make_directories(options: Options) -> tuple[Path, Path]:
    root = paths.run_root(options.run_root)
    try:
        while True:
            try:
                run_dir = paths.make_run_dir(root, os.urandom(3).hex())
                break
            except FileExistsError:
                continue
    except paths.PathError as failure:
        raise PlaceError(
            str(failure), "Name a directory for runs with --run-root; the script was not started."
        ) from failure
    try:
        return run_dir, paths.make_runtime_dir(run_dir.name, fallback=run_dir)
    except paths.PathError as failure:
        run_dir.rmdir()
        raise LaunchError(f"{failure} The script was not started.") from failure


def _launch_in(
    run_dir: Path,
    ring_dir: Path,
    options: Options,
    command: Command,
    environ: Mapping[str, str],
) -> Launched:
    paths_ = paths.RunPaths(run_dir)
    run = _describe(run_dir, ring_dir, options, command)
    run["step"], run["attempt"] = tasks.step_of(environ), tasks.attempt(environ)
    reserved = runfile.reserve_run_json(run_dir, run)
    install_probe(paths_.probe_dir, probe_config(options, run_dir.name, str(ring_dir)))
    child_environ = script_environment(
        environ,
        paths_.probe_dir,
        lines=options.env_lines,
        terminal=_terminal_size(options),
        settings=options.settings,
    )
    if options.trial is not None:
        child_environ |= offline_environment(options.trial)
        # Arms that iterate over sets should meet the same order.
        child_environ.setdefault("PYTHONHASHSEED", str(options.trial.seed % (1 << 32)))
    log = paths.open_private_file(paths_.output_log, os.O_WRONLY | os.O_APPEND)
    with way(options.trial, command.executable, command.argv, (run_dir, ring_dir)) as entry:
        try:
            threshold = _start_shim(run_dir, entry, child_environ, log, keep_stdin=not options.tui)
        finally:
            os.close(log)
        child = _see_off(threshold, run, reserved, command, entry)
    supervisor_pid = start_supervisor(run_dir, environ)
    return Launched(run_dir, run, child, threshold.shim_pid, supervisor_pid)


def _see_off(
    threshold: Threshold, run: dict[str, Any], reserved: ReservedFile, command: Command, entry: Way
) -> ProcessId:
    """Write down who the child is, then let it become the command."""
    with threshold:
        child = threshold.child()
        run["shim"] = {
            "pid": threshold.shim_pid,
            "start_ticks": identity.start_ticks(threshold.shim_pid),
        }
        run["child"] = {
            "pid": child.pid,
            "start_ticks": child.start_ticks,
            "pgid": child.pgid,
            "sid": child.pid,
        }
        run["started_wall_ns"], run["started_mono_ns"] = time.time_ns(), time.monotonic_ns()
        runfile.commit_run_json(reserved, run)
        threshold.go(command)
        failed = entry.failure()
    if failed is None:
        return child
    os.waitpid(threshold.shim_pid, 0)
    if "world" in failed:
        raise WorldError(f"Its changes cannot be kept apart: {failed['world']}.")
    raise cannot_execute(command, int(failed.get("exec") or 0))


def _describe(run_dir: Path, ring_dir: Path, options: Options, command: Command) -> dict[str, Any]:
    """Return ``run.json`` as far as it is known before the child exists."""
    target = options.target
    script = target.name
    if target.mode == "command":
        script = next((a for a in target.arguments if a.endswith(".py")), script)
    return {
        "schema": 1,
        "id": run_dir.name,
        "name": options.name,
        "command": mask_arguments(command.argv),
        "cwd": _working_directory(),
        "script": script,
        "mode": target.mode,
        "python": command.python,
        "started_wall_ns": time.time_ns(),
        "started_mono_ns": time.monotonic_ns(),
        "host": os.uname().nodename,
        "boot_id": identity.boot_id(),
        "pid_ns": identity.pid_namespace(),
        "uid": os.geteuid(),
        "shim": None,
        "child": None,
        "ring_dir": str(ring_dir),
        "control_socket": str(paths.socket_path(ring_dir)),
        "store": str(paths.choose_store(run_dir)),
        "overrides": {s.label: s.value for s in options.settings},
        "changes_results": changed_results(options.settings),
        "what_if": [w.label for w in options.trial.what_if] if options.trial else [],
        "options": {
            "steps": options.steps,
            "overhead_budget": options.overhead_budget_pct,
            "tui": options.tui,
            "burst": options.burst,
            "keep": {"runs": options.keep_runs, "gb": options.keep_gb},
        },
        "compared_with": options.compared_with,
        "attempt": 1,
        "version": __version__,
    }


def _working_directory() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None  # removed under us; the script may not mind


def _terminal_size(options: Options) -> tuple[int, int] | None:
    """Return the size of the terminal on which the script's output is shown, if it is one."""
    shown_on = 2 if options.json_path == "-" else 1
    if not options.tui and not os.isatty(shown_on):
        return None
    try:
        size = os.get_terminal_size(shown_on)
    except OSError:
        return None
    return (size.columns, size.lines) if size.columns and size.lines else (80, 24)


def _start_shim(
    run_dir: Path,
    entry: Way,
    environ: Mapping[str, str],
    log: int,
    *,
    keep_stdin: bool,
) -> Threshold:
    spec_read, spec_write = os.pipe()
    status_read, status_write = os.pipe()
    go_read, go_write = os.pipe()
    ours = (spec_read, status_write, go_read)
    arguments = (str(run_dir), *map(str, ours))
    try:
        process = subprocess.Popen(
            [sys.executable or "python3", "-I", "-S", shim.__file__, *arguments],
            env=dict(environ),
            stdin=None if keep_stdin else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(*ours, *entry.pass_fds, *inherited_descriptors()),
            start_new_session=True,
        )
    except OSError:
        for fd in (spec_write, status_read, go_write):
            os.close(fd)
        raise
    finally:
        for fd in ours:
            os.close(fd)
    process.returncode = 0  # the front reaps it by PID; this keeps subprocess from trying as well
    items = (entry.executable, *entry.argv)
    with contextlib.suppress(BrokenPipeError), os.fdopen(spec_write, "wb") as spec:
        spec.write(b"\0".join(map(os.fsencode, items)))
    return Threshold(process.pid, status_read, go_write)


def inherited_descriptors() -> list[int]:
    """Return what we were given beyond stdio and a bare launch would have passed on.

    ``train.py --data <(unpack)`` and job servers rely on it. Our own are all close-on-exec.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  only the names matter
        fd = int(name)
        with contextlib.suppress(OSError):
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
    return found


def start_supervisor(run_dir: Path, environ: Mapping[str, str]) -> int | None:
    """Start the detached supervisor of a run and return its PID; ``None`` when it cannot be.

    Training goes on without one; ``attach`` starts another.
    """
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(paths.RunPaths(run_dir).supervisor_log, flags, 0o600)
    except OSError:
        return None
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "gputop_train.launch.supervisor", str(run_dir)],
            # -m puts the working directory first on the path: not where a script's own module may
            # be called like one of ours or of the standard library.
            cwd=run_dir,
            env=supervisor_environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        os.close(log)
    process.returncode = 0
    return process.pid


__all__ = [
    "Command",
    "LaunchError",
    "Launched",
    "PlaceError",
    "WorldError",
    "launch",
    "resolve_command",
    "start_supervisor",
]
