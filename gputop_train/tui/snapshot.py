"""What the screen shows at one instant: frozen, plain data, built off the UI thread.

Widgets render these records and decide nothing; `build` makes them from a run's store. ``None``
means "not measured" and is shown as a gap or a dash, never as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gputop_train.launch.options import SettingValue
from gputop_train.model import Diagnosis
from gputop_train.tui.views.devices import DevicesView, GpuView
from gputop_train.tui.views.findings import FindingsView
from gputop_train.tui.views.lines import LinesView
from gputop_train.tui.views.memory import MemoryPageView
from gputop_train.tui.views.progress import Progress
from gputop_train.tui.views.steps import StepsView
from gputop_train.tui.views.trials import TrialsView
from gputop_train.tui.views.workers import WorkersPageView

State = Literal["starting", "live", "stopping", "ended", "lost", "replay"]


@dataclass(frozen=True, slots=True)
class View:
    """What the screen asks a source for.

    Attributes:
        window_s: Seconds the time axis covers.
        columns: Bins of the time axis, one per character cell.
        log_lines: Newest lines of the script's output to return.
        page: The page in front; what only it shows is read for it alone.
        rank: Steps: whose steps; ``None`` = the rank the overview shows.
        device: Devices: the GPU that is looked at closely, by its place; ``None`` = none.
        loader: Workers: the loader shown in full, by its place; ``None`` = the one that feeds.
    """

    window_s: float = 60.0
    columns: int = 100
    log_lines: int = 60
    page: str = "overview"
    rank: int | None = None
    device: int | None = None
    loader: int | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis all panels share: ``columns`` equal bins, the newest ends at ``t1_ns``."""

    t0_ns: int
    t1_ns: int
    columns: int

    @property
    def bin_ns(self) -> float:
        """Width of one bin."""
        return (self.t1_ns - self.t0_ns) / max(1, self.columns)

    def column(self, t_ns: int) -> int | None:
        """Bin of an instant, or ``None`` outside the axis."""
        if not self.t0_ns <= t_ns < self.t1_ns:
            return None
        return min(self.columns - 1, int((t_ns - self.t0_ns) / self.bin_ns))


@dataclass(frozen=True, slots=True)
class Series:
    """One measured quantity in percent, a value per bin; ``peak`` is each bin's largest sample.

    ``average`` is over the time of training, where that was told.
    """

    name: str
    mean: tuple[float | None, ...]
    peak: tuple[float | None, ...] = ()
    average: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """The device over time: GPU utilisation, or CPU cores busy where there is no GPU.

    Attributes:
        title: Names the quantity and the device.
        area: Main series, drawn filled from 0 to 100 percent.
        line: A second series on the same scale (SM activity), or ``None``.
        facts: Short readings for the title row, most important first.
    """

    title: str
    device: Literal["gpu", "cpu"]
    area: Series
    line: Series | None = None
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lane:
    """Share of host wall time one label took: over the window, and in each bin (0..1)."""

    label: str
    share: float
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """An interruption on the time axis."""

    kind: Literal["checkpoint", "eval"]
    column: int


@dataclass(frozen=True, slots=True)
class StepView:
    """Optimizer steps: how many there were, how long the newest take and what they consist of.

    Attributes:
        count: Steps since the start.
        total: Steps after which the run will be stopped, when that was asked for.
        window_steps: Steps behind ``median_ms``, ``p95_ms`` and ``parts``.
        parts: Mean milliseconds per step by label, in the order of `model.LABELS`, zeros left out.
    """

    count: int
    total: int | None = None
    window_steps: int = 0
    median_ms: float | None = None
    p95_ms: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    samples_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryView:
    """Memory of the training process in bytes; ``basis`` as in `model.MemorySample`.

    ``used`` is what is taken on the device by the driver's count, whoever holds it; ``history`` is
    what was held, a value per bin of the axis.
    """

    basis: str
    allocated: int
    reserved: int | None = None
    peak: int | None = None
    total: int | None = None
    history: tuple[float | None, ...] = ()
    used: int | None = None


@dataclass(frozen=True, slots=True)
class LoaderView:
    """The loader that feeds training and its worker processes.

    ``cpu`` holds cores used by each worker; ``ready`` of ``capacity`` batches wait in its queue.
    """

    num_workers: int
    place: str
    cpu: tuple[float | None, ...] = ()
    ready: int | None = None
    capacity: int | None = None
    depth: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class HostView:
    """Cores of the machine: busy, there in all, and allowed to this run."""

    cores_busy: float | None = None
    cores_total: int | None = None
    cores_allowed: float | None = None
    read_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class SettingSeen:
    """One setting as the run really has it.

    Attributes:
        key: As ``--set`` names it.
        value: What is in force; ``None`` with ``known`` means that there is none.
        known: Whether that was seen; else the value is not measured.
        suggested: What the diagnosis advises; ``None`` = nothing.
        gain: What that is predicted to bring, in words; empty = no prediction.
        changes_results: Whether a seeded run computes something else with it.
        cannot: Why it cannot be set here, in words; empty = it can.
        override: Whether ``value`` was set for this run and is not the script's own.
    """

    key: str
    value: SettingValue = None
    known: bool = True
    suggested: SettingValue = None
    gain: str = ""
    changes_results: bool = False
    cannot: str = ""
    override: bool = False


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """The settings of one loader, or of the run.

    Attributes:
        title: Such as ``loader train.py:41``.
        note: What it is for.
        place: ``FILE:LINE`` a setting has to name; ``None`` = it needs no place.
    """

    title: str
    note: str
    place: str | None
    rows: tuple[SettingSeen, ...]


@dataclass(frozen=True, slots=True)
class RunView:
    """What was launched. ``changed`` lists overrides in force, for the header.

    ``compared_with`` is the run this one repeats with other settings; empty = none.
    """

    id: str
    script: str
    name: str = ""
    device: str = ""
    changed: tuple[str, ...] = ()
    compared_with: str = ""


@dataclass(frozen=True, slots=True)
class ReplayView:
    """Where a replay stands, in seconds since the run's start."""

    position_s: float
    length_s: float
    speed: float
    playing: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything on the screen at one instant.

    ``page`` is the page it was read for: fields of other pages are ``None``. ``log`` are the newest
    lines of the file ``log_path``, of ``log_size`` bytes.
    """

    run: RunView
    state: State
    axis: Axis
    elapsed_s: float | None = None
    exit_code: int | None = None
    exit_text: str = ""
    diagnosis: Diagnosis | None = None
    chart: Chart | None = None
    lanes: tuple[Lane, ...] = ()
    marks: tuple[Mark, ...] = ()
    step: StepView = field(default_factory=lambda: StepView(0))
    memory: MemoryView | None = None
    loader: LoaderView | None = None
    host: HostView | None = None
    log: tuple[str, ...] = ()
    log_note: str = ""
    log_path: str = ""
    log_size: int | None = None
    trials: TrialsView | None = None
    notes: tuple[str, ...] = ()
    warning: str = ""
    replay: ReplayView | None = None
    settings: tuple[SettingGroup, ...] = ()
    page: str = "overview"
    steps: StepsView | None = None
    lines: LinesView | None = None
    findings: FindingsView | None = None
    devices: DevicesView | None = None
    progress: Progress | None = None
    gpus: tuple[GpuView, ...] = ()
    memory_page: MemoryPageView | None = None
    workers_page: WorkersPageView | None = None
