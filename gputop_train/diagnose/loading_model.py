"""How many loader workers keep up, and what they bring: a model of rates. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import call_text
from gputop_train.diagnose.supply import supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Loader

#: A worker's batch costs more than the same batch in the main process: pickling, shared memory,
#: shared caches. CPU time per step rose by 2 to 35% with two workers on two cores (this project's
#: own demo, measured); the lower end allows for more.
BEST_EFFICIENCY, WORST_EFFICIENCY = 1.0, 0.65
#: Beyond half of the cores a worker may sit on the second thread of a busy core; two such threads
#: do about as much together as 1.0 to 1.3 cores (proposed; the store does not know the topology).
SIBLING_EFFICIENCY, SIBLINGS_FROM_CORES = 0.5, 4
#: The trainer runs slower beside busy workers: caches and memory bandwidth are shared (proposed).
CONTENTION = 1.15
#: More workers must shorten the step by this much to be advised (catalogue 2: "while >= 3%").
WORTH = 0.03
MAX_WORKERS = 32
#: Half a core of other programs is worth a line of evidence.
BUSY_NEIGHBOUR = 0.5
#: A worker that computes has a core where at least so much of one is idle (proposed: with 0.1 of 2
#: cores idle beside other programs one worker made training 0.67 to 0.9 times as fast).
HAS_CORE = 0.5
#: A trainer whose whole CPU time fills less than this part of preparation waits in it (proposed):
#: such a worker needs less than a core.
WAITS_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class LoadModel:
    """One step of a loop that loads in its main process.

    Attributes:
        prepare_ms: Wait in ``next()`` per step: the preparation of one step's batches. Not what
            the loop itself does to them: that stays where it is, whatever the workers.
        step_ms: Mean step.
        floor_ms: The step with no wait left: ``T - E``.
        cores: Cores the run may use.
        trainer_cores: Cores the trainer process keeps busy, measured; ``None`` = unknown.
        shared: True when the CPU is also what trains.
        threads: Intra-op threads of torch; ``None`` = unknown.
        foreign_cores: Cores that processes of others keep busy on the same CPUs.
        prepare_cpu: Cores that preparing a batch keeps busy; below one where it waits for storage.
    """

    prepare_ms: float
    step_ms: float
    floor_ms: float
    cores: float
    trainer_cores: float | None
    shared: bool
    threads: int | None = None
    foreign_cores: float = 0.0
    prepare_cpu: float = 1.0

    def step_with(self, workers: int, *, optimistic: bool) -> float:
        """Milliseconds per step with ``workers``: the slowest of trainer, workers and cores."""
        efficiency = BEST_EFFICIENCY if optimistic else self._worst_efficiency(workers)
        slower = 1.0 if optimistic else CONTENTION
        floor = self.floor_ms * slower
        prepare = self.prepare_ms * self._prepare_cores(optimistic) / efficiency
        cores = self.cores if optimistic else self._fair_cores(workers)
        loading = prepare / min(float(workers), cores / self.prepare_cpu)
        shared = (prepare * self.prepare_cpu + self._train_cpu(optimistic) * slower) / cores
        return max(floor, loading, shared)

    def _worst_efficiency(self, workers: int) -> float:
        busy = workers * self.prepare_cpu
        crowded = self.cores >= SIBLINGS_FROM_CORES and busy > self.cores / 2
        return SIBLING_EFFICIENCY if crowded else WORST_EFFICIENCY

    def _fair_cores(self, workers: int) -> float:
        """Cores that a trainer and its workers get beside others, in units of what one gets now.

        The scheduler shares by runnable processes, and the measured step already holds what the
        trainer alone had to wait for.
        """
        ours = workers + 1.0
        together = min(self.cores, self.cores * ours / (ours + self.foreign_cores))
        alone = min(1.0, self.cores / (1.0 + self.foreign_cores))
        return max(1.0, min(self.cores, together / alone))

    def _prepare_cores(self, optimistic: bool) -> float:
        # Preparation that used several threads in the main process gets one in a worker.
        if optimistic or self.trainer_cores is None or self.trainer_cores <= 1.2:
            return 1.0
        busy_ms = self.trainer_cores * self.step_ms - (self.step_ms - self.prepare_ms)
        return min(self.cores, max(1.0, busy_ms / self.prepare_ms))

    def _train_cpu(self, optimistic: bool) -> float:
        """CPU milliseconds per step of everything but preparation."""
        rest = self.step_ms - self.prepare_ms
        if not self.shared:
            return rest  # the thread that feeds the GPU keeps one core
        if self.trainer_cores is not None:
            # Nothing fills more than every core: what is above it was used while preparing, by
            # threads that compute there or spin after a parallel region.
            used = self.trainer_cores * self.step_ms - self.prepare_ms
            return min(rest * self.cores, max(rest, used))
        return rest if optimistic else rest * min(self.cores, float(self.threads or 1))


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How many workers, and the speed-up to expect of exactly that number."""

    workers: int
    low: float
    high: float


def plan_workers(model: LoadModel) -> WorkerPlan:
    """The fewest workers after which another one brings less than 3%.

    A GPU run keeps one core for the trainer. Where the CPU trains, workers may use every core:
    the model already charges them for the trainer's share.
    """
    room = model.cores if model.shared else model.cores - 1
    most = max(1, min(int(room / model.prepare_cpu), MAX_WORKERS))
    middle = [
        (model.step_with(w, optimistic=True) + model.step_with(w, optimistic=False)) / 2
        for w in range(1, most + 1)
    ]
    best = min(middle)
    workers = next(i + 1 for i, t in enumerate(middle) if t <= best * (1 + WORTH))
    high = model.step_ms / model.step_with(workers, optimistic=True)
    low = model.step_ms / model.step_with(workers, optimistic=False)
    return WorkerPlan(workers, min(low, high), high)


def load_model(window: Window, lost: float) -> LoadModel | None:
    """The model of this window, or ``None`` when the usable cores are unknown."""
    acc = account(window)
    cores = rank_cores(window)
    if cores is None or cores <= 0 or not acc.step_ms:
        return None
    part = supply_of(window).in_next
    prepare = acc.ms(acc.shares.get("data_wait", 0.0) * part)
    if prepare <= 0:
        return None
    trainer = role_cores(window, "trainer")
    return LoadModel(
        prepare_ms=prepare,
        step_ms=acc.step_ms,
        floor_ms=acc.step_ms * (1 - lost * part),
        cores=max(1.0, cores),
        trainer_cores=trainer,
        shared=not window.on_gpu,
        threads=torch_threads(window),
        foreign_cores=foreign_cores(window) or 0.0,
        prepare_cpu=_prepare_cpu(trainer, acc.step_ms, prepare, shared=not window.on_gpu),
    )


def _prepare_cpu(
    trainer: float | None, step_ms: float, prepare_ms: float, *, shared: bool
) -> float:
    """Cores that preparation keeps busy at most: what the trainer uses, over its time.

    Less a core while it trains where the CPU is what trains: that it computes there is sure.
    """
    if trainer is None:
        return 1.0
    used = trainer * step_ms
    if shared:
        used -= min(step_ms - prepare_ms, 0.5 * used)
    most = used / prepare_ms
    return 1.0 if most >= WAITS_BELOW else max(0.05, most)


def foreign_cores(window: Window) -> float | None:
    """Cores that processes outside this run keep busy; ``None`` where they may be other CPUs."""
    busy = [h.cpu_busy for h in window.host if h.cpu_busy is not None]
    last = window.host[-1] if window.host else None
    if last is None or not busy or last.cpus_total is None or window.cores != last.cpus_total:
        return None
    return max(0.0, sum(busy) / len(busy) - run_cores(window))


def crowded_out(window: Window) -> bool:
    """Whether other programs leave no core for one more process that computes."""
    others = foreign_cores(window)
    if others is None or window.cores is None or others < BUSY_NEIGHBOUR:
        return False
    return window.cores - run_cores(window) - others < HAS_CORE


def run_cores(window: Window, *, wanted: bool = False) -> float:
    """Cores that this run's processes keep busy, or those they are ready for as well."""
    ours: dict[int, list[float]] = {}
    for p in window.procs:
        if p.cpu is not None:
            ours.setdefault(p.pid, []).append(p.cpu + ((p.run_delay or 0.0) if wanted else 0.0))
    return sum(sum(used) / len(used) for used in ours.values())


def torch_threads(window: Window) -> int | None:
    """Intra-op threads of torch; ``None`` = unknown."""
    flags = window.probe.get("flags")
    threads = flags.get("threads") if isinstance(flags, Mapping) else None
    return threads if isinstance(threads, int) else None


def rank_cores(window: Window) -> float | None:
    """Cores for one rank: those the run may use over the ranks that train on them here."""
    ranks = len({ld.rank for ld in window.loaders if ld.feeds_training})
    return None if window.cores is None else window.cores / max(1, ranks)


def role_cores(window: Window, role: str) -> float | None:
    """Mean cores one process of this role keeps busy; ``None`` when not measured."""
    used = [p.cpu for p in window.procs if p.role == role and p.cpu is not None]
    return sum(used) / len(used) if used else None


def training_thread(window: Window) -> float | None:
    """Part of the wall that the training thread computes or is ready to; ``None`` = not read."""
    used = [
        p.main_cpu + (p.run_delay or 0.0)
        for p in window.procs
        if p.role == "trainer" and p.main_cpu is not None
    ]
    return sum(used) / len(used) if used else None


def shorter_loader(loader: Loader) -> str:
    """The construction as written, cut to fit a line of advice."""
    text = _balanced(call_text(loader.call)) or "DataLoader(...)"
    return text if len(text) <= 60 else text[:57] + "..."


def _balanced(text: str) -> str:
    """A call without what follows it on its line: ``DataLoader(rows))`` inside another call."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and depth == 0:
            return text[: at + 1]
    return text
