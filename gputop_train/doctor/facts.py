"""What the checks judge: facts of one machine and one interpreter; ``None`` = not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop_train.collect.devices import Device


@dataclass(frozen=True, slots=True)
class Asked:
    """What an interpreter answered to one question.

    Attributes:
        facts: Its answers; one that is missing was not given.
        exit_code: As of ``subprocess``; ``None`` when it was ended by us or never started.
        timed_out: The time was up.
        error: Why it could not be started.
        stderr: The end of what it complained of.
        limit_s: The seconds it had.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    timed_out: bool = False
    error: str | None = None
    stderr: str = ""
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter that scripts will use.

    Attributes:
        path: Where it is; ``None`` when there is none.
        problem: Why there is none, with what to do.
        about: Who it is and what is installed.
        torch: What importing torch showed; ``None`` when it was not tried.
        entered: A ``sitecustomize`` on ``PYTHONPATH`` got in; ``None`` when not tried.
    """

    path: str | None = None
    problem: str | None = None
    about: Asked | None = None
    torch: Asked | None = None
    entered: bool | None = None

    @property
    def version(self) -> tuple[int, ...] | None:
        """Of Python."""
        told = self.about.facts.get("version") if self.about else None
        return tuple(told) if told else None

    @property
    def torch_facts(self) -> Mapping[str, Any]:
        """What torch told of itself; empty when it was not asked."""
        return self.torch.facts if self.torch else {}


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, or one MIG instance of one.

    Attributes:
        capability: Compute capability, such as ``(9, 0)``.
        mig: Whether the card is cut into instances.
        persistence: The driver stays loaded for the card.
        memory_used: Bytes, of everybody.
        memory_total: Bytes.
        processes: Compute processes and their bytes, those one may see; ``None`` = refused.
        throttle: Bits of ``nvmlClocksEventReasons``.
        repair_pending: Bad memory waits for a reset of the card to be mapped out.
        ecc_errors: Uncorrected errors since the driver was loaded.
        gpm: Hopper's counters can be read.
        compute_mode: ``nvmlComputeMode_t``: 0 default, 2 prohibited, 3 exclusive process.
    """

    device: Device
    capability: tuple[int, int] | None = None
    mig: bool = False
    persistence: bool | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    processes: tuple[tuple[int, int | None], ...] | None = None
    throttle: int | None = None
    repair_pending: bool | None = None
    ecc_errors: int | None = None
    gpm: bool | None = None
    compute_mode: int | None = None


@dataclass(frozen=True, slots=True)
class Gpus:
    """What the NVIDIA driver shows, and what the machine shows of it.

    Attributes:
        failure: NVML's code (``nvmlReturn_t``) and the sentence for it; ``None`` = it works.
        hung: It did not answer in time.
        driver: Its version.
        cuda: Newest CUDA the driver supports.
        cards: Whole cards in PCI order.
        instances: MIG instances.
        on_pci: NVIDIA display or compute devices on the PCI bus.
        refused: Device files that are there and closed to us.
    """

    failure: tuple[int | None, str] | None = None
    hung: bool = False
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    cards: tuple[Card, ...] = ()
    instances: tuple[Card, ...] = ()
    on_pci: int | None = None
    refused: tuple[str, ...] = ()

    @property
    def names(self) -> str:
        """The cards in words, such as ``2 NVIDIA H200``."""
        kinds: dict[str, int] = {}
        for card in self.cards:
            name = card.device.name or "GPU of unknown name"
            kinds[name] = kinds.get(name, 0) + 1
        return ", ".join(f"{count} {name}" for name, count in kinds.items())


@dataclass(frozen=True, slots=True)
class Host:
    """What the kernel allows a process here.

    Attributes:
        shm_total: Bytes of ``/dev/shm``; 0 = a tmpfs without a limit; ``None`` = there is none.
        shm_free: Bytes.
        shm_writable: By us.
        nofile: Soft and hard limit of open files; -1 = none.
        nproc: Soft limit of this user's threads; -1 = none.
        threads: How many there are.
        pids_left: Threads the control group still allows.
        memlock: Bytes that may be locked; -1 = no limit.
        address_space: Bytes a process may map; -1 = no limit.
        online: Cores of the machine.
        affinity: Cores we may run on.
        quota: Cores the control group pays for; ``None`` = no limit.
        memory: Bytes of the machine.
        memory_limit: Bytes the control group allows; ``None`` = no limit.
        memory_used: Bytes charged to it, with a limit.
        infiniband: There are InfiniBand or RoCE adapters.
        yama: ``kernel.yama.ptrace_scope``; ``None`` = the kernel has no yama.
        traces_all: We have ``CAP_SYS_PTRACE``.
        py_spy: Where py-spy is.
        initial_pids: Our PIDs are the host's.
        container: What says that we are in one.
        clocksource: The kernel's.
        year: Of the wall clock.
    """

    shm_total: int | None = None
    shm_free: int | None = None
    shm_writable: bool | None = None
    nofile: tuple[int, int] | None = None
    nproc: int | None = None
    threads: int | None = None
    pids_left: int | None = None
    memlock: int | None = None
    address_space: int | None = None
    online: int | None = None
    affinity: int | None = None
    quota: float | None = None
    memory: int | None = None
    memory_limit: int | None = None
    memory_used: int | None = None
    infiniband: bool = False
    yama: int | None = None
    traces_all: bool | None = None
    py_spy: str | None = None
    initial_pids: bool | None = None
    container: str | None = None
    clocksource: str | None = None
    year: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that files of ours go to, as it is now.

    Attributes:
        path: Where it is to be.
        nearest: It, or the nearest parent that exists.
        problem: Why nothing can be made there.
        owner: User id of ``nearest``.
        mode: Permission bits of ``path``; ``None`` while it does not exist.
        file_system: Its type.
        remote: It is served over a network.
        free: Bytes left to us.
        free_files: Files left to us; ``None`` where the file system does not count them.
    """

    path: Path
    nearest: Path
    problem: str | None = None
    owner: int | None = None
    mode: int | None = None
    file_system: str | None = None
    remote: bool = False
    free: int | None = None
    free_files: int | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """Where a run's files would go.

    Attributes:
        root: The run root.
        store: Where the store goes when the root is remote; ``None`` = nowhere local.
        ring: Of the probe's data; ``None`` = nowhere.
        ring_refused: Better places, and why not there.
        config: The config file, if it exists.
        config_problem: What is wrong with it.
    """

    root: Place
    store: Path | None = None
    ring: Path | None = None
    ring_refused: tuple[str, ...] = ()
    config: Path | None = None
    config_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Terminal:
    """What shows the screen.

    Attributes:
        is_terminal: stdin and stdout are one.
        reason: Why the screen cannot be shown, in words.
        columns: Width.
        rows: Height.
        utf8: Our output speaks UTF-8.
        over_ssh: It is far away.
    """

    is_terminal: bool = False
    reason: str | None = None
    columns: int | None = None
    rows: int | None = None
    utf8: bool | None = None
    over_ssh: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """All of them, and the environment a run would get."""

    interpreter: Interpreter
    gpus: Gpus
    host: Host
    places: Places
    terminal: Terminal
    environ: Mapping[str, str]
