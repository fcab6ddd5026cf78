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

#: As many steps as make a rollup in every second, and no more: rollups are what is kept for ever.
STEPS_PER_S = 2
#: A save after so many steps, and how much of its step it takes.
SAVE_EVERY, SAVE_PART = 600 * STEPS_PER_S, 0.6
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
        self.rate, self.every = STEPS_PER_S, 1
        self.workers = [pid + 1 + i for i in range(WORKERS)]
        ticks = ring.start_ticks(pid)
        self.writer = ring.RingWriter(
            str(ring_dir / f"{pid}-{ticks}.ring"), pid=pid, start_ticks=ticks, rank=-1,
            local_rank=-1, wall_ns=time.time_ns(), mono_ns=began_ns,
        )  # fmt: skip
        self._next_ns, self._count = began_ns, 0

    def until(self, now_ns: int) -> int:
        """Write every step that ends by now, beat and publish; how many steps there were."""
        step_ns = SECOND_NS // self.rate
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
        w, begin = self.words, self._next_ns + step_ns * 19 // 20
        last = begin + step_ns // 20 - 1
        return [
            *log,
            load.word(begin, w.SAVE << 1),
            load.word(last, w.SAVE << 1 | 1),
            load.site(w, 1 << 20, 4),
        ]


class Beside(Simulator):
    """What is measured from outside: machine, processes and a card, as `store_size` makes it."""

    def tell(self, now_ns: int) -> None:
        """One second's readings, added to the writer."""
        self.now_ns = now_ns
        self._devices()
        self._host()


def beside(writer: Any) -> Beside:
    """The readings of one training process, its workers and one GPU."""
    return Beside(writer, Load(STEPS_PER_S, 1, 1, WORKERS, 0, 0))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a sleeper and wait for it."""
    with contextlib.suppress(OSError):
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
