"""GPUs and the host as the devices page shows them."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.model import GpuProcess

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity over the time axis.

    Attributes:
        name: What it is, in a word or two.
        values: A value per bin; ``None`` = not measured.
        top: The end of its scale, which begins at 0.
        now: The newest value in words; empty = none.
        scale: ``top`` in words.
        ink: Its colour's role.
    """

    name: str
    values: Values
    top: float
    now: str = ""
    scale: str = ""
    ink: str = "gpu"


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU, or one MIG instance.

    Attributes:
        label: Its number, as ``nvidia-smi`` counts; a MIG instance has its card's and a letter.
        name: The model, without the maker; empty = not known.
        mig: Whether it is a MIG instance: what is measured of whole cards only is not there.
        ranks: Which ranks of this host compute on it, where they told.
        age_s: Seconds since its last reading; ``None`` without any.
        util: Percent of the last seconds, as the driver counts.
        sm: SM activity over the last seconds, percent.
        memory_ours: Of ``memory_used``, held by this run.
        throttle: Why its clocks are held down, in words; empty = nothing does; ``None`` = not told.
        others: How many processes beside this run's compute on it.
        others_util: Percent of the time these kept it busy.
        foreign: Those processes, as far as they are named.
        history: Utilisation, a value per bin, or SM activity where only that is measured.
        history_of: Which of them: ``util`` or ``SM``.
    """

    uuid: str
    label: str
    name: str = ""
    mig: bool = False
    ranks: tuple[int, ...] = ()
    age_s: float | None = None
    util: float | None = None
    sm: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_ours: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    link: str = ""
    rx: float | None = None
    tx: float | None = None
    others: int | None = None
    others_util: float | None = None
    foreign: tuple[GpuProcess, ...] = ()
    history: Values = ()
    history_of: str = "util"


@dataclass(frozen=True, slots=True)
class HostDevices:
    """The machine: cores, memory, disks, network. Rates are bytes/s; ``psi`` is percent held up.

    Attributes:
        cores: Percent busy of each CPU.
        allowed: Cores this run may use.
        memory_limit: The cgroup's, in bytes.
        memory_charged: Bytes charged to it.
        curves: Over the time axis.
    """

    cores: tuple[int | None, ...] = ()
    busy: float | None = None
    total: int | None = None
    allowed: float | None = None
    iowait: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_limit: int | None = None
    memory_charged: int | None = None
    swap_in: float | None = None
    shm_used: int | None = None
    shm_total: int | None = None
    disk_read: float | None = None
    disk_write: float | None = None
    net_rx: float | None = None
    net_tx: float | None = None
    psi: tuple[tuple[str, float], ...] = ()
    curves: tuple[Quantity, ...] = ()


@dataclass(frozen=True, slots=True)
class DevicesView:
    """The page.

    Attributes:
        missing: Why GPU readings are absent, in a sentence; empty = they are not.
        zoom: Which GPU ``curves`` are of; ``None`` = of none.
    """

    gpus: tuple[GpuView, ...] = ()
    host: HostDevices | None = None
    missing: str = ""
    zoom: int | None = None
    curves: tuple[Quantity, ...] = ()
