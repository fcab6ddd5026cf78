"""``empty-cache-in-loop``: ``torch.cuda.empty_cache()`` is called step after step.

Looks for: calls that reached the device, >= 1 in 10 steps (catalogue 34, proposed). A call waits
for the device and gives its blocks back, and the next step asks for them anew. A warning where the
stack sampler sees >= 5% of the training thread there, else information: nothing tells what the
allocations behind it cost.
Differential: a call between two phases, an epoch apart.
Fix: remove it. Probe: remove it for 50 steps. Gain: at least T / (T - E).
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import (
    INFO,
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
    times,
    where,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "empty-cache-in-loop"
PER_STEP = 0.1
CALL = "empty_cache("


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "there is no cache of the GPU")
    calls = window.probe.get("empty_cache")
    if not isinstance(calls, int):
        return Abstention(ID, "calls of torch.cuda.empty_cache")
    rate = calls / max(1, window.steps_seen)
    if rate < PER_STEP:
        return RuledOut(ID, f"it was called {calls} times in {window.steps_seen:,} steps")
    sampled = [s for s in window.sites if s.kind == "sample" and s.rank == window.rank]
    there = [s for s in sampled if CALL in s.call]
    seen = sum(s.count for s in there) / max(1, sum(s.count for s in sampled))
    acc = account(window)
    idle = acc.idle_share
    lost = min(seen, idle) if idle is not None else 0.0
    lost = lost if lost >= INFO else 0.0
    places = tuple(dict.fromkeys(where(s) for s in sorted(there, key=lambda s: -s.count)))[:2]
    at = f" at {name(places[0])}" if places else ""
    return Finding(
        id=ID,
        summary=(
            f"torch.cuda.empty_cache(){at} is called {times(rate)} a step: each call waits "
            "for the GPU, and the next step asks for its memory anew."
        ),
        severity=severity(lost, window.totals.steps, warn=INFO),
        confidence="high" if lost else "medium",
        lost_share=lost,
        evidence=(
            number("calls of empty_cache", rate, "a step"),
            number("calls in the run", calls),
            number("samples of the training thread there", seen, "of samples"),
        ),
        where=places,
        where_missing=None if places else "the calls are too short for the stack sampler",
        advice=(
            Advice(
                f"Remove torch.cuda.empty_cache(){at}: {calls:,} calls in {window.steps_seen:,} "
                f"steps of {ms(acc.step_ms or 0.0)}. It gives memory to other processes only; this "
                "one reuses its own cache without it."
            ),
            Advice(
                "If memory then runs out, PYTORCH_ALLOC_CONF=expandable_segments:True; or one call "
                f"an epoch instead of {times(rate)} a step as now."
            ),
        ),
        gain=gain(lost, "T / (T - E), E = time seen in the call; allocations add", at_least=True)
        if lost
        else None,
    )


RULE = Rule(
    ID,
    116,
    judge,
    probe="remove it for 50 steps",
    page=Page(
        number=34,
        title="The cache is emptied in the loop",
        meaning=(
            "`torch.cuda.empty_cache()` in the loop makes the host wait for the GPU and the "
            "allocator ask the driver again. A person sees it in code that once ran out of memory."
        ),
        looks_at=("calls that reached the device", "stack samples at the call"),
        thresholds=(
            Threshold("calls, information", f">= {PER_STEP:g} a step", "proposed"),
            Threshold("samples there, warn", f">= {percent(INFO)}", "TraceML's bands"),
        ),
        mistaken_for=("a call between two phases, such as before an evaluation",),
        mend=("Remove it.", "At most between phases."),
        test="Remove it for 50 steps",
        gain="ceiling at least `T / (T - E)`: allocations anew add to it",
    ),
)
