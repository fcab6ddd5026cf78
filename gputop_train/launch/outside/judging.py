"""What stacks, ``/proc`` and NVML allow to be said of a training loop seen from outside. Pure.

Shares of samples are shares of host time. Beside a GPU host time is lost only where the GPU idles
meanwhile, of which the driver's utilisation gives a bound: of a share s at most the busy share u
ran beside it, so at least s - u is lost (``input-bound`` bounds it so too where it has no event
pairs). Everything is of medium confidence at most: no step, no copy and no kernel is seen.
"""

from __future__ import annotations

from collections.abc import Callable

from gputop_train.diagnose.loading_advice import at
from gputop_train.diagnose.rules import (
    checkpoint_stall,
    eval_stall,
    host_compute,
    host_sync_stall,
    input_bound,
    logging_stall,
    main_process_loading,
    prep_stall,
)
from gputop_train.diagnose.rules.base import COVERAGE, INFO, WARN, name, percent
from gputop_train.diagnose.supply import BUSY_WORKER
from gputop_train.launch.outside import modes
from gputop_train.launch.outside.claims import (
    MAX_PLACES,
    Judged,
    at_first,
    at_least,
    finding,
    lines_of,
    lost_for_sure,
    where_of,
)
from gputop_train.launch.outside.crowd import Crowd, crowd_of
from gputop_train.launch.outside.observed import Observed, loader_built
from gputop_train.model import Abstention, Advice, Diagnosis, Evidence, Finding, Where

#: Three seconds of stacks before anything is said (proposed here).
MIN_SAMPLES = 60
#: What comes now and then must have come so often to be a pattern (proposed here).
MIN_PIECES = 2
#: A machine with less than this idle has no core to spare (proposed here).
_FULL_MACHINE = 0.2
#: On such a machine, a worker with less of a core than this has its core taken by others.
_STARVED_WORKER = 0.5
#: What no look from outside tells, and why.
UNSEEN = {
    "launch-bound": "kernels and their gaps are not seen from outside",
    "steps": "step boundaries are not seen from outside",
}


def judge(seen: Observed) -> Diagnosis:
    """The verdict that sampling allows."""
    n = seen.samples
    if n == 0:
        return Diagnosis(
            "no-steps",
            None,
            note="No thread was seen in forward, backward or an optimizer: nothing trains now.",
        )
    if n < MIN_SAMPLES:
        return Diagnosis(
            "too-early", None, note=f"{n} of {MIN_SAMPLES} samples of the training thread seen."
        )
    answers = [rule(seen) for rule in _RULES]
    found = sorted(
        (a for a in answers if isinstance(a, Finding)), key=lambda f: (-_rank(f), -f.lost_share)
    )
    abstained = tuple(a for a in answers if isinstance(a, Abstention))
    abstained += (Abstention("launch-bound", UNSEEN["launch-bound"]),) if seen.on_gpu else ()
    if found:
        return Diagnosis("verdict", False, found[0], tuple(found[1:3]), abstained)
    # Never "healthy": too much of what would speak against it cannot be seen.
    unseen = ("launch-bound",) if seen.on_gpu else ("steps",)
    abstained = abstained or tuple(Abstention(what, UNSEEN[what]) for what in unseen)
    note = "Nothing that samples of the stack can tell takes much of the time; more is not seen."
    return Diagnosis("abstained", None, abstained=abstained, note=note)


def _rank(finding: Finding) -> int:
    return ("info", "warn", "critical").index(finding.severity)


def _input(seen: Observed) -> Judged:
    share = seen.shares().get("data_wait", 0.0)
    lost = lost_for_sure(seen, input_bound.ID, share, INFO)
    crowd = crowd_of(seen)
    if crowd is not None and crowd.lost > share:
        return _crowded(seen, crowd)
    full = seen.cores_free is not None and seen.cores_free < _FULL_MACHINE
    if lost is None and full and seen.workers and not seen.on_gpu:
        # What is late may hide: training itself is slow where it shares its cores with its workers.
        return Abstention(
            input_bound.ID,
            "no core of the machine is idle: whether loading or other programs take what training "
            "wants is not seen from outside",
        )
    if not isinstance(lost, float):
        return lost
    waits = seen.labels["data_wait"]
    busy = [w.cpu for w in seen.workers if w.cpu is not None]
    mean = sum(busy) / len(busy) if busy else None
    alone = seen.by_loader and seen.in_process >= COVERAGE * waits
    prepares = not alone and mean is not None and mean >= BUSY_WORKER
    refined = main_process_loading.ID if alone else prep_stall.ID if prepares else None
    loader, code = _loading(seen)
    evidence = [
        Evidence("data wait of the training thread", share, "of its samples"),
        Evidence("batches made in the training process", seen.in_process / waits, "of the wait"),
    ]
    if busy:
        evidence.append(Evidence(f"cores used by each of {len(busy)} workers, mean", mean, "cores"))
    if seen.cores_free is not None:
        evidence.append(Evidence("idle", seen.cores_free, "cores"))
    why = {
        main_process_loading.ID: "the training process prepares every batch itself (num_workers=0)",
        prep_stall.ID: f"its {len(busy)} workers are busy all the time and do not keep up",
    }.get(refined or "", "batches are not there in time")
    return finding(
        seen,
        input_bound.ID,
        lost,
        f"Training waits for data in {at_least(seen, lost)} of the time: {why}.",
        evidence,
        [*([loader] if loader else []), *code],
        _loading_advice(seen, refined, loader, code),
        refined=refined,
    )


def _crowded(seen: Observed, crowd: Crowd) -> Finding:
    """Few waits, and training that is slow itself: its workers have the cores it wants."""
    loader, code = _loading(seen)
    where = [*([loader] if loader else []), *code]
    evidence, mend = crowd.evidence(), Advice(crowd.mend(at(loader)))
    return finding(seen, input_bound.ID, crowd.lost, crowd.summary(), evidence, where, [mend])


def _loading(seen: Observed) -> tuple[Where | None, list[Where]]:
    """Where the loader is built (else iterated), and the lines its batches are made on."""
    loops = [place for place, _ in seen.loops.most_common(1)]
    built = loader_built(loops[0], seen.root) if loops else None
    loader = built or (loops[0] if loops else None)
    code = [
        where_of(place)
        for _, place, _ in seen.lines("data_wait")
        if loader is None or (place.file, place.line) not in {(p.file, p.line) for p in loops}
    ]
    return (None if loader is None else where_of(loader)), code[: MAX_PLACES - 1]


def _loading_advice(
    seen: Observed, refined: str | None, loader: Where | None, code: list[Where]
) -> list[Advice]:
    cheaper = Advice(
        f"Make preparation cheaper{at_first(code)}: vectorise it, or do the fixed part offline."
    )
    if refined == main_process_loading.ID:
        return [
            Advice(
                f"Load in worker processes{at(loader)}: num_workers 0 -> 2, then double it while "
                "the time per sample falls by 3% or more.",
                {"num_workers": 2},
            ),
            cheaper,
        ]
    workers = len(seen.workers)
    free = seen.cores_free
    if refined == prep_stall.ID:
        more = Advice(f"Use more workers{at(loader)}: num_workers {workers} -> {2 * workers}.")
        return [more, cheaper] if free is not None and free >= workers else [cheaper]
    who = f"The {workers} workers" if workers > 1 else "The worker"
    used = [w.cpu for w in seen.workers if w.cpu is not None]
    starved = bool(used) and sum(used) / len(used) < _STARVED_WORKER
    if starved and free is not None and free < _FULL_MACHINE:
        return [Advice("No core is idle: give the run the cores that other programs take.")]
    if workers:
        blocked = [w.blocked for w in seen.workers if w.blocked is not None]
        stuck = bool(blocked) and sum(blocked) / len(blocked) >= 0.2
        what = "mostly waiting for storage" if stuck else "not busy all the time"
        verb = "are" if workers > 1 else "is"
        return [Advice(f"{who} {verb} {what}: look at what is read{at(loader)}.")]
    return [cheaper]


def _checkpoint(seen: Observed) -> Judged:
    return _pause(
        seen,
        checkpoint_stall.ID,
        "checkpoint",
        checkpoint_stall.WARN,
        "Saving holds training up in",
        "Save less often, or write in another thread (torch.distributed.checkpoint.async_save)",
    )


def _eval(seen: Observed) -> Judged:
    return _pause(
        seen,
        eval_stall.ID,
        "eval",
        eval_stall.WARN,
        "Evaluation takes",
        "Evaluate less often or on a part of the data",
    )


def _logging(seen: Observed) -> Judged:
    return _pause(
        seen,
        logging_stall.ID,
        "logging",
        logging_stall.INFO,
        "Logging takes",
        "Log every 50 steps instead of every one, and collect values on the device until then",
        bounded=True,
    )


def _pause(
    seen: Observed,
    id_: str,
    label: str,
    floor: float,
    says: str,
    mend: str,
    *,
    bounded: bool = False,
) -> Judged:
    """What stands between steps; it stops the loop, so all of it is lost unless ``bounded``."""
    share = seen.shares().get(label, 0.0)
    lost = lost_for_sure(seen, id_, share, floor, bounded=bounded)
    if not isinstance(lost, float):
        return lost
    if seen.pieces_with[label] < MIN_PIECES:
        return Abstention(id_, f"it was met once in {seen.seconds:.0f} s: watch longer to tell")
    places = lines_of(seen, label)
    return finding(
        seen,
        id_,
        lost,
        f"{says} {at_least(seen, lost, bounded=bounded)} of the time.",
        [
            Evidence(label.replace("checkpoint", "saving"), share, "of its samples"),
            Evidence("met in", seen.pieces_with[label], f"of {seen.pieces} looks of two seconds"),
        ],
        places,
        [Advice(f"{mend}{at_first(places)}.")],
        bounded=bounded,
    )


def _sync(seen: Observed) -> Judged:
    if not seen.on_gpu:
        return None  # a read on a CPU waits for nothing
    id_ = host_sync_stall.ID
    share = seen.shares().get("sync", 0.0)
    lost = lost_for_sure(seen, id_, share, host_sync_stall.WARN)
    if not isinstance(lost, float):
        return lost
    places = lines_of(seen, "sync")
    return finding(
        seen,
        id_,
        lost,
        f"Reads that wait for the GPU block {percent(share)} of the time while it idles for "
        f"{at_least(seen, lost)} of it.",
        [Evidence("blocking reads", share, "of its samples")],
        places,
        [Advice(f"Read values every {host_sync_stall.READ_EVERY} steps{at_first(places)}.")],
        sure=False,
    )


def _host(seen: Observed) -> Judged:
    share = seen.shares().get("other", 0.0)
    floor = WARN if seen.on_gpu else host_compute.ON_CPU
    lost = lost_for_sure(seen, host_compute.ID, share, floor)
    if not isinstance(lost, float):
        return lost
    rows = seen.lines("other")
    by_function: dict[tuple[str, str], int] = {}
    for _, place, n in rows:
        key = place.file, place.function
        by_function[key] = by_function.get(key, 0) + n
    top, most = max(by_function.items(), key=lambda row: row[1], default=(("", ""), 0))
    if most < host_compute.ONE_PLACE * seen.labels["other"]:
        return Abstention(host_compute.ID, "which code of the loop's own takes the time")
    own = [place for _, place, _ in rows if (place.file, place.function) == top]
    words = f"{own[0].function} {own[0].text}"
    if not seen.on_gpu and (
        host_compute.MODEL.search(words) or not host_compute.BESIDE.search(words)
    ):
        return Abstention(
            host_compute.ID,
            f"{percent(share)} of the time is in {own[0].function} ({name(where_of(own[0]))}): "
            "whether it is a loss function cannot be told",
        )
    places = [where_of(place) for place in own[:MAX_PLACES]]
    return finding(
        seen,
        host_compute.ID,
        lost,
        f"Python code beside the model takes {at_least(seen, lost)} of the time, most of it in "
        f"{own[0].function} ({name(places[0])}).",
        [Evidence("host code outside loading and the model", share, "of its samples")],
        places,
        [Advice(f"Do it every N steps, vectorise it, or give it a process ({name(places[0])}).")],
    )


_RULES: tuple[Callable[[Observed], Judged], ...] = (
    _input,
    _checkpoint,
    _eval,
    _logging,
    _sync,
    _host,
    modes.recompilation,
    modes.anomaly,
)
