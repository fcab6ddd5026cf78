"""The supervisor, with its parts timed by the thread's CPU clock: ``RUN_DIR [PROFILE]``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def start(run_dir: Path, profile: str | None) -> subprocess.Popen[bytes]:
    from gputop_train.launch.environment import supervisor_environment

    command = [sys.executable, str(Path(__file__).resolve()), str(run_dir)]
    if profile:
        command.append(str(Path(profile).absolute()))
    return subprocess.Popen(command, env=supervisor_environment(os.environ))


def mark(pid: int) -> None:
    """Tell an instrumented supervisor that the window begins or ends; others ignore it."""
    os.kill(pid, signal.SIGUSR1)


def supervise(run_dir: str, profile: str | None = None) -> int:
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


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1], *sys.argv[2:3]))
