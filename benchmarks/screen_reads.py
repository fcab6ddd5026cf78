"""What the screen's reading costs while a run goes on, by the number of GPUs and the window.

A simulated run (`store_size`'s generator: driver samples at 5 Hz, GPM at 20 Hz, 10 steps a second
and rank) is looked at through the real live source as a screen does that stays open: the first
look, then one after another as time goes on. Measured is the thread's CPU time of a look, which
others on the machine do not lengthen.

    python benchmarks/screen_reads.py --write benchmarks/results/screen_reads.md
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.replay_scrub import quantile, timed  # noqa: E402
from benchmarks.store_size import SECOND_NS, Load, Simulator  # noqa: E402
from gputop_train.store.writer import RunWriter  # noqa: E402
from gputop_train.tui.snapshot import View  # noqa: E402
from gputop_train.tui.source import LiveSource  # noqa: E402
from tests.tui.made_run import run_json  # noqa: E402

COLUMNS, LOG_LINES = 101, 400
#: A look every so often, as the live source reads: wide windows move slowly.
LOOKS: tuple[tuple[int, float], ...] = ((60, 1.0), (900, 2.25), (3600, 3.0))
PAGES = ("overview", "steps", "devices", "memory", "workers", "lines")


def make(place: Path, minutes: float, gpus: int) -> int:
    """A run under way, of which more than is looked at is stored; gives its end."""
    place.mkdir(parents=True)
    store = place / "run.sqlite"
    with RunWriter(store) as writer:
        load = Load(steps_per_s=10, ranks=gpus, gpus=gpus, workers=8)
        simulator = Simulator(writer, load)
        simulator.run(int(minutes * 60), store)
    run_json(place, start_ns=simulator.start_ns)
    (place / "output.log").write_text("".join(f"step {i} loss 0.1\n" for i in range(5000)))
    return simulator.now_ns


def looks(place: Path, end_ns: int, page: str, window_s: int, every_s: float) -> list[float]:
    """Milliseconds of CPU of the first look and of each one after it."""
    now = [end_ns - 100 * SECOND_NS]
    source = LiveSource(place, now_ns=lambda: now[0])
    view = View(window_s, COLUMNS, LOG_LINES, page=page)
    taken = []
    while now[0] < end_ns:
        taken.append(timed(lambda: source.read(view))[1] * 1e3)
        now[0] += int(every_s * SECOND_NS)
    source.close()
    return taken


def main() -> None:
    """Measure and print or write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    words = [
        "# What the screen's reading costs while a run goes on",
        "",
        f"`python benchmarks/screen_reads.py`: a simulated run of {args.minutes:g} minutes, one"
        " rank and 10 steps/s a GPU, driver samples at 5 Hz, GPM at 20 Hz. CPU time of a look by "
        f"the reading thread; {os.cpu_count()} cores, Python {platform.python_version()}, load "
        f"{os.getloadavg()[0]:.1f} at the begin.",
        "",
        "| GPUs | page | window | first look ms | next ms | p95 ms | share of a core |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as root:
        for gpus in args.gpus:
            place = Path(root) / f"gpus{gpus}"
            end_ns = make(place, args.minutes, gpus)
            for page in PAGES:
                for window_s, every_s in LOOKS if page == "overview" else LOOKS[:1]:
                    first, *rest = looks(place, end_ns, page, window_s, every_s)
                    usual = median(rest)
                    words.append(
                        f"| {gpus} | {page} | {window_s} s | {first:.0f} | {usual:.1f} | "
                        f"{quantile(rest, 0.95):.1f} | {usual / 1e3 / every_s:.2%} |"
                    )
    text = "\n".join(words) + "\n"
    if args.write is not None:
        args.write.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
