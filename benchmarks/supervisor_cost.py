"""What the supervisor costs: CPU as a share of one core, by part, and how its memory grows.

A real launch with a real supervisor; the training is a process that writes, through the probe's
own ring code and in its rhythm (words five times a second, a snapshot each second), what a training
at a given rate would, and uses next to no CPU itself. The share is read from ``/proc/PID/stat``
over a window that begins after the supervisor has settled, so start-up is told apart.

    python benchmarks/supervisor_cost.py                      # all loads
    python benchmarks/supervisor_cost.py --only 1x1000        # one of them
    python benchmarks/supervisor_cost.py --parts              # where the time goes, by part
    python benchmarks/supervisor_cost.py --only 1x700 --profile out.prof
    python benchmarks/supervisor_cost.py --gpu                # beside a card: NVML by call

``--parts`` and ``--profile`` watch with the same supervisor inside an instrumented process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from supervisor_bench import load as ring_load
from supervisor_bench.instrumented import mark, start
from supervisor_bench.nvml_costs import nvml_costs

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LOAD = str(Path(ring_load.__file__).resolve())
#: By default: the goals' loads, and a slow loop whose cost is that of the collectors alone.
LOADS = ("1x2", "1x20", "1x100", "1x700", "1x1000", "8x200")


@dataclass(slots=True)
class Result:
    """One load, measured."""

    load: str
    share: float
    startup_s: float
    rss_mb: float
    growth_mb: float
    steps: int
    told: float | None
    true: float | None
    parts: dict[str, float] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="ranks x steps/s, such as 8x200")
    parser.add_argument("--every", type=int, default=1, help="record one step of so many in detail")
    parser.add_argument("--settle", type=float, default=25.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--profile", help="where a cProfile of the main thread goes")
    parser.add_argument("--gpu", action="store_true", help="only NVML, beside a real card")
    args = parser.parse_args()
    if args.gpu:
        return nvml_costs(args.seconds)
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print("| load | of a core | start-up | RSS | growth | steps | report says | /proc says |")
    print("|---|---|---|---|---|---|---|---|")
    for load in args.only or LOADS:
        result = measure(load, args)
        print(row(result), flush=True)
        for part, share in sorted(result.parts.items(), key=lambda item: -item[1]):
            print(f"|  - {part} | {share:.2%} |")
    return 0


def row(result: Result) -> str:
    told = "-" if result.told is None else f"{result.told:.2%}"
    true = "-" if result.true is None else f"{result.true:.2%}"
    return (
        f"| {result.load} | {result.share:.2%} | {result.startup_s:.2f} s | {result.rss_mb:.0f} MB "
        f"| {result.growth_mb:+.1f} MB | {result.steps} | {told} | {true} |"
    )


# -- the measurement -------------------------------------------------------------------------------


def measure(load: str, args: argparse.Namespace) -> Result:
    """Launch a run of one load, measure its supervisor in the steady state, and end it."""
    from gputop_train.launch import identity, spawn
    from gputop_train.launch.options import Options, Target

    root = Path(tempfile.mkdtemp(prefix="supervisor-cost-"))
    script = (LOAD, load, str(args.every))
    wanted = Options(target=Target("script", script), run_root=str(root), python=sys.executable)
    environ = dict(os.environ)
    launched = spawn.launch(wanted, spawn.resolve_command(wanted, environ), environ)
    pid = launched.supervisor_pid
    assert pid is not None, "the supervisor did not start"
    watching: subprocess.Popen[bytes] | None = None
    try:
        if args.parts or args.profile:
            stop(pid)
            watching = start(launched.run_dir, args.profile)
            pid = watching.pid
        result = watch(load, pid, launched.run_dir, args)
    finally:
        if identity.is_alive(launched.child):
            os.killpg(launched.child.pid, signal.SIGTERM)
        if watching is not None:
            watching.wait(300)
            parts = json.loads((launched.run_dir / "parts.json").read_text())
        else:
            wait_gone(pid)
            parts = {}
        shutil.rmtree(str(launched.run["ring_dir"]), ignore_errors=True)
    if "wall_s" in parts:
        wall_s = parts.pop("wall_s")
        result.parts = {name: cpu_s / wall_s for name, cpu_s in parts.items()}
    shutil.rmtree(root, ignore_errors=True)
    return result


def watch(load: str, pid: int, run_dir: Path, args: argparse.Namespace) -> Result:
    """Read the supervisor's CPU time and memory at both ends of the window."""
    from gputop_train.store.reader import RunReader

    began = time.monotonic()
    while not steps_of(run_dir):
        time.sleep(0.05)
        assert time.monotonic() - began < 30, "no step came"
    startup_s = cpu_s(pid)
    time.sleep(args.settle)
    mark(pid)
    rss, cpu, at = rss_mb(pid), cpu_s(pid), time.monotonic()
    first = steps_of(run_dir)
    time.sleep(args.seconds)
    mark(pid)
    wall = time.monotonic() - at
    share = (cpu_s(pid) - cpu) / wall
    steps = steps_of(run_dir) - first
    told = true = None
    with RunReader(run_dir) as reader:
        # Written every ten seconds: compare with the clock of the kernel at about that moment.
        before = reader.meta("supervisor")
        for _ in range(300):
            own = reader.meta("supervisor")
            if own != before:
                told = own["cpu_s"] / own["wall_s"]
                true = cpu_s(pid) / age_s(pid)
                break
            time.sleep(0.05)
    return Result(load, share, startup_s, rss_mb(pid), rss_mb(pid) - rss, steps, told, true)


def steps_of(run_dir: Path) -> int:
    """Steps of rank 0 that are in the store."""
    from gputop_train.store.reader import RunReader, StoreError

    try:
        with RunReader(run_dir) as reader:
            tail = reader.steps_tail(1, 0)
            return tail[-1].index + 1 if tail else 0
    except (StoreError, OSError):
        return 0


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children it has waited for (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(n) for n in fields[11:15]) / TICKS_PER_S


def age_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS_PER_S


def rss_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    wait_gone(pid)


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 300
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
