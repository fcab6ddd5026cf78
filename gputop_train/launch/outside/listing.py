"""This user's training processes: which there are, and how well each can be seen."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gputop_train.collect.gpu_readings import in_initial_pid_namespace
from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure
from gputop_train.collect.nvml_devices import find_devices
from gputop_train.collect.procfs import read_text
from gputop_train.launch.attach import run_of_pid
from gputop_train.launch.outside import remote, spying, target
from gputop_train.launch.outside.target import Refused
from gputop_train.launch.processes import ProcStat, process_table, runs_code
from gputop_train.launch.runs import RunInfo, list_runs
from gputop_train.report import format as fmt

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Sight = Literal["full", "sampling", "no"]


@dataclass(frozen=True, slots=True)
class Training:
    """A Python process with torch loaded.

    Attributes:
        sight: ``full`` = it has our ring, or takes the probe from now on; ``sampling`` = stacks
            from outside; ``no`` = not at all.
        why: Whose run it is, or why it cannot be seen better.
        workers: Processes it started that run the same command: loader workers.
        gpu: What it holds of GPUs: ``0 (12.1 GB)``; ``None`` = none, or not told.
    """

    pid: int
    age_s: float
    command: tuple[str, ...]
    sight: Sight
    why: str
    workers: int
    gpu: str | None
    run: RunInfo | None


def find(root: str | os.PathLike[str], nvml: Any = None) -> list[Training]:
    """The training processes of this user (of everybody's for root), newest first.

    Args:
        root: The run root.
        nvml: A module to call in place of ``pynvml``, for tests.
    """
    table = process_table()
    runs = list_runs(root)
    loaded = {}
    for pid, stat in table.items():
        if pid != os.getpid() and runs_code(stat) and _is_ours_to_see(pid):
            maps = read_text(f"/proc/{pid}/maps") or ""
            if target.has_torch(maps) and target.is_python(pid, maps):
                loaded[pid] = stat, maps
    parents = {pid for pid in loaded if not _is_worker(pid, loaded)}
    cards = _cards(nvml) if loaded else {}
    found = []
    for pid in parents:
        stat, maps = loaded[pid]
        run = run_of_pid(pid, runs)
        sight, why = _how(pid, maps, run)
        workers = sum(s.ppid == pid and p not in parents for p, (s, _) in loaded.items())
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / _TICKS_PER_S
        command = target.arguments_of(pid)
        held = cards.get(pid, "in use" if target.uses_gpu(maps) else None)
        found.append(Training(pid, age_s, command, sight, why, workers, held, run))
    return sorted(found, key=lambda one: (one.age_s, one.pid))


def choose(trainings: Sequence[Training], runs: Sequence[RunInfo]) -> RunInfo | int:
    """What ``attach auto`` takes: the newest run of ours that is alive, else the only process.

    Returns:
        The run, or the PID of a process without one.

    Raises:
        Refused: There is nothing, or more than one to choose from.
    """
    alive = next((run for run in runs if run.state in ("live", "orphaned")), None)
    if alive is not None:
        return alive
    seen = [one for one in trainings if one.sight != "no"]
    if len(seen) == 1:
        return seen[0].pid
    if seen:
        pids = ", ".join(str(one.pid) for one in seen[:5])
        raise Refused(
            f"{len(seen)} processes train here and none was started by gputop-train. "
            f"Name one: gputop-train attach {seen[0].pid} (or {pids.partition(', ')[2]})"
        )
    if trainings:
        one = trainings[0]
        raise Refused(f"Process {one.pid} cannot be seen: {one.why}")
    raise Refused("No process here trains with PyTorch. Start one with: gputop-train train.py")


def lines(trainings: Sequence[Training], width: int) -> list[str]:
    """The list as a person reads it, no line wider than ``width`` but the last column's end."""
    if not trainings:
        return ["No process here trains with PyTorch. Start one with: gputop-train train.py"]
    rows = [("PID", "AGE", "GPU", "SEEN", "COMMAND")]
    rows += [
        (
            str(one.pid),
            fmt.duration(one.age_s),
            one.gpu or "-",
            f"full, run {one.run.id}" if one.run else one.sight,
            _command(one),
        )
        for one in trainings
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    shown = []
    for row in rows:
        head = "  ".join(text.ljust(size) for text, size in zip(row, widths, strict=False))
        line = f"{head}  {row[4]}"
        shown.append(line if len(line) <= width else line[: max(1, width - 3)].rstrip() + "...")
    reasons: dict[str, list[str]] = {}
    for one in trainings:
        if one.why and one.run is None:
            reasons.setdefault(one.why, []).append(str(one.pid))
    shown += [f"{', '.join(pids)}: {why}" for why, pids in reasons.items()]
    seen = [one for one in trainings if one.sight != "no"]
    if seen:
        first = seen[0]
        name = first.run.id if first.run else first.pid
        shown.append(f"Attach with: gputop-train attach {name}")
    return [fmt.safe(line) for line in shown]


def _command(one: Training) -> str:
    text = fmt.printable(" ".join(one.command))
    if not one.workers:
        return text
    return f"{text}  (and {one.workers} worker{'s' if one.workers > 1 else ''})"


def _is_ours_to_see(pid: int) -> bool:
    return os.geteuid() == 0 or target.owner_of(pid) == os.geteuid()


def _is_worker(pid: int, loaded: Mapping[int, tuple[ProcStat, str]]) -> bool:
    """A child of a training process that runs its command or was spawned by multiprocessing."""
    stat, _ = loaded[pid]
    if stat.ppid not in loaded:
        return False
    command = " ".join(target.arguments_of(pid))
    spawned = "multiprocessing.spawn" in command or "multiprocessing.forkserver" in command
    return spawned or target.arguments_of(pid) == target.arguments_of(stat.ppid)


def _how(pid: int, maps: str, run: RunInfo | None) -> tuple[Sight, str]:
    if run is not None:
        return "full", f"it belongs to run {run.id}"
    try:
        target.refuse_without_right(pid)
        version = target.python_version(pid, maps)
        if remote.takes_code(version):
            return "full", ""
        spying.find()
    except Refused as refused:
        return "no", str(refused)
    return "sampling", ""


def _cards(nvml: Any) -> dict[int, str]:
    """What each process holds of the GPUs, where the driver's PIDs are ours."""
    if not in_initial_pid_namespace():
        return {}
    held: dict[int, list[str]] = {}
    api = NvmlApi(nvml)
    with contextlib.suppress(NvmlFailure):
        api.start()
        try:
            for found in find_devices(api):
                listed = api.maybe("nvmlDeviceGetComputeRunningProcesses", found.handle) or ()
                for process in listed:
                    used = process.usedGpuMemory
                    size = f" ({fmt.size(used)})" if isinstance(used, int) else ""
                    held.setdefault(int(process.pid), []).append(f"{found.device.index}{size}")
        finally:
            api.stop()
    return {pid: ", ".join(cards) for pid, cards in held.items()}
