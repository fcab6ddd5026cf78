"""How large the store of a long run gets, and what writing and reading it costs.

Simulates a day in compressed time: 100 steps/s on each of two ranks, two GPUs with driver samples
at 5 Hz and GPM at 20 Hz, 16 workers and 2 trainers polled once a second, memory samples, 60 call
sites, loader polls, saves and evaluations, a diagnosis that changes every 20 s.

    python benchmarks/store_size.py --hours 24 --write benchmarks/results/store_size.md
"""

from __future__ import annotations

import argparse
import platform
import random
import sqlite3
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gputop_train.model import (
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    Site,
    Step,
    UtilSample,
)
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

SECOND_NS = 1_000_000_000
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Load:
    """What a simulated run gives the store."""

    steps_per_s: int = 100
    ranks: int = 2
    gpus: int = 2
    workers: int = 16
    sites: int = 30
    intervals_per_minute: int = 8


class Simulator:
    """Feeds a writer second by second, with values that vary as real ones do."""

    def __init__(self, writer: RunWriter, load: Load, *, seed: int = 1) -> None:
        self.writer = writer
        self.load = load
        self.random = random.Random(seed)
        self.start_ns = 5_000 * SECOND_NS + 123_456_789
        self.now_ns = self.start_ns
        self.step_index = 0
        self.second = 0
        self.uuids = [f"GPU-3f2a9c1e-77b0-4c55-9d2e-0000000000{i:02d}" for i in range(load.gpus)]
        self.sites = [self._site(rank, i) for rank in range(load.ranks) for i in range(load.sites)]
        self.commit_s = self.prune_s = 0.0
        self.peak_bytes = 0

    def run(self, seconds: int, path: Path) -> None:
        """Simulates some seconds, committing once a second and pruning each 10 s."""
        for _ in range(seconds):
            self._second()
            before = time.perf_counter()
            self.writer.commit()
            between = time.perf_counter()
            self.writer.prune(self.now_ns)
            self.commit_s += between - before
            self.prune_s += time.perf_counter() - between
            if self.second % 60 == 0:
                self.peak_bytes = max(self.peak_bytes, on_disk(path))

    def _second(self) -> None:
        self.second += 1
        for rank in range(self.load.ranks):
            self.writer.add_steps(self._steps(rank))
            self.writer.add_memory(self._memory(rank, k) for k in range(3))
        self.step_index += self.load.steps_per_s
        self.now_ns = self.start_ns + self.second * SECOND_NS
        self._devices()
        self._host()
        self._events()

    def _steps(self, rank: int) -> list[Step]:
        count, jitter = self.load.steps_per_s, self.random.random
        wall_ns = SECOND_NS // count
        steps = []
        for k in range(count):
            t0_ns = self.now_ns + k * wall_ns
            parts = [int(wall_ns * share * (0.9 + 0.1 * jitter())) for share in (0.3, 0.1, 0.2)]
            wait, optimizer, backward = parts
            labels = {
                "data_wait": wait,
                "h2d": wall_ns // 50,
                "forward": wall_ns - wait - optimizer - backward - wall_ns // 50,
                "backward": backward,
                "optimizer": optimizer,
            }
            events = k % 10 == 0
            idle = {"data_wait": wait, "h2d": 0, "sync": int(wall_ns * 0.01 * jitter())}
            steps.append(
                Step(
                    rank, self.step_index + k, t0_ns, t0_ns + wall_ns, labels,
                    exposed=idle if events else None, samples=64, dry=jitter() if events else None,
                    syncs=1, measured_ns=wait + backward + optimizer,
                )
            )  # fmt: skip
        return steps

    def _memory(self, rank: int, k: int) -> MemorySample:
        low = 40 * GIB + self.random.randrange(GIB)
        t_ns = self.now_ns + k * SECOND_NS // 3
        return MemorySample(
            rank, t_ns, self.step_index, "cuda-allocator", low, low + 9 * GIB, 61 * GIB, 63 * GIB,
            0, 0, self.random.randrange(GIB),
        )  # fmt: skip

    def _devices(self) -> None:
        uniform = self.random.uniform
        for uuid in self.uuids:
            ticks = [self.now_ns - SECOND_NS + k * SECOND_NS // 20 for k in range(20)]
            self.writer.add_util(
                UtilSample(t, uuid, float(self.random.randrange(101))) for t in ticks[::4]
            )
            self.writer.add_gpm(
                GpmSample(t, uuid, *(uniform(0, 100) for _ in range(7))) for t in ticks
            )
            self.writer.add_gpu(
                [
                    GpuSample(
                        self.now_ns, uuid, 63 * GIB, 140 * GIB, 62 * GIB, 0, uniform(200, 700),
                        700.0, 1755, 1980, self.random.randrange(40, 80), 4, 5, 5, 16, 16,
                        uniform(1e8, 1e9), uniform(1e7, 1e8),
                    )
                ]
            )  # fmt: skip

    def _host(self) -> None:
        uniform = self.random.uniform
        self.writer.add_host(
            HostSample(
                self.now_ns, uniform(0, 16), uniform(0, 1), 192, 16, 16.0, 400 * GIB, 512 * GIB,
                128 * GIB, 0.0, GIB, 64 * GIB, uniform(0, 9), uniform(0, 9), uniform(0, 9), 11.25,
            )
        )  # fmt: skip
        roles = ["trainer"] * self.load.ranks + ["worker"] * self.load.workers
        self.writer.add_procs(
            ProcSample(
                self.now_ns, 4_000 + i, role, uniform(0, 1), 2 * GIB + self.random.randrange(GIB),
                GIB + self.random.randrange(GIB), None, uniform(0, 1e8), 0.0, "R", i % 2,
                uniform(0, 1), uniform(0, 1), 16, 24, uniform(0, 1e8), uniform(0, 1e4), 0.0,
            )
            for i, role in enumerate(roles)
        )  # fmt: skip

    def _events(self) -> None:
        grow = self.random.randrange
        self.sites = [
            replace(s, count=s.count + 1 + grow(9), total_ns=s.total_ns + grow(10**7))
            for s in self.sites
        ]
        self.writer.put_sites(self.sites, t_ns=self.now_ns)
        waited = self.second * 3 * 10**8
        self.writer.put_loaders(
            (
                Loader(
                    rank, 1, "/home/user/project/train.py", 41,
                    "DataLoader(train_set, batch_size=64, num_workers=8, pin_memory=True)",
                    "Images", 8, 64, True, False, 2, False, 1_284, ready=grow(16),
                    batches=self.step_index, wait_ns=waited, feeds_training=True,
                )
                for rank in range(self.load.ranks)
            ),
            t_ns=self.now_ns,
        )  # fmt: skip
        self.writer.put_probe_state(0, {"v": 1, "flags": {"tf32": False}, "n": self.second})
        if self.second * self.load.intervals_per_minute % 60 < self.load.intervals_per_minute:
            begin = self.now_ns - SECOND_NS // 2
            self.writer.add_intervals([Interval(0, "checkpoint", begin, self.now_ns, 7, GIB)])
        if self.second % 20 == 0:
            text = "x" * 3_000 + str(grow(99))
            self.writer.add_finding(self.now_ns, {"status": "verdict", "text": text})

    def _site(self, rank: int, number: int) -> Site:
        return Site(
            rank, number, "sync", "/home/user/project/train.py", number, "train_one_epoch",
            "loss.item()", None, 0, 0, 4,
        )  # fmt: skip


def on_disk(path: Path) -> int:
    """Bytes of the store with its log."""
    return sum(p.stat().st_size for p in path.parent.glob(path.name + "*"))


def by_table(path: Path) -> list[tuple[str, int]]:
    """Bytes by table, largest first."""
    with sqlite3.connect(path) as db:
        query = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC"
        return db.execute(query).fetchall()


def timed_ms(work: object) -> float:
    """Milliseconds one call takes, the best of three."""
    best = float("inf")
    for _ in range(3):
        before = time.perf_counter()
        work()  # type: ignore[operator]
        best = min(best, time.perf_counter() - before)
    return best * 1e3


def measure(hours: float, load: Load, directory: Path) -> list[str]:
    """Simulates a run and returns the lines of a report."""
    path = directory / "run.sqlite"
    writer = RunWriter(path)
    simulator = Simulator(writer, load)
    seconds = int(hours * 3600)
    simulator.run(seconds, path)
    live_bytes = on_disk(path)
    end_ns = simulator.now_ns
    with RunReader(path) as reader:
        reads = {
            "open": timed_ms(lambda: RunReader(path).close()),
            "steps_tail(200)": timed_ms(lambda: reader.steps_tail(200)),
            "steps, newest minute": timed_ms(lambda: reader.steps(end_ns - 60 * SECOND_NS)),
            "step_rollups, newest hour": timed_ms(
                lambda: reader.step_rollups(end_ns - 3600 * SECOND_NS)
            ),
            "step_rollups, ten hours": timed_ms(
                lambda: reader.step_rollups(end_ns - 36_000 * SECOND_NS)
            ),
            "sites_between, newest minute": timed_ms(
                lambda: reader.sites_between(end_ns - 60 * SECOND_NS)
            ),
        }
    writer.close()
    mb = 1e6
    return [
        "# Size and cost of a run's store",
        "",
        f"`python benchmarks/store_size.py --hours {hours:g}`: {hours:g} h of {load.ranks} ranks "
        f"at {load.steps_per_s} steps/s each, {load.gpus} GPUs (driver samples 5 Hz, GPM 20 Hz), "
        f"{load.workers} workers, {load.sites} changing call sites a rank, "
        f"{load.intervals_per_minute} interruptions a minute, a diagnosis every 20 s. "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}.",
        "",
        "| what | measured |",
        "|---|---|",
        f"| peak on disk, log included | {simulator.peak_bytes / mb:.1f} MB |",
        f"| on disk at the end, live | {live_bytes / mb:.1f} MB |",
        f"| after close | {path.stat().st_size / mb:.1f} MB |",
        f"| writing, share of one core | {simulator.commit_s / seconds:.2%} |",
        f"| pruning, share of one core | {simulator.prune_s / seconds:.2%} |",
        *(f"| {name} | {ms:.1f} ms |" for name, ms in reads.items()),
        "",
        "| table | MB |",
        "|---|---|",
        *(f"| {name} | {size / mb:.2f} |" for name, size in by_table(path)[:14]),
    ]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--steps-per-s", type=int, default=100)
    parser.add_argument("--write", type=Path, help="file for the report; stdout if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        load = Load(steps_per_s=options.steps_per_s)
        text = "\n".join(measure(options.hours, load, Path(directory))) + "\n"
    if options.write:
        options.write.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
