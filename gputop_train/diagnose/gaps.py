"""What keeps a window without a warning from being called healthy. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gputop_train.diagnose.accounting import INTERRUPTIONS, account
from gputop_train.diagnose.causes import CLAIMS
from gputop_train.diagnose.rules.base import WARN, name, percent, where
from gputop_train.diagnose.user_code import is_the_forward, sampled
from gputop_train.diagnose.window import Window
from gputop_train.model import EXPOSED_LABELS, Abstention, Finding

#: Signals without which "healthy" is not claimed: data, sync and interruptions, and the step's own.
HEALTHY_HOOKS = ("data", "backward", "optimizer", "sync", "save", "eval")
#: Rules that must have been able to judge.
HEALTHY_RULES = (
    "input-bound",
    "checkpoint-stall",
    "eval-stall",
    "host-sync-stall",
    "recompilation",  # warm-up hides its stalls, and the speed-up lost for ever after
)
#: Labels that a rule must have spoken of where they take much time; of the rest the rules above
#: do, or they are the step itself.
RULED = ("h2d", "comm", "logging", "gc", "compile", "restart")
#: On a CPU-only run "other" holds real work too (a loss function); beyond this it needs a name.
MAX_OTHER = 0.25
#: Causes that cost less than this in all are not worth a line, whatever their share.
MIN_LOST_S = 0.25


def healthy_gaps(
    window: Window, findings: Sequence[Finding], judged: Set[str]
) -> tuple[Abstention, ...]:
    """Why a window without a warning is not healthy yet.

    Args:
        window: What was judged.
        findings: Of information only.
        judged: Diagnoses that could be judged.
    """
    gaps = []
    for hook in HEALTHY_HOOKS:
        if hook == "sync" and not window.on_gpu:
            continue  # the probe places no sync hook where there is no device to wait for
        if window.hook(hook) is not True:
            reason = window.missing.get(f"hook:{hook}", f"the probe has no {hook} hook")
            gaps.append(Abstention(hook, reason))
    gaps += _unjudged(window, findings, judged)
    gaps += _unexplained(window, findings)
    return tuple(gaps)


def _unjudged(window: Window, findings: Sequence[Finding], judged: Set[str]) -> list[Abstention]:
    """Labels that take a warning's worth of time and that no rule could speak of."""
    acc = account(window)
    spoken = {CLAIMS[f.id] for f in findings if f.id in CLAIMS}
    for id_ in judged & CLAIMS.keys():
        # "There is no GPU" rules a copy out, and explains none of the time it takes on a CPU.
        if window.on_gpu or CLAIMS[id_] in INTERRUPTIONS:
            spoken.add(CLAIMS[id_])
    gaps = []
    for label in RULED:
        share = acc.shares.get(label, 0.0)
        lost = acc.exposed.get(label) if window.on_gpu and label in EXPOSED_LABELS else None
        lost = share if lost is None else min(lost, share)
        if label not in spoken and lost >= WARN and _matters(window, lost):
            reason = f"{label} takes {percent(lost)} of the time and no rule could judge it"
            gaps.append(Abstention(label, reason))
    return gaps


def _matters(window: Window, share: float) -> bool:
    return share * window.totals.wall_ns / 1e9 >= MIN_LOST_S


def _unexplained(window: Window, findings: Sequence[Finding]) -> list[Abstention]:
    """Idle GPU time (or, on a CPU, user code) that no rule accounts for."""
    acc = account(window)
    if not window.on_gpu:
        other = acc.shares.get("other", 0.0)
        if other < MAX_OTHER or any(CLAIMS.get(f.id) == "other" for f in findings):
            return []
        if is_the_forward(window):
            return []
        return [
            Abstention(
                "other",
                f"{percent(other)} of the time is code outside loading, forward, backward and "
                f"optimizer{_busiest_user_code(window)}",
            )
        ]
    if acc.idle_share is None:
        return [Abstention("gpu_util", acc.busy_basis)]
    left = acc.idle_share - sum(f.lost_share for f in findings)
    bound = any(f.id == "gpu-bound" for f in findings)
    if left < WARN or bound or not _matters(window, left):
        return []
    # A flat or a busy-looking curve is no proof of health: idle time without a name is told.
    return [
        Abstention(
            "unattributed", f"the GPU is idle {percent(left)} of the time for no cause seen here"
        )
    ]


def _busiest_user_code(window: Window) -> str:
    seen = sampled(window)
    if not seen:
        return ""
    top = max(seen, key=lambda s: (s.count, s.file, s.line))
    return f", most often {top.func or top.call} at {name(where(top))}"
