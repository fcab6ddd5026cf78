"""``cpu-affinity``: the run may use a few of the machine's cores, and its workers share them.

Looks for: CPUs allowed to the run or to its workers (affinity mask or cgroup quota) fewer than
min(4, workers + 1), at most half of the machine's, E_data / T >= 10% (catalogue 46), and in demand:
trainer and workers used, or were ready to run on, 1.25 times as many and the workers went without
half a core (schedstat; proposed); where the kernel does not tell, they fill 75% of them. Asked
after the causes whose own counters hold whatever the cores: respawn, idle workers, collate_fn.
Differential: enough cores and too many threads (``cpu-oversubscription``); workers that wait for
storage leave their few cores idle; workers each bound to a core of its own run at full speed.
Fix: widen the mask. More workers would share the same cores. Probe: ``taskset -c 0-N`` the same
run. Gain: T / max(T - E, T x cores used / cores wanted).
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.loading_advice import bounded, loader_at, places
from gputop_train.diagnose.loading_model import WORST_EFFICIENCY, role_cores
from gputop_train.diagnose.rules.base import (
    WARN,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    cores,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.supply import Supply, pace_of, supply_of, total
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Loader

ID = "cpu-affinity"
#: Fewer than this, or than workers and trainer need (catalogue 46; proposed there).
FEW_CPUS = 4
#: "Far below the machine's cores" (proposed).
PART_OF_MACHINE = 0.5
#: The allowed cores are in use from here on; above, the mask is not what it seems (proposed).
IN_USE, NOT_SHARED = 0.75, 1.25
#: Cores the workers were ready for and did not get (proposed).
DENIED = 0.5


@dataclass(frozen=True, slots=True)
class Mask:
    """The CPUs a loader's workers may use.

    Attributes:
        allowed: Cores, for all workers together.
        of: Cores of the machine.
        by: ``affinity mask``, ``cgroup quota`` or ``the workers' own mask``.
        used: Cores in use within them; ``None`` = not measured.
    """

    allowed: float
    of: int
    by: str
    used: float | None


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the few cores allowed are what the workers wait for."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or loader.num_workers == 0:
        return RuledOut(ID, "there are no workers to share the cores")
    mask = _mask(window, supply)
    if mask is None:
        return Abstention(ID, "cores the run may use, and cores of the machine")
    enough = min(FEW_CPUS, loader.num_workers + 1)
    if mask.allowed >= enough or mask.allowed > PART_OF_MACHINE * mask.of:
        return RuledOut(ID, f"{mask.allowed:.3g} of {mask.of} cores may be used")
    if found.lost_share < WARN:
        return RuledOut(ID, f"the wait is below {percent(WARN)}")
    if mask.used is None:
        return Abstention(ID, "CPU use of the workers")
    delay = total(supply.workers, lambda w: w.delay)
    if mask.used > NOT_SHARED * mask.allowed:
        return RuledOut(ID, f"they use {mask.used:.2g} cores: each has a mask of its own")
    if delay is None and mask.used < IN_USE * mask.allowed:
        return RuledOut(ID, f"{mask.used:.2g} of the {mask.allowed:.3g} allowed cores are in use")
    # Other programs may sit on the same cores: what the workers ask for tells, not what they got.
    if delay is not None and (delay < DENIED or mask.used + delay < NOT_SHARED * mask.allowed):
        return RuledOut(ID, "the workers got the CPU time they were ready for")
    return _named(window, found, supply, loader, mask, delay)


def _mask(window: Window, supply: Supply) -> Mask | None:
    last = window.host[-1] if window.host else None
    whole, allowed = (last.cpus_total if last else None), window.cores
    if whole is None or allowed is None:
        return None
    workers = total(supply.workers, lambda w: w.cpu)
    trainer = role_cores(window, "trainer") or 0.0
    own = median([float(w.allowed) for w in supply.workers if w.allowed is not None])
    if own is not None and own < allowed:
        return Mask(own, whole, "the workers' own mask", workers)
    quota = last.cpu_quota if last is not None else None
    by = "cgroup quota" if quota is not None and quota <= allowed else "affinity mask"
    return Mask(allowed, whole, by, None if workers is None else workers + trainer)


def _named(
    window: Window,
    found: Finding,
    supply: Supply,
    loader: Loader,
    mask: Mask,
    delay: float | None,
) -> Refinement:
    pace = pace_of(window, found, supply)
    workers = loader.num_workers
    busy = total(supply.workers, lambda w: w.cpu) or mask.allowed
    wanted = min(float(workers), mask.of - 1.0)
    if delay is not None:
        wanted = min(wanted, busy + delay)
    reached = pace.step_ms * min(1.0, busy / max(wanted, busy))
    # With the mask gone the loader has the machine: what is left then is another cause.
    covers = pace.covers(pace.step_ms * min(1.0, busy / max(1.0, mask.of - 1.0)))
    need = min(mask.of, workers + 1)
    in_use = mask.used is not None and mask.used >= IN_USE * mask.allowed
    cure = {
        "cgroup quota": f"give the container or job {need} CPUs (docker --cpus={need}, the cpu "
        "limit of the pod, --cpus-per-task)",
        "affinity mask": f"widen it to {need} (taskset -c 0-{need - 1}, the launcher's --cpu-bind, "
        "os.sched_setaffinity, OMP_PLACES)",
        "the workers' own mask": f"let them use {need} (os.sched_setaffinity in worker_init_fn "
        "or an imported library)",
    }[mask.by]
    few = f"{mask.allowed:.3g} of {mask.of} cores"
    return Refinement(
        ID,
        supply.part * covers,
        f"{workers} workers and the trainer share {few} ({mask.by}).",
        confidence="high" if delay is not None and in_use else "medium",
        evidence=(
            number("cores the workers may use", mask.allowed, f"cores of {mask.of}"),
            cores("in use of them", mask.used),
            cores("ready to run without a core, all workers", delay),
        ),
        where=places(window, supply),
        advice=(
            Advice(
                f"{few} is {_the(mask.by)}, for {workers} workers{loader_at(loader)} and the "
                f"trainer: {cure}. num_workers stays {workers}: more would share the same "
                f"{mask.allowed:.3g}."
            ),
            Advice(
                f"If it cannot be widened: make one item cheaper{_code(loader)}; "
                f"{few} are the limit whatever num_workers is."
            ),
        ),
        gain=bounded(
            found,
            pace.speedup(reached / WORST_EFFICIENCY),
            pace.speedup(reached),
            f"T x {busy:.2g} cores used / {wanted:.2g} wanted by {workers} workers, at most what "
            "training allows",
        ),
        severity=severity(found.lost_share, window.totals.steps),
    )


def _the(mask: str) -> str:
    return mask if mask.startswith("the ") else f"the {mask}"


def _code(loader: Loader) -> str:
    place = loader.source
    return f" ({place.what})" if place is not None else ""


PAGE = Page(
    number=46,
    title="Few cores of many may be used",
    meaning=(
        "The process is bound to a few of the machine's cores (a launcher's binding, taskset, a "
        "library that sets affinity, a container's limit), and all workers share them: each runs "
        "at a fraction of a core, and more workers change nothing."
    ),
    looks_at=(
        "the affinity mask of the trainer and of each worker",
        "the cgroup's CPU quota, and the cores of the machine",
        "CPU use of trainer and workers beside that number",
        "time the workers were ready to run and had no core (schedstat)",
    ),
    thresholds=(
        Threshold("cores allowed", f"< min({FEW_CPUS}, workers + 1)", "proposed"),
        Threshold("of the machine's", f"<= {percent(PART_OF_MACHINE)}", "proposed"),
        Threshold("lost to data wait", f">= {percent(WARN)} of wall", "proposed"),
        Threshold(
            "in demand: in use, and ready to run without a core (schedstat)",
            f">= {percent(NOT_SHARED)} of them, >= {DENIED} cores without",
            "proposed",
        ),
        Threshold("without schedstat: in use of them", f">= {percent(IN_USE)}", "proposed"),
    ),
    mistaken_for=(
        "cpu-oversubscription: the cores are there, but too many threads",
        "fetch-stall: the few cores are idle, the workers wait for storage",
        "workers bound to a core each: together they use more than one mask allows",
        "worker-respawn, idle-workers, slow-collate: shown by counters of their own, asked first",
    ),
    mend=("widen the mask or the quota to workers + 1", "not more workers"),
    test="the same run under taskset -c 0-N",
    gain="T / max(T - E, T x cores used / cores wanted)",
)
RULE = Rule(
    ID,
    304,
    probe="the same run with the mask widened",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
