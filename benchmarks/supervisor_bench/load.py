"""A training as its ring shows it: ``RANKSxRATE [EVERY]``, such as ``8x200``.

Written through the probe's own ring code, in its rhythm; one step of ``EVERY`` with all its words.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

PUBLISH_S = 0.2  # the probe's helper drains this often
SITES = 20
WORKERS = 4


def write(load: str, every: int) -> int:
    """``ranks x steps/s``: one writer process for each rank, each with sleeping workers."""
    ranks, rate = (int(part) for part in load.split("x"))
    place = next(
        Path(path)
        for path in os.environ["PYTHONPATH"].split(os.pathsep)
        if (Path(path) / "_gputop_probe").is_dir()
    )
    sys.path.insert(0, str(place))
    ring_dir = json.loads((place / "config.json").read_text())["ring_dir"]
    children = []
    for rank in range(1, ranks):
        child = os.fork()
        if child == 0:
            Rank(ring_dir, rank, rate, every).run()
        children.append(child)
    Rank(ring_dir, 0 if ranks > 1 else -1, rate, every).run()
    return 0


class Rank:
    """Writes the words of one rank, steps in detail or (all but one of ``every``) as ticks."""

    def __init__(self, ring_dir: str, rank: int, rate: int, every: int) -> None:
        from _gputop_probe import ring, words  # type: ignore[import-not-found]

        self.words = words
        self.rate = rate
        self.every = every
        self.workers = [sleeper() for _ in range(WORKERS)]
        pid, ticks = os.getpid(), ring.start_ticks(os.getpid())
        self.writer = ring.RingWriter(
            str(Path(ring_dir) / f"{pid}-{ticks}.ring"),
            pid=pid, start_ticks=ticks, rank=rank, local_rank=rank,
            wall_ns=time.time_ns(), mono_ns=time.monotonic_ns(),
        )  # fmt: skip

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.end)
        step_ns = 10**9 // self.rate
        next_ns, count, published_ns = time.monotonic_ns(), 0, 0
        while True:
            time.sleep(PUBLISH_S)
            now = time.monotonic_ns()
            log: list[int] = []
            while next_ns + step_ns <= now:
                log += self.step(next_ns, step_ns, count)
                next_ns, count = next_ns + step_ns, count + 1
            self.writer.write(log)
            self.writer.beat(now, 0)
            if now - published_ns >= 10**9:
                published_ns = now
                self.writer.snapshot(self.snapshot(count))

    def end(self, *_: object) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        os._exit(0)

    def step(self, t0: int, step_ns: int, count: int) -> list[int]:
        w = self.words
        tick = getattr(w, "STEP_TICK", None)
        if count % self.every and tick is not None:
            return [word(t0 + step_ns - 1, tick)]
        at = partial(int.__add__, t0)
        part = step_ns // 20
        log = [
            word(at(0), w.DATA << 1), word(at(part * 2), w.DATA << 1 | 1), site(w, 32, 1),
            word(at(part * 3), w.SPAN_H2D), word(part, w.ARG_DUR), site(w, 1 << 20, 2),
            word(at(part * 9), w.BACKWARD << 1), word(at(part * 15), w.BACKWARD << 1 | 1),
            word(at(part * 15 + 1000), w.OPTIMIZER << 1), site(w, 1, 0),
            word(at(part * 18), w.OPTIMIZER << 1 | 1),
            word(at(part * 18 + 1000), w.SPAN_SYNC), word(part, w.ARG_DUR), site(w, 4, 3),
        ]  # fmt: skip
        if count % max(1, self.rate // 40) == 0:  # the stack sampler, at its 40 Hz at most
            log += [word(at(part * 5), w.SAMPLE), site(w, 1, 4)]
        if count % max(1, self.rate // 3) == 0:
            log += [
                word(at(step_ns), w.MEM_AT),
                word(40 << 30, w.MEM_ALLOCATED), word(60 << 30, w.MEM_RESERVED),
            ]  # fmt: skip
        return log

    def snapshot(self, count: int) -> bytes:
        kinds = ("h2d", "sync", "sample", "save")
        return json.dumps(
            {
                "v": 1, "t_ns": time.monotonic_ns(), "argv": ["train.py"], "torch": "2.13.0",
                "python": platform.python_version(), "host": platform.node(),
                "cuda": {"built": False, "available": False, "initialized": False},
                "param_device": "cpu",
                "sites": [
                    [i, kinds[i % 4], "train.py", 10 + i, "main", f"call_{i}(...)", None]
                    for i in range(1, SITES + 1)
                ],
                "site_stats": {str(i): [count * i, count * 9, count, 0] for i in range(1, SITES)},
                "loaders": [
                    {"id": 1, "file": "train.py", "line": 3, "call": "DataLoader(data)",
                     "dataset": "Data", "num_workers": WORKERS, "batch_size": 32, "batches": count,
                     "worker_pids": self.workers, "ready": 3, "wait_ns": count * 1000,
                     "feeds_training": True, "epochs": 1},
                ],
                "hooks": dict.fromkeys(("data", "backward", "optimizer", "sync", "save"), True),
                "cost": {"events": count, "event_ns": 300, "total_ns": count, "steps": count},
                "sampler": {"n": count, "hz": 40, "cost_ns": count * 100},
            }
        ).encode()  # fmt: skip


def word(value: int, code: int) -> int:
    return value << 6 | code


def site(words: Any, amount: int, number: int) -> int:
    return word(amount << 16 | number, words.ARG_SITE)


def sleeper() -> int:
    """A loader's worker that waits."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while os.getppid() != 1:
            time.sleep(5)
        os._exit(0)
    return child


if __name__ == "__main__":
    sys.exit(write(sys.argv[1], int(sys.argv[2])))
