"""The list of runs under a run root, read tolerantly: one line per run, whatever its state."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from gputop_train import paths
from gputop_train.launch import identity
from gputop_train.launch.runfile import read_json as read_json
from gputop_train.report.format import printable

#: - ``live``: the script runs and a supervisor watches it.
#: - ``orphaned``: the script runs, its supervisor is gone; ``attach`` starts another.
#: - ``finished``: the script ended and its exit was recorded.
#: - ``lost``: the script is gone and nobody saw how it ended (the shim was killed, or a reboot).
#: - ``elsewhere``: started on another machine or in another container that shares this directory,
#:   and not ended as far as can be seen from here.
State = Literal["live", "orphaned", "finished", "lost", "elsewhere"]

#: A run of another PID namespace of this machine lives as long as its files change: the monitor
#: writes every second, the script prints. A container that was killed changes nothing any more.
_RECENT_S = 3600.0
#: A run of another machine that changed nothing for so long is not kept from removal any more.
_FORGOTTEN_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run as its directory tells it.

    ``None`` means not recorded. ``exit_code`` is the script's own (128 + signal if killed).
    ``size_bytes`` counts allocated blocks, so a punched log counts what it really holds.
    """

    id: str
    path: Path
    state: State
    name: str | None = None
    command: tuple[str, ...] = ()
    host: str | None = None
    started_wall_ns: int | None = None
    ended_wall_ns: int | None = None
    took_ns: int | None = None
    exit_code: int | None = None
    pid: int | None = None
    stopped_by: str | None = None
    status: str | None = None
    verdict: str | None = None
    summary: str | None = None
    size_bytes: int = 0
    protected: bool = False

    @property
    def alive(self) -> bool:
        """Whether the script may still be running."""
        return self.state in ("live", "orphaned", "elsewhere")


def list_runs(root: str | os.PathLike[str]) -> list[RunInfo]:
    """Every run below ``root``, newest first.

    Foreign files, half-written and damaged directories are passed over or shown as far as they can
    be read; a missing root is an empty list.
    """
    try:
        entries = sorted(Path(root).iterdir())
    except OSError:
        return []
    found = [info for info in (read_run(entry) for entry in entries) if info is not None]
    found.sort(key=lambda info: (info.started_wall_ns or 0, info.id), reverse=True)
    return found


def read_run(path: Path) -> RunInfo | None:
    """Read one run directory; ``None`` when it is not a run of this user."""
    info = _lstat(path)
    if (
        info is None
        or not stat.S_ISDIR(info.st_mode)
        or info.st_uid != os.geteuid()
        or path.name.startswith(".")
    ):
        return None
    run = read_json(path / "run.json")
    if run is None or run.get("id") != path.name:
        return None
    exit_ = read_json(path / "exit.json")
    state = run_state(path, run, exit_)
    report = read_json(path / "report.json") or {}
    found = _object(report.get("verdict"))
    child = run.get("child")
    name = _text(run.get("name"))
    return RunInfo(
        id=path.name,
        path=path,
        state=state,
        name=name,
        command=tuple(word for word in _list(run.get("command")) if isinstance(word, str)),
        host=_text(run.get("host")),
        started_wall_ns=_int(run.get("started_wall_ns")),
        ended_wall_ns=_int((exit_ or {}).get("ended_wall_ns")),
        took_ns=_took_ns(run, exit_, state),
        exit_code=exit_code(exit_),
        pid=_int(child.get("pid")) if isinstance(child, dict) else None,
        stopped_by=_text(_object(report.get("run")).get("stopped_by")),
        status=_text(report.get("status")),
        verdict=_text(found.get("refined")) or _text(found.get("id")),
        summary=_text(found.get("summary")),
        size_bytes=allocated_bytes(path),
        protected=bool(name) or state in ("live", "orphaned") or _may_live(path, state),
    )


def _took_ns(run: Mapping[str, Any], exit_: Mapping[str, Any] | None, state: State) -> int | None:
    """Launch to end, or to now, by the clock that nobody sets; ``None`` = not known."""
    begin, end = _int(run.get("started_mono_ns")), _int((exit_ or {}).get("ended_mono_ns"))
    if state in ("live", "orphaned"):
        end = time.monotonic_ns()
    return end - begin if begin is not None and end is not None and end >= begin else None


def run_state(path: Path, run: Mapping[str, Any], exit_: Mapping[str, Any] | None) -> State:
    """Where a run stands, judged from this machine."""
    if exit_ is not None:
        return "finished" if exit_code(exit_) is not None else "lost"
    if is_elsewhere(path, run):
        return "elsewhere"
    child = identity.recorded_child(run)
    if child is None:
        # run.json is written before the child exists and again once it does.
        return "live" if _changed_within(path, 30.0) else "lost"
    if not identity.is_alive(child):
        return "lost"
    return "live" if supervisor_pid(path) is not None else "orphaned"


def is_elsewhere(path: Path, run: Mapping[str, Any]) -> bool:
    """Whether the processes of a run that has not ended cannot be looked up from here.

    They are on another machine, or in a PID namespace that is not ours: there the same PIDs are
    other processes, or none.
    """
    if run.get("host") != socket.gethostname():
        return True
    theirs, ours = run.get("pid_ns"), identity.pid_namespace()
    if not isinstance(theirs, str) or ours is None or theirs == ours:
        return False
    return run.get("boot_id") == identity.boot_id() and _changed_within(path, _RECENT_S)


def where_is(host: str | None) -> str:
    """Where a run is that is ``elsewhere``, as a person says it."""
    if host == socket.gethostname():
        return "in another container of this machine"
    return f"on {printable(host)}" if host else "on another host"


def supervisor_pid(path: Path) -> int | None:
    """The process id of the run's living supervisor on this machine, else ``None``."""
    body = read_json(path / "supervisor.json") or {}
    pid, ticks, boot = (body.get(key) for key in ("pid", "start_ticks", "boot_id"))
    if not (isinstance(pid, int) and isinstance(ticks, int) and isinstance(boot, str)):
        return None
    return pid if identity.is_alive(identity.ProcessId(pid, ticks, boot)) else None


def store_path(run_dir: Path, run: Mapping[str, Any]) -> Path:
    """Where a run's store is now: on local disk while it runs, in the run directory at the end.

    ``run.json`` is believed only if it names a place of the kind we make: a run directory may come
    from anyone, and a store is continued, put aside when damaged, and removed once it came home.
    """
    home = run_dir / "run.sqlite"
    named = run.get("store")
    if not isinstance(named, str) or not named:
        return home
    away = Path(named)
    if away.name != home.name or not paths.is_private_dir(away.parent):
        return home
    # A run directory that was copied or moved names the store of the one it was made from.
    foreign = (away.parent / "run.json").exists()
    return home if foreign or (home.exists() and not away.exists()) else away


def exit_code(exit_: Mapping[str, Any] | None) -> int | None:
    """The code a shell would give for ``exit.json``: 128 + signal if killed."""
    if exit_ is None:
        return None
    number = _int(exit_.get("signal"))
    return 128 + number if number is not None else _int(exit_.get("exit_code"))


def allocated_bytes(path: Path) -> int:
    """Disk space a run directory takes, holes not counted."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            info = _lstat(Path(directory) / name)
            total += info.st_blocks * 512 if info is not None else 0
    return total


def runs_json(runs: Iterable[RunInfo]) -> list[dict[str, Any]]:
    """``gputop-train runs --json``: one object a run, ``null`` = not recorded."""
    return [
        {
            "id": run.id,
            "name": run.name,
            "state": run.state,
            "command": list(run.command),
            "host": run.host,
            "started_wall_ns": run.started_wall_ns,
            "ended_wall_ns": run.ended_wall_ns,
            "exit_code": run.exit_code,
            "pid": run.pid,
            "stopped_by": run.stopped_by,
            "status": run.status,
            "verdict": run.verdict,
            "size_bytes": run.size_bytes,
            "path": str(run.path),
        }
        for run in runs
    ]


def runs_table(
    runs: Iterable[RunInfo], *, now_ns: int | None = None, ascii_only: bool = False
) -> Table:
    """``gputop-train runs``: a Rich table, newest first."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    table = Table(box=box.ASCII if ascii_only else box.SIMPLE_HEAD, pad_edge=False, expand=False)
    table.add_column("run", no_wrap=True)
    table.add_column("started", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("command")  # the one that Rich may narrow: its cells are cut, not wrapped
    for run in runs:
        cells = (
            f"{run.id} {run.name}" if run.name else run.id,
            _started(run.started_wall_ns, now_ns),
            _took(run),
            _state_words(run),
            run.verdict or run.status or "-",
            " ".join((Path(run.command[0]).name, *run.command[1:])) if run.command else "",
        )
        # Text and no str: Rich would read [brackets] of a command as markup.
        table.add_row(*(Text(printable(cell), no_wrap=True, overflow="ellipsis") for cell in cells))
    return table


def _state_words(run: RunInfo) -> str:
    if run.state == "finished":
        if run.stopped_by is not None:  # the code is that of our own signal
            return "stopped"
        return "finished" if run.exit_code == 0 else f"exit {run.exit_code}"
    if run.state == "elsewhere":
        return "in a container" if run.host == socket.gethostname() else where_is(run.host)
    return run.state


def _started(wall_ns: int | None, now_ns: int) -> str:
    if wall_ns is None:
        return "-"
    try:
        moment = time.localtime(wall_ns / 1e9)
    except (OverflowError, OSError, ValueError):
        return "-"
    today = time.localtime(now_ns / 1e9)
    same_day = (moment.tm_year, moment.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", moment)


def _took(run: RunInfo) -> str:
    if run.took_ns is None:
        return "-"
    seconds = run.took_ns // 1_000_000_000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds % 60:02d}s" if minutes else f"{seconds}s"


def _may_live(path: Path, state: State) -> bool:
    if state == "elsewhere":
        return _changed_within(path, _FORGOTTEN_S)
    return state == "lost" and _changed_within(path, _RECENT_S)


def _changed_within(path: Path, seconds: float) -> bool:
    names = ("", "output.log", "run.sqlite", "run.sqlite-wal")
    infos = [_lstat(path / name) for name in names]
    newest = max((info.st_mtime for info in infos if info is not None), default=0.0)
    return time.time() - newest < seconds


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
