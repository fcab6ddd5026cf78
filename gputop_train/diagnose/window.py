"""The one frozen record that every rule looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from gputop_train.model import (
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    Site,
    Step,
    UtilSample,
    Where,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a run of steps.

    Attributes:
        exposed: label -> (GPU idle ns, wall ns of the steps that carried events).
        dry: Mean share of event edges that found the GPU's queue empty; ``None`` without events.
    """

    steps: int = 0
    wall_ns: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    measured_ns: int = 0
    samples: int | None = None
    syncs: int = 0
    exposed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    dry: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the run with one way of running: step time and label shares hold throughout.

    Attributes:
        first_step: Index of its first step.
        step_ms: Mean wall time of a step, interruptions left out.
        shares: Host wall share of each label, interruptions included.
        read_bytes_per_s: Bytes a second the run's processes had storage read, mean; ``None`` where
            no process was sampled.
        rchar_per_s: Bytes a second they read, page cache included.
    """

    t0_ns: int
    t1_ns: int
    first_step: int
    steps: int
    step_ms: float
    shares: Mapping[str, float]
    read_bytes_per_s: float | None = None
    rchar_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank beside the others, over at most the window's last ten minutes.

    Attributes:
        parts: The same by equal stretches of time, in order; empty where it was too short.
        clock_mhz: Median SM clock of its card.
    """

    totals: Totals
    parts: tuple[Totals, ...] = ()
    clock_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Since:
    """What was seen of a live run after its last step, once that is a while ago.

    Attributes:
        seconds: From the last step's end to the probe's last word.
        util: Mean driver utilisation, percent.
        trainer: Mean cores the training process kept busy.
        label: What the stack sampler saw most often; ``None`` where it saw no code of the person's.
    """

    seconds: float
    util: float | None = None
    trainer: float | None = None
    label: str | None = None
    place: Where | None = None


@dataclass(frozen=True, slots=True)
class Depth:
    """One poll of a loader's queue."""

    loader_id: int
    t_ns: int
    ready: int


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Everything a verdict may rest on, for one rank, over one stretch of time.

    ``steps`` are the steady steps still kept in full; ``totals`` sums the whole steady part, also
    what the store has thinned to rollups; ``whole`` sums first to last step, warm-up included.
    ``missing`` maps a signal (``"gpu_util"``, ``"gpu_events"``, ``"hook:data"``, ``"probe"``...)
    to the reason why there is none. Compared and hashed by identity.

    ``early`` is the run's first minute after its warm-up, ``late`` its last one (the live window
    when it is shorter); ``regimes`` are the stretches between changes of the loop, in order, and
    ``newest`` is the window of the last of them where a final window holds several. ``halves`` are
    sums over the first and the second half of the steps.
    """

    final: bool = True
    rank: int = 0
    t0_ns: int = 0
    t1_ns: int = 0
    steps: tuple[Step, ...] = ()
    totals: Totals = Totals()
    whole: Totals = Totals()
    steps_seen: int = 0
    warmup_excluded: int = 0
    warmup_why: str = ""
    median_ms: float | None = None
    p95_ms: float | None = None
    intervals: tuple[Interval, ...] = ()
    sites: tuple[Site, ...] = ()
    loaders: tuple[Loader, ...] = ()
    depths: tuple[Depth, ...] = ()
    util: tuple[UtilSample, ...] = ()
    util_mean: float | None = None
    gpu: tuple[GpuSample, ...] = ()
    gpm: tuple[GpmSample, ...] = ()
    host: tuple[HostSample, ...] = ()
    procs: tuple[ProcSample, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    probe: Mapping[str, Any] = field(default_factory=dict)
    probe_states: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    gpu_uuid: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    cut_short: bool = False  # ended by a signal that --steps did not ask for
    run: Mapping[str, Any] = field(default_factory=dict)
    early: Stretch | None = None
    late: Stretch | None = None
    regimes: tuple[Stretch, ...] = ()
    newest: Window | None = None
    ranks: Mapping[int, RankView] = field(default_factory=dict)  # empty with a single rank
    cards: tuple[GpuSample, ...] = ()  # every card the run may use, as it began
    halves: tuple[Totals, Totals] | None = None
    since: Since | None = None  # live, and no step for a minute
    known: dict[object, Any] = field(default_factory=dict, init=False, repr=False)  # see `once`

    @property
    def on_gpu(self) -> bool:
        """True when the parameters live on a GPU, as far as the probe could tell."""
        device = self.probe.get("param_device")
        if isinstance(device, str):
            return not device.startswith("cpu")
        return bool(_sub(self.probe, "cuda").get("initialized"))

    @property
    def cuda_available(self) -> bool:
        """Whether torch could have used a GPU."""
        return bool(_sub(self.probe, "cuda").get("available"))

    @property
    def cores(self) -> float | None:
        """Cores the run may use: affinity, capped by the cgroup quota; ``None`` if unknown."""
        for sample in reversed(self.host):
            bounds = [
                float(v)
                for v in (sample.cpus_allowed or sample.cpus_total, sample.cpu_quota)
                if v is not None
            ]
            if bounds:
                return min(bounds)
        return None

    def hook(self, name: str) -> bool | None:
        """Whether a probe hook is in place and heard of; ``None`` when the probe never said."""
        if f"hook:{name}" in self.missing:
            return False
        value = _sub(self.probe, "hooks").get(name)
        return value is True if value is not None else None  # a reason in words is no hook

    @property
    def feeding_loaders(self) -> tuple[Loader, ...]:
        """Loaders whose batches fed a backward, the one waited for longest first."""
        feeding = [ld for ld in self.loaders if ld.feeds_training and ld.rank == self.rank]
        return tuple(sorted(feeding, key=lambda ld: (-ld.wait_ns, ld.id)))

    @property
    def first_epoch_done(self) -> bool | None:
        """Whether the loader waited for longest was read through once; ``None`` when not known."""
        for loader in self.feeding_loaders[:1]:
            if loader.epochs >= 2:
                return True
            if loader.length:
                return loader.batches >= loader.length
        return None


def _sub(state: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = state.get(key)
    return value if isinstance(value, Mapping) else {}


def bare_uuid(uuid: str) -> str:
    """A device's UUID without the prefix that NVML writes and torch does not, in one case."""
    return uuid.removeprefix("GPU-").lower()


def once(make: Callable[[Window], T]) -> Callable[[Window], T]:
    """Have what is made of a window made once, and kept for as long as the window is.

    A cache of its own would keep windows, and with each of them minutes of steps, alive.
    """

    @wraps(make)
    def made(window: Window) -> T:
        if make not in window.known:
            window.known[make] = make(window)
        found: T = window.known[make]
        return found

    return made
