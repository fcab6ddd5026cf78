"""Real time: a training watched by ``gputop-train`` with its screen on a pseudo-terminal.

The same training runs beside it without us, so that what the trainer itself grows by is known and
only the rest is the probe's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak_bench.proc import children, held, size_mb

HOME = Path(__file__).resolve().parents[2]
TRAINING = Path(__file__).with_name("training.py")
#: The screen's pages, in turn.
KEYS = "23456789e1"
READ_S = 60.0


class Screen:
    """The command on a terminal of its own; whatever it draws is counted and thrown away."""

    def __init__(self, command: list[str], environ: dict[str, str], cwd: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environ, cwd=cwd,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.drawn = 0
        self.tail = b""

    def drain(self, seconds: float) -> None:
        """Read what it draws for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.master], [], [], left)[0]:
                return
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # the last one on the other side has left
                time.sleep(min(left, 0.2))
                return
            self.drawn += len(data)
            self.tail = (self.tail + data)[-4000:]

    def type(self, key: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self.master, key.encode())


def environment() -> dict[str, str]:
    """Ours, with this checkout importable and a terminal that is one."""
    path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH", ""))))
    colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONUTF8": "1"}
    return {**os.environ, **colours, "PYTHONPATH": path, "GPUTOP_CONFIG": ""}


def soak(
    folder: Path,
    minutes: float,
    device: str,
    every_s: float,
    turn_s: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train for a while, watched and not, and sample everything that is ours.

    Args:
        folder: For the runs and what the trainings write.
        minutes: Length of the training.
        device: Where the training trains.
        every_s: Seconds from one sample to the next.
        turn_s: Seconds a page of the screen stays in front.
        say: Progress, a line at a time.

    Returns:
        ``samples`` (a list of dicts by ``t_s``), and how it ended.
    """
    environ = environment()
    root = folder / "runs"
    for name in ("watched", "bare"):
        (folder / name).mkdir()
    arguments = [str(TRAINING), str(minutes), device]
    own = [sys.executable, "-m", "gputop_train", "--run-root", str(root), "--python"]
    bare_out = (folder / "bare.log").open("wb")
    bare = subprocess.Popen(
        [sys.executable, *arguments, str(folder / "bare")],
        stdin=subprocess.DEVNULL, stdout=bare_out, stderr=bare_out, env=environ, cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    screen = Screen([*own, sys.executable, *arguments, str(folder / "watched")], environ, folder)
    try:
        return _watch(screen, bare, root, minutes, every_s, turn_s, say)
    finally:
        for process in (screen.process, bare):
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        bare_out.close()


def _watch(
    screen: Screen,
    bare: subprocess.Popen[bytes],
    root: Path,
    minutes: float,
    every_s: float,
    turn_s: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    began = time.monotonic()
    end = began + minutes * 60 + 120
    run_dir = _run_dir(root, screen, began + 120)
    run = json.loads((run_dir / "run.json").read_text())
    samples: list[dict[str, Any]] = []
    stops = began + minutes * 60 - 5  # from then on it ends, which is no steady state
    keys, due_key, due_read, due_line = 0, turn_s, 30.0, 0.0
    trainer = int(run["child"]["pid"])
    while time.monotonic() < end and held(trainer) is not None:
        at = time.monotonic()
        screen.drain(every_s)
        # Drawing may end the wait early, a terminal that is left at once ends it too.
        while (left := every_s - (time.monotonic() - at)) > 0:
            screen.drain(left)
        t_s = time.monotonic() - began
        if t_s >= due_key:
            due_key = t_s + turn_s
            screen.type(KEYS[keys % len(KEYS)])
            keys += 1
        sample = _sample(t_s, run_dir, run, screen, trainer, bare.pid)
        if time.monotonic() > stops:
            continue
        if t_s >= due_read:
            due_read = t_s + READ_S
            sample |= read_times(run_dir)
        samples.append(sample)
        if t_s >= due_line:
            due_line = t_s + 300
            say(f"{t_s / 60:.0f} min: {_brief(sample)}")
    said = _leave(screen, run_dir)
    with contextlib.suppress(subprocess.TimeoutExpired):
        bare.wait(timeout=60)
    return {"samples": samples, "run": run_dir.name, "bare_exit": bare.poll()} | said


def _run_dir(root: Path, screen: Screen, deadline: float) -> Path:
    while time.monotonic() < deadline:
        screen.drain(0.2)
        for found in root.glob("*/run.json"):
            if (found.parent / "supervisor.json").exists():
                return found.parent
        if screen.process.poll() is not None:
            break
    raise RuntimeError(f"no run began; the screen said {screen.tail[-1500:]!r}")


def _sample(
    t_s: float, run_dir: Path, run: dict[str, Any], screen: Screen, trainer: int, bare: int
) -> dict[str, Any]:
    supervisor = _supervisor(run_dir)
    processes = {
        "supervisor": supervisor,
        "screen": screen.process.pid,
        "shim": run["shim"]["pid"],
        "trainer": trainer,
        "trainer, not watched": bare,
    }
    sample: dict[str, Any] = {"t_s": t_s, "supervisor_pid": supervisor, "drawn": screen.drawn}
    sample["held"] = {name: found for name, pid in processes.items() if (found := held(pid))}
    for name, pid in (("trainer", trainer), ("trainer, not watched", bare)):
        if name in sample["held"]:
            sample["held"][name]["children"] = len(children(pid))
    store = Path(str(run["store"]))
    sample["files"] = {
        "store": size_mb(store),
        "log of the store (-wal)": size_mb(store.with_name(store.name + "-wal")),
        "rings": size_mb(Path(str(run["ring_dir"]))),
        "output.log": size_mb(run_dir / "output.log"),
        "supervisor.log": size_mb(run_dir / "supervisor.log"),
        "run directory": size_mb(run_dir),
    }
    return sample


def _supervisor(run_dir: Path) -> int:
    try:
        return int(json.loads((run_dir / "supervisor.json").read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return -1


def read_times(run_dir: Path) -> dict[str, float]:
    """Processor milliseconds to open the run and read the newest minute, as a screen begins."""
    from gputop_train.tui.snapshot import View
    from gputop_train.tui.source import LiveSource

    try:
        before = time.thread_time()
        source = LiveSource(run_dir)
        source.read(View())
        took = (time.thread_time() - before) * 1e3
        source.close()
    except Exception as error:  # a soak goes on and says so
        return {"read_failed": repr(error)}  # type: ignore[dict-item]
    return {"read_ms": took}


def _leave(screen: Screen, run_dir: Path) -> dict[str, Any]:
    """Wait for the report, leave the screen by its key, and say how all of it ended."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and not (run_dir / "report.json").exists():
        screen.drain(0.5)
    screen.drain(3)
    while screen.process.poll() is None and time.monotonic() < deadline:
        screen.type("q")
        screen.drain(2)
        time.sleep(0.5)
    report: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        report = json.loads((run_dir / "report.json").read_text())
    log = run_dir / "supervisor.log"
    return {
        "exit": screen.process.poll(),
        "status": report.get("status"),
        "verdict": (report.get("verdict") or {}).get("id"),
        "steps": (report.get("steps") or {}).get("count"),
        "supervisor_log": log.read_text(errors="replace")[-2000:] if log.exists() else "",
        "left_running": _supervisor_alive(run_dir),
    }


def _supervisor_alive(run_dir: Path) -> bool:
    deadline = time.monotonic() + 30
    while held(_supervisor(run_dir)) is not None:
        if time.monotonic() > deadline:
            return True
        time.sleep(0.5)
    return False


def _brief(sample: dict[str, Any]) -> str:
    parts = [f"{name} {one['rss_mb']:.1f} MB" for name, one in sample["held"].items()]
    return ", ".join([*parts, f"store {sample['files']['store']:.2f} MB"])
