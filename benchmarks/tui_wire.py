"""Bytes the live screen writes to its terminal, and what it costs in CPU.

A person often watches over SSH, where every cell is paid for. This runs the real screen on a real
pseudo-terminal over a real store that a second thread keeps writing, and counts bytes once the
first picture is drawn.

    python benchmarks/tui_wire.py                 # 120x40, 2 repaints a second, as over SSH
    python benchmarks/tui_wire.py --size 200x60 --local --seconds 30
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gputop_train.model import GpmSample, GpuSample, HostSample, ProcSample, Step, UtilSample
from gputop_train.store.writer import RunWriter
from tests.terminal.screen_pty import LIVE, Terminal
from tests.tui.made_run import PARTS, UUID, S, run_json, write_store

#: What design.md asks for at 120x40 and 2 repaints a second.
GOAL_BYTES_PER_S = 8_000


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


def measure(columns: int, rows: int, seconds: float, *, ssh: bool) -> dict[str, object]:
    """Run the screen for a while and count."""
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
        try:
            with Terminal(LIVE, str(path), columns=columns, rows=rows, env=env) as screen:
                screen.wait_for("STARVED")
                screen.pump(2)
                before, cpu = len(screen.raw), cpu_s(screen.process.pid)
                begin = time.monotonic()
                while time.monotonic() - begin < seconds:
                    screen.pump(0.5)
                took = time.monotonic() - begin
                wrote = len(screen.raw) - before
                spent = cpu_s(screen.process.pid) - cpu
        finally:
            stop.set()
            writer.join()
    return {
        "size": f"{columns}x{rows}",
        "hz": 2 if ssh else 4,
        "seconds": round(took, 1),
        "bytes_per_s": round(wrote / took),
        "cpu_share_of_a_core": round(spent / took, 4),
    }


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--local", action="store_true", help="4 repaints a second, as without SSH")
    args = parser.parse_args()
    columns, rows = (int(part) for part in args.size.split("x"))
    result = measure(columns, rows, args.seconds, ssh=not args.local)
    print(json.dumps(result | {"goal_bytes_per_s": GOAL_BYTES_PER_S}))


if __name__ == "__main__":
    main()
