"""Days in our own time: a real supervisor, its ring, store and judge, under a made clock.

So that a month takes minutes, steps take 10 s, readings come each 10 s (as many as stay of them
once they are ten minutes old), the supervisor ticks once a minute and judges each 30 (a real one
ticks twice a second and judges each 2 to 15 s). One training process a day follows the other, so
that rings come and go.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak_bench.clock import SECOND_NS, Clock
from soak_bench.proc import held, size_mb

TICK_NS, JUDGE_NS, DAY_S = 60 * SECOND_NS, 1_800 * SECOND_NS, 86_400
#: Samples of ourselves, and the text a training prints.
SAMPLE_S, TEXT = 1_800, b"epoch 3 step 00000000 loss 0.1234 lr 0.0001 tokens/s 12345.6\n"
#: Lines a minute: a month of them is more than the log keeps.
TEXTS = 120


def soak(folder: Path, days: float, limit_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Let days pass, and sample the supervisor's process and its files each half hour of them.

    Args:
        folder: For the run.
        days: How many.
        limit_s: End after the day in which so many real seconds are over.
        say: Progress, a line at a time.

    Returns:
        ``samples`` by ``t_s``, ``views`` of the other process, and what the end of the run took.
    """
    clock_path = folder / "clock"
    clock = Clock(clock_path)
    clock.rule()
    from gputop_train import paths
    from gputop_train.launch import identity, supervisor, verdicts
    from soak_bench import made

    verdicts._LONGEST_NS = verdicts._PERIOD_NS = verdicts._EARLY_NS = JUDGE_NS
    folder.chmod(0o700)
    run_dir, ring_dir = folder / "soaked", folder / "rings" / "soaked"
    for place in (run_dir, ring_dir):
        paths.make_private_dir(place)
    child = made.sleeper()
    who = {"pid": child.pid, "start_ticks": identity.start_ticks(child.pid), "sid": child.pid}
    began_ns = clock()
    run = {
        "schema": 1, "id": "soaked", "name": None, "command": ["python", "train.py"],
        "script": "train.py", "mode": "script", "cwd": str(folder), "boot_id": identity.boot_id(),
        "host": os.uname().nodename, "uid": os.getuid(), "python": sys.executable,
        "started_mono_ns": began_ns, "started_wall_ns": time.time_ns(), "shim": who, "child": who,
        "ring_dir": str(ring_dir), "store": str(run_dir / "run.sqlite"), "overrides": {},
        "options": {"steps": None, "overhead_budget": 1.0, "tui": True}, "attempt": 1,
    }  # fmt: skip
    (run_dir / "run.json").write_text(json.dumps(run))
    (run_dir / "output.log").touch(0o600)
    watched = supervisor.Supervisor(run_dir)
    # What would be read of this machine is made, like the training.
    if watched._pipe._sampling is not None:
        watched._pipe._sampling.close()
        watched._pipe._sampling = None
    watched._open_door()
    viewer_out = folder / "views"
    viewer = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("viewer.py")), str(run_dir),
         str(clock_path), str(viewer_out)], stdin=subprocess.DEVNULL,
    )  # fmt: skip
    trainers = [made.sleeper()]
    try:
        samples = _pass(watched, made, run_dir, ring_dir, clock, days, limit_s, trainers, say)
    finally:
        made.end(trainers[-1])
        made.end(viewer)
        made.end(child)
    views = [json.loads(line) for line in viewer_out.read_text().splitlines()]
    for view in views:
        view["t_s"] = (view.pop("now_ns") - began_ns) / SECOND_NS
    return {"samples": samples, "views": views} | _conclude(watched, run_dir, clock, say)


def _pass(
    watched: Any,
    made: Any,
    run_dir: Path,
    ring_dir: Path,
    clock: Clock,
    days: float,
    limit_s: float,
    trainers: list[subprocess.Popen[bytes]],
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    began_ns, began = clock(), time.monotonic()
    beside = made.beside(watched._pipe.writer, began_ns)
    rank = made.MadeRank(ring_dir, trainers[-1].pid, began_ns)
    samples: list[dict[str, Any]] = []
    steps, ticks = 0, int(days * DAY_S) * SECOND_NS // TICK_NS
    with (run_dir / "output.log").open("ab", buffering=0) as log:
        for tick in range(1, ticks + 1):
            now_ns = began_ns + tick * TICK_NS
            beside.until(now_ns)
            steps += rank.until(now_ns)
            log.write(TEXT * TEXTS)
            clock.set(now_ns)
            watched._tick(now_ns)
            t_s = tick * TICK_NS // SECOND_NS
            if t_s % DAY_S == 0:  # the training is started again, as a launcher does
                made.end(trainers[-1])
                rank.writer.close()
                trainers.append(made.sleeper())
                rank = made.MadeRank(ring_dir, trainers[-1].pid, now_ns)
            if t_s % SAMPLE_S == 0:
                samples.append(_sample(t_s, run_dir, ring_dir, steps))
            if t_s % DAY_S == 0:
                spent = time.monotonic() - began
                one = samples[-1]
                say(
                    f"day {t_s // DAY_S} after {spent:.0f} s: {one['held']['rss_mb']:.1f} MB, "
                    f"store {one['files']['store']:.1f} MB"
                )
                if spent > limit_s:
                    break
    rank.writer.close()
    return samples


def _sample(t_s: int, run_dir: Path, ring_dir: Path, steps: int) -> dict[str, Any]:
    store = run_dir / "run.sqlite"
    return {
        "t_s": t_s,
        "steps": steps,
        "cpu_s": time.process_time(),
        "held": held(os.getpid()),
        "files": {
            "store": size_mb(store),
            "log of the store (-wal)": size_mb(store.with_name("run.sqlite-wal")),
            "rings": size_mb(ring_dir),
            "output.log": size_mb(run_dir / "output.log"),
            "supervisor.log": size_mb(run_dir / "supervisor.log"),
        },
    }


def _conclude(
    watched: Any, run_dir: Path, clock: Clock, say: Callable[[str], None]
) -> dict[str, Any]:
    """End the run as the supervisor does, and see what that took."""
    say("the end of the run")
    (run_dir / "exit.json").write_text(
        json.dumps(
            {"exit_code": 0, "signal": None, "ended_wall_ns": time.time_ns(),
             "ended_mono_ns": clock()}
        )
    )  # fmt: skip
    before = held(os.getpid()) or {}
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    cpu, wall = time.process_time(), time.monotonic()
    conclusion = watched._conclude()
    took, took_wall = time.process_time() - cpu, time.monotonic() - wall
    report = conclusion.report or {}
    return {
        "end_cpu_s": took,
        "end_wall_s": took_wall,
        "end_peak_mb": resource_peak_mb(),
        "end_before_mb": before.get("rss_mb"),
        "problem": conclusion.problem,
        "status": report.get("status"),
        "verdict": (report.get("verdict") or {}).get("id"),
        "steps": (report.get("steps") or {}).get("count"),
        "rows": _rows(run_dir / "run.sqlite"),
        "notes": _notes(run_dir),
        "store_mb": size_mb(run_dir / "run.sqlite"),
    }


def resource_peak_mb() -> float:
    """Highest resident memory since the mark was cleared, else since the process began."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _rows(store: Path) -> dict[str, list[float]]:
    """Rows and MB of each table."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(store)) as db:
        sizes = dict(db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall())
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {
            name: [db.execute(f"SELECT count(*) FROM {name}").fetchone()[0], sizes[name] / 1e6]
            for name in names
        }
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _notes(run_dir: Path) -> dict[str, int]:
    """Notes by kind: a part that failed is one."""
    from gputop_train.store.reader import RunReader

    with RunReader(run_dir) as reader:
        kinds = [note.kind for note in reader.notes()]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}
