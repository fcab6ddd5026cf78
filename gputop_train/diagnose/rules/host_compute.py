"""``host-compute``: Python code outside loading and the model runs while the device waits.

Looks for: host time that no other label claims (``other``): metrics, augmentation by hand, tqdm
hooks, plots. Either it comes every so many steps, and those steps are longer by it (a natural
experiment), or it is in every step: on a GPU with the queue found empty, so that it explains its
part of the idle time, >= 10% (TraceML's residual 10/20); on a CPU only where one function holds it
and its name or text says that it is no part of the model: there ``other`` is real work as well.
Differential: a loss function of the person's own is computation; a blocking read, with the loop
around it, or a launch has a label of its own; data that a function of the loop makes is loading.
Fix: more rarely, vectorised, in a thread. Probe: without it. Gain: T / (T - E), or by its period.
"""

from __future__ import annotations

import math
import re

from gputop_train.diagnose.accounting import INTERRUPTIONS, account, lost_share
from gputop_train.diagnose.advice import Periodic, periodic_gain, rarer
from gputop_train.diagnose.loading_model import training_thread
from gputop_train.diagnose.lock import held, lock_finding
from gputop_train.diagnose.recurring import Recurring, accompanies, recurring
from gputop_train.diagnose.rules import checkpoint_stall, eval_stall, logging_stall
from gputop_train.diagnose.rules.base import (
    CRITICAL,
    INFO,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    gain,
    ms,
    name,
    number,
    percent,
    severity,
    short_call,
    span,
    where,
)
from gputop_train.diagnose.rules.host_sync_stall import LOOP, sync_cost
from gputop_train.diagnose.user_code import BESIDE as BESIDE
from gputop_train.diagnose.user_code import MODEL as MODEL
from gputop_train.diagnose.user_code import (
    PLAIN,
    Code,
    code_of,
    function_of,
    is_the_forward,
    named,
    sampled,
    tensor_by_tensor,
    vectorised,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding

ID = "host-compute"
#: On a CPU ``other`` holds real work too: from here on it needs a name (proposed; gaps.py).
ON_CPU = 0.25
#: The queue must be found empty at so many edges for host time to be what the GPU waits for.
DRY = 0.5
#: One place is named when it holds so much of what the sampler saw of it.
ONE_PLACE = 0.5
MIN_SAMPLES = 10
#: Labels whose steps hold code of their own around them, and the rule that tells it.
INTERRUPTIONS_WITH_CODE = (
    ("checkpoint", checkpoint_stall),
    ("checkpoint", logging_stall),
    ("eval", eval_stall),
)
#: Lines this close to a line of reads are the loop around them (proposed here).
NEAR = 3
#: One round of such a loop takes no longer (proposed: 4,096 rounds took 34 ms, 0.008 ms each).
ROUND_MS = 0.1
#: What a step with it may show it as: a metric reads its results.
AROUND = ("other", "sync", "gpu_wait", "h2d", "logging")
COMPUTE = ("forward", "backward", "optimizer")
NUMPY = re.compile(r"(?:np|numpy)\.(?:[a-z]+\.)*\w+\(")
#: Code in which the training thread sleeps for this part of it or more waits (proposed).
SLEEPS = 0.7


def judge(window: Window) -> Judgement:
    """Judge one window."""
    lock = held(window)
    other = account(window).shares.get("other", 0.0)
    if lock is not None and not lock.feeds and lock.share > other:
        return lock_finding(window, lock, ID)
    if other < INFO:
        return RuledOut(ID, f"code outside loading and the model takes {percent(other)}")
    if isinstance(logging_stall.judge(window), Finding) and (
        logging_stall.for_logs(window) >= ONE_PLACE
    ):
        return RuledOut(ID, "most of it is computed to be logged (logging-stall)")
    code = code_of(window)
    rare = recurring(window, ("other",), AROUND)
    seen = code.samples >= MIN_SAMPLES and code.part >= ONE_PLACE
    if rare is not None and rare.share >= INFO:
        for main, its in INTERRUPTIONS_WITH_CODE:
            told = accompanies(window, "other", main) and isinstance(its.judge(window), Finding)
            if told:
                return RuledOut(ID, f"it is part of what {its.ID} tells, in the same steps")
    if rare is not None and rare.share >= INFO and _tells(window, code, rare, seen):
        return _recurring(window, code, rare)
    return _every_step_gpu(window, code) if window.on_gpu else _every_step_cpu(window, code, other)


def _tells(window: Window, code: Code, rare: Recurring, seen: bool) -> bool:
    """Whether longer steps tell of it: on a CPU a loss or a missing core may look the same."""
    if window.on_gpu:
        return seen or rare.every is not None
    if code.model or is_the_forward(window):
        return False
    return rare.every is not None or (seen and code.beside)


def _recurring(window: Window, code: Code, rare: Recurring) -> Judgement:
    pattern = Periodic(rare.count, rare.cost_ms, rare.every, rare.step_ms, rare.share)
    at = f" at {name(code.places[0])}" if code.places else ""
    return Finding(
        id=ID,
        summary=pattern.summary(f"Code outside loading and the model{at}"),
        severity=severity(rare.share, window.totals.steps),
        confidence="high" if code.places and rare.every is not None else "medium",
        lost_share=rare.share,
        evidence=(
            *pattern.evidence("steps with it, beyond the others", "pause", "pauses"),
            number("what the sampler saw of it", code.samples, "samples"),
        ),
        where=code.places,
        where_missing=None if code.places else "the sampler saw no line of it",
        advice=_rarer(pattern, code) if code.observes else _prepared(window, code, pattern.cost_ms),
        gain=periodic_gain(pattern, "it", at_least=rare.more_goes)
        if code.observes
        else gain(rare.share, "T / (T - E): the time without it", at_least=rare.more_goes),
    )


def _every_step_gpu(window: Window, code: Code) -> Judgement:
    acc = account(window)
    other = acc.shares["other"]
    if acc.idle_share is None:
        return Abstention(ID, acc.busy_basis)
    sure = max(0.0, other - (acc.busy_most or 0.0))
    lost, basis = sure, "host time beyond what the GPU was busy"
    if acc.dry is not None and acc.dry >= DRY:
        part = _idle_left(window) * other / (other + sum(acc.shares[k] for k in COMPUTE))
        if part > sure:
            lost, basis = min(part, other), "its part of the idle time with an empty queue"
    elif sure < WARN:
        missing = window.missing.get("gpu_events", "GPU events at phase edges")
        if acc.dry is None and other >= WARN and _idle_left(window) >= WARN:
            return Abstention(ID, missing)
        return RuledOut(ID, "the GPU has work while it runs")
    if lost < WARN:
        return RuledOut(ID, f"the GPU is idle for it {percent(lost)} of the time")
    if _around_reads(window):
        return RuledOut(ID, "most of it is the loop around blocking reads (host-sync-stall)")
    if code.samples < MIN_SAMPLES:
        missing = f"where {percent(other)} of the host's time goes (too few samples)"
        return Abstention(ID, missing, share=lost)
    return _finding(window, code, lost, basis)


def _around_reads(window: Window) -> bool:
    """Whether most samples lie where the reads are: a loop of reads, not what computes on them."""
    acc, reads_a_step = account(window), window.totals.syncs / max(1, window.totals.steps)
    if reads_a_step < LOOP or acc.ms(acc.shares["other"]) > ROUND_MS * reads_a_step:
        return False
    mine = [s for s in window.sites if s.rank == window.rank]
    reads = [s for s in mine if s.kind == "sync" or (s.kind == "sample" and s.label == "sync")]
    seen = sampled(window)
    near = sum(
        s.count
        for s in seen
        if not PLAIN.search(s.call)
        and any(
            s.file == r.file
            and (abs(s.line - r.line) <= NEAR or (s.func == r.func and s.func[:1] != "<"))
            for r in reads
        )
    )
    return bool(reads) and near >= ONE_PLACE * sum(s.count for s in seen)


def _idle_left(window: Window) -> float:
    """Idle share that no earlier gate explains."""
    acc = account(window)
    left = acc.idle_share or 0.0
    left -= sum(acc.shares.get(label, 0.0) for label in INTERRUPTIONS)
    for label in ("data_wait", "h2d", "comm"):
        lost, _ = lost_share(window, label)
        left -= acc.shares.get(label, 0.0) if lost is None else lost
    return max(0.0, left - (sync_cost(window).model or 0.0))


def _every_step_cpu(window: Window, code: Code, other: float) -> Judgement:
    named = code.beside and code.samples >= MIN_SAMPLES and code.part >= ONE_PLACE
    if other * code.part < WARN or (other < ON_CPU and not named):
        return RuledOut(ID, f"code outside the model takes {percent(other)}: it may be a loss")
    if not named and code.samples >= MIN_SAMPLES and is_the_forward(window):
        return RuledOut(ID, f"{percent(other)} is the forward or the loss, in functions")
    if not named:
        at = f", most often {code.sites[0].func} at {name(code.places[0])}" if code.sites else ""
        return Abstention(
            ID,
            f"{percent(other)} of the time is code outside loading, forward, backward and "
            f"optimizer{at}: whether it is a loss function cannot be told",
            share=other,
        )
    return _finding(window, code, other * code.part, "host time: the CPU is the device")


def _finding(window: Window, code: Code, lost: float, basis: str) -> Finding:
    acc = account(window)
    places = code.places
    function = f"{named(code.sites[0])} ({name(places[0])})" if code.sites else "its own code"
    waits = "while the GPU waits" if window.on_gpu else "beside the model"
    return Finding(
        id=ID,
        summary=(
            f"{'Python code' if _asleep(window, lost) is None else 'A call'} {waits} takes "
            f"{percent(lost)} of every step: {ms(acc.ms(lost))} of {ms(acc.step_ms or 0.0)}, "
            f"most of it in {function}."
        ),
        severity=severity(lost, window.totals.steps),
        confidence="medium",
        lost_share=lost,
        evidence=_evidence(window, code, lost, basis),
        where=places,
        where_missing=None if places else "the sampler saw no line of it",
        advice=_every_step_advice(window, code, lost),
        gain=gain(lost, f"T / (T - E): {ms(acc.step_ms or 0.0)} less {ms(acc.ms(lost))}"),
    )


def _asleep(window: Window, lost: float) -> float | None:
    """What of a core is used, where the code waits for a network or a disk; else ``None``."""
    busy = training_thread(window)
    if busy is not None and window.on_gpu:  # a thread of torch's own launches the backward
        busy = min(1.0, busy + account(window).shares.get("backward", 0.0))
    return busy if busy is not None and busy < 1 - SLEEPS * lost else None


def _whole_array(code: Code) -> str | None:
    """The numpy call that most of it is in, if one call is."""
    first = code.sites[0] if code.sites else None
    if first is None or first.count < ONE_PLACE * code.samples or not NUMPY.match(first.call):
        return None
    return short_call(first.call)


def _evidence(window: Window, code: Code, lost: float, basis: str) -> tuple[Evidence, ...]:
    acc = account(window)
    total = max(1, code.samples)
    rows = [
        number(f"lost to it ({basis})", lost, "of wall"),
        number("host code outside loading and the model", acc.shares.get("other"), "of wall"),
        *(
            number(f"{name(where(s))} {s.func}", s.count / total, "of its samples")
            for s in code.sites
        ),
        number("queue found empty at a phase edge", acc.dry, "of edges"),
        span("step, mean", acc.step_ms),
    ]
    return tuple(row for row in rows if row.value is not None)


def _rarer(pattern: Periodic, code: Code) -> tuple[Advice, ...]:
    at = f" ({name(code.places[0])})" if code.places else ""
    steps = []
    every = rarer(pattern)
    if every is not None and pattern.every is not None:
        steps.append(
            Advice(
                f"Do it every {every:,} steps instead of every {pattern.every:,.0f}{at}: at "
                f"{ms(pattern.cost_ms)} each that is {percent(pattern.share_at(every))} of the "
                f"time instead of {percent(pattern.share)}."
            )
        )
    steps.append(
        Advice(
            f"Or hand its inputs to a process of its own{at}: "
            "concurrent.futures.ProcessPoolExecutor(1).submit(...) on a detached CPU copy; "
            f"{ms(pattern.cost_ms)} each time leave the loop."
        )
    )
    return tuple(steps)


def _every_step_advice(window: Window, code: Code, lost: float) -> tuple[Advice, ...]:
    acc = account(window)
    if not code.observes:
        return _prepared(window, code, acc.ms(lost), _asleep(window, lost))
    each = ms(acc.ms(lost))
    function = function_of(code)
    every = max(2, math.ceil(99 * lost / max(0.01, 1 - lost)))  # lost/n of (1 - lost) + lost/n: 1%
    unless = "If the loss does not use its result, call" if code.before else "Call"
    rarely = Advice(
        f"{unless} {function} every {every} steps instead of every step: {each} a step now, 1% of "
        "the time then."
    )
    used = _asleep(window, lost)
    if used is not None:
        return (
            rarely,
            Advice(
                f"Or call {function} in a thread (ThreadPoolExecutor(1).submit) and go on: it "
                f"waits rather than computes (the training thread uses {percent(used)} of a "
                f"core), so {each} leave the loop."
            ),
        )
    called = None if code.before else _whole_array(code)
    steps = (
        rarely,
        Advice(
            f"If it is needed in every step, give {called} ({name(code.places[0])}) a part of the "
            "values (every tenth), and vectorise the Python loops that lead to it."
        )
        if called
        else vectorised(window, code, "If it is needed in every step, vectorise it"),
    )
    if code.before:  # what the loss may use cannot come a step late
        return steps
    return (
        *steps,
        Advice(
            "If neither helps, give its inputs to a process of its own "
            f"(ProcessPoolExecutor(1).submit): {each} leave the loop, the result comes a step late."
        ),
    )


def _prepared(
    window: Window, code: Code, cost_ms: float, used: float | None = None
) -> tuple[Advice, ...]:
    """What is left where the step may need what the code makes: cheaper, or earlier."""
    function = function_of(code)
    # A thread that computes in Python would take turns with training (diagnose/lock.py).
    thread = ", or in a thread that fills a queue.Queue(2)" if used is not None else ""
    ahead = (
        "make the next step's before this step ends: in loader workers (DataLoader(num_workers="
        f"...)){thread}; {ms(cost_ms)} each time can leave the loop."
    )
    if used is not None:
        waits = f"it waits rather than computes (training uses {percent(used)} of a core)"
        return (Advice(f"Start {function} earlier: {waits}, so {ahead}"),)
    if tensor_by_tensor(window, code.sites):
        return (vectorised(window, code, "Join it"),)
    later = Advice(f"Where it does not need the newest weights, prepare it ahead: {ahead}")
    return vectorised(window, code, "Vectorise it"), later


RULE = Rule(
    ID,
    62,
    judge,
    probe="switch that function off",
    page=Page(
        number=20,
        title="Python code outside the model while the device waits",
        meaning=(
            "Metrics, plots, callbacks or loops of Python run on the training thread between the "
            "phases of a step. A person sees one core at 100% and a GPU that waits, with no loader "
            "to blame."
        ),
        looks_at=(
            "host time that no other label claims, by function and line (stack samples)",
            "steps with it beside those without, where it comes every so many steps",
            "on a GPU: idle time with an empty queue that no earlier gate explains",
            "a thread beside training that keeps the interpreter lock",
        ),
        thresholds=(
            Threshold("lost, every step, on a GPU", f">= {percent(WARN)} of wall", "TraceML 10/20"),
            Threshold("lost, where it recurs, information", f">= {percent(INFO)}", "TraceML 5"),
            Threshold("lost, critical", f">= {percent(CRITICAL)} of wall", "TraceML 10/20"),
            Threshold(
                "on a CPU-only run", f">= {percent(WARN)} in one function so named", "proposed"
            ),
            Threshold("queue empty", f">= {percent(DRY)} of edges", "proposed"),
            Threshold("one function", f">= {percent(ONE_PLACE)} of its samples", "proposed"),
        ),
        mistaken_for=(
            "a loss function of the person's own: computation, not judged on a CPU unless its name "
            "says otherwise",
            "`launch-bound`: idle time is shared out by host time between the model and this",
            "`input-bound`: a function of the loop that makes batches is loading",
            "`logging-stall`, `host-sync-stall`: prints and reads have labels of their own",
        ),
        mend=("Every N steps.", "Vectorise, on the device.", "A process of its own."),
        test="Switch that function off for 50 steps",
        gain="ceiling `T / (T - E)`; `(nT + c) / (nT + c')` where it recurs",
    ),
)
