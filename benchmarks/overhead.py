"""What watching costs a training step, on this machine.

    python benchmarks/overhead.py [--device cpu|cuda] [--steps-ms 0.5 1 2 10 50] [--seconds 60]
    python benchmarks/overhead.py --peers --busy --out DIR      whole processes as well
    python benchmarks/overhead.py --peers --part 1/2 --gpu 0 --cpus 0-7 --out DIR
    python benchmarks/overhead.py merge FILE... [--to TABLE.md]

In process: one model trains in blocks, with the probe taken out (A) and put back (B) between them,
beside a null control that goes from plain to plain; ``--by-steps`` does it step by step and
reads the helper thread's part from the steps it wakes up in. Whole processes: one loop, bare, under
gputop-train and under three other tools (``--peers``), or bare and watched on two busy CPUs
(``--busy``). Batches and models are chosen at run time so that a step takes what was asked for.
docs/overhead.md explains how to read the tables.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from overhead_bench import inprocess, parts, results, table, tools, whole

BUSY_WARM_S, BUSY_STEADY_S = 4.0, 10.0


class Session:
    """One command: its settings, and what it found out on the way."""

    def __init__(self, args: argparse.Namespace, series: str) -> None:
        self.args = args
        self.series = series
        self._calibrated: dict[tuple[str, float], dict[str, Any]] = {}

    def base(self, kind: str) -> dict[str, Any]:
        """Settings of the loop that calibration keeps."""
        common = {"device": self.args.device, "item": self.args.item, "threads": 1}
        if kind == "busy":
            return {**common, "warm_s": BUSY_WARM_S, "steady_s": BUSY_STEADY_S}
        return {**common, "warm_s": self.args.warm_s, "steady_s": self.args.loop_s}

    def settings(self, kind: str, step_ms: float) -> dict[str, Any]:
        """Calibrated settings, found once a size."""
        if (kind, step_ms) not in self._calibrated:
            found = whole.calibrate([step_ms], self.base(kind))[step_ms]
            if kind == "busy":
                # Each step wants its own CPU time once and a fifth more for its batch: over two
                # CPUs that is more than both have.
                found.update(workers=2, work_ms=1.2 * step_ms)
            self._calibrated[kind, step_ms] = found
        return self._calibrated[kind, step_ms]

    def prepare(self, items: Sequence[parts.Item]) -> None:
        """Calibrate every size at once, without any tool: a process costs seconds to start."""
        sizes = sorted({item.step_ms for item in items if item.kind != "busy"})
        if sizes:
            try:
                found = whole.calibrate(sizes, self.base("peers"))
            except (subprocess.SubprocessError, OSError, ValueError):
                return  # each item tries again, and says what is wrong
            self._calibrated.update({("peers", ms): settings for ms, settings in found.items()})

    def run(self, item: parts.Item) -> Iterator[dict[str, Any]]:
        """Measure one item; a failure is a result too."""
        common = {"kind": item.kind, "step_ms": item.step_ms, "round": item.round}
        common.update(item=self.args.item, series=self.series, load=round(os.getloadavg()[0], 2))
        try:
            for row in self._measure(item):
                yield {**common, **row}
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            yield {**common, "error": f"{type(error).__name__}: {error}"[:300]}

    def _measure(self, item: parts.Item) -> Iterator[dict[str, Any]]:
        if item.kind == "inprocess":
            settings = {**self.settings("peers", item.step_ms), "cpu_time": self.args.cpu_time}
            settings["by_steps"] = self.args.by_steps
            work = {"settings": settings, "seconds": self.args.seconds, "seed": self.args.seed}
            with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
                limit_s = self.args.seconds * 2 + 120
                yield inprocess.run_child(work, Path(folder) / "run", limit_s)
            return
        before = os.sched_getaffinity(0)
        try:
            if item.kind == "busy":
                os.sched_setaffinity(0, sorted(before)[:2])
            settings = self.settings(item.kind, item.step_ms)
            names = self.args.tools if item.kind == "peers" else [tools.WATCHED.name]
            chosen = [tools.PLAIN, *(tools.ALL[name] for name in names)]
            yield from whole.rounds(chosen, settings, [item.round])
        finally:
            os.sched_setaffinity(0, before)


def main(arguments: list[str]) -> int:
    """Parse, then measure or merge."""
    if arguments[:1] == ["merge"]:
        return merge(arguments[1:])
    args = parser().parse_args(arguments)
    if "PYTHONPATH" in os.environ:  # the loops run in folders of their own
        given = os.environ["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in given if p)
    if args.cpus:
        first, _, last = args.cpus.partition("-")
        os.sched_setaffinity(0, range(int(first), int(last or first) + 1))
    if args.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(args.gpu)
    items = parts.plan(
        sizes=args.steps_ms,
        inprocess_s=None if args.no_inprocess else args.seconds + inprocess.START_S,
        peers=(args.rounds, _round_s(args, 1 + len(args.tools))) if args.peers else None,
        busy=(args.rounds, 2 * (BUSY_WARM_S + BUSY_STEADY_S + 5.0)) if args.busy else None,
    )
    number, count = args.part
    mine = parts.part(items, number, count)
    now = datetime.now(timezone.utc)
    name = f"overhead-{args.device}-part{number}of{count}-{now:%Y%m%dT%H%M%S}"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(args.out or scratch) / f"{name}.json"
        shown = ["DIR" if text == args.out else text for text in arguments]
        command = ["python", "benchmarks/overhead.py", *shown]
        where = results.machine(args.device, args.gpu, args.commit)
        file = results.ResultFile(path, where, command, args.commit)
        failed = measure(Session(args, f"{name}-{os.getpid()}"), mine, file, limit(args))
        file.close()
        print(table.markdown([file.body]))
    return 1 if failed else 0


def measure(
    session: Session, items: list[parts.Item], file: results.ResultFile, limit_s: float | None
) -> bool:
    """Run the items in turn; True when one gave no result."""
    started, failed = time.monotonic(), False
    estimate = sum(item.estimate_s for item in items)
    print(f"{len(items)} items, about {estimate:.0f} s", file=sys.stderr, flush=True)
    session.prepare(items)
    for item in items:
        told = f"{item.kind} {item.step_ms:g} ms"
        if limit_s is not None and time.monotonic() - started + item.estimate_s > limit_s:
            missing = {"kind": item.kind, "step_ms": item.step_ms, "round": item.round}
            missing.update(item=session.args.item, series=session.series)
            file.add({**missing, "error": f"not run: {limit_s:.0f} s for this part were over"})
            failed = True
            continue
        for row in session.run(item):
            file.add(row)
            failed = failed or "error" in row
            outcome = f"{row.get('tool', '')} {row.get('error') or 'done'}"
            passed_s = time.monotonic() - started
            print(f"{passed_s:5.0f} s  {told}  {outcome}", file=sys.stderr, flush=True)
    return failed


def limit(args: argparse.Namespace) -> float | None:
    """Seconds after which nothing new is begun: nine minutes for a part, else none."""
    if args.limit is not None:
        return float(args.limit)
    return parts.PART_LIMIT_S if args.part[1] > 1 else None


def _round_s(args: argparse.Namespace, count: int) -> float:
    start_s = 7.0 if args.device == "cuda" else 5.0
    return float(count * (args.warm_s + args.loop_s + start_s))


def merge(arguments: list[str]) -> int:
    """Tables of several parts; exit code 2 where they are not one measurement."""
    own = argparse.ArgumentParser(prog="overhead.py merge", description=merge.__doc__)
    own.add_argument("files", nargs="+", type=Path, metavar="FILE")
    own.add_argument("--to", type=Path, metavar="TABLE.md", help="write it there")
    args = own.parse_args(arguments)
    try:
        text = table.markdown(results.load(args.files))
    except results.MixedResults as reason:
        print(reason, file=sys.stderr)
        return 2
    if args.to is not None:
        args.to.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of a measurement."""
    formatter = argparse.RawDescriptionHelpFormatter
    own = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    own.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    own.add_argument("--steps-ms", type=float, nargs="+", default=list(parts.SIZES_MS))
    own.add_argument("--seconds", type=float, default=60.0, help="a size, in process, at most")
    own.add_argument("--seed", type=int, default=0, help="of the order and length of blocks")
    own.add_argument("--item", action="store_true", help="the loop reads its loss in every step")
    own.add_argument(
        "--cpu-time",
        action="store_true",
        help="in process, compare processor time of all threads: for a busy machine, no proof",
    )
    own.add_argument(
        "--by-steps",
        action="store_true",
        help="in process, by single steps: up to a few ms each, on a host that changes speed",
    )
    own.add_argument("--peers", action="store_true", help="whole processes, other tools as well")
    own.add_argument("--busy", action="store_true", help="whole processes on two busy CPUs")
    own.add_argument("--no-inprocess", action="store_true", help="whole processes only")
    compared = [name for name in tools.ALL if name != tools.PLAIN.name]
    own.add_argument("--tools", nargs="+", choices=compared, default=compared, metavar="NAME")
    own.add_argument("--rounds", type=int, default=4, help="of whole processes")
    own.add_argument("--warm-s", type=float, default=2.0, help="of a whole process, not counted")
    own.add_argument("--loop-s", type=float, default=3.0, help="of a whole process, counted")
    own.add_argument("--part", type=parts.parse_part, default=(1, 1), metavar="i/n")
    own.add_argument("--limit", type=float, metavar="S", help="begin nothing that would end later")
    own.add_argument("--gpu", type=int, metavar="N", help="the only GPU this part sees")
    own.add_argument("--cpus", metavar="A-B", help="the only CPUs this part uses")
    own.add_argument("--commit", metavar="NAME", help="what this copy is of, where there is no git")
    own.add_argument("--out", metavar="DIR", help="keep the results in a JSON file there")
    return own


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
