"""Reads a run as the screen does, again and again: ``RUN_DIR CLOCK OUT``, until it is told to end.

Each line of ``OUT``: the run's time, processor milliseconds of reading the newest minute and the
whole of the longest window a screen has, and what this process holds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[up]) for up in (1, 2)]

from soak_bench.clock import Clock  # noqa: E402
from soak_bench.proc import held  # noqa: E402

#: Reads between two of the long window, which is not what a screen shows by itself.
LONG_EVERY = 20
PAUSE_S = 1.0


def main(run_dir: Path, clock_path: Path, out: Path) -> None:
    clock = Clock(clock_path)
    clock.rule()
    from gputop_train.tui.application import WINDOWS
    from gputop_train.tui.pages import by_name
    from gputop_train.tui.snapshot import View
    from gputop_train.tui.source import LiveSource

    source, pages, reads = LiveSource(run_dir), list(by_name()), 0
    with out.open("a", buffering=1) as file:
        while os.getppid() != 1:
            page = pages[reads % len(pages)]
            line: dict[str, object] = {"now_ns": clock(), "page": page}
            try:
                line["ms"] = _timed(source, View(page=page))
                if reads % LONG_EVERY == 0:
                    line["long_ms"] = _timed(source, View(window_s=WINDOWS[-1]))
            except Exception as error:
                line["failed"] = repr(error)
            file.write(json.dumps(line | {"held": held(os.getpid())}) + "\n")
            reads += 1
            time.sleep(PAUSE_S)


def _timed(source: object, view: object) -> float:
    before = time.thread_time()
    source.read(view)  # type: ignore[attr-defined]
    return (time.thread_time() - before) * 1e3


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
