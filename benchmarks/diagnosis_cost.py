"""What one judgement costs: live, every few seconds, and once at the end of a long run.

Fills a store second by second as a supervisor does (the run of store_size.py: 10 ms steps, a save
every 7.5 s, worker and device samples), judges it live along the way as `Judge` would, and as a
whole at the end. Processor time of the judging thread; the machine may be busy.

    python benchmarks/diagnosis_cost.py --hours 10 --write benchmarks/results/diagnosis_cost.md
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from store_size import Load, Simulator

from gputop_train.diagnose import engine, evidence
from gputop_train.diagnose.rules import all_rules
from gputop_train.launch import verdicts
from gputop_train.model import Fetch, Loader
from gputop_train.store.following import FollowingReader
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

#: Judgements of a live window at one age of the run, 4 s of run between them.
LOOKS, BETWEEN_S = 12, 4


def cpu_ms(work: Callable[[], object]) -> float:
    """Processor time of this thread for one call, in ms."""
    before = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - before) / 1e6


class Probed(Simulator):
    """The run of store_size.py with a probe that is well and a loader that is waited for."""

    def _events(self) -> None:
        super()._events()
        state = {
            "param_device": "cuda:0",
            "cuda": {"built": True, "initialized": True, "available": True, "uuid": self.uuids[0]},
            "hooks": dict.fromkeys(
                ("data", "backward", "optimizer", "sync", "h2d", "save", "eval", "gc"), True
            ),
            "gpu_events": {"steps": self.step_index // 10},
            "flags": {"threads": 8},
        }
        self.writer.put_probe_state(0, state, self.now_ns)
        starved = Loader(
            0, 1, "/home/user/project/train.py", 41, "DataLoader(train_set, num_workers=8)",
            "Images", 8, 64, True, False, 2, False, 1_284, ready=0, batches=self.step_index,
            wait_ns=self.second * 3 * 10**8, feeds_training=True,
            epochs=1 + self.step_index // 1284,
            fetch=tuple(
                Fetch(k, 4_001 + k, self.step_index // 8, self.second * 8 * 10**8, 10**7, 10**8)
                for k in range(8)
            ),
        )  # fmt: skip
        self.writer.put_loaders([starved], t_ns=self.now_ns)


def live(simulator: Simulator, path: Path) -> tuple[list[float], list[float], str]:
    """Judges a growing store; the ms of reading a window and of judging it, and what was said."""
    read: list[float] = []
    judged: list[float] = []
    said = ""
    reader = FollowingReader(path)
    for _ in range(LOOKS + 1):
        simulator.run(BETWEEN_S, path)
        before = time.thread_time_ns()
        window = evidence.build(reader, final=False)
        between = time.thread_time_ns()
        found = engine.diagnose(window)
        after = time.thread_time_ns()
        read.append((between - before) / 1e6)
        judged.append((after - between) / 1e6)
        said = f"{found.status} {found.verdict.id if found.verdict else ''}".strip()
    reader.close()
    return read[1:], judged[1:], said  # the first look reads all of the window anew


def whole(path: Path) -> tuple[float, float]:
    """The ms of reading a whole run and of judging it."""
    with RunReader(path) as reader:
        windows = []
        read = cpu_ms(lambda: windows.append(evidence.build(reader, final=True)))
    return read, cpu_ms(lambda: engine.diagnose(windows[0]))


def row(age: str, read: list[float], judged: list[float], said: str) -> str:
    """One age of the run as a line of the table."""
    each = statistics.median(a + b for a, b in zip(read, judged, strict=True))
    # As Judge paces itself: after a judgement of t it rests 250 t, 2 s at least and 15 s at most.
    rest = min(max(verdicts._PERIOD_NS, verdicts._REST * each * 1e6), verdicts._LONGEST_NS)
    part = each * 1e6 / (rest + each * 1e6)
    return (
        f"| {age} | {statistics.median(read):.0f} | {statistics.median(judged):.1f} | "
        f"{max(a + b for a, b in zip(read, judged, strict=True)):.0f} | {rest / 1e9:.1f} | "
        f"{100 * part:.2f}% | {said} |"
    )


def measure(hours: float, load: Load, directory: Path) -> list[str]:
    """Simulates a run and returns the lines of a report."""
    path = directory / "run.sqlite"
    writer = RunWriter(path)
    simulator = Probed(writer, load)
    simulator.run(120, path)
    rows = [row("2 min", *live(simulator, path))]
    ends = []
    for age, seconds in (("10 min", 600), (f"{hours:g} h", int(hours * 3600))):
        simulator.run(max(0, seconds - simulator.second), path)
        rows.append(row(age, *live(simulator, path)))
        read, judged = whole(path)
        ends.append(f"| {age} | {read:.0f} | {judged:.0f} |")
    writer.close()
    return [
        "# Cost of a judgement",
        "",
        f"`python benchmarks/diagnosis_cost.py --hours {hours:g}`: {load.steps_per_s} steps/s, "
        f"{load.ranks} rank(s), {load.gpus} GPU(s), {load.workers} workers, {load.sites} changing "
        f"call sites, {load.intervals_per_minute} saves a minute; {len(all_rules())} rules. "
        f"Processor time of the judging thread, {LOOKS} judgements a row, {BETWEEN_S} s of run "
        f"apart. Python {platform.python_version()}, {platform.machine()}, the machine busy with "
        "other work.",
        "",
        "Live, a window of the last minute (6,000 steps of 10 ms at 100 steps/s):",
        "",
        "| age of the run | read, ms | judge, ms | most, ms | then rests, s | of one core | said |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        "Once, the whole run:",
        "",
        "| age of the run | read, ms | judge, ms |",
        "|---|---|---|",
        *ends,
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--steps-per-s", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--write", type=Path, help="file for the report; stdout if not given")
    args = parser.parse_args()
    load = Load(
        steps_per_s=args.steps_per_s, ranks=args.ranks, gpus=args.ranks, workers=args.workers
    )
    with tempfile.TemporaryDirectory() as directory:
        text = "\n".join(measure(args.hours, load, Path(directory))) + "\n"
    if args.write is None:
        print(text)
    else:
        args.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
