"""Where snapshots come from: a live run's store now, or a finished one at a chosen time.

Sources are read from one thread (`feed.Feed`); a replay's controls may be called from another.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gputop_train.launch import identity, runs
from gputop_train.launch.logtail import LogTail
from gputop_train.model import Diagnosis
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from gputop_train.tui import build
from gputop_train.tui.series import axis_ending
from gputop_train.tui.snapshot import Axis, Chart, ReplayView, Snapshot, State, StepView, View

#: Above this many steps in the window, per-second sums serve as well as the steps themselves.
MAX_STEPS = 2_000
#: Steps behind the median and the 95th percentile.
NEWEST_STEPS = 200
_NS = 1_000_000_000
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Source(Protocol):
    """Makes snapshots. `read` may take a while and may raise `StoreError`."""

    def read(self, view: View) -> Snapshot:
        """The run as it stands, seen through ``view``."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class ReplayControls(Protocol):
    """What the keys of a replay do."""

    def toggle(self) -> None:
        """Play or pause; at the end, start over."""
        ...

    def seek(self, seconds: float) -> None:
        """Move by a time of the run."""
        ...

    def change_speed(self, by: int) -> None:
        """Go to the next faster (+1) or slower (-1) speed."""
        ...


class _RunFiles:
    """A run directory read with patience: parts appear while the run starts."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir
        self.run: Mapping[str, Any] = runs.read_json(run_dir / "run.json") or {"id": run_dir.name}
        self._reader: RunReader | None = None
        self.log = LogTail(run_dir / "output.log")

    def refresh(self) -> None:
        """Read what launching writes late (the child's identity, the store's place)."""
        self.run = runs.read_json(self.path / "run.json") or self.run

    def stores(self) -> Iterator[Path]:
        """Places the store may be at, the likeliest first."""
        named = self.run.get("store")
        if isinstance(named, str) and named:
            yield Path(named)
        yield self.path / "run.sqlite"

    def reader(self) -> RunReader | None:
        """The store, ``None`` while there is none yet.

        Raises:
            StoreError: It is there and cannot be read.
        """
        if self._reader is None:
            found = next((path for path in self.stores() if path.exists()), None)
            if found is None or found.stat().st_size == 0:
                return None
            self._reader = RunReader(found)
        return self._reader

    def lines(self, count: int) -> tuple[str, ...]:
        """The newest lines of the script's output."""
        self.log.poll()
        return tuple(self.log.lines(count))

    def close(self) -> None:
        """Let go of files."""
        self.log.close()
        if self._reader is not None:
            self._reader.close()


def _diagnosis(reader: RunReader) -> Diagnosis | None:
    """The newest stored diagnosis; one this version cannot read counts as none."""
    found = reader.latest_finding()
    if found is None:
        return None
    try:
        return msgspec.convert(found.body, Diagnosis, strict=False)
    except msgspec.ValidationError:
        return None


def _steps_total(run: Mapping[str, Any]) -> int | None:
    options = run.get("options")
    steps = options.get("steps") if isinstance(options, Mapping) else None
    return steps if isinstance(steps, int) and steps > 0 else None


def _read_parts(reader: RunReader, run: Mapping[str, Any], axis: Axis, now: int) -> dict[str, Any]:
    """All parts of a snapshot that come from the store, in one consistent read."""
    t0, t1 = axis.t0_ns, min(axis.t1_ns, now)
    ranks = reader.ranks()
    rank = ranks[0] if ranks else None
    probes = reader.probe_states()
    probe = probes.get(rank if rank is not None else 0) or next(iter(probes.values()), None)
    newest = reader.steps_tail(NEWEST_STEPS, rank=rank) if rank is not None else []
    rollups = reader.step_rollups(t0, t1, rank=rank) if rank is not None else []
    few = bool(rollups) and sum(rollup.n for rollup in rollups) <= MAX_STEPS
    steps = reader.steps(t0, t1, rank=rank) if few or not rollups else []
    lanes, _ = build.lanes(steps or rollups, axis)
    hosts = reader.host(t1 - 30 * _NS, t1)
    host = hosts[-1] if hosts else None
    gpu = reader.gpu(t1 - 120 * _NS, t1)
    view = build.run_view(run, probe)
    chart = _chart(reader, axis, t1, view.device)
    # The whole window's processes are only needed where they are the chart.
    procs = reader.procs(t1 - 30 * _NS if chart is not None else t0, t1)
    in_window = [step for step in newest if step.t1_ns >= t0]
    return {
        "axis": axis,
        "run": view,
        "diagnosis": _diagnosis(reader),
        "chart": chart or build.cpu_chart(procs, build.allowed_cores(host), axis),
        "lanes": lanes,
        "marks": build.marks(reader.intervals(t0, t1), axis),
        "step": build.step_view(
            in_window if len(in_window) >= 5 else newest[-20:],
            rollups,
            count=newest[-1].index + 1 if newest else 0,
            total=_steps_total(run),
        ),
        "memory": build.memory_view(reader.memory(t1 - 120 * _NS, t1, rank=rank), gpu, host),
        "loader": build.loader_view(reader.loaders(), reader.loader_depths(t0, t1), procs, axis),
        "host": build.host_view(host, procs),
        "notes": _notes(reader, probe),
    }


def _chart(reader: RunReader, axis: Axis, t1: int, device: str) -> Chart | None:
    t0 = axis.t0_ns
    util = reader.util(t0 - _NS, t1)
    # Samples are kept for the newest minutes; older seconds live on as sums.
    oldest = min((sample.t_ns for sample in util), default=t1)
    rollups = reader.util_rollups(t0, oldest - _NS) if oldest > t0 + 2 * _NS else []
    gpu = reader.gpu(t1 - 5 * _NS, t1)
    return build.gpu_chart(util, rollups, reader.gpm(t0 - _NS, t1), gpu, axis, device)


def _notes(reader: RunReader, probe: Mapping[str, Any] | None) -> tuple[str, ...]:
    """One-off facts for the bottom of the screen, the device's first."""
    out: list[str] = []
    missing = reader.meta("missing", {})
    cuda = (probe or {}).get("cuda") or {}
    if isinstance(missing, dict) and "nvml" in missing and not cuda.get("initialized"):
        why = str(missing["nvml"]).rstrip(".")
        known = "no nvidia driver" in why.lower()
        out.append(
            "no NVIDIA driver: the CPU is the device here"
            if known
            else f"the CPU is the device here: {why}"
        )
    for note in reader.notes():
        text = note.body.get("text")
        if isinstance(text, str) and text and text not in out:
            out.append(text)
    return (*out[:1], *out[1:][-2:])


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


class LiveSource:
    """A run that is under way, or has just ended.

    Args:
        run_dir: The run's directory.
        now_ns: The clock, ``CLOCK_MONOTONIC`` nanoseconds.
    """

    def __init__(self, run_dir: Path, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._files = _RunFiles(run_dir)
        self._now_ns = now_ns
        self._key: tuple[object, ...] = ()
        self._parts: dict[str, Any] = {}

    def read(self, view: View) -> Snapshot:
        """The run at this moment.

        Raises:
            StoreError: The store is there and cannot be read.
        """
        files = self._files
        files.refresh()
        exit_ = runs.read_json(files.path / "exit.json")
        reader = files.reader()
        now = self._now(exit_, reader)
        axis = axis_ending(now, view.window_s, view.columns)
        # Once a second is calm enough to read and half the bytes to send; the log stays lively.
        # Wide windows move slowly and cost more to read.
        pace_ns = int(min(3.0, max(1.0, axis.bin_ns / _NS / 4)) * _NS)
        key = (self._now_ns() // pace_ns, reader is None, view.window_s, view.columns)
        if key != self._key:
            self._parts, self._key = _read_consistently(reader, files.run, axis, now), key
        parts = self._parts
        code, words = exit_words(exit_) if exit_ is not None else (None, "")
        return Snapshot(
            state=self._state(exit_, parts),
            elapsed_s=self._elapsed_s(now),
            exit_code=code,
            exit_text=words,
            log=files.lines(view.log_lines),
            **parts,
        )

    def close(self) -> None:
        """Let go of files."""
        self._files.close()

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
            return now - now % _NS
        span = reader.span() if reader is not None else None
        return span[1] if span is not None else self._now_ns()

    def _elapsed_s(self, now: int) -> float | None:
        started = self._files.run.get("started_mono_ns")
        return max(0.0, (now - started) / _NS) if isinstance(started, int) else None

    def _state(self, exit_: Mapping[str, Any] | None, parts: Mapping[str, Any]) -> State:
        found = runs.run_state(self._files.path, self._files.run, exit_)
        if found == "finished":
            return "ended"
        if found == "lost":
            return "lost"
        step: StepView = parts["step"]
        return "live" if step.count else "starting"


class ReplaySource:
    """A finished run, played back.

    Args:
        run_dir: The run's directory.
        clock: Seconds that pass at the viewer's.
        speed: Seconds of the run per second of the viewer.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        speed: float = 1.0,
    ) -> None:
        self._files = _RunFiles(run_dir)
        self._clock = clock
        self._lock = threading.Lock()
        self._speed = speed
        self._playing = True
        self._position_s = 0.0
        self._since = clock()
        self._length_s: float | None = None

    def read(self, view: View) -> Snapshot:
        """The run as it stood at the replay's time.

        Raises:
            StoreError: There is no store, or it cannot be read.
        """
        files = self._files
        reader = files.reader()
        span = reader.span() if reader is not None else None
        if reader is None or span is None:
            raise StoreError(
                "This run recorded nothing that could be replayed. "
                "Its output is in output.log in the run's directory."
            )
        started = files.run.get("started_mono_ns")
        begin = started if isinstance(started, int) and started <= span[0] else span[0]
        replay = self._advance((span[1] - begin) / _NS)
        now = begin + int(replay.position_s * _NS)
        axis = axis_ending(now, view.window_s, view.columns)
        # At its end everything counts, also the last words written after the script was gone.
        seen = reader if replay.position_s >= replay.length_s else reader.as_of(now)
        return Snapshot(
            state="replay",
            elapsed_s=replay.position_s,
            log=files.lines(view.log_lines),
            log_note="as it was at the end: lines carry no time",
            replay=replay,
            **_read_consistently(seen, files.run, axis, now),
        )

    def close(self) -> None:
        """Let go of files."""
        self._files.close()

    def toggle(self) -> None:
        """Play or pause; at the end, start over."""
        with self._lock:
            self._move()
            if self._length_s is not None and self._position_s >= self._length_s:
                self._position_s, self._playing = 0.0, True
            else:
                self._playing = not self._playing

    def seek(self, seconds: float) -> None:
        """Move by a time of the run."""
        with self._lock:
            self._move()
            end = self._length_s if self._length_s is not None else 0.0
            self._position_s = min(end, max(0.0, self._position_s + seconds))

    def change_speed(self, by: int) -> None:
        """Go to the next faster (+1) or slower (-1) speed."""
        with self._lock:
            self._move()
            nearest = min(range(len(SPEEDS)), key=lambda i: abs(SPEEDS[i] - self._speed))
            self._speed = SPEEDS[max(0, min(len(SPEEDS) - 1, nearest + by))]

    def _advance(self, length_s: float) -> ReplayView:
        with self._lock:
            self._length_s = length_s
            self._move()
            return ReplayView(
                self._position_s,
                length_s,
                self._speed,
                self._playing and self._position_s < length_s,
            )

    def _move(self) -> None:
        """Account for the time that passed since the last call."""
        now = self._clock()
        if self._playing:
            self._position_s += (now - self._since) * self._speed
        if self._length_s is not None:
            self._position_s = min(self._length_s, self._position_s)
        self._since = now


def _read_consistently(
    reader: RunReader | None, run: Mapping[str, Any], axis: Axis, now: int
) -> dict[str, Any]:
    if reader is None:
        return {
            "axis": axis,
            "run": build.run_view(run, None),
            "step": StepView(0, _steps_total(run)),
        }
    with reader.snapshot():
        return _read_parts(reader, run, axis, now)
