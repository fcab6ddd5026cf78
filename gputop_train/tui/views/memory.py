"""What the memory page shows."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.model import GpuProcess

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class GrowthView:
    """How what is held after a step moves.

    Attributes:
        per_step: Bytes; ``None`` = no growth that could be told from noise, or not judged.
        steps: Steps it was seen over.
        full_s: Seconds until memory runs out at this rate.
        why: Why there is no growth to name, in words.
    """

    per_step: float | None = None
    steps: float | None = None
    full_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the run's processes and of the machine, in bytes.

    Attributes:
        trainers, trainer_private: How many there are, and their private pages together.
        workers, worker_private: The same of loader workers, their shared pages left out (USS)
            where ``worker_basis`` says so.
        limit, charged: The cgroup's limit, and what counts towards it.
    """

    trainers: int = 0
    trainer_private: int | None = None
    trainer_rss: int | None = None
    workers: int = 0
    worker_private: int | None = None
    worker_basis: str = ""
    available: int | None = None
    total: int | None = None
    limit: int | None = None
    charged: int | None = None
    swap_in: float | None = None
    shm_used: int | None = None
    shm_total: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryPageView:
    """The page. Bytes; ``basis`` as in `model.MemorySample`.

    Attributes:
        device: The GPU by name; empty on the CPU.
        ranks: Ranks there are readings of.
        total: Of the device, or of the machine within the cgroup's limit.
        used: On the device by the driver's count, whoever holds it.
        ours: Of it, by this run's processes: the allocator's pool, CUDA's context and libraries.
        foreign: Processes of others on the device.
        held: What tensors are of, as last counted, the largest first.
        held_step: The step it was counted at.
        split: Of what is reserved and free, in blocks that cannot be given back.
        oom: The last out-of-memory error, as lines.
        used_history, reserved_history, allocated_history, peak_history: A value per bin.
        worker_history: Private memory of all loader workers (CPU runs).
    """

    basis: str
    rank: int
    device: str = ""
    ranks: int = 1
    total: int | None = None
    used: int | None = None
    ours: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    foreign_count: int | None = None
    foreign: tuple[GpuProcess, ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    held_step: int | None = None
    held_partial: bool = False
    split: int | None = None
    retries: int | None = None
    ooms: int | None = None
    growth: GrowthView = GrowthView()
    host: HostMemory | None = None
    oom: tuple[str, ...] = ()
    used_history: Values = ()
    reserved_history: Values = ()
    allocated_history: Values = ()
    peak_history: Values = ()
    worker_history: Values = ()
