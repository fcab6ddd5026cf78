"""Join a run again: find it, see that it is watched, follow it in plain lines."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gputop_train import paths
from gputop_train.launch import ending, identity, runfile, spawn
from gputop_train.launch.control import ControlError, client_of
from gputop_train.launch.processes import ProcStat, process_table
from gputop_train.launch.runs import (
    RunInfo,
    list_runs,
    read_run,
    run_state,
    store_path,
    supervisor_pid,
    where_is,
)
from gputop_train.launch.streams import OutputPump, Voice, write_all
from gputop_train.launch.verdict_lines import VerdictLines
from gputop_train.store.errors import StoreError

#: What was printed before we came: enough to see where the script is.
_RECENT_BYTES = 4096
_SUPERVISOR_START_S = 10.0
_TICK_S = 0.1


class AttachError(Exception):
    """There is no run to join; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run that was found."""

    path: Path
    info: RunInfo

    @property
    def id(self) -> str:
        """The run's id."""
        return self.info.id


def resolve(arg: str | None, root: str | os.PathLike[str]) -> RunRef:
    """Find a run by id, name, process id or the beginning of its id.

    Args:
        arg: What the person typed; ``None`` means the newest run that is alive.
        root: The run root.

    Raises:
        AttachError: There is no such run, or more than one.
    """
    runs = list_runs(root)
    if arg is None:
        alive = [run for run in runs if run.state in ("live", "orphaned")]
        if alive:
            return _ref(alive[0])
        raise AttachError(_nothing_alive(runs, Path(root)))
    exact = [run for run in runs if arg in (run.id, run.name)]
    if exact:
        # A name may be given again; the newest run bears it.
        return _ref(exact[0])
    if arg.isdigit() and (owner := run_of_pid(int(arg), runs)) is not None:
        return _ref(owner)
    begun = [run for run in runs if arg and run.id.startswith(arg)]
    if len(begun) == 1:
        return _ref(begun[0])
    if begun:
        ids = ", ".join(run.id for run in begun[:5])
        raise AttachError(f"{arg} begins the ids of {len(begun)} runs. Type more of one: {ids}.")
    raise AttachError(_unknown(arg, root))


def ensure_supervised(run_dir: Path) -> bool:
    """Start a supervisor for a live run that has none. Returns whether there is one now.

    Never raises: a run can be looked at without one.
    """
    info = read_run(run_dir)
    if info is None or info.state != "orphaned":
        return info is not None and info.state == "live"
    if spawn.start_supervisor(run_dir, dict(os.environ)) is None:
        return False
    deadline = time.monotonic() + _SUPERVISOR_START_S
    while supervisor_pid(run_dir) is None:
        if time.monotonic() >= deadline or runfile.read_exit(run_dir) is not None:
            return False
        time.sleep(0.05)
    return True


def stop_run(run_dir: Path) -> str | None:
    """Have a run stopped by its supervisor, starting one if need be; returns at once.

    Returns:
        ``None`` when the stop ladder is under way, else why it is not, in one sentence.
    """
    info = read_run(run_dir)
    if info is None or info.state not in ("live", "orphaned"):
        return f"The run {run_dir.name} is not alive on this machine, so there is nothing to stop."
    ensure_supervised(run_dir)
    try:
        client_of(run_dir).stop()
    except ControlError as error:
        return str(error)
    return None


def report_of(run_dir: Path) -> dict[str, Any] | None:
    """The report of a run: the final one if it ended, one of the last window if it is alive.

    ``None`` when nothing can be told yet.
    """
    return report_or_reason(run_dir)[0]


def report_or_reason(run_dir: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The same, and why there is none: ``None`` too where nothing was recorded yet."""
    # Imported here: listing runs and following one must not load numpy.
    from gputop_train.launch.conclude import ConcludeError, report_anyway

    report = runfile.read_report(run_dir)
    if report is not None:
        return report, None
    run = runfile.read_json(run_dir / "run.json")
    child = identity.recorded_child(run) if run is not None else None
    try:
        # Of a run elsewhere, what it recorded so far: it is not ours to end.
        alive = child is not None and identity.is_alive(child)
        away = run is not None and run_state(run_dir, run, _ended(run_dir)) == "elsewhere"
        if run is None or not (alive or away):
            return report_anyway(run_dir), None
        return _report_so_far(run_dir, run), None
    except (ConcludeError, StoreError) as problem:
        recorded = run is not None and store_path(run_dir, run).exists()
        return None, str(problem) if recorded else None


def attach_plain(
    run_dir: Path,
    *,
    duration_s: float | None = None,
    json_path: str | None = None,
    from_end: bool = False,
) -> int:
    """Follow a run in plain lines: its output on stdout, our lines on stderr.

    Args:
        run_dir: The run.
        duration_s: Leave after so long; ``None`` = at the run's end.
        json_path: Where the report goes when we leave; ``-`` is stdout.
        from_end: The output was seen already (on the screen), only the end is of interest.

    Returns:
        The script's exit code if it has ended (0 if it was stopped after ``--steps``), else 0.
    """
    info = read_run(run_dir)
    if info is None:
        listing = paths.come_back("runs", root=run_dir.parent)
        Voice().say(f"{run_dir} holds no run. See which there are with: {listing}")
        return 2
    if info.state == "elsewhere":
        Voice().say(f"The run {info.id} is {where_is(info.host)}. Attach to it there.")
        return 2
    return _Follower(run_dir, json_path, from_end=from_end).run(duration_s)


class _Follower:
    """One attachment in plain lines."""

    def __init__(self, run_dir: Path, json_path: str | None, *, from_end: bool) -> None:
        self._dir = run_dir
        self._json_path = json_path
        self._run = runfile.read_json(run_dir / "run.json") or {}
        self._child = identity.recorded_child(self._run)
        log = paths.RunPaths(run_dir).output_log
        size = log.stat().st_size if log.exists() else 0
        start = size if from_end else max(size - _RECENT_BYTES, 0)
        self._pump = OutputPump(log, 2 if json_path == "-" else 1, start=start)
        self._voice = Voice(self._pump)
        self._leave = threading.Event()

    def run(self, duration_s: float | None) -> int:
        """Follow until the end, the time, a signal or a lost reader."""
        ended = runfile.read_exit(self._dir)
        if ended is None:
            how = "" if ensure_supervised(self._dir) else ", without a supervisor"
            self._voice.say(f"attached to run {self._dir.name}{how}; Ctrl-C leaves it running")
        if self._pump.missing:
            self._voice.say(f"What the script printed is gone: {self._dir} holds no output.log.")
        verdicts = VerdictLines(store_path(self._dir, self._run), self._voice)
        with self._signals_mean_leave():
            self._pump.start()
            verdicts.start()
            ended = self._follow(duration_s)
            verdicts.finish()
            self._pump.finish()
            if not self._leave.is_set():
                self._pump.join()
            return self._leave_running() if ended is None else self._sum_up(ended)

    def _follow(self, duration_s: float | None) -> runfile.Exit | None:
        """Wait for the end, the time or a signal; ``None`` when the run goes on."""
        deadline = None if duration_s is None else time.monotonic() + duration_s
        while not self._leave.is_set() and not self._pump.lost:
            ended = runfile.read_exit(self._dir)
            if ended is not None:
                return ended
            if self._child is None or not identity.is_alive(self._child):
                return self._exit_of_the_dead()
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._leave.wait(_TICK_S)
        return None

    def _exit_of_the_dead(self) -> runfile.Exit:
        """How a script ended that is gone: the shim or a supervisor will say, or nobody can."""
        for _ in range(20):
            ended = runfile.read_exit(self._dir)
            if ended is not None:
                return ended
            time.sleep(_TICK_S)
        return runfile.Exit(None, reason="Nobody was left to see how the script ended.")

    def _sum_up(self, ended: runfile.Exit) -> int:
        report = None
        try:
            report = ending.await_report(
                self._dir,
                supervisor_gone=lambda: supervisor_pid(self._dir) is None,
                pause=self._pause,
                voice=self._voice,
            )
        except ending.Interrupted:
            return ended.status
        if report is not None:
            ending.print_summary(self._dir, report, self._voice)
        if self._json_path is not None:
            ending.deliver_json(self._dir, self._json_path, self._voice, report)
        if ended.reason is not None:
            self._voice.say(f"The script's exit code is unknown. {ended.reason}")
        run_part = (report or {}).get("run")
        by_steps = isinstance(run_part, dict) and run_part.get("stopped_by") == "steps"
        return 0 if by_steps else ended.status

    def _leave_running(self) -> int:
        if self._json_path is not None and not self._leave.is_set():
            self._write_report_so_far(self._json_path)
        again = paths.come_back("attach", self._dir)
        self._voice.say(f"Left; training goes on. Come back with: {again}")
        return 0

    def _write_report_so_far(self, target: str) -> None:
        try:
            report = _report_so_far(self._dir, self._run)
        except StoreError as error:
            self._voice.say(str(error))
            return
        content = json.dumps(report, indent=1).encode() + b"\n"
        if target == "-":
            write_all(1, content)
            return
        try:
            ending.write_file(Path(target), content)
        except OSError as error:
            self._voice.say(f"The report could not be written to {target}: {error.strerror}.")

    def _pause(self, seconds: float) -> None:
        if self._leave.wait(seconds):
            raise ending.Interrupted

    @contextmanager
    def _signals_mean_leave(self) -> Iterator[None]:
        """We did not start this run: no signal to us is meant for it."""

        def leave(_number: int, _frame: FrameType | None) -> None:
            self._leave.set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, leave) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _ended(run_dir: Path) -> dict[str, Any] | None:
    return runfile.read_json(paths.RunPaths(run_dir).exit_json)


def _report_so_far(run_dir: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    from gputop_train.launch import verdicts

    store = store_path(run_dir, run)
    return verdicts.build_report(store, run, None, verdicts.judge_run(store, final=False))


def _ref(info: RunInfo) -> RunRef:
    return RunRef(info.path, info)


def run_of_pid(pid: int, runs: Sequence[RunInfo]) -> RunInfo | None:
    """The living run a process belongs to, as its child or anywhere below it."""
    table = process_table()
    alive = {run.pid: run for run in runs if run.state in ("live", "orphaned")}
    process: ProcStat | None = table.get(pid)
    for _ in range(len(table)):
        if process is None:
            return None
        for ancestor in (process.pid, process.session):
            if ancestor in alive:
                return alive[ancestor]
        process = table.get(process.ppid)
    return None


def _nothing_alive(runs: Sequence[RunInfo], root: Path) -> str:
    elsewhere = next((run for run in runs if run.state == "elsewhere"), None)
    if elsewhere is not None:
        return (
            f"No run is alive here; {elsewhere.id} is {where_is(elsewhere.host)}. "
            "Attach to it there."
        )
    if runs:
        newest = runs[0]
        again = paths.come_back("report", newest.path, root=root)
        return f"No run is alive; the newest, {newest.id}, has ended. See it with: {again}"
    return "There are no runs yet. Start one with: gputop-train train.py"


def _unknown(arg: str, root: str | os.PathLike[str]) -> str:
    if arg.isdigit() and Path(f"/proc/{arg}").exists():
        return (
            f"Process {arg} was not started by gputop-train, so it has no run. "
            f"See it from outside with: gputop-train attach {arg}"
        )
    listing = paths.come_back("runs", root=Path(root))
    return f"There is no run {arg} in {root}. See which there are with: {listing}"
