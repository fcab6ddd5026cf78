"""One small seeded training, plain and watched, for faults to strike at: is it the same to a bit?"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train.launch import identity, runfile
from gputop_train.launch.attach import report_of
from gputop_train.launch.processes import process_table
from gputop_train.launch.runs import supervisor_pid
from tests.launching import World, wait_for

#: Arguments: steps, seconds of pause after each, loader workers, and a file to wait for before
#: step ``hold`` (``-``: none). Only steps and workers have a say in what it computes and prints.
TRAINING = """
import hashlib, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps, pause, workers, gate, hold = (kind(word) for kind, word in zip(
    (int, float, int, str, int), sys.argv[1:]))
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(4 * steps, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step, (x, y) in enumerate(DataLoader(data, 4, shuffle=True, num_workers=workers)):
    while step == hold and gate != "-" and not os.path.exists(gate):
        time.sleep(0.02)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item().hex(), flush=True)
    time.sleep(pause)
told = hashlib.sha256()
for name, value in model.state_dict().items():
    told.update(name.encode() + value.numpy().tobytes())
print(told.hexdigest())
sys.exit(3)
"""
EXIT_CODE = 3


@dataclass(frozen=True, slots=True)
class Plain:
    """What the script does without us: it prints ``output`` and ends with `EXIT_CODE`."""

    steps: int
    workers: int
    output: bytes

    def arguments(self, pause: float = 0.0, gate: Path | None = None, hold: int = 0) -> list[str]:
        """The script and its arguments for the same computation."""
        words = [str(self.steps), str(pause), str(self.workers), str(gate or "-"), str(hold)]
        return ["train.py", *words]


def plain(place: Path, steps: int, workers: int, text: str = TRAINING) -> Plain:
    """Run the script without us, once: where it lies has no say in what it computes."""
    key = steps, workers, text
    if key not in _KNOWN:
        _KNOWN[key] = _run_plainly(place, steps, workers, text)
    return _KNOWN[key]


_KNOWN: dict[tuple[int, int, str], Plain] = {}


def _run_plainly(place: Path, steps: int, workers: int, text: str) -> Plain:
    script = place / "plain.py"
    script.write_text(text)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, str(script), str(steps), "0", str(workers), "-", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=clean,
        timeout=1500,
        check=False,
    )
    assert done.returncode == EXIT_CODE, done.stdout
    assert done.stdout.count(b"step ") == steps
    return Plain(steps, workers, done.stdout)


def unharmed(here: World, bare: Plain) -> None:
    """The watched script printed and computed what the plain one did, and ended as it did."""
    wait_for((here.run_dir() / "exit.json").exists, "the script's end")
    assert here.output() == bare.output
    ended = runfile.read_exit(here.run_dir())
    assert ended is not None
    assert ended.exit_code == EXIT_CODE or ended.reason is not None, ended


def report(here: World) -> dict[str, Any]:
    """The run's report, made here if nobody is left who would."""
    found: dict[str, Any] = wait_for(lambda: report_of(here.run_dir()), "the report")
    return found


def printed_steps(output: bytes) -> int:
    """Steps the script told of."""
    return len(re.findall(rb"^step \d+ \S+$", output, re.MULTILINE))


def lost_words(told: dict[str, Any]) -> str:
    """What a report says was lost, for the matrix."""
    return " ".join(loss["text"] for loss in told["data_lost"]) or "nothing"


def loader_worker(here: World) -> int | None:
    """A process that loads data for the run's script; ``None`` while there is none."""
    trainer = here.run_json()["child"]["pid"]
    children = [p for p in process_table().values() if p.ppid == trainer and p.state not in "ZX"]
    return children[0].pid if children else None


def watching(here: World) -> int | None:
    """The run's supervisor as its record names it; ``None`` while there is none."""
    return supervisor_pid(here.run_dir())


def kill(pid: int) -> None:
    """``kill -9``."""
    os.kill(pid, signal.SIGKILL)


class Screen:
    """The live screen on a terminal of its own, which somebody reads."""

    def __init__(self, here: World, *arguments: str) -> None:
        import pty

        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(here.place)
            root = arguments[0] != "attach"  # which takes its options behind its name
            own = () if root else ("--run-root", str(here.root))
            words = [os.fsencode(word) for word in here.command(*arguments, *own, root=root)]
            os.execve(words[0], words, {**here.environ, "TERM": "xterm-256color"})
        self.said = bytearray()
        self._code: int | None = None
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (fd := self._fd) >= 0:  # a read that waits would keep a hung-up terminal open
                if select.select([fd], [], [], 0.1)[0]:
                    self.said += os.read(fd, 65536)

    def shows(self, text: bytes = b"\x1b[?1049h") -> None:
        """Wait until it has written ``text``; the live screen begins with the default."""
        wait_for(lambda: text in self.said, f"{text!r} on the terminal")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        with contextlib.suppress(OSError):
            os.write(self._fd, keys)

    def wait(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        wait_for(self.ended, "the screen's end")
        assert self._code is not None
        return self._code

    def ended(self) -> bool:
        """Whether it has ended."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None

    def hang_up(self) -> None:
        """Take the terminal away."""
        fd, self._fd = self._fd, -1
        os.close(fd)

    def close(self) -> None:
        """Take the terminal away and see the process gone."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGCONT)
            if not self.ended():
                kill(self.pid)
                self.wait()
        with contextlib.suppress(OSError):
            os.close(self._fd)


@contextlib.contextmanager
def screen(here: World, *arguments: str) -> Iterator[Screen]:
    """A screen that is gone afterwards."""
    opened = Screen(here, *arguments)
    try:
        yield opened
    finally:
        opened.close()


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    return not identity.is_running(pid)
