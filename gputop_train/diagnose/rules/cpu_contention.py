"""``cpu-contention``: other programs have the cores that training waits for.

Looks for: the training thread ready to run and without a core for >= 10% of the wall (schedstat;
information; from 25% a warning; proposed), while processes outside this run keep half a core or
more busy (proposed) on CPUs that are all this run's to use, and the run alone would fit. Where a
GPU trains, only as long as it is idle. It never stands before a cause in the script.
Differential: the run's own workers and threads fight for cores (``cpu-oversubscription``); few
cores allowed of many (``cpu-affinity``); another program on the GPU (``gpu-contention``).
Fix: cores of its own; as many threads as cores are free. Probe: stop the others for 50 steps.
Gain: a lower bound: threads that meet at the end of every operation wait for the last of them, so a
step can be 20 times as long for one core taken of two (this project's own run, CPU, 2026-11-30).
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.loading_model import (
    BUSY_NEIGHBOUR,
    foreign_cores,
    role_cores,
    run_cores,
    torch_threads,
)
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    gain,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.supply import mean
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "cpu-contention"
#: Part of the wall that the training thread was ready and had no core (proposed).
DENIED, WARN = 0.10, 0.25
#: Cores beyond those there are that the run may want and still be no fight of its own (proposed).
FITS = 0.25
#: Lost to a neighbour, a third of the time and more is critical (proposed).
CRITICAL = 1 / 3
#: Samples, seconds apart, below which a single visitor could be all that was met (proposed).
MIN_SAMPLES = 5


def judge(window: Window) -> Judgement:
    """Judge one window."""
    delays = [p.run_delay for p in window.procs if p.role == "trainer" and p.run_delay is not None]
    others = foreign_cores(window)
    if not delays:
        return Abstention(ID, "time the training thread waited for a core (schedstat)")
    if len(delays) < MIN_SAMPLES:
        return RuledOut(ID, f"not judged before {MIN_SAMPLES} samples")
    denied = min(1.0, mean(delays) or 0.0)
    if denied < DENIED:
        return RuledOut(ID, f"training waited for a core {percent(denied)} of the time")
    if others is None or window.cores is None:
        return Abstention(ID, "cores that programs outside this run keep busy")
    if others < BUSY_NEIGHBOUR:
        return RuledOut(ID, f"other programs keep {others:.1f} cores busy")
    wanted = run_cores(window, wanted=True)
    if wanted > window.cores + FITS:
        return RuledOut(ID, f"the run itself wants {wanted:.1f} of {window.cores:.3g} cores")
    lost = denied
    if window.on_gpu:
        busy = account(window).busy_most
        if busy is None:
            return Abstention(ID, "how long the GPU was idle")
        lost = min(denied, max(0.0, 1 - busy))
        if lost < DENIED:
            return RuledOut(ID, f"the GPU is idle for {percent(lost)} of the time")
    return _finding(window, window.cores, others, denied, lost)


def _finding(window: Window, cores: float, others: float, denied: float, lost: float) -> Finding:
    free = max(1, round(cores - others))
    threads = torch_threads(window)
    taken = f"{others:.1f} of {cores:.3g} cores"
    advice = [
        Advice(
            f"Give training cores of its own: programs outside this run keep {taken} busy (top "
            "shows them). Stop them, move them (taskset -cp), or ask for a node or for CPUs that "
            "nobody else has (SLURM: --exclusive, --cpus-per-task)."
        )
    ]
    if threads is not None and threads > free:
        advice.append(
            Advice(
                f"While they stay: torch.set_num_threads({free}), now {threads}. Every operation "
                "waits for the last of its threads, and that one is waiting for a core."
            )
        )
    return Finding(
        id=ID,
        summary=(
            f"Training was ready to run and had no core for {percent(denied)} of the time: other "
            f"programs keep {taken} busy."
        ),
        severity=severity(lost, window.totals.steps, warn=WARN, critical=CRITICAL),
        confidence="high" if denied >= WARN else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                number("training thread ready without a core", denied, "of wall"),
                number("busy with other programs", others, "cores"),
                number("CPU of the trainer", role_cores(window, "trainer"), "cores"),
                number("threads of torch", threads),
            )
            if row.value is not None
        ),
        where=(),
        where_missing="other programs have the cores",
        advice=tuple(advice),
        gain=gain(lost, "T / (T - E), E the time without a core", at_least=True),
    )


PAGE = Page(
    number=20,
    title="Other programs have the cores",
    meaning=(
        "The training thread is ready to run and has no core, because programs outside this run "
        "use them. Where torch computes with several threads each operation waits for the one "
        "that has none, so every phase of the step becomes longer, by far more than the share "
        "that was taken."
    ),
    looks_at=(
        "time the training thread was ready to run and had no core (schedstat)",
        "how busy the CPUs are, less what the run's own processes use",
        "how busy the GPU is, where one trains",
    ),
    thresholds=(
        Threshold("ready without a core", f">= {percent(DENIED)} of wall", "proposed"),
        Threshold("the same, a warning", f">= {percent(WARN)} of wall", "proposed"),
        Threshold("other programs", f">= {BUSY_NEIGHBOUR} cores", "proposed"),
        Threshold("the run alone", f"<= its cores + {FITS}", "proposed"),
        Threshold("samples", f">= {MIN_SAMPLES}", "proposed"),
    ),
    mistaken_for=(
        "cpu-oversubscription: the run's own workers want more cores than there are",
        "cpu-affinity: the machine has cores that the run may not use",
        "gpu-contention: another program on the GPU",
        "a container's quota: what others use there is not known, and nothing is said",
    ),
    mend=("cores of its own", "as many threads as there are cores free"),
    test="the same run while the other programs are stopped",
    gain="at least `T / (T - E)`",
)
RULE = Rule(ID, 129, judge, probe="stop the other program for 50 steps", page=PAGE)
