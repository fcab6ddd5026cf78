"""Where snapshots come from: the store of a run that is under way or has just ended.

Sources are read from one thread (`feed.Feed`). See `replay` for a run at a chosen time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gputop_train.launch import identity, runs
from gputop_train.launch.logtail import LogTail
from gputop_train.model import Diagnosis, GpuSample, Step, UtilSample
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import StepRollup
from gputop_train.tui import build, charts, settings_seen
from gputop_train.tui.gather import Asked, page_parts
from gputop_train.tui.gather.counters import LINES
from gputop_train.tui.gather.devices import gpus_now
from gputop_train.tui.gather.memory import card_of
from gputop_train.tui.gather.progress import Follower
from gputop_train.tui.series import axis_ending
from gputop_train.tui.snapshot import Axis, Chart, Snapshot, State, StepView, View
from gputop_train.tui.views.progress import Progress

#: Above this many steps in the window, per-second sums serve as well as the steps themselves.
MAX_STEPS = 2_000
#: Steps that stand for a window in which none ended.
NEWEST_STEPS = 20
#: Steps behind the median and the 95th percentile in a window of more than `MAX_STEPS`.
WALLS = 5_000
#: The shape of the utilisation is read this often.
SHAPE_NS = 5_000_000_000
#: Spans of the time axis of a young run, in seconds: it grows with the run instead of leaving most
#: of the chart blank, in steps, so that columns keep their place in between.
YOUNG_S = (15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
NS = 1_000_000_000


class Source(Protocol):
    """Makes snapshots. `read` may take a while and may raise `StoreError`."""

    def read(self, view: View) -> Snapshot:
        """The run as it stands, seen through ``view``."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class RunFiles:
    """A run directory read with patience: parts appear while the run starts."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir
        self.run: Mapping[str, Any] = runs.read_json(run_dir / "run.json") or {"id": run_dir.name}
        self._reader: RunReader | None = None
        self.log = LogTail(run_dir / "output.log")
        self._shape: tuple[tuple[object, ...], str] = ((), "")

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

    def shape(
        self, util: Sequence[UtilSample], axis: Axis, now: int, clocks: Mapping[str, float]
    ) -> str:
        """`charts.shape_words`, anew every few seconds: it costs more than all the rest."""
        key = (now // SHAPE_NS, axis.t1_ns - axis.t0_ns)
        if key != self._shape[0]:
            self._shape = key, charts.shape_words(util, clocks)
        return self._shape[1]

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


def axis_for(now_ns: int, view: View, elapsed_s: float | None) -> Axis:
    """The time axis of a view: as long as asked for, or shorter while the run is young."""
    window_s = view.window_s
    if elapsed_s is not None:
        window_s = min([window_s, *(span for span in YOUNG_S if span >= elapsed_s)])
    return axis_ending(now_ns, window_s, view.columns)


def _read_parts(
    reader: RunReader, files: RunFiles, view: View, axis: Axis, now: int, over_ns: int | None
) -> dict[str, Any]:
    """All parts of a snapshot that come from the store, in one consistent read."""
    run = files.run
    t0, t1 = axis.t0_ns, min(axis.t1_ns, now)
    # Once training is over its last readings stand: what a script does on its way out, and a
    # device at rest, say nothing about it.
    last = t1 if over_ns is None else max(t0 + 1, min(t1, over_ns))
    ranks = reader.ranks()
    rank = ranks[0] if ranks else None
    probes = reader.probe_states()
    probe = probes.get(rank if rank is not None else 0) or next(iter(probes.values()), None)
    newest = reader.steps_tail(NEWEST_STEPS, rank=rank) if rank is not None else []
    rollups = reader.step_rollups(t0, t1, rank=rank) if rank is not None else []
    few = bool(rollups) and sum(rollup.n for rollup in rollups) <= MAX_STEPS
    steps = reader.steps(t0, t1, rank=rank) if few or not rollups else []
    lanes, _ = build.lanes(steps or rollups, axis)
    hosts = reader.host(last - 30 * NS, last)
    host = hosts[-1] if hosts else None
    gpu = reader.gpu(last - 120 * NS, last)
    card = card_of(gpu, probe or {})
    run_view = build.run_view(run, probe)
    intervals = reader.intervals(t0, t1)
    spans: Sequence[Step | StepRollup] = steps or rollups
    step = build.step_view(
        steps if len(steps) >= 5 else newest,
        rollups,
        count=newest[-1].index + 1 if newest else 0,
        total=_steps_total(run),
        walls_ms=_newest_walls(reader, rollups) if rollups and not few else None,
    )
    clocks = build.clocks(step.median_ms, intervals)
    over = over_ns is not None and over_ns <= t1
    chart = _chart(reader, files, axis, t1, spans, clocks, run_view.device, gpu, over=over)
    # The whole window's processes are only needed where they are the chart.
    procs = reader.procs(last - 30 * NS if chart is not None else t0, t1)
    at_last = [proc for proc in procs if proc.t_ns <= last]
    memory = reader.memory(min(t0, last - 120 * NS), last, rank=rank)
    diagnosis = _diagnosis(reader)
    loaders = reader.loaders()
    return {
        "axis": axis,
        "run": run_view,
        "diagnosis": diagnosis,
        "settings": settings_seen.groups(
            run, probe, loaders, diagnosis, reader.sites(rank) if rank is not None else ()
        ),
        "chart": chart or charts.cpu_chart(procs, build.allowed_cores(host), axis, over=over),
        "lanes": lanes,
        "marks": build.marks(intervals, axis),
        "step": step,
        "memory": build.memory_view(
            memory, gpu, host, axis, used=next((s.memory_used for s in card[-1:]), None)
        ),
        "gpus": gpus_now(reader, last) if len({s.uuid for s in gpu}) > 1 else (),
        "loader": build.loader_view(loaders, reader.loader_depths(t0, last), at_last, axis),
        "host": build.host_view(host, at_last),
        "notes": _notes(reader, probe),
        **page_parts(Asked(reader, run, files.path, view, axis, now, rank, over_ns)),
    }


def _newest_walls(reader: RunReader, rollups: Sequence[StepRollup]) -> list[float]:
    """Milliseconds of the newest steps of the window, at most `WALLS`."""
    first, last = rollups[0], rollups[-1]
    times = reader.step_times(first.t0_ns, last.t1_ns, first.rank, most=WALLS)
    return [(end - begin) / 1e6 for begin, end in times]


def _chart(
    reader: RunReader,
    files: RunFiles,
    axis: Axis,
    t1: int,
    steps: Sequence[Step | StepRollup],
    clocks: Mapping[str, float],
    device: str,
    readings: Sequence[GpuSample],
    *,
    over: bool,
) -> Chart | None:
    t0 = axis.t0_ns
    training = (steps[0].t0_ns, steps[-1].t1_ns) if steps else None
    util = reader.util(t0 - NS, t1)
    # Samples are kept for the newest minutes; older seconds live on as sums.
    oldest = min((sample.t_ns for sample in util), default=t1)
    rollups = reader.util_rollups(t0, oldest - NS) if oldest > t0 + 2 * NS else []
    gpu = [one for one in readings if one.t_ns >= readings[-1].t_ns - 5 * NS]
    during = [s for s in util if training and training[0] <= s.t_ns <= training[1]]
    shape = files.shape(during, axis, t1, clocks) if during else ""
    gpm = reader.gpm(t0 - NS, t1)
    return charts.gpu_chart(
        util, rollups, gpm, gpu, axis, device, training=training, shape=shape, over=over
    )


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


def last_step_ns(reader: RunReader | None) -> int | None:
    """When training ended: the end of the last step."""
    ranks = reader.ranks() if reader is not None else []
    last = reader.steps_tail(1, rank=ranks[0]) if reader is not None and ranks else []
    return last[-1].t1_ns if last else None


def read_consistently(
    reader: RunReader | None,
    files: RunFiles,
    view: View,
    axis: Axis,
    now: int,
    over_ns: int | None,
) -> dict[str, Any]:
    """The parts of a snapshot that come from the store.

    Args:
        reader: The store; ``None`` while there is none.
        files: The run's directory.
        view: What the screen asks for.
        axis: The time axis.
        now: The end of what is shown.
        over_ns: When training ended, once it has.
    """
    run = files.run
    if reader is None:
        return {
            "axis": axis,
            "run": build.run_view(run, None),
            "step": StepView(0, _steps_total(run)),
        }
    with reader.snapshot():
        return _read_parts(reader, files, view, axis, now, over_ns)
