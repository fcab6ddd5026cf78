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
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PUBLISH_S = 0.2  # the probe's helper drains this often
SITES = 20
#: By default: the goals' loads, and a slow loop whose cost is that of the collectors alone.
LOADS = ("1x2", "1x20", "1x100", "1x700", "1x1000", "8x200")
WORKERS = 4


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
    parser.add_argument("--writer", help=argparse.SUPPRESS)
    parser.add_argument("--supervise", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.writer:
        return write(args.writer, args.every)
    if args.supervise:
        return supervise(args.supervise, args.profile)
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
    script = ("--writer", load, "--every", str(args.every))
    wanted = Options(
        target=Target("script", (__file__, *script)), run_root=str(root), python=sys.executable
    )
    environ = dict(os.environ)
    launched = spawn.launch(wanted, spawn.resolve_command(wanted, environ), environ)
    pid = launched.supervisor_pid
    assert pid is not None, "the supervisor did not start"
    watching: subprocess.Popen[bytes] | None = None
    try:
        if args.parts or args.profile:
            stop(pid)
            watching = instrumented(launched.run_dir, args.profile)
            pid = watching.pid
        result = watch(load, pid, launched.run_dir, args)
    finally:
        if identity.is_alive(launched.child):
            os.killpg(launched.child.pid, signal.SIGTERM)
        if watching is not None:
            watching.wait(60)
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
    deadline = time.monotonic() + 60
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


# -- the instrumented supervisor -------------------------------------------------------------------


def instrumented(run_dir: Path, profile: str | None) -> subprocess.Popen[bytes]:
    from gputop_train.launch.environment import supervisor_environment

    command = [sys.executable, str(Path(__file__).resolve()), "--supervise", str(run_dir)]
    if profile:
        command += ["--profile", str(Path(profile).absolute())]
    return subprocess.Popen(command, env=supervisor_environment(os.environ))


def mark(pid: int) -> None:
    """Tell an instrumented supervisor that the window begins or ends; others ignore it."""
    os.kill(pid, signal.SIGUSR1)


def supervise(run_dir: str, profile: str | None) -> int:
    """The supervisor, with its parts timed by the thread's CPU clock."""
    from gputop_train.launch import feeds, pipeline, sampling, supervisor, verdicts
    from gputop_train.store import rows, writer

    clock = Clock()
    for owner, name, part in (
        (feeds.Feed, "pull", "rings and timeline"),
        (pipeline.Pipeline, "_store", "rows of steps"),
        (pipeline.Pipeline, "_take_snapshot", "snapshots"),
        (writer.RunWriter, "commit", "commit"),
        (writer.RunWriter, "prune", "prune"),
        (rows, "refresh_step_rollup", "rollups"),
        (sampling.Sampling, "tick", "collectors"),
        (verdicts.Judge, "judge", "diagnosis"),
    ):
        setattr(owner, name, clock.timed(getattr(owner, name), part))
    supervisor._be_unobtrusive()
    watched = supervisor.Supervisor(Path(run_dir))
    profiler: Any = None
    if profile:
        import cProfile

        profiler = cProfile.Profile(time.thread_time)
    signal.signal(signal.SIGUSR1, lambda *_: clock.mark(profiler))
    signal.signal(signal.SIGTERM, lambda *_: watched.leave())
    watched.run()
    if profiler is not None:
        profiler.dump_stats(profile)
    (Path(run_dir) / "parts.json").write_text(json.dumps(clock.result()))
    return 0


class Clock:
    """CPU time by part, each without the parts called inside it, between two marks."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._inner = [0.0]
        self._marks: list[tuple[float, float, float, dict[str, float]]] = []

    def timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        main_thread = threading.main_thread()

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not main_thread:
                return call(*args, **kwargs)
            began = time.thread_time()
            self._inner.append(0.0)
            try:
                return call(*args, **kwargs)
            finally:
                took = time.thread_time() - began
                self._spent[part] = self._spent.get(part, 0.0) + took - self._inner.pop()
                self._inner[-1] += took

        return wrapper

    def mark(self, profiler: Any) -> None:
        now = (time.monotonic(), time.process_time(), time.thread_time(), dict(self._spent))
        self._marks.append(now)
        if profiler is not None and len(self._marks) == 1:
            profiler.enable()
        elif profiler is not None:
            profiler.disable()

    def result(self) -> dict[str, float]:
        if len(self._marks) < 2:
            return {}
        (wall0, all0, main0, parts0), (wall1, all1, main1, parts1) = self._marks[:2]
        parts = {part: spent - parts0.get(part, 0.0) for part, spent in parts1.items()}
        parts["the rest of the main thread"] = main1 - main0 - sum(parts.values())
        parts["other threads"] = all1 - all0 - (main1 - main0)
        return {**parts, "wall_s": wall1 - wall0}


# -- a training as its ring shows it ---------------------------------------------------------------


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


# -- NVML beside a real card -----------------------------------------------------------------------


def nvml_costs(seconds: float) -> int:
    """What each NVML call costs (calls, wall and CPU time), through the collector as it runs."""
    from gputop_train.collect.nvml import NvmlCollector

    spent: dict[str, list[float]] = {}
    module = Counted(spent)
    cpu, wall = time.process_time(), time.monotonic()
    collector = NvmlCollector(None, set, module, env=dict(os.environ))
    records = [0, 0, 0]
    while time.monotonic() - wall < seconds:
        time.sleep(0.5)
        batch = collector.sample(time.monotonic_ns())
        records = [have + len(new) for have, new in zip(records, batch_parts(batch), strict=True)]
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    collector.close()
    print(f"{cpu / wall:.2%} of a core over {wall:.0f} s; util, gpu, gpm records: {records}")
    print(f"missing: {collector.missing}")
    print("| call | a second | wall | CPU | of a core |\n|---|---|---|---|---|")
    for name, (calls, wall_s, cpu_used) in sorted(spent.items(), key=lambda item: -item[1][2]):
        print(
            f"| {name} | {calls / wall:.2f} | {wall_s / calls * 1e3:.3f} ms "
            f"| {cpu_used / calls * 1e3:.3f} ms | {cpu_used / wall:.3%} |"
        )
    return 0


def batch_parts(batch: Any) -> Iterator[Any]:
    yield from (batch.util, batch.gpu, batch.gpm)


class Counted:
    """``pynvml`` with every call timed."""

    def __init__(self, spent: dict[str, list[float]]) -> None:
        import pynvml

        self._module = pynvml
        self._spent = spent

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._module, name)
        if not (name.startswith("nvml") and callable(real)):
            return real

        def call(*args: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return real(*args)
            finally:
                entry = self._spent.setdefault(name, [0, 0.0, 0.0])
                entry[0] += 1
                entry[1] += time.perf_counter() - wall
                entry[2] += time.thread_time() - cpu

        setattr(self, name, call)
        return call


if __name__ == "__main__":
    sys.exit(main())
