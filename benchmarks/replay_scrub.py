"""How fast a long recording opens, and how fast its replay follows the keys.

Simulates a run in compressed time with `store_size`'s generator (one GPU with driver samples at
5 Hz and GPM at 20 Hz, one rank, 4 workers), then reads it through the real replay source: the
first snapshot, jumps to random moments, ten-second steps as the arrow keys make them, each with
every width of the time axis. Last it opens the real screen on a pseudo-terminal.

    python benchmarks/replay_scrub.py --hours 10 --write benchmarks/results/replay_scrub.md
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.store_size import SECOND_NS, Load, Simulator  # noqa: E402
from benchmarks.tui_wire import cpu_s  # noqa: E402
from gputop_train.look import WINDOWS  # noqa: E402
from gputop_train.store.writer import RunWriter  # noqa: E402
from gputop_train.tui.pages import names  # noqa: E402
from gputop_train.tui.playback import Playback  # noqa: E402
from gputop_train.tui.replay import ReplaySource  # noqa: E402
from gputop_train.tui.snapshot import View  # noqa: E402
from tests.terminal.screen_pty import REPLAY, Terminal  # noqa: E402
from tests.tui.made_run import exit_json, run_json  # noqa: E402

#: What is asked for: a recording of ten hours opens in under a second and scrubs smoothly, which
#: at two repaints a second over SSH leaves half a second a picture and at four a quarter.
GOAL_OPEN_S, GOAL_SEEK_S = 1.0, 0.25
COLUMNS = 101


def make(place: Path, hours: float, load: Load) -> None:
    """A finished run directory of a simulated run."""
    place.mkdir(parents=True)
    store = place / "run.sqlite"
    with RunWriter(store) as writer:
        simulator = Simulator(writer, load)
        simulator.run(int(hours * 3600), store)
        end_ns = simulator.now_ns
    run_json(place, start_ns=simulator.start_ns - 5 * SECOND_NS)
    exit_json(place, end_ns)
    (place / "output.log").write_text(
        "".join(f"step {i} loss 0.{i % 97:02d}\n" for i in range(5000))
    )


class Still:
    """A clock that stands: what is measured is the reading, not the playing."""

    def __call__(self) -> float:
        return 0.0


def timed(read: Callable[[], object]) -> tuple[float, float]:
    """Seconds a call takes, and of CPU, which others on the machine do not lengthen."""
    begin, cpu = time.perf_counter(), time.thread_time()
    read()
    return time.perf_counter() - begin, time.thread_time() - cpu


def quantile(times: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def sources(place: Path, hours: float, seeks: int) -> Iterator[tuple[str, float, float, float]]:
    """What was read, with its `summary`."""
    length_s = hours * 3600
    picks = random.Random(1)
    opens = []
    for _ in range(5):
        source = ReplaySource(place, Playback(clock=Still()))
        opens.append(timed(lambda s=source: s.read(View(60, COLUMNS, 400))))  # type: ignore[misc]
        source.close()
    yield "open and first snapshot", *summary(opens)
    source = ReplaySource(place, Playback(clock=Still()))
    for window in WINDOWS:
        view = View(window, COLUMNS, 400)
        source.read(view)
        jumps, steps = [], []
        for _ in range(seeks):
            source.playback.seek(-1e12)
            source.playback.seek(picks.uniform(0, length_s))
            jumps.append(timed(lambda v=view: source.read(v)))  # type: ignore[misc]
            source.playback.seek(10)
            steps.append(timed(lambda v=view: source.read(v)))  # type: ignore[misc]
        yield f"jump anywhere, axis of {window} s", *summary(jumps)
        yield f"ten seconds on, axis of {window} s", *summary(steps)
    for page in names()[1:]:
        view = View(60, COLUMNS, 400, page=page)
        source.read(view)
        jumps = []
        for _ in range(seeks):
            source.playback.seek(-1e12)
            source.playback.seek(picks.uniform(0, length_s))
            jumps.append(timed(lambda v=view: source.read(v)))  # type: ignore[misc]
        yield f"jump anywhere, {page} page", *summary(jumps)
    source.close()


def summary(times: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Median and 95th percentile, and the 95th percentile of the CPU time."""
    walls, cpus = ([pair[at] for pair in times] for at in (0, 1))
    return quantile(walls, 0.5), quantile(walls, 0.95), quantile(cpus, 0.95)


def first_paint(place: Path) -> tuple[float, float]:
    """Seconds from starting Python to the first picture, and of CPU."""
    begin = time.perf_counter()
    with Terminal(REPLAY, str(place)) as screen:
        screen.wait_for(lambda text: "replay" in text.split("\n")[0], "the first picture")
        return time.perf_counter() - begin, cpu_s(screen.process.pid)


def main() -> None:
    """Measure and print or write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=10.0)
    parser.add_argument("--steps-per-s", type=int, default=10)
    parser.add_argument("--seeks", type=int, default=60, help="seeks of each kind")
    parser.add_argument("--keep", type=Path, help="a run directory to make, or to use again")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    load = Load(steps_per_s=args.steps_per_s, ranks=1, gpus=1, workers=4)
    with contextlib.ExitStack() as stack:
        kept = args.keep
        place = kept or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "3f2a"
        if not (place / "run.sqlite").exists():
            make(place, args.hours, load)
        size = (place / "run.sqlite").stat().st_size
        rows = list(sources(place, args.hours, args.seeks))
        paints = [first_paint(place) for _ in range(3)]
    text = table(args, size, rows, min(paints))
    if args.write is not None:
        args.write.write_text(text)
    print(text)


def table(
    args: argparse.Namespace,
    size: int,
    rows: list[tuple[str, float, float, float]],
    paint: tuple[float, float],
) -> str:
    """Markdown."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        "# How a long recording opens and scrubs",
        "",
        f"`python benchmarks/replay_scrub.py --hours {args.hours:g} --steps-per-s "
        f"{args.steps_per_s}`: a simulated run of {args.hours:g} h, {args.steps_per_s} steps/s, "
        f"{size / 1e6:.0f} MB, read by the real replay source, {args.seeks} seeks of each kind. "
        f"{os.cpu_count()} cores, load {load} at the end; Python {platform.python_version()}. "
        f"Goal: opens in {GOAL_OPEN_S:g} s, a seek's 95th percentile under {GOAL_SEEK_S * 1000:.0f}"
        " ms.",
        "",
        f"From starting Python to the first picture: {paint[0]:.2f} s, {paint[1]:.2f} s of CPU.",
        "",
        "| what | median ms | p95 ms | p95 ms of CPU |",
        "|---|---|---|---|",
    ]
    for what, *times in rows:
        lines.append(f"| {what} | " + " | ".join(f"{t * 1000:.0f}" for t in times) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
