"""From one window to one verdict. Pure: the same window gives the same answer.

Gates, in this order: was the probe there, were there steps, are there enough of them; then the
rules (interruptions, data, copies, sync, communication, launch, GPU-bound; memory in parallel). A
finding is tested against chance (significance.py), claims no time an earlier gate explains
(ranking.py), is refined to its closer cause (refining.py) and told in the light of the newest way
of running (changes.py). The verdict is the cause of most lost wall time, at most two more are
named. ``healthy`` is a claim of its own and needs its own signals (gaps.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gputop_train.diagnose.changes import merged
from gputop_train.diagnose.gaps import HEALTHY_RULES, MIN_LOST_S, healthy_gaps
from gputop_train.diagnose.ranking import exclusive, judged_ids, ranked, with_trial
from gputop_train.diagnose.refining import FAILED, failed, refine
from gputop_train.diagnose.rules import all_rules, gpu_contention
from gputop_train.diagnose.rules.base import INFO, WARN, Judgement, Rule, RuledOut, percent
from gputop_train.diagnose.significance import tested
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Diagnosis, Finding

#: Warn needs this many measured steps (catalogue, section 3; proposed there).
MIN_STEPS = 20
#: A live verdict on very short steps waits this long, so that a burst at the start is not the run.
MIN_LIVE_S = 5.0
#: What has ended within the warm-up is measured on the whole run: at dynamo's limit the stalls end
#: by themselves.
OF_WHOLE_RUN = ("recompilation",)
MAX_ALSO = 2
#: A run that was cut short is judged from here on: a verdict takes max(15 s, 20 steps) (design.md).
CUT_SHORT_S = 15.0
#: From this gate on rules look at memory and hardware, which no regime of the loop explains.
PARALLEL = 100


def diagnose(window: Window) -> Diagnosis:
    """Judge a window.

    Returns:
        A verdict, ``healthy``, or why neither can be said. ``note`` is one sentence for the screen.
    """
    probe = probe_trouble(window)
    if window.steps_seen == 0:
        if probe is not None and "probe" in window.missing:
            return _abstain((probe,), f"Nothing can be judged: {probe.missing}.")
        return Diagnosis("no-steps", None, note="No training step was seen.")
    measured = window.totals.steps
    if measured < MIN_STEPS:
        if probe is not None:
            return _abstain((probe,), f"Nothing can be judged: {probe.missing}.")
        return Diagnosis("too-early", None, note=f"{measured} of {MIN_STEPS} steps seen")
    if not window.final and window.totals.wall_ns < MIN_LIVE_S * 1e9:
        left = MIN_LIVE_S - window.totals.wall_ns / 1e9
        return Diagnosis("too-early", None, note=f"{measured} steps seen, {left:.0f} s to go")
    if window.final and window.cut_short and window.totals.wall_ns < CUT_SHORT_S * 1e9:
        seen_s = window.totals.wall_ns / 1e9
        note = f"The run was cut short: {measured} steps in {seen_s:.1f} s are too few to judge."
        return Diagnosis("too-early", None, note=note)
    return _judge(window, probe)


def _judge(window: Window, probe: Abstention | None) -> Diagnosis:
    findings, judged = _found(window)
    if window.newest is not None and window.newest.totals.steps >= MIN_STEPS:
        now, said = _found(window.newest, until=PARALLEL)
        silent = [j for j in said if not isinstance(j, Finding)]
        findings = merged(window, findings, [*now, *silent])
        named = {f.id for f in findings}
        judged = [j for j in judged if not (isinstance(j, RuledOut) and j.id in named)]
    abstained = tuple(j for j in judged if isinstance(j, Abstention))
    ruled_out = tuple(Abstention(j.id, j.why) for j in judged if isinstance(j, RuledOut))
    if probe is not None:
        # What a broken probe did not see cannot be ranked: it could hide the larger cause.
        return _abstain((probe, *abstained), f"Nothing can be judged: {probe.missing}.", ruled_out)
    order = ranked(window, findings)
    causes = [f for f in order if f.severity != "info"]
    if causes:
        rest = [f for f in order if f is not causes[0]]
        told = with_trial(window, [causes[0], *rest])
        return Diagnosis(
            "verdict",
            False,
            verdict=told[0],
            also=tuple(told[1 : 1 + MAX_ALSO]),
            abstained=abstained,
            ruled_out=ruled_out,
            note=told[0].summary,
        )
    also = tuple(order[:MAX_ALSO])
    blocking = tuple(a for a in abstained if a.id in HEALTHY_RULES or a.missing.startswith(FAILED))
    gaps = (*blocking, *healthy_gaps(window, order, judged_ids(judged)))
    if gaps:
        rest_unjudged = tuple(a for a in abstained if a not in gaps)
        return _abstain((*gaps, *rest_unjudged), _gap_note(gaps), ruled_out, also)
    drained = _drained_after(window)
    if not window.final and window.steps_seen < drained:
        # A queue filled at the start hides a slow loader until it is empty (catalogue, section 6).
        note = f"{window.steps_seen} of {drained} steps seen: the loader's queue was filled before"
        return Diagnosis("too-early", None, note=f"{note}.")
    return Diagnosis(
        "healthy",
        True,
        also=also,
        abstained=abstained,
        ruled_out=ruled_out,
        note=_all_is_well(window, order),
    )


def _drained_after(window: Window) -> int:
    """Steps until the batches made ahead are used up and enough for a verdict came after."""
    queued = max(
        (ld.num_workers * (ld.prefetch_factor or 0) for ld in window.feeding_loaders), default=0
    )
    micro = max((step.micro for step in window.steps), default=1)
    return MIN_STEPS + math.ceil(queued / max(1, micro)) if queued else 0


def _all_is_well(window: Window, told: Sequence[Finding]) -> str:
    """What was looked for and not found; what was over or came once is no such cause."""
    past = any(f.lost_share >= WARN for f in told)
    what = "No cause of lost time that lasts or recurs" if past else "No cause of lost time"
    return f"{what} above {percent(WARN if told else INFO)} in {window.totals.steps} steps."


def _found(window: Window, until: int | None = None) -> tuple[list[Finding], list[Judgement]]:
    """What the rules find in a window, tested and refined, and all that they said."""
    judged = [
        _asked(rule, window)
        for rule in all_rules()
        if rule.judge and (until is None or rule.gate < until)
    ]
    findings = []
    for found in [j for j in judged if isinstance(j, Finding) and _matters(window, j)]:
        outcome = tested(window, found)
        if isinstance(outcome, Finding):
            findings.append(outcome)
        else:
            judged[judged.index(found)] = outcome
    findings, gone = exclusive(window, findings)
    judged = [j for j in judged if j.id not in {g.id for g in gone}] + list(gone)
    closer = []
    for finding in findings:
        refined, unnamed = refine(window, finding)
        closer.append(refined)
        judged.extend(unnamed)
    return gpu_contention.unsure(closer), judged


def _asked(rule: Rule, window: Window) -> Judgement:
    """A rule's word; a rule that fails has none, and leaves the others theirs."""
    try:
        return rule.judge(window) if rule.judge else RuledOut(rule.id, "it only refines")
    except Exception as error:
        return failed(rule.id, error)


def _abstain(
    missing: Sequence[Abstention],
    note: str,
    ruled_out: tuple[Abstention, ...] = (),
    also: tuple[Finding, ...] = (),
) -> Diagnosis:
    return Diagnosis(
        "abstained", None, also=also, abstained=tuple(missing), ruled_out=ruled_out, note=note
    )


def _gap_note(gaps: Sequence[Abstention]) -> str:
    return f"No verdict: {gaps[0].missing}."


def _matters(window: Window, finding: Finding) -> bool:
    totals = window.whole if finding.id in OF_WHOLE_RUN else window.totals
    lost_s = finding.lost_share * max(totals.wall_ns, window.totals.wall_ns) / 1e9
    return finding.lost_share == 0 or lost_s >= MIN_LOST_S


def probe_trouble(window: Window) -> Abstention | None:
    """Why the probe's word cannot be trusted for this window, if so."""
    reason = window.missing.get("probe")
    if reason:
        return Abstention("probe", reason)
    if window.steps_seen and not window.probe:
        return Abstention("probe", "the probe's state was never received")
    absent = [h for h in ("backward", "optimizer") if window.probe and window.hook(h) is not True]
    if window.steps_seen and absent:
        reason = window.missing.get(f"hook:{absent[0]}")
        return Abstention(
            "probe", reason or f"the probe could not place its {' and '.join(absent)} hook"
        )
    return None
