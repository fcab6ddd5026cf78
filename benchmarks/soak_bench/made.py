"""A made training of many days: its ring's words, and what is measured beside it, by our clock."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from store_size import Load, Simulator
from supervisor_bench import load

from soak_bench.clock import SECOND_NS

#: A step of a large model, a save after so many of them, and the readings beside them.
STEP_NS, SAVE_EVERY, READ_NS = 10 * SECOND_NS, 60, 10 * SECOND_NS
WORKERS = 4


def sleeper() -> subprocess.Popen[bytes]:
    """A process that stands for the training: what watches it asks whether it lives."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", "import time\nwhile True: time.sleep(3600)"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


class MadeRank(load.Rank):
    """The words of one training process that begins now, through the probe's own ring writer."""

    def __init__(self, ring_dir: Path, pid: int, began_ns: int) -> None:
        from gputop_train.probe import ring, words

        self.words = words
        self.rate, self.every = 1, 1
        self.workers = [pid + 1 + i for i in range(WORKERS)]
        ticks = ring.start_ticks(pid)
        self.writer = ring.RingWriter(
            str(ring_dir / f"{pid}-{ticks}.ring"), pid=pid, start_ticks=ticks, rank=-1,
            local_rank=-1, wall_ns=time.time_ns(), mono_ns=began_ns,
        )  # fmt: skip
        self._next_ns, self._count = began_ns, 0

    def until(self, now_ns: int) -> int:
        """Write every step that ends by now, beat and publish; how many steps there were."""
        step_ns = STEP_NS
        log: list[int] = []
        before = self._count
        while self._next_ns + step_ns <= now_ns:
            log += self._with_save(self.step(self._next_ns, step_ns, self._count), step_ns)
            self._next_ns, self._count = self._next_ns + step_ns, self._count + 1
        self.writer.write(log)
        self.writer.beat(now_ns, 0)
        body: dict[str, Any] = json.loads(self.snapshot(self._count))
        body["t_ns"] = now_ns
        self.writer.snapshot(json.dumps(body).encode())
        return self._count - before

    def _with_save(self, log: list[int], step_ns: int) -> list[int]:
        """Put a checkpoint behind the optimizer of a step in so many."""
        if self._count % SAVE_EVERY != SAVE_EVERY - 1:
            return log
        w, begin = self.words, self._next_ns + step_ns * 18 // 20 + 2_000
        last = self._next_ns + step_ns - 1_000
        return [
            *log,
            load.word(begin, w.SAVE << 1),
            load.word(last, w.SAVE << 1 | 1),
            load.site(w, 1 << 20, 4),
        ]


class Beside(Simulator):
    """What is measured from outside: machine, processes and a card, as `store_size` makes it."""

    def until(self, now_ns: int) -> None:
        """Readings up to now, each as it stays once its minute is old, added to the writer."""
        while self.now_ns + READ_NS <= now_ns:
            self.now_ns += READ_NS
            self._devices()
            self._host()


def beside(writer: Any, began_ns: int) -> Beside:
    """The readings of one training process, its workers and one GPU."""
    made = Beside(writer, Load(1, 1, 1, WORKERS, 0, 0))
    made.now_ns = began_ns
    return made


def end(process: subprocess.Popen[bytes]) -> None:
    """End a sleeper and wait for it."""
    with contextlib.suppress(OSError):
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
