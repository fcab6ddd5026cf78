"""What the overview shows of a store: read in one consistent look, made into a snapshot's parts.

Runs on the reading thread; what only one page shows is `gather`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gputop_train.model import GpuSample, HostSample, Loader, Step
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import StepRollup
from gputop_train.tui import build, charts, settings_seen
from gputop_train.tui.gather import page_parts
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.diagnoses import latest
from gputop_train.tui.runfiles import RunFiles
from gputop_train.tui.snapshot import Axis, Chart, StepView, View
from gputop_train.tui.views.devices import GpuView

#: Above this many steps in the window, per-second sums serve as well as the steps themselves.
MAX_STEPS = 2_000
#: Steps that stand for a window in which none ended.
NEWEST_STEPS = 20
#: Steps behind the median and the 95th percentile in a window of more than `MAX_STEPS`.
WALLS = 5_000
NS = 1_000_000_000


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
        return _read(reader, files, view, axis, now, over_ns)


def last_step_ns(reader: RunReader | None) -> int | None:
    """When training ended: the end of the last step."""
    ranks = reader.ranks() if reader is not None else []
    last = reader.steps_tail(1, rank=ranks[0]) if reader is not None and ranks else []
    return last[-1].t1_ns if last else None


def _steps_total(run: Mapping[str, Any]) -> int | None:
    options = run.get("options")
    steps = options.get("steps") if isinstance(options, Mapping) else None
    return steps if isinstance(steps, int) and steps > 0 else None


def _read(
    reader: RunReader, files: RunFiles, view: View, axis: Axis, now: int, over_ns: int | None
) -> dict[str, Any]:
    """All parts of a snapshot that come from the store, in one consistent read."""
    run, recent = files.run, files.recent
    t0, t1 = axis.t0_ns, min(axis.t1_ns, now)
    # Once training is over its last readings stand: what a script does on its way out, and a
    # device at rest, say nothing about it.
    last = t1 if over_ns is None else max(t0 + 1, min(t1, over_ns))
    ranks = reader.ranks()
    rank = ranks[0] if ranks else None
    probes = reader.probe_states()
    probe = probes.get(rank if rank is not None else 0) or next(iter(probes.values()), None)
    newest = reader.steps_tail(NEWEST_STEPS, rank=rank) if rank is not None else []
    rollups = recent.step_rollups(reader, rank, t0, t1) if rank is not None else []
    few = bool(rollups) and sum(rollup.n for rollup in rollups) <= MAX_STEPS
    whole = few or not rollups
    steps = recent.steps(reader, rank, t0, t1) if whole and rank is not None else []
    hosts = reader.host(last - 30 * NS, last)
    intervals = reader.intervals(t0, t1)
    step = build.step_view(
        steps if len(steps) >= 5 else newest,
        rollups,
        count=newest[-1].index + 1 if newest else 0,
        total=_steps_total(run),
        walls_ms=_newest_walls(reader, rollups) if rollups and not few else None,
    )
    diagnosis = latest(reader)
    loaders = reader.loaders()
    parts: dict[str, Any] = {
        "axis": axis,
        "run": build.run_view(run, probe),
        "diagnosis": diagnosis,
        "settings": settings_seen.groups(
            run, probe, loaders, diagnosis, reader.sites(rank) if rank is not None else ()
        ),
        "marks": build.marks(intervals, axis),
        "step": step,
        "host": build.host_view(hosts[-1] if hosts else None, ()),
        "notes": _notes(reader, probe),
    }
    asked = Asked(reader, run, files.path, view, axis, now, rank, over_ns, recent)
    if view.page != "overview":
        return parts | page_parts(asked)
    spans: Sequence[Step | StepRollup] = steps or rollups
    clocks = build.clocks(step.median_ms, intervals)
    return parts | _overview(asked, files, last, spans, probe, clocks, hosts, loaders)


def _overview(
    asked: Asked,
    files: RunFiles,
    last: int,
    spans: Sequence[Step | StepRollup],
    probe: Mapping[str, Any] | None,
    clocks: Mapping[str, float],
    hosts: Sequence[HostSample],
    loaders: Sequence[Loader],
) -> dict[str, Any]:
    """What no other page shows.

    Args:
        asked: What is looked at.
        files: The run's directory.
        last: The end of what is shown, or of training once that is over.
        spans: Steps of the window, or its seconds.
        probe: The probe's newest words.
        clocks: Known periods of the loop in seconds.
        hosts: Readings of the machine.
        loaders: The loaders.
    """
    reader, recent, axis = asked.reader, files.recent, asked.axis
    t0, t1 = axis.t0_ns, min(axis.t1_ns, asked.now_ns)
    host = hosts[-1] if hosts else None
    gpu = recent.gpu(reader, last - 120 * NS, last)
    card = build.card_of(gpu, probe or {})
    over = asked.over_ns is not None and asked.over_ns <= t1
    device = build.device_name(probe)
    chart = _chart(reader, files, axis, t1, spans, clocks, device, gpu, over=over)
    # The whole window's processes are only needed where they are the chart.
    procs = recent.procs(reader, last - 30 * NS if chart is not None else t0, t1)
    at_last = [proc for proc in procs if proc.t_ns <= last]
    memory = recent.memory(reader, asked.rank, min(t0, last - 120 * NS), last)
    return {
        "chart": chart or charts.cpu_chart(procs, build.allowed_cores(host), axis, over=over),
        "lanes": build.lanes(spans, axis)[0],
        "memory": build.memory_view(
            memory, gpu, host, axis, used=next((s.memory_used for s in card[-1:]), None)
        ),
        "gpus": _gpus(asked, gpu, last) if len({s.uuid for s in gpu}) > 1 else (),
        "loader": build.loader_view(loaders, reader.loader_depths(t0, last), at_last, axis),
        "host": build.host_view(host, at_last),
    }


def _gpus(asked: Asked, gpu: Sequence[GpuSample], now: int) -> tuple[GpuView, ...]:
    from gputop_train.tui.gather.devices import gpus_now  # of one GPU nobody needs it

    return gpus_now(asked, gpu, now)


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
    recent = files.recent
    util = recent.util(reader, t0 - NS, t1)
    # Samples are kept for the newest minutes; older seconds live on as sums.
    oldest = min((int(samples.times[0]) for samples in util.values()), default=t1)
    rollups = recent.util_rollups(reader, t0, oldest - NS) if oldest > t0 + 2 * NS else []
    gpu = [one for one in readings if one.t_ns >= readings[-1].t_ns - 5 * NS]
    shape = files.shape(util, training, axis, t1, clocks) if training is not None else ""
    sm = recent.gpm(reader, t0 - NS, t1)
    return charts.gpu_chart(
        util, rollups, sm, gpu, axis, device, training=training, shape=shape, over=over
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
