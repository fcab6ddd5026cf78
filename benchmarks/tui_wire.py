"""Bytes the live screen writes to its terminal, and what it costs in CPU, beside its neighbours.

A person often watches over SSH, where every cell is paid for. This runs the real screen on a real
pseudo-terminal over a real store that a second thread keeps writing, and counts bytes once the
first picture is drawn. `--table` measures every page, then, on the same terminal in the same run,
nvitop (which needs NVML: without a driver it does not start, and the row says so) and the live
screen of memray over a script that allocates. Both are named by their commands, so that they can
live in an environment of their own.

    python benchmarks/tui_wire.py                 # 120x40, 2 repaints a second, as over SSH
    python benchmarks/tui_wire.py --size 200x60 --local --seconds 30
    python benchmarks/tui_wire.py --table --nvitop V/bin/nvitop --memray V/bin/memray --write FILE
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gputop_train.model import GpmSample, GpuSample, HostSample, ProcSample, Step, UtilSample
from gputop_train.store.writer import RunWriter
from gputop_train.tui.pages import key_of, names
from tests.terminal.screen_pty import LIVE, Terminal
from tests.tui.made_run import PARTS, UUID, S, run_json, write_store

#: What design.md asks for at 120x40 and 2 repaints a second.
GOAL_BYTES_PER_S = 8_000
GOAL_CPU_SHARE = 0.03
GOAL_FIRST_PAINT_S = 1.0

#: Becomes the command it is given.
BECOME = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
#: What memray watches: a steady mix of small and large allocations, a few hundred a second.
ALLOCATES = """
import time
kept = []
def small(n):
    return [bytes(1000) for _ in range(n)]
def large(n):
    return bytearray(n)
while True:
    kept.append((small(20), large(200_000)))
    del kept[:-200]
    time.sleep(0.05)
"""


def train(path: Path, start_ns: int, stop: threading.Event) -> None:
    """Write what a run of about 10 steps a second leaves in its store, with jitter."""
    index = int((time.monotonic_ns() - start_ns) / S * 10)
    last = time.monotonic_ns()
    tick = 0
    with RunWriter(path / "run.sqlite") as writer, (path / "output.log").open("a") as log:
        while not stop.wait(0.1):
            now = time.monotonic_ns()
            swing = 1 + 0.3 * math.sin(tick / 7)
            parts = {label: int(ns * swing) for label, ns in PARTS.items()}
            scale = (now - last) / sum(parts.values())
            labels = {label: int(ns * scale) for label, ns in parts.items()}
            writer.add_steps([Step(0, index, last, now, labels, samples=64)])
            log.write(f"\repoch 1: {index}/5000 [00:00<00:00, 9.{tick % 100:02d}it/s]")
            log.flush()
            if tick % 2 == 0:
                writer.add_util([UtilSample(now, UUID, 35 + 30 * math.sin(tick / 3))])
            if tick % 10 == 0:
                writer.add_gpu([GpuSample(now, UUID, power_w=220 + tick % 30, power_limit_w=700.0)])
                writer.add_gpm([GpmSample(now, UUID, sm=20 + tick % 10)])
                writer.add_host(HostSample(now, cpu_busy=1.5, cpus_total=16, cpus_allowed=4))
                pid = os.getpid()
                busy = 0.9 + 0.1 * math.sin(tick)
                writer.add_procs([ProcSample(now, pid + i, "worker", cpu=busy) for i in (1, 2)])
            if tick % 5 == 0:
                writer.commit()
            index, last, tick = index + 1, now, tick + 1


def measure(
    columns: int, rows: int, seconds: float, *, ssh: bool, key: str = "", shows: str = ""
) -> dict[str, Any]:
    """Run the screen for a while and count.

    Args:
        columns: Of the terminal.
        rows: Of the terminal.
        seconds: How long to count.
        ssh: Whether to repaint as over SSH.
        key: Pressed first; empty = the overview stays.
        shows: What says that the key was taken.
    """
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "wire"
        path.mkdir()
        start = time.monotonic_ns() - 60 * S
        write_store(path, start_ns=start, pid=os.getpid())
        run_json(path, start_ns=start, pid=os.getpid())
        stop = threading.Event()
        writer = threading.Thread(target=train, args=(path, start, stop))
        writer.start()
        env = {"SSH_TTY": "/dev/pts/0"} if ssh else {}
        begin = time.monotonic()
        try:
            with Terminal(LIVE, str(path), columns=columns, rows=rows, env=env) as screen:
                screen.wait_for("STARVED")
                first = time.monotonic() - begin
                first_cpu = cpu_s(screen.process.pid)
                if key:
                    screen.type(key)
                    screen.wait_for(shows)
                counted = count(screen, seconds)
        finally:
            stop.set()
            writer.join()
    size = f"{columns}x{rows}"
    return {
        "size": size,
        "hz": 2 if ssh else 4,
        "first_paint_s": round(first, 2),
        "first_paint_cpu_s": round(first_cpu, 2),
    } | counted


def count(screen: Terminal, seconds: float) -> dict[str, Any]:
    """Bytes and CPU of a screen that has been drawn."""
    screen.pump(2)
    before, cpu = len(screen.raw), cpu_s(screen.process.pid)
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        screen.pump(0.5)
    took = time.monotonic() - begin
    return {
        "seconds": round(took, 1),
        "bytes_per_s": round((len(screen.raw) - before) / took),
        "cpu_share_of_a_core": round((cpu_s(screen.process.pid) - cpu) / took, 4),
    }


def neighbour(
    command: Sequence[str], shows: str, columns: int, rows: int, seconds: float
) -> dict[str, Any]:
    """Another program's screen, counted the same way; ``{"problem": ...}`` if it did not start."""
    begin = time.monotonic()
    with Terminal(BECOME, *command, columns=columns, rows=rows) as screen:
        try:
            screen.wait_for(shows)
        except AssertionError:
            said = " ".join(screen.text.split())
            return {"problem": said[:80] or "it showed nothing"}
        paint = {
            "first_paint_s": round(time.monotonic() - begin, 2),
            "first_paint_cpu_s": round(cpu_s(screen.process.pid), 2),
        }
        counted = count(screen, seconds)
        screen.process.terminate()
        return paint | counted


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(args: argparse.Namespace, columns: int, rows: int) -> str:
    """Every page of ours and the neighbours, as Markdown."""
    ssh = not args.local
    found: list[tuple[str, dict[str, Any]]] = []
    for name in names():
        key = "" if name == "overview" else key_of(name)
        shows = f"{key_of(name)} {name}]"
        one = measure(columns, rows, args.seconds, ssh=ssh, key=key, shows=shows)
        found.append((f"gputop-train, {name}", one))
    if args.nvitop:
        command = [args.nvitop, "--monitor", "full"]
        found.append(("nvitop", neighbour(command, "MEM", columns, rows, args.seconds)))
    if args.memray:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "allocates.py"
            script.write_text(ALLOCATES)
            command = [args.memray, "run", "--live", str(script)]
            found.append(
                ("memray run --live", neighbour(command, "Heap", columns, rows, args.seconds))
            )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        "| screen | first paint | CPU for it | bytes/s | CPU, share of a core |",
        "|---|---|---|---|---|",
    ]
    for name, one in found:
        if "problem" in one:
            lines.append(f"| {name} | not measured: {one['problem']} | - | - | - |")
            continue
        share = f"{one['cpu_share_of_a_core']:.1%}"
        paint = f"{one['first_paint_s']:.2f} s | {one['first_paint_cpu_s']:.2f} s"
        lines.append(f"| {name} | {paint} | {one['bytes_per_s']:,} | {share} |")
    lines += [
        "",
        f"{columns}x{rows}, {2 if ssh else 4} repaints a second, {args.seconds:g} s each.",
    ]
    lines += [f"{os.cpu_count()} cores, load {load} at the end."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print one JSON object, or a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--local", action="store_true", help="4 repaints a second, as without SSH")
    parser.add_argument("--table", action="store_true", help="every page, and the neighbours")
    parser.add_argument("--nvitop", default="", help="the nvitop command, by its path")
    parser.add_argument("--memray", default="", help="the memray command, by its path")
    parser.add_argument("--write", type=Path, help="where the table goes")
    args = parser.parse_args()
    columns, rows = (int(part) for part in args.size.split("x"))
    if args.table:
        text = table(args, columns, rows)
        if args.write is not None:
            args.write.write_text(text)
        print(text)
        return
    result = measure(columns, rows, args.seconds, ssh=not args.local)
    goals = {
        "goal_bytes_per_s": GOAL_BYTES_PER_S,
        "goal_cpu_share_of_a_core": GOAL_CPU_SHARE,
        "goal_first_paint_s": GOAL_FIRST_PAINT_S,
    }
    print(json.dumps(result | goals))


if __name__ == "__main__":
    main()
