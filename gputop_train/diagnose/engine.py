"""From one window to one verdict. Pure: the same window gives the same answer.

Gates, in this order: was the probe there, were there steps, are there enough of them; then the
rules (interruptions, data, copies, sync, communication, launch, GPU-bound; memory in parallel),
which each exclude what an earlier gate explains. The verdict is the cause of most lost wall time,
at most two more are named. ``healthy`` is a claim of its own and needs its own signals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gputop_train.diagnose.accounting import account, shares
from gputop_train.diagnose.refining import refine
from gputop_train.diagnose.rules import all_rules
from gputop_train.diagnose.rules import memory_leak as leak
from gputop_train.diagnose.rules.base import INFO, WARN, Judgement, RuledOut, percent
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Diagnosis, Finding

#: Warn needs this many measured steps (catalogue, section 3; proposed there).
MIN_STEPS = 20
#: A live verdict on very short steps waits this long, so that a burst at the start is not the run.
MIN_LIVE_S = 5.0
#: Causes that cost less than this in all are not worth a line, whatever their share.
MIN_LOST_S = 0.25
MAX_ALSO = 2
#: A run that was cut short is judged from here on: a verdict takes max(15 s, 20 steps) (design.md).
CUT_SHORT_S = 15.0
#: Signals without which "healthy" is not claimed: data, sync and interruptions, and the step's own.
HEALTHY_HOOKS = ("data", "backward", "optimizer", "sync", "save", "eval")
#: Rules that must have been able to judge.
HEALTHY_RULES = ("input-bound", "checkpoint-stall", "eval-stall", "host-sync-stall")
#: Host labels this release measures but has no rule for: named, never called fine.
UNJUDGED = ("h2d", "comm", "logging", "gc", "compile", "restart")
#: On a CPU-only run "other" holds real work too (a loss function); beyond this it needs a name.
MAX_OTHER = 0.25
#: torch._dynamo's default limit of recompilations of one function.
RECOMPILE_LIMIT = 8


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
    judged: list[Judgement] = [rule.judge(window) for rule in all_rules() if rule.judge]
    findings = []
    for found in [j for j in judged if isinstance(j, Finding) and _matters(window, j)]:
        closer, unnamed = refine(window, found)
        findings.append(closer)
        judged.extend(unnamed)
    abstained = tuple(j for j in judged if isinstance(j, Abstention))
    ruled_out = tuple(Abstention(j.id, j.why) for j in judged if isinstance(j, RuledOut))
    if probe is not None:
        # What a broken probe did not see cannot be ranked: it could hide the larger cause.
        return _abstain((probe, *abstained), f"Nothing can be judged: {probe.missing}.", ruled_out)
    ranked = sorted(findings, key=lambda f: (-_weight(window, f), f.id))
    causes = [f for f in ranked if f.severity != "info"]
    if causes:
        rest = [f for f in ranked if f is not causes[0]]
        return Diagnosis(
            "verdict",
            False,
            verdict=causes[0],
            also=tuple(rest[:MAX_ALSO]),
            abstained=abstained,
            ruled_out=ruled_out,
            note=causes[0].summary,
        )
    also = tuple(ranked[:MAX_ALSO])
    blocking = tuple(a for a in abstained if a.id in HEALTHY_RULES)
    gaps = (*blocking, *healthy_gaps(window, ranked))
    if gaps:
        rest_unjudged = tuple(a for a in abstained if a not in gaps)
        return _abstain((*gaps, *rest_unjudged), _gap_note(gaps), ruled_out, also)
    return Diagnosis(
        "healthy",
        True,
        also=also,
        abstained=abstained,
        ruled_out=ruled_out,
        note=(
            f"No cause of lost time above {percent(WARN if also else INFO)} in "
            f"{window.totals.steps} steps."
        ),
    )


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
    lost_s = finding.lost_share * window.totals.wall_ns / 1e9
    return finding.lost_share == 0 or lost_s >= MIN_LOST_S


def _weight(window: Window, finding: Finding) -> float:
    return leak.urgency(window) if finding.id == leak.ID else finding.lost_share


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


def healthy_gaps(window: Window, findings: Sequence[Finding]) -> tuple[Abstention, ...]:
    """What keeps a window without a warning from being called healthy."""
    gaps = []
    for hook in HEALTHY_HOOKS:
        if hook == "sync" and not window.on_gpu:
            continue  # the probe places no sync hook where there is no device to wait for
        if window.hook(hook) is not True:
            reason = window.missing.get(f"hook:{hook}", f"the probe has no {hook} hook")
            gaps.append(Abstention(hook, reason))
    acc = account(window)
    for label in UNJUDGED:
        share = acc.shares.get(label, 0.0)
        lost = acc.exposed.get(label) if window.on_gpu else share
        lost = share if lost is None else min(lost, share)
        if lost >= WARN:
            gaps.append(
                Abstention(label, f"{label} takes {percent(lost)} of the time and has no rule yet")
            )
    gaps += _modes(window)
    gaps += _unexplained(window, findings)
    return tuple(gaps)


def _modes(window: Window) -> list[Abstention]:
    """Modes of torch known to cost time, which this release has no rule for."""
    gaps = []
    if _sub(window.probe, "flags").get("anomaly"):
        gaps.append(Abstention("anomaly-mode", "autograd's anomaly detection is on and slows it"))
    compiled = _sub(window.probe, "dynamo").get("recompiles")
    if isinstance(compiled, int) and compiled >= RECOMPILE_LIMIT:
        reason = f"torch.compile compiled anew {compiled} times and falls back to eager from there"
        gaps.append(Abstention("recompilation", reason))
    graphs = _sub(window.probe, "dynamo").get("unique_graphs")
    spent = shares(window.whole).get("compile", 0.0)
    if not gaps and isinstance(graphs, int) and graphs >= RECOMPILE_LIMIT and spent >= WARN:
        # Warm-up hides it: at the limit the stalls end by themselves, and so does the speed-up.
        reason = f"torch.compile made {graphs} graphs in {percent(spent)} of the time: recompiling?"
        gaps.append(Abstention("recompilation", reason))
    return gaps


def _sub(state: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = state.get(key)
    return value if isinstance(value, Mapping) else {}


def _unexplained(window: Window, findings: Sequence[Finding]) -> list[Abstention]:
    """Idle GPU time (or, on a CPU, user code) that no rule accounts for."""
    acc = account(window)
    if not window.on_gpu:
        other = acc.shares.get("other", 0.0)
        if other < MAX_OTHER:
            return []
        place = _busiest_user_code(window)
        return [
            Abstention(
                "other",
                f"{percent(other)} of the time is code outside loading, forward, backward and "
                f"optimizer{place}",
            )
        ]
    if acc.idle_share is None:
        return [Abstention("gpu_util", acc.busy_basis)]
    named = sum(f.lost_share for f in findings)
    left = acc.idle_share - named
    if left < WARN or any(f.id == "gpu-bound" for f in findings):
        return []
    return [
        Abstention(
            "unattributed", f"the GPU is idle {percent(left)} of the time for no cause seen here"
        )
    ]


def _busiest_user_code(window: Window) -> str:
    sampled = [
        s
        for s in window.sites
        if s.kind == "sample" and s.label in ("host_compute", "other") and s.rank == window.rank
    ]
    if not sampled:
        return ""
    top = max(sampled, key=lambda s: (s.count, s.file, s.line))
    return f", most often {top.func or top.call} at {top.file}:{top.line}"
