"""What one leg measured: its run's store and report, read once it has ended."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gputop_train import paths
from gputop_train.launch import runfile
from gputop_train.launch.logtail import LineFolder, open_regular
from gputop_train.launch.runfile import Exit
from gputop_train.launch.runs import store_path
from gputop_train.launch.secrets import mask_code
from gputop_train.model import LABELS, Step
from gputop_train.report import settings
from gputop_train.report.format import printable
from gputop_train.store.reader import RunReader, StoreError
from gputop_train.trial.record import HAD_NO_EFFECT, WAS_REFUSED, Arm, LegResult, LegStatus

#: Fewer steps than this say nothing about a mean: at the usual spread of single steps (5 to 20%)
#: ten of them leave 2 to 6% of uncertainty within one leg, as much as the legs differ among
#: themselves (proposed).
MIN_STEPS = 10
_TAIL_BYTES = 16_384
_LINE = 300
#: The last line of a Python traceback: ``torch.OutOfMemoryError: CUDA out of memory.``
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Killed)\b")


@dataclass(frozen=True, slots=True)
class Cut:
    """Which steps of a leg count: ``steps`` of them after ``warmup``."""

    warmup: int
    steps: int


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What the first leg showed of the script, for how long the others are to be.

    Attributes:
        step_ns: All its steps.
        loaders: ``num_workers``, ``prefetch_factor`` and ``batch_size`` of those that feed
            training, the one waited for longest first.
        batches_per_step: Micro-batches of an optimizer step, mean.
        ended_by_itself: The script was over before its steps were.
    """

    step_ns: tuple[int, ...]
    loaders: tuple[Mapping[str, Any], ...]
    batches_per_step: float
    ended_by_itself: bool


def first_look(run_dir: Path, report: Mapping[str, Any] | None) -> FirstLook:
    """Look over a leg's run.

    Raises:
        StoreError: Its store cannot be read.
    """
    run = runfile.read_json(run_dir / "run.json") or {}
    with RunReader(store_path(run_dir, run)) as reader:
        rank = min(reader.ranks(), default=0)
        steps = reader.steps(rank=rank)
        loaders = sorted(
            (ld for ld in reader.loaders(rank) if ld.feeds_training), key=lambda ld: -ld.wait_ns
        )
    stopped_by = ((report or {}).get("run") or {}).get("stopped_by")
    return FirstLook(
        step_ns=tuple(step.wall_ns for step in steps),
        loaders=tuple(
            {
                "num_workers": ld.num_workers,
                "prefetch_factor": ld.prefetch_factor,
                "batch_size": ld.batch_size,
            }
            for ld in loaders
        ),
        batches_per_step=fmean(step.micro for step in steps) if steps else 1.0,
        ended_by_itself=stopped_by is None,
    )


def read_leg(
    run_dir: Path, arm: Arm, cut: Cut, ended: Exit | None, *, refusal: str | None = None
) -> LegResult:
    """The result of a leg whose script has ended.

    Args:
        run_dir: Its run.
        arm: What it was a leg of.
        cut: Which steps count.
        ended: How the script ended; ``None`` = nobody knows.
        refusal: What the guard ended the leg for, in words.
    """
    report = runfile.read_json(paths.RunPaths(run_dir).report_json)
    run = runfile.read_json(run_dir / "run.json") or {}
    try:
        with RunReader(store_path(run_dir, run)) as reader:
            found = _read(reader, run, arm, cut, report)
    except StoreError as problem:
        found = LegResult(arm.name, "inconclusive", str(problem), report=report)
    stopped_by = ((report or {}).get("run") or {}).get("stopped_by")
    judged = _judge(found, ended, stopped_by, refusal, run_dir)
    return _with(judged, run=run_dir.name, warmup=cut.warmup)


def _judge(
    found: LegResult,
    ended: Exit | None,
    stopped_by: object,
    refusal: str | None,
    run_dir: Path,
) -> LegResult:
    """The status, the most telling reason first."""
    if refusal is not None:
        return _with(found, status="refused", why=refusal, applied=False, refused=refusal)
    if stopped_by != "steps" and (ended is None or ended.status != 0):
        said = last_error(paths.RunPaths(run_dir).output_log)
        code = "with an unknown code" if ended is None else f"with exit code {ended.status}"
        why = f"The script ended {code}{f': {said}' if said else '.'}"
        return _with(found, status="failed", why=why)
    return found


def _read(
    reader: RunReader,
    run: Mapping[str, Any],
    arm: Arm,
    cut: Cut,
    report: dict[str, Any] | None,
) -> LegResult:
    states = reader.probe_states()
    refused, doubt, remark = _took_effect(run, states, reader)
    every = {rank: reader.steps(rank=rank) for rank in reader.ranks()}
    rank = min(every, default=0)
    steps = every.get(rank, [])[cut.warmup : cut.warmup + cut.steps]
    memory = (report or {}).get("memory") or {}
    on_card = memory.get("basis") == "cuda-allocator"
    losses = (states.get(rank) or {}).get("losses")
    losses = losses if isinstance(losses, Mapping) else {}
    status: LegStatus = "measured"
    why = ""
    if refused is not None:
        status, why = "refused", refused
    elif doubt is not None:
        status, why = "inconclusive", doubt
    elif len(steps) < MIN_STEPS:
        seen = len(every.get(rank, []))
        status = "inconclusive"
        why = (
            f"It made {seen} steps, and {cut.warmup} of warm-up leave too few to measure: at least "
            f"{MIN_STEPS} are needed. Train on more data, or give --warmup a smaller number."
            if seen
            else "No training step was seen in it."
        )
    return LegResult(
        arm=arm.name,
        status=status,
        why=why,
        step_ns=tuple(step.wall_ns for step in steps),
        samples_per_step=_samples(steps, every, cut),
        peak_allocated=_count(memory.get("peak_allocated")) if on_card else None,
        peak_reserved=_count(memory.get("peak_reserved")) if on_card else None,
        gpu_busy=_busy(reader, states.get(rank) or {}, steps),
        first_losses=_floats(losses.get("first")),
        loss_finite=losses.get("finite") if isinstance(losses.get("finite"), bool) else None,
        applied=refused is None and doubt is None,
        refused=refused,
        note=remark,
        invariants=_invariants(reader, states.get(rank) or {}, steps, report),
        report=report,
        phases_ms=_phases(steps),
        cpu_busy=_cpu_busy(reader, steps),
    )


def _samples(steps: Sequence[Step], every: Mapping[int, Sequence[Step]], cut: Cut) -> float | None:
    """Samples a step takes on all ranks here together; ``None`` where a step's are not known."""
    if not steps:
        return None
    total = 0.0
    for found in every.values():
        counted = [step.samples for step in found[cut.warmup : cut.warmup + cut.steps]]
        known = [n for n in counted if n is not None]
        if not known or len(known) < len(counted):
            return None
        total += fmean(known)
    return total or None


def _phases(steps: Sequence[Step]) -> dict[str, float] | None:
    if not steps:
        return None
    sums = {label: sum(step.labels.get(label, 0) for step in steps) for label in LABELS}
    return {label: ns / len(steps) / 1e6 for label, ns in sums.items() if ns}


def _busy(reader: RunReader, state: Mapping[str, Any], steps: Sequence[Step]) -> float | None:
    """Share of the measured time in which the driver saw the card busy."""
    if not steps:
        return None
    wanted = (state.get("cuda") or {}).get("uuid")
    seen = reader.util(steps[0].t0_ns, steps[-1].t1_ns)
    mine = [s.util for s in seen if not wanted or str(wanted) in s.uuid or s.uuid in str(wanted)]
    return fmean(mine) / 100 if mine else None


def _cpu_busy(reader: RunReader, steps: Sequence[Step]) -> float | None:
    """Share of the usable cores that was busy: of the machine, or of the part that is ours."""
    if not steps:
        return None
    span = steps[0].t0_ns, steps[-1].t1_ns
    hosts = [h for h in reader.host(*span) if h.cpu_busy is not None]
    if not hosts:
        return None
    last = hosts[-1]
    bounds = [n for n in (last.cpus_allowed, last.cpu_quota, last.cpus_total) if n]
    usable = min(bounds, default=0)
    if not usable:
        return None
    if usable == last.cpus_total:
        return min(1.0, fmean(h.cpu_busy or 0.0 for h in hosts) / usable)
    ours: dict[int, float] = {}
    for process in reader.procs(*span):
        ours[process.t_ns] = ours.get(process.t_ns, 0.0) + (process.cpu or 0.0)
    return min(1.0, fmean(ours.values()) / usable) if ours else None


def _invariants(
    reader: RunReader,
    state: Mapping[str, Any],
    steps: Sequence[Step],
    report: Mapping[str, Any] | None,
) -> dict[str, float]:
    """What does not drift with the host; only what was measured."""
    found: dict[str, float] = {}
    if not steps:
        return found
    hooks = state.get("hooks") or {}
    on_card = bool((state.get("cuda") or {}).get("initialized"))
    if on_card and hooks.get("sync"):
        found["syncs_per_step"] = fmean(step.syncs for step in steps)
    if on_card and hooks.get("h2d"):
        # Of the whole run: counters of lines are kept by the second, which the measured steps alone
        # may hardly last.
        rank = steps[0].rank
        copied = [s.bytes for s in reader.sites(rank) if s.kind == "h2d" and s.bytes is not None]
        found["h2d_bytes_per_step"] = sum(copied) / max(1, reader.steps_counted(rank))
    dynamo = state.get("dynamo") or {}
    if isinstance(dynamo.get("recompiles"), int):
        found["recompiles"] = float(dynamo["recompiles"])
        found["graph_breaks"] = float(dynamo.get("graph_breaks") or 0)
    burst = state.get("burst") or {}
    if burst.get("state") == "done" and isinstance(burst.get("kernels_per_step"), (int, float)):
        found["kernels_per_step"] = float(burst["kernels_per_step"])
    memory = (report or {}).get("memory") or {}
    if memory.get("basis") == "cuda-allocator" and _count(memory.get("peak_allocated")):
        found["peak_allocated"] = float(memory["peak_allocated"])
    return found


def _took_effect(
    run: Mapping[str, Any], states: Mapping[int, Mapping[str, Any]], reader: RunReader
) -> tuple[str | None, str | None, str]:
    """Why an arm's changes did not take effect; why nobody can tell; else a remark on how they did.

    A setting refused at the loader of an evaluation and applied at that of training is applied.
    """
    refused: list[str] = []
    doubtful: list[str] = []
    remarks: list[str] = []
    for outcome in settings.outcomes(run, states.values(), reader.loaders()):
        key, value = str(outcome["setting"]).removeprefix("what_if:"), outcome["value"]
        shown = key if value is True and key != outcome["setting"] else f"{key}={_typed(value)}"
        why, where = outcome["why"], ", ".join(outcome["where"])
        status = outcome["status"]
        if status == settings.REFUSED:
            refused.append(f"{shown} {WAS_REFUSED}{f' at {where}' if where else ''}: {why}.")
        elif status == settings.NO_EFFECT:
            refused.append(f"{shown} {HAD_NO_EFFECT}: {why}.")
        elif status is None:
            doubtful.append(f"Whether {shown} took effect is not known: {why}.")
        elif status == settings.INCONCLUSIVE:
            doubtful.append(f"{shown} went wrong on the way: {why}.")
        elif why:
            remarks.append(f"{shown}: {why}.")
    told = [_joined(sentences) for sentences in (refused, doubtful, remarks)]
    return told[0] or None, told[1] or None, told[2]


def _joined(sentences: Sequence[str]) -> str:
    return printable(" ".join(sentences).replace("..", "."))


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def last_error(log: Path) -> str | None:
    """The line of a log that says best why a script failed: its last error, else its last line."""
    lines = tail(log, 60)
    errors = [line for line in lines if _ERROR.match(line)]
    # KeyboardInterrupt and broken pipes of workers come after the error that caused them.
    telling = [line for line in errors if not line.startswith(("KeyboardInterrupt", "BrokenPipe"))]
    found = telling or errors or lines
    return found[-1] if found else None


def tail(log: Path, count: int) -> list[str]:
    """The last lines of a log that are not empty, safe to print and to keep."""
    fd = open_regular(log)
    if fd is None:
        return []
    try:
        with os.fdopen(fd, "rb") as stream:
            stream.seek(max(0, os.fstat(fd).st_size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    folder = LineFolder(max_lines=500)
    folder.feed(text)
    lines = [line for line in folder.lines() if line.strip()][-count:]
    return [printable(mask_code(line))[:_LINE] for line in lines]


def read_refusal(scratch: Path) -> str | None:
    """What the guard ended a leg for, in words; ``None`` where it refused nothing."""
    try:
        first = (scratch / "refused.jsonl").read_text("utf-8", "replace").strip("\0 \n")
        row = json.loads(first.splitlines()[0]) if first else None
    except (OSError, ValueError, IndexError):
        return None
    if not isinstance(row, dict):
        return None
    call, path = printable(str(row.get("call"))), printable(str(row.get("path")))
    if row.get("program"):
        return (
            f"It was ended before {call} could start {path!r}: nobody can see which files another "
            "program changes. Leave that call out, or run the trial where writes can be diverted: "
            "--guard auto does so, or says why not."
        )
    return (
        f"It was ended before {call} could change {path}, which existed before the trial. Let the "
        "script write to new files, or run the trial where writes can be diverted: --guard auto "
        "does so, or says why not."
    )


def _with(leg: LegResult, **changed: Any) -> LegResult:
    return replace(leg, **changed)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _floats(values: object) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple)):
        return ()
    return tuple(float(v) for v in values if isinstance(v, (int, float)))
