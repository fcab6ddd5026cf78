"""``optimizer-overhead``: the optimizer launches tensor by tensor while the GPU waits.

Looks for: the optimizer's phase >= 25% of the step (catalogue 50, proposed) with an optimizer that
is not fused, in a loop whose GPU waits for launches. The idle time behind launches is shared out by
the host time of forward, backward and optimizer; what falls to the optimizer is its cost. It is
the closer cause of ``launch-bound`` where it explains 80% of it, else a finding of its own.
Differential: an optimizer that keeps the GPU busy; one that is fused; CPU runs.
Fix: ``fused=True``, ``foreach=True``. Probe: ``fused=True``. Gain: T / (T - E); a public report saw
fused Adam take 22 ms down to 8 ms, 3% of its step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    WARN,
    Judgement,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    gain,
    ms,
    name,
    number,
    percent,
    plain,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.rules.launch_bound import (
    HAVE_FUSED,
    OPTIMIZER,
    launch_idle,
    optimizer_part,
    unfused,
)
from gputop_train.diagnose.user_code import tensor_by_tensor
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Evidence, Finding, Site, Where

ID = "optimizer-overhead"


def judge(window: Window) -> Judgement:
    """Judge one window: a cause beside ``launch-bound``."""
    why = _not_it(window)
    if why is not None:
        return why
    part, launch = optimizer_part(window), launch_idle(window) or 0.0
    if part >= COVERAGE * launch:
        return RuledOut(ID, "told as the closer cause of launch-bound")
    places = _places(window)
    acc = account(window)
    return Finding(
        id=ID,
        summary=(
            f"The GPU waits for the optimizer's launches in {percent(part)} of every step: "
            f"{_names(window)} takes {ms(acc.ms(acc.shares['optimizer']))} of "
            f"{ms(acc.step_ms or 0.0)}."
        ),
        severity=severity(part, window.totals.steps),
        confidence="medium",
        lost_share=part,
        evidence=_evidence(window, part),
        where=places,
        where_missing=None if places else "the line of optimizer.step() was not sampled",
        advice=_advice(window, places),
        gain=gain(part, "T / (T - E), E = launch idle by the optimizer's part of the host time"),
    )


def refine(window: Window, parent: Finding) -> Refinement | RuledOut:
    """Judge it as the closer cause of ``launch-bound``."""
    why = _not_it(window)
    if why is not None:
        return why
    part = optimizer_part(window)
    places = _places(window)
    return Refinement(
        ID,
        covers=part / parent.lost_share if parent.lost_share > 0 else 0.0,
        why=f"Most of it is {_names(window)}, which launches tensor by tensor.",
        confidence="medium",
        evidence=_evidence(window, part)[1:],
        where=places or None,
        advice=_advice(window, places),
    )


def _not_it(window: Window) -> RuledOut | None:
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes: it has no launch queue")
    share = account(window).shares.get("optimizer", 0.0)
    if share < OPTIMIZER:
        return RuledOut(ID, f"the optimizer takes {percent(share)} of the step")
    if not unfused(window):
        return RuledOut(ID, "the optimizer is fused")
    if optimizer_part(window) < WARN:
        return RuledOut(ID, "the GPU does not wait for the optimizer's launches")
    return None


def _names(window: Window) -> str:
    return " and ".join(dict.fromkeys(str(row["cls"]) for row in unfused(window)))


def _evidence(window: Window, part: float) -> tuple[Evidence, ...]:
    acc = account(window)
    rows = unfused(window)
    tensors = sum(t for r in rows if isinstance(t := r.get("tensors"), int))
    return tuple(
        row
        for row in (
            number("GPU idle behind the optimizer's launches", part, "of wall"),
            number("optimizer, host time", acc.shares.get("optimizer"), "of wall"),
            number("parameters as tensors", tensors or None),
            Evidence("fused", "no"),
            Evidence("foreach", _foreach(rows[0])),
        )
        if row.value is not None
    )


def _foreach(row: Mapping[str, Any]) -> str:
    value = row.get("foreach")
    return "by default" if value is None else ("yes" if value else "no")


def _places(window: Window) -> tuple[Where, ...]:
    return tuple(where(s) for s in top_sites(_own(window), limit=1, by_count=True))


def _own(window: Window) -> list[Site]:
    """Lines of the person's at which the optimizer was met: the step's, or its own code's."""
    return [
        s
        for s in window.sites
        if s.kind == "sample" and s.label == "optimizer" and s.rank == window.rank
    ]


def _advice(window: Window, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    acc = account(window)
    row = unfused(window)[0]
    at = f" (stepped at {name(places[0])})" if places else ""
    tensors = row.get("tensors")
    loops = row.get("foreach") is False or bool(row.get("differentiable"))
    count = f"{plain(tensors)} tensors" if isinstance(tensors, int) and tensors else "its tensors"
    took = f"{ms(acc.ms(acc.shares['optimizer']))} of {ms(acc.step_ms or 0.0)}"
    steps = []
    if row["cls"] in HAVE_FUSED:
        steps.append(
            Advice(
                f"fused=True in {row['cls']}{at}: fused is {row.get('fused')} now, and {count} "
                f"take {took} a step."
            )
        )
    if loops:
        steps.append(
            Advice(
                f"Or at least foreach=True in {row['cls']}: it is {row.get('foreach')} now, a "
                f"Python loop over {count}; without the argument torch takes foreach on a GPU."
            )
        )
    if row["cls"] not in HAVE_FUSED and tensor_by_tensor(window, _own(window)):
        steps.append(
            Advice(
                f"Step all of {count} at once in {row['cls']}{at}: torch._foreach_mul_, "
                f"_foreach_add_ and the like take lists; a call for each tensor is {took} a step."
            )
        )
    lead = "If that is not enough, " if steps else "Compile it: "
    steps.append(
        Advice(
            f"{lead}torch.compile(optimizer.step){at} joins the launches; or step "
            f"every 2nd backward, which halves the {took}."
        )
    )
    return tuple(steps)


RULE = Rule(
    ID,
    61,
    judge,
    parent="launch-bound",
    refine=refine,
    probe="fused=True",
    page=Page(
        number=50,
        title="The optimizer launches tensor by tensor",
        meaning=(
            "The optimizer goes through its parameters in many small launches while the GPU is "
            "idle. A person sees optimizer.step() as a large part of a step with few kernels."
        ),
        looks_at=(
            "host time of the optimizer's phase",
            "GPU idle time behind launches, shared out by the host time of the phases",
            "`fused`, `foreach` and the number of tensors of each optimizer",
        ),
        thresholds=(
            Threshold("optimizer, host time", f">= {percent(OPTIMIZER)} of wall", "proposed"),
            Threshold("its part of the launch idle", f">= {percent(WARN)} of wall", "TraceML 10"),
            Threshold(
                "closer cause of launch-bound",
                f">= {percent(COVERAGE)} of it",
                "TraceML, issue 238",
            ),
        ),
        mistaken_for=(
            "an optimizer that keeps the GPU busy: no idle time behind it",
            "a fused optimizer",
            "`launch-bound` by the model: the idle time is shared out by host time",
        ),
        mend=("`fused=True`.", "`foreach=True` in place of a Python loop.", "Compile the step."),
        test="`fused=True`",
        gain="ceiling `T / (T - E)`. 22 -> 8 ms by fused Adam was 3% of one report's step",
    ),
)
