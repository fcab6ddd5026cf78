"""The shared vocabulary: frozen records from collectors to the store, diagnosis and screen.

Conventions: times are ``CLOCK_MONOTONIC`` nanoseconds of the host that trained (``t_ns``);
durations carry their unit in the name; ``None`` means "not measured", zero means zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gputop_train.findings import Abstention as Abstention
from gputop_train.findings import Advice as Advice
from gputop_train.findings import Diagnosis as Diagnosis
from gputop_train.findings import Evidence as Evidence
from gputop_train.findings import Finding as Finding
from gputop_train.findings import Gain as Gain
from gputop_train.findings import Status as Status
from gputop_train.findings import Where as Where
from gputop_train.findings import ids_by_reason as ids_by_reason

#: Labels of host wall time of the training thread, in the order of the report. They tile a step.
LABELS: tuple[str, ...] = (
    "data_wait",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "gpu_wait",
    "sync",
    "comm",
    "checkpoint",
    "eval",
    "logging",
    "gc",
    "compile",
    "restart",
    "other",
)

#: Labels for which GPU idle time ("exposed idle") can be attributed.
EXPOSED_LABELS: tuple[str, ...] = (
    "data_wait",
    "h2d",
    "sync",
    "comm",
    "checkpoint",
    "eval",
    "logging",
    "launch",
    "unattributed",
)

#: Labels of long interruptions; their single occurrences are kept as intervals for ever.
INTERRUPTION_LABELS: tuple[str, ...] = ("checkpoint", "eval", "gc", "compile", "logging", "restart")

SiteKind = Literal[
    "sync",
    "h2d",
    "save",
    "data",
    "eval",
    "logging",
    "sample",
    "loader",
    "nograd",
    "backward",
    "thread",
]


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's code, with what was seen there since arming.

    Attributes:
        rank: Global rank of the process (0 outside distributed runs).
        id: Small integer, unique within a rank.
        kind: What was observed at this place.
        call: The call as the person wrote it where known, such as ``loss.item()``; else its name.
        label: For ``kind == "sample"``: the label the sampler gave. For ``"nograd"``: a name in the
            block that only an evaluation would use, if any. For ``"thread"``, a line at which
            another thread of the process ran: ``"feeds"`` where it fills a queue. Else ``None``.
        count: Occurrences (samples, for the sampler).
        total_ns: Host time spent, summed. 0 for samples.
        bytes: Bytes moved or written; ``None`` where it does not apply.
        unpinned_bytes: Of ``bytes``, those copied from pageable memory (h2d only).
        seen: Occurrences looked at one by one; fewer than ``count`` when fast calls were drawn,
            which makes the counters estimates. ``None`` where that is not told.
        pairs: Occurrences with a GPU event right before and right after (sync and h2d only).
        pair_ns: Device time between those events, summed: idle GPU for a read, the transfer for a
            copy.
        pair_bytes: Bytes moved between those events.
        after_ns: Idle device time from the later event to the host's next wait, summed (sync only).
    """

    rank: int
    id: int
    kind: str
    file: str
    line: int
    func: str
    call: str
    label: str | None = None
    count: int = 0
    total_ns: int = 0
    bytes: int | None = None
    unpinned_bytes: int | None = None
    seen: int | None = None
    pairs: int | None = None
    pair_ns: int | None = None
    pair_bytes: int | None = None
    after_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step (all micro-batches of an accumulation; all optimizers of a GAN iteration).

    Attributes:
        t0_ns: End of the previous step's last optimizer call.
        t1_ns: End of this step's last optimizer call.
        labels: Host wall nanoseconds by label; sums to ``t1_ns - t0_ns``.
        exposed: GPU idle nanoseconds by label, from CUDA event pairs; ``None`` when this step
            carried no events. Absent keys were not measured.
        micro: Backward calls in the step.
        samples: Samples consumed, ``None`` when unknown.
        dry: Share (0..1) of the step's event edges that found the queue already empty (run-ahead
            lost); ``None`` without events.
        syncs: Blocking reads of CUDA tensors in the step.
        measured_ns: Part of the step whose label was measured by an edge rather than apportioned
            by the sampler, or after a recorded step. A step of which the probe recorded the end
            alone takes over ``micro``, ``samples`` and ``syncs`` as well.
    """

    rank: int
    index: int
    t0_ns: int
    t1_ns: int
    labels: Mapping[str, int]
    exposed: Mapping[str, int] | None = None
    micro: int = 1
    samples: int | None = None
    dry: float | None = None
    syncs: int = 0
    measured_ns: int = 0

    @property
    def wall_ns(self) -> int:
        """Wall time of the step."""
        return self.t1_ns - self.t0_ns


@dataclass(frozen=True, slots=True)
class Interval:
    """One occurrence of an interruption (a save, an evaluation, a gc pause, a compile)."""

    rank: int
    label: str
    t0_ns: int
    t1_ns: int
    site_id: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Allocator state at a step's end, or the trainer's private memory on a CPU-only run.

    ``basis`` is ``"cuda-allocator"`` or ``"rss-anon"``; for the latter only ``allocated`` is set
    (bytes of ``RssAnon``), the rest is ``None``.
    """

    rank: int
    t_ns: int
    step: int | None
    basis: str
    allocated: int
    reserved: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    retries: int | None = None
    ooms: int | None = None
    inactive_split: int | None = None


@dataclass(frozen=True, slots=True)
class UtilSample:
    """One driver utilisation sample (percent over the driver's own window, about 200 ms)."""

    t_ns: int
    uuid: str
    util: float


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a card. ``name`` is the kernel's (15 characters), if known."""

    pid: int
    name: str | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """Slow-changing NVML readings of one device, about once a second."""

    t_ns: int
    uuid: str
    memory_used: int | None = None
    memory_total: int | None = None
    memory_ours: int | None = None
    foreign_processes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    foreign_util: float | None = None  # percent of the time those processes kept it busy
    foreign: tuple[GpuProcess, ...] = ()  # those processes, the largest first; at most a few


@dataclass(frozen=True, slots=True)
class GpmSample:
    """One GPM reading (Hopper and newer), percent; NaN from the driver becomes ``None``."""

    t_ns: int
    uuid: str
    graphics: float | None = None
    sm: float | None = None
    sm_occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    pcie_rx_mib_per_s: float | None = None
    pcie_tx_mib_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProcSample:
    """One process of the run over the last interval. ``role`` is trainer, worker or other."""

    t_ns: int
    pid: int
    role: str
    cpu: float | None = None  # cores used, 1.0 = one core
    rss: int | None = None
    rss_anon: int | None = None
    uss: int | None = None
    read_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None
    state: str | None = None
    rank: int | None = None
    cpu_sys: float | None = None  # of ``cpu``, cores in the kernel
    run_delay: float | None = None  # cores it was ready for and did not get (schedstat)
    cpus_allowed: int | None = None  # its own affinity
    threads: int | None = None
    rchar_per_s: float | None = None  # bytes read, page cache included
    reads_per_s: float | None = None  # read calls
    major_faults_per_s: float | None = None
    main_cpu: float | None = None  # of ``cpu``, a trainer's main thread


@dataclass(frozen=True, slots=True)
class HostSample:
    """The machine as the run may use it, about once a second."""

    t_ns: int
    cpu_busy: float | None = None  # cores busy on the whole machine
    iowait: float | None = None  # cores waiting for I/O
    cpus_total: int | None = None
    cpus_allowed: int | None = None  # affinity
    cpu_quota: float | None = None  # cores, from the cgroup; None = unlimited or unknown
    mem_available: int | None = None
    mem_total: int | None = None
    mem_limit: int | None = None  # cgroup
    swap_in_bytes_per_s: float | None = None
    shm_used: int | None = None
    shm_total: int | None = None
    psi_cpu: float | None = None  # "some avg10", percent
    psi_io: float | None = None
    psi_memory: float | None = None
    load1: float | None = None
    mem_limit_used: int | None = None  # bytes charged to it, less cache soon reclaimed
    cores: tuple[int | None, ...] | None = None  # percent busy of each CPU of the machine
    disk_read_bytes_per_s: float | None = None  # all its disks
    disk_write_bytes_per_s: float | None = None
    net_rx_bytes_per_s: float | None = None  # all its network cards; RDMA does not show
    net_tx_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """What one process spent on the batches of one loader, since the loader was built.

    Attributes:
        worker: Its worker id; -1 = the training process (``num_workers=0``).
        pid: The newest process with that id.
        batches: Batches timed.
        fetch_ns: Whole fetch of them: items and ``collate_fn``.
        collate_ns: Of it, in ``collate_fn``.
        longest_ns: The longest single fetch.
        items: Items those batches were made of.
        starts: Processes that had this worker id, one after another.
    """

    worker: int
    pid: int | None = None
    batches: int = 0
    fetch_ns: int = 0
    collate_ns: int = 0
    longest_ns: int = 0
    items: int = 0
    starts: int = 1


@dataclass(frozen=True, slots=True)
class Loader:
    """A DataLoader as constructed, and its queue as last seen.

    Attributes:
        fetch: What its processes spent on batches; empty = not seen (workers that were not forked).
        source: Where its items are made (``Photos.__getitem__``); ``None`` where not known.
        collate: Where they are put together, if by code of the person's own.
        starts: Times its worker processes were started; ``start_ns`` is the training thread's time
            in it.
        first_waits: Waits for the first batch after a start or a new pass, ``first_wait_ns`` long.
        context: How workers are started (``fork``, ``spawn``, ``forkserver``).
    """

    rank: int
    id: int
    file: str
    line: int
    call: str
    dataset: str
    num_workers: int
    batch_size: int | None
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    iterable: bool
    length: int | None = None  # batches per epoch
    custom_batch_sampler: bool = False
    worker_pids: tuple[int, ...] = ()
    ready: int | None = None  # batches ready in the queue when last polled
    batches: int = 0  # next() calls seen on the training thread
    wait_ns: int = 0
    feeds_training: bool = False  # a backward followed its batches
    epochs: int = 0
    override: Mapping[str, Any] = field(default_factory=dict)
    fetch: tuple[Fetch, ...] = ()
    source: Where | None = None
    collate: Where | None = None
    dataset_length: int | None = None
    in_order: bool | None = None
    context: str | None = None
    starts: int = 0
    start_ns: int = 0
    first_waits: int = 0
    first_wait_ns: int = 0
