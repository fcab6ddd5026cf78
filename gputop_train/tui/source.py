"""Where snapshots come from: the store of a run that is under way or has just ended.

Sources are read from one thread (`feed.Feed`). See `replay` for a run at a chosen time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gputop_train.launch import identity, runs
from gputop_train.store.reader import RunReader
from gputop_train.tui.gather.counters import LINES
from gputop_train.tui.gather.progress import Follower
from gputop_train.tui.parts import NS, last_step_ns, read_consistently
from gputop_train.tui.runfiles import RunFiles
from gputop_train.tui.series import axis_for
from gputop_train.tui.snapshot import Snapshot, State, StepView, View
from gputop_train.tui.views.progress import Progress


def exit_words(exit_: Mapping[str, Any]) -> tuple[int | None, str]:
    """Exit code as a shell shows it, and how the script ended in words."""
    code = runs.exit_code(exit_)
    number = exit_.get("signal")
    if isinstance(number, int):
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return code, f"killed by {name} ({code})"
    return code, "exit code unknown" if code is None else f"exit code {code}"


#: The host is read every 20 s at the least (docs/contracts.md).
SILENT_NS = 30 * NS


class LiveSource:
    """A run that is under way, or has just ended.

    Args:
        run_dir: The run's directory.
        now_ns: The clock, ``CLOCK_MONOTONIC`` nanoseconds.
    """

    def __init__(self, run_dir: Path, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._files = RunFiles(run_dir)
        self._now_ns = now_ns
        self._key: tuple[object, ...] = ()
        self._parts: dict[str, Any] = {}
        self._progress = Follower()

    def read(self, view: View) -> Snapshot:
        """The run at this moment.

        Raises:
            StoreError: The store is there and cannot be read.
        """
        with self._files.named_briefly():
            return self._read(view)

    def _read(self, view: View) -> Snapshot:
        files = self._files
        files.refresh()
        exit_ = runs.read_json(files.path / "exit.json")
        reader = files.reader()
        now = self._now(exit_, reader)
        elapsed_s = self._elapsed_s(now)
        axis = axis_for(now, view, elapsed_s)
        # Once a second is calm enough to read and half the bytes to send; the log stays lively.
        # Wide windows move slowly and cost more to read.
        pace_ns = int(min(3.0, max(1.0, axis.bin_ns / NS / 4)) * NS)
        key = (self._now_ns() // pace_ns, reader is None, view)
        if key != self._key:
            over_ns = last_step_ns(reader) if exit_ is not None else None
            self._parts = read_consistently(reader, files, view, axis, now, over_ns)
            self._parts["progress"] = self._follow(reader, self._parts["step"], exit_)
            self._parts["warning"] = self._silence(reader, exit_, now)
            self._key = key
        parts = self._parts
        code, words = exit_words(exit_) if exit_ is not None else (None, "")
        if exit_ is not None and reader is not None and reader.meta("stopped_by") == "steps":
            words = "stopped as asked by --steps"
        return Snapshot(
            state=self._state(exit_, parts),
            elapsed_s=elapsed_s,
            exit_code=code,
            exit_text=words,
            log=files.lines(view.log_lines),
            log_path=str(files.path / "output.log"),
            log_size=files.log.size,
            page=view.page,
            **parts,
        )

    def close(self) -> None:
        """Let go of files."""
        self._files.close()

    def _follow(
        self, reader: RunReader | None, step: StepView, exit_: Mapping[str, Any] | None
    ) -> Progress | None:
        """Where the script's own count stands, as long as it runs."""
        if reader is None or exit_ is not None:
            return None
        lines = self._files.lines(LINES)
        # Of a loader without a length a pass may be as long as any bar.
        feeding = [one.length for one in reader.loaders() if one.feeds_training]
        passes = [length for length in feeding if length]
        if len(passes) < len(feeding):
            passes = []
        return self._progress.observe(self._now_ns() / NS, step.count, lines, passes)

    def _silence(self, reader: RunReader | None, exit_: Mapping[str, Any] | None, now: int) -> str:
        """That nobody records the run just now, and why as far as can be seen; else nothing."""
        span = reader.span() if reader is not None and exit_ is None else None
        if span is None or now - span[1] < SILENT_NS:
            return ""
        text = f"Nothing was recorded for {(now - span[1]) // NS} s: "
        if runs.supervisor_pid(self._files.path) is None:
            return text + "the run's supervisor is gone. Training is not affected."
        return text + "its supervisor is stopped or kept from writing. Training is not affected."

    def _now(self, exit_: Mapping[str, Any] | None, reader: RunReader | None) -> int:
        """The end of the time axis: the run's end once it has ended, else the clock.

        A run of another boot or machine has another clock; its newest record stands for now.
        """
        if exit_ is not None:
            ended = exit_.get("ended_mono_ns")
            if isinstance(ended, int):
                return ended
        elif self._files.run.get("boot_id") in (None, identity.boot_id()):
            now = self._now_ns()
            return now - now % NS
        span = reader.span() if reader is not None else None
        return span[1] if span is not None else self._now_ns()

    def _elapsed_s(self, now: int) -> float | None:
        started = self._files.run.get("started_mono_ns")
        return max(0.0, (now - started) / NS) if isinstance(started, int) else None

    def _state(self, exit_: Mapping[str, Any] | None, parts: Mapping[str, Any]) -> State:
        found = runs.run_state(self._files.path, self._files.run, exit_)
        if found == "finished":
            return "ended"
        if found == "lost":
            return "lost"
        step: StepView = parts["step"]
        return "live" if step.count else "starting"
