"""``eval-stall``: evaluation takes a large part of the run.

Looks for: evaluation intervals with V / wall >= 10% (catalogue 26, proposed), at least twice,
and a sign that they evaluate: a loader was read that feeds no backward, or ``Module.eval()`` was
called in a loop with a loader or in code named after it, or a gradient-free block computes what
only an evaluation does (``acc``, ``val_loss``, ``held``...). Critical from 20%.
Differential: a gradient-free forward in every step is part of the step (a teacher, a target or
reference model). A policy that collects its own training data also switches to ``eval()``: without
a loader or a name that says so it is not judged. What a rare and regular gradient-free block makes
to look at is told as previews, where its name says so, or says that it samples and a file is
written. A block without such a sign may serve training: not judged, its line is named. A slow
loader *inside* the evaluation shows in the evaluation's own phases; a save at the same boundary is
labelled checkpoint and not counted here.
Fix: rarer, a subset, a larger evaluation batch, a job of its own. Probe: skip the next one.
Gain: wall / (wall - V + V').
"""

from __future__ import annotations

import re

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.advice import (
    PART,
    Periodic,
    evaluation_advice,
    periodic,
    periodic_gain,
    rarer,
)
from gputop_train.diagnose.loading_model import shorter_loader
from gputop_train.diagnose.recurring import accompanies, recurring
from gputop_train.diagnose.rules.base import (
    CRITICAL,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    hook_missing,
    ms,
    name,
    number,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.user_code import CALLED
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Loader, Site, Where

ID = "eval-stall"
WARN = 0.10
#: A gradient-free block is the evaluation when it holds this part of its time.
BLOCK_PART = 0.5
#: An evaluation that waits this long for its own loader is told to feed it first (proposed here).
STARVED = 0.5
#: Nobody evaluates after every step; what comes this often belongs to training (proposed here).
OFTEN = 2.0
#: With a loader that trains and none to evaluate on, a switch to eval() this rare is an evaluation;
#: more often it may generate what the next steps train on (proposed here).
RARE = 10.0
#: How people name code that evaluates.
NAMED = re.compile(
    r"(?<![a-z])(?:(?<!\.)eval|eval(?!\()|valid|val(?![a-z])"
    r"|test|estimate|metric|accura|score|perplex)",
    re.IGNORECASE,
)
#: How people name code that makes something to look at ...
PREVIEWS = re.compile(r"(?<![a-z])(?:preview|visuali[sz]|render)", re.IGNORECASE)
#: ... and code that may also make what the next steps train on, unless it writes a file.
SAMPLES = re.compile(r"(?<![a-z])(?:sampl(?!er)|generat|predict|infer)", re.IGNORECASE)
#: Names of what an agent does to collect its own training data.
COLLECTS = re.compile(
    r"(?<![a-z])(?:rollout|collect|replay|buffer|episode|explor|play|act(?![a-z])|env(?![a-z])"
    r"|pseudo|negative)",
    re.IGNORECASE,
)
WRITES = re.compile(
    r"\bf?[\"'][^\"']*\.(?:npy|npz|png|jpe?g|gif|mp4|wav|txt|html)[\"']"
    r"|\b(?:np\.save\w*|imsave|imwrite|save_image|savefig|write_\w+)\(|add_(?:images?|figure|video)\(",
    re.IGNORECASE,
)


def judge(window: Window) -> Judgement:
    """Judge one window."""
    missing = hook_missing(window, "eval")
    if missing:
        return Abstention(ID, missing)
    share = account(window).shares.get("eval", 0.0)
    if share < WARN:
        return RuledOut(ID, f"evaluation takes {percent(share)} of the time")
    if accompanies(window, "other", "eval"):  # what is computed from its results
        whole = recurring(window, ("eval",), ("eval", "other"))
        share = max(share, whole.share if whole is not None else 0.0)
    pattern = periodic(window, "eval", share)
    if pattern.every is not None and pattern.every < OFTEN:
        return RuledOut(ID, "a gradient-free forward in every step is part of training")
    places, why_none = _places(window, share)
    if not _evaluates(window, pattern):
        if _previews(window, pattern, share):
            return _preview(window, pattern, share, places, why_none)
        at = f" ({name(places[0])})" if places else ""
        missing = f"{percent(share)} of the time is a gradient-free block{at} that may not evaluate"
        return Abstention(ID, missing, share=share)
    once = pattern.count < 2
    return Finding(
        id=ID,
        summary=pattern.summary("Evaluation"),
        severity="info" if once else severity(share, window.totals.steps, warn=WARN),
        confidence="medium" if once else "high",
        lost_share=share,
        evidence=(*pattern.evidence("evaluation", "evaluation", "evaluations"), *_starved(window)),
        where=places,
        where_missing=why_none,
        advice=_advice(window, pattern, places),
        gain=periodic_gain(pattern, "evaluation"),
    )


def _previews(window: Window, pattern: Periodic, share: float) -> bool:
    """Whether the block that holds most of it makes something to look at, rarely and regularly."""
    shares = account(window).shares
    if pattern.every is None or pattern.every < RARE or shares.get("checkpoint", 0.0) > share:
        return False  # where mostly their writing takes the time, logging-stall tells them
    regular = recurring(window, ("eval",), ("eval", "other", "checkpoint"))
    if regular is None or regular.every is None:
        return False
    blocks = _largest(window, share)
    names = [" ".join([s.func, *CALLED.findall(s.call)]) for s in blocks]
    if not blocks or any(COLLECTS.search(text) for text in names):
        return False
    if any(PREVIEWS.search(text) for text in names):
        return True
    inside = {called.rsplit(".", 1)[-1] for text in names for called in text.split()}
    within = [s for s in window.sites if s.rank == window.rank and s.func in inside]
    writes = any(WRITES.search(s.call) for s in (*blocks, *within))
    return writes and any(SAMPLES.search(text) for text in names)


def _largest(window: Window, share: float) -> list[Site]:
    """The block that holds most of the time."""
    least = BLOCK_PART * share * window.totals.wall_ns
    return top_sites((s for s in _of_kind(window, "nograd") if s.total_ns >= least), limit=1)


def _preview(
    window: Window,
    pattern: Periodic,
    share: float,
    places: tuple[Where, ...],
    why_none: str | None,
) -> Finding:
    at = f" at {name(places[0])}" if places else ""
    cost, advice = ms(pattern.cost_ms), []
    every = rarer(pattern)
    if every is not None and pattern.every is not None:
        some = round(pattern.every * PART)
        then, rare = percent(pattern.share_at(some)), percent(pattern.share_at(every))
        advice.append(
            Advice(
                f"Make previews{at} every {some:,} steps instead of every {pattern.every:,.0f}: at "
                f"{cost} each that is {then} of the time, every {every:,} steps {rare}, instead of "
                f"{percent(share)}."
            )
        )
    advice.append(
        Advice(
            f"Or make fewer of them, or in fewer steps: a fifth of the work takes "
            f"{ms(pattern.cost_ms / PART)} each."
        )
    )
    advice.append(
        Advice(
            f"If neither is wanted, make them in a job of its own from saved weights: {cost} each "
            "time leave the loop."
        )
    )
    return Finding(
        id=ID,
        summary=pattern.summary(f"Making previews without gradients{at}"),
        severity=severity(share, window.totals.steps, warn=WARN),
        confidence="medium",
        lost_share=share,
        evidence=pattern.evidence("making previews", "preview", "previews"),
        where=places,
        where_missing=why_none,
        advice=tuple(advice),
        gain=periodic_gain(pattern, "previews"),
    )


def _waiting(window: Window) -> float | None:
    """Part (0..1) of the evaluations that waits for their own loader; ``None`` if not told.

    Loaders tell their waits since the run began, so only a whole run has both.
    """
    whole = window.whole.labels.get("eval", 0)
    if not window.final or not whole or not _loaders(window):
        return None
    return min(1.0, sum(ld.wait_ns for ld in _loaders(window)) / whole)


def _measures(window: Window) -> bool:
    """Whether the blocks that hold most of the time speak of what only an evaluation computes."""
    blocks = _of_kind(window, "nograd")
    told = sum(s.total_ns for s in blocks if s.label)
    return told > 0 and told >= BLOCK_PART * sum(s.total_ns for s in blocks)


def _starved(window: Window) -> tuple[Evidence, ...]:
    part = _waiting(window)
    return () if part is None else (number("waiting for its loader", part, "of evaluation"),)


def _advice(window: Window, pattern: Periodic, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    loaders = _loaders(window)
    steps = evaluation_advice(pattern, places, loaders[0] if loaders else None)
    part = _waiting(window)
    if part is None or part < STARVED:
        return steps
    mend = _feed(window, loaders)
    return (
        Advice(f"Feed it first: {percent(part)} of each {ms(pattern.cost_ms)} waits for {mend}."),
        *steps[:2],
    )


def _feed(window: Window, loaders: list[Loader]) -> str:
    """What its loader lacks: to be kept, workers, or cheaper items."""
    first = loaders[0]
    built = sum(1 for ld in loaders if (ld.file, ld.line) == (first.file, first.line))
    its = f"its loader ({name(Where(first.file, first.line, ''))})"
    if first.num_workers and built > 1:
        return (
            f"{its}, which was constructed {built} times and starts its workers each time: "
            "construct it once, before the loop, with persistent_workers=True"
        )
    kept = ", persistent_workers=True" if not first.persistent_workers else ""
    kept = f", constructed once, before the loop{kept}" if built > 1 else kept
    if first.num_workers < (window.cores or 2) - 1:
        more = max(2, 2 * first.num_workers)
        return f"{its}: num_workers {first.num_workers} -> {more}{kept}"
    keep = "its items once, before training, and keep them"
    return f"{its}: make {keep}{kept if first.num_workers else ''}"


def _of_kind(window: Window, kind: str) -> list[Site]:
    return [s for s in window.sites if s.kind == kind and s.rank == window.rank]


def _loaders(window: Window) -> list[Loader]:
    """Loaders that were read but feed no backward, the one waited for longest first."""
    found = [
        ld
        for ld in window.loaders
        if ld.rank == window.rank and ld.batches and not ld.feeds_training
    ]
    return sorted(found, key=lambda ld: (-ld.wait_ns, ld.id))


def _evaluates(window: Window, pattern: Periodic) -> bool:
    if _loaders(window) or _measures(window):
        return True
    switches = _of_kind(window, "eval")
    if not switches:
        return False
    rare = pattern.every is None or pattern.every >= RARE
    if window.feeding_loaders and rare:
        return True
    named = (s for s in (*switches, *_of_kind(window, "nograd")))
    return any(NAMED.search(text) for s in named for text in (s.func, s.call))


def _places(window: Window, share: float) -> tuple[tuple[Where, ...], str | None]:
    """Who runs it, who switches the mode, whose batches it reads: what is known of these."""
    sites = [*_largest(window, share), *_of_kind(window, "eval")[:1]]
    places = [where(s) for s in sites]
    places += [Where(ld.file, ld.line, shorter_loader(ld)) for ld in _loaders(window)[:1]]
    if not places:
        return (), "no line was recorded for the evaluation"
    return tuple(dict.fromkeys(places)), None


RULE = Rule(
    ID,
    11,
    judge,
    probe="skip the next evaluation",
    page=Page(
        number=26,
        title="Evaluation takes a large part of the run",
        meaning=(
            "Training pauses to evaluate, often or long enough to matter. A person sees a second, "
            "lower level of utilisation that comes back at a regular distance."
        ),
        looks_at=(
            "time between `Module.eval()` and `train()`, and in gradient-free blocks",
            "loaders that were read but feed no backward",
            "names of the code that evaluates, or that makes something to look at",
        ),
        thresholds=(
            Threshold("evaluation, warn", f">= {percent(WARN)} of wall", "proposed"),
            Threshold("evaluation, critical", f">= {percent(CRITICAL)} of wall", "TraceML's bands"),
            Threshold("evaluations", ">= 2; a single one is information", "proposed"),
            Threshold(
                "steps from one to the next", f">= {OFTEN:.0f}, else it is training", "proposed"
            ),
            Threshold("waiting for its own loader", f">= {percent(STARVED)} of it", "proposed"),
            Threshold(
                "without a loader of its own or a name that says so",
                f">= {RARE:.0f} steps apart beside a loader that trains",
                "proposed",
            ),
        ),
        mistaken_for=(
            "a teacher, target or reference model: gradient-free in every step, part of training",
            "a policy that collects what the next steps train on: `eval()` without loader or name",
            "samples to train on: a block that only samples is told where it writes a file",
            "`checkpoint-stall` at the same boundary: a label of its own",
        ),
        mend=(
            "Evaluate less often, or on a fixed subset.",
            "A larger batch under `torch.inference_mode()`, with loader workers of its own.",
            "A job of its own that evaluates saved checkpoints.",
        ),
        test="Skip the next evaluation",
        gain="ceiling `T / (T - V)`; forecast `wall / (wall - V + V')` for one made rarer",
    ),
)
