"""Advice in numbers from live values: what to change, from what to what, and what it will bring."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import call_text, ms, name, number, occurrences, percent, span
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Evidence, Gain, Interval, Loader, Where

#: An interruption rare enough not to matter (below the 3% floor with room to spare).
TARGET_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Periodic:
    """A recurring interruption: ``cost_ms`` every ``every`` steps of ``step_ms``.

    Attributes:
        every: Steps from one to the next; ``None`` when it was seen fewer than twice.
        share: Wall share it takes.
    """

    count: int
    cost_ms: float
    every: float | None
    step_ms: float
    share: float

    def share_at(self, every: float) -> float:
        """Wall share if it came every ``every`` steps."""
        return self.cost_ms / (every * self.step_ms + self.cost_ms)

    def summary(self, what: str) -> str:
        """One sentence: ``Evaluation takes 30% of the time: 1.2 s each, every 5 steps.``."""
        text = f"{what} takes {percent(self.share)} of the time: {ms(self.cost_ms)} each"
        if self.every is not None:
            return f"{text}, every {self.every:.0f} steps."
        return f"{text}, seen {'once' if self.count == 1 else f'{self.count} times'}."

    def evidence(self, what: str, one: str, many: str) -> tuple[Evidence, ...]:
        """Its numbers, in the words of the rule that claims it."""
        return (
            number(what, self.share, "of wall"),
            number(many, self.count),
            span(f"one {one}, mean", self.cost_ms),
            number(f"steps between {many}", self.every),
            span("step without it, mean", self.step_ms),
        )


def periodic(window: Window, label: str, share: float) -> Periodic:
    """Summarise the occurrences of one interruption inside the window.

    Occurrences without a finished step between them (model and optimizer saved by two calls) are
    one interruption.
    """
    groups = _groups(occurrences(window, label), window)
    totals = window.totals
    lost_ns = share * totals.wall_ns
    steps = max(1, totals.steps)
    every = None
    if len(groups) >= 2:
        first, last = groups[0][0].t0_ns, groups[-1][0].t0_ns
        between = sum(1 for s in window.steps if first < s.t1_ns <= last)
        if len(window.steps) < totals.steps:  # older steps live on as sums only
            between = round(totals.steps * (last - first) / max(1, totals.wall_ns))
        every = max(1.0, between / (len(groups) - 1))
    return Periodic(
        count=max(1, len(groups)),
        cost_ms=lost_ns / max(1, len(groups)) / 1e6,
        every=every,
        step_ms=(totals.wall_ns - lost_ns) / steps / 1e6,
        share=share,
    )


def _groups(intervals: list[Interval], window: Window) -> list[list[Interval]]:
    gap_ns = 0.5e6 * (window.median_ms or 0.0)
    groups: list[list[Interval]] = []
    for interval in intervals:
        if groups and interval.t0_ns - groups[-1][-1].t1_ns < gap_ns:
            groups[-1].append(interval)
        else:
            groups.append([interval])
    return groups


def rarer(pattern: Periodic) -> int | None:
    """A round number of steps at which the interruption takes about 1% of the time."""
    if pattern.every is None or pattern.step_ms <= 0:
        return None
    for factor in (2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000):
        every = round(pattern.every * factor)
        if pattern.share_at(every) <= TARGET_SHARE:
            return every
    return round(pattern.every * 1000)


def periodic_gain(pattern: Periodic, what: str) -> Gain:
    """``(nT + c) / (nT + c')``: the ceiling without it, the rarer setting below."""
    whole = 1 / (1 - pattern.share) if pattern.share < 0.995 else None
    every = rarer(pattern)
    if whole is None or every is None:
        return Gain(whole, None, f"time without {what}: T / (T - E)")
    reached = whole * (1 - pattern.share_at(every))
    basis = (
        f"(nT + c) / (nT + c'): n = {pattern.every:,.0f}, T = {ms(pattern.step_ms)}, "
        f"c = {ms(pattern.cost_ms)}"
    )
    return Gain(whole, (reached, whole), basis)


def checkpoint_advice(pattern: Periodic, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    """Rarer first, then asynchronous, then smaller."""
    line = f" ({name(places[0])})" if places else ""
    steps: list[Advice] = []
    every = rarer(pattern)
    if every is not None and pattern.every is not None:
        steps.append(
            Advice(
                f"Save less often{line}: every {pattern.every:,.0f} steps costs "
                f"{ms(pattern.cost_ms)} each; every {every:,} steps costs "
                f"{percent(pattern.share_at(every))} of the time instead of "
                f"{percent(pattern.share)}."
            )
        )
    steps.append(
        Advice(
            "Or write in the background: torch.distributed.checkpoint.async_save returns after "
            "the copy to host memory, or copy the state_dict and save it in a thread."
        )
    )
    steps.append(
        Advice("Leave the optimizer state out of copies you will not resume from (best, export).")
    )
    return tuple(steps)


def evaluation_advice(pattern: Periodic, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    """Rarer first, then a subset, then a larger batch."""
    line = f" ({name(places[0])})" if places else ""
    steps: list[Advice] = []
    every = rarer(pattern)
    if every is not None and pattern.every is not None:
        double = round(pattern.every * 5)
        steps.append(
            Advice(
                f"Evaluate less often{line}: every {pattern.every:,.0f} steps costs "
                f"{ms(pattern.cost_ms)} each; every {double:,} steps costs "
                f"{percent(pattern.share_at(double))} of the time, every {every:,} steps "
                f"{percent(pattern.share_at(every))}, instead of {percent(pattern.share)}."
            )
        )
    steps.append(Advice("Or evaluate on a fixed subset between full evaluations."))
    steps.append(
        Advice(
            "Evaluation needs no gradients: a larger batch under torch.inference_mode() and "
            "loader workers of its own shorten it."
        )
    )
    return tuple(steps)


# --- loading in the main process: how many workers, and what they bring ---------------------------

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


@dataclass(frozen=True, slots=True)
class LoadModel:
    """One step of a loop that loads in its main process.

    Attributes:
        prepare_ms: Wait in ``next()`` per step: the preparation of one step's batches.
        step_ms: Mean step.
        floor_ms: The step with no wait left: ``T - E``.
        cores: Cores the run may use.
        trainer_cores: Cores the trainer process keeps busy, measured; ``None`` = unknown.
        shared: True when the CPU is also what trains.
        threads: Intra-op threads of torch; ``None`` = unknown.
        foreign_cores: Cores that processes of others keep busy on the same CPUs.
    """

    prepare_ms: float
    step_ms: float
    floor_ms: float
    cores: float
    trainer_cores: float | None
    shared: bool
    threads: int | None = None
    foreign_cores: float = 0.0

    def step_with(self, workers: int, *, optimistic: bool) -> float:
        """Milliseconds per step with ``workers``: the slowest of trainer, workers and cores."""
        efficiency = BEST_EFFICIENCY if optimistic else self._worst_efficiency(workers)
        slower = 1.0 if optimistic else CONTENTION
        floor = self.floor_ms * slower
        prepare = self.prepare_ms * self._prepare_cores(optimistic) / efficiency
        cores = self.cores if optimistic else self._fair_cores(workers)
        loading = prepare / min(float(workers), cores)
        shared = (prepare + self._train_cpu(optimistic) * slower) / cores
        return max(floor, loading, shared)

    def _worst_efficiency(self, workers: int) -> float:
        crowded = self.cores >= SIBLINGS_FROM_CORES and workers > self.cores / 2
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
            return max(rest, self.trainer_cores * self.step_ms - self.prepare_ms)
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
    most = int(model.cores) if model.shared else int(model.cores) - 1
    most = max(1, min(most, MAX_WORKERS))
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
    cores = window.cores
    if cores is None or cores < 1 or not acc.step_ms:
        return None
    prepare = acc.ms(acc.shares.get("data_wait", 0.0))
    if prepare <= 0:
        return None
    flags = window.probe.get("flags") or {}
    threads = flags.get("threads")
    return LoadModel(
        prepare_ms=prepare,
        step_ms=acc.step_ms,
        floor_ms=acc.step_ms * (1 - lost),
        cores=cores,
        trainer_cores=role_cores(window, "trainer"),
        shared=not window.on_gpu,
        threads=threads if isinstance(threads, int) else None,
        foreign_cores=foreign_cores(window) or 0.0,
    )


def foreign_cores(window: Window) -> float | None:
    """Cores that processes outside this run keep busy; ``None`` where they may be other CPUs."""
    busy = [h.cpu_busy for h in window.host if h.cpu_busy is not None]
    last = window.host[-1] if window.host else None
    if last is None or not busy or last.cpus_total is None or window.cores != last.cpus_total:
        return None
    ours: dict[int, list[float]] = {}
    for p in window.procs:
        if p.cpu is not None:
            ours.setdefault(p.pid, []).append(p.cpu)
    mine = sum(sum(used) / len(used) for used in ours.values())
    return max(0.0, sum(busy) / len(busy) - mine)


def role_cores(window: Window, role: str) -> float | None:
    """Mean cores one process of this role keeps busy; ``None`` when not measured."""
    used = [p.cpu for p in window.procs if p.role == role and p.cpu is not None]
    return sum(used) / len(used) if used else None


def shorter_loader(loader: Loader) -> str:
    """The construction as written, cut to fit a line of advice."""
    text = call_text(loader.call) or "DataLoader(...)"
    return text if len(text) <= 60 else text[:57] + "..."
