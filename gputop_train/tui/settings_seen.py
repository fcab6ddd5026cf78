"""The settings a run really has, from its store: loaders by line, then what holds for all of it.

Pure. What nothing measured stays unknown; a setting that the script rules out says so in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from gputop_train.launch.options import (
    LOADER_SETTINGS,
    SETTINGS,
    SettingValue,
    UsageProblem,
    parse_setting,
)
from gputop_train.model import Diagnosis, Finding, Gain, Loader, Site
from gputop_train.report import copies
from gputop_train.report import settings as outcomes
from gputop_train.tui.snapshot import SettingGroup, SettingSeen
from gputop_train.tui.text import factor

#: Settings of a loader in the order people tune them.
LOADER_KEYS = tuple(key for key in SETTINGS if key in LOADER_SETTINGS)
#: A script that builds loaders without end is not worth a screen for each.
MAX_LOADERS = 12
#: Settings that do nothing without a GPU.
_GPU_ONLY = ("tf32", "cudnn_benchmark", "expandable_segments", "non_blocking")
Hint = tuple[SettingValue, str]


def groups(
    run: Mapping[str, Any],
    probe: Mapping[str, Any] | None,
    loaders: Sequence[Loader],
    diagnosis: Diagnosis | None,
    sites: Iterable[Site] = (),
) -> tuple[SettingGroup, ...]:
    """Every setting by what it belongs to, the loader that feeds training first.

    Args:
        run: ``run.json``.
        probe: The probe's newest words; ``None`` while there are none.
        loaders: Loaders as built, of all ranks.
        diagnosis: The newest; its advice is what is suggested.
        sites: Lines of the script with their counters; those that copy tell how they do.
    """
    built = _distinct(loaders)
    feeding = [loader for loader in built if loader.feeds_training]
    # What names no loader means the one that feeds training: the probe knows it best.
    alone = len({(loader.file, loader.line) for loader in feeding}) == 1
    hints = _hints(diagnosis)
    became = outcomes.outcomes(run, () if probe is None else (probe,), loaders)
    found = []
    for loader in built[:MAX_LOADERS]:
        place = _place(loader, built)
        target = None if alone and loader.feeds_training else place
        mine = _hints_for(loader, hints, feeding)
        refused = {
            key: why
            for key, why in _refused(became).items()
            if f"{PurePath(loader.file).name}:{loader.line}" in why[1]
        }
        found.append(_of_loader(loader, place, target, mine, refused))
    whole = _of_run(became, probe, hints, copies.non_blocking(sites))
    return (*found, SettingGroup("this run", "", None, whole)) if whole else tuple(found)


def _distinct(loaders: Sequence[Loader]) -> list[Loader]:
    """The newest loader of each line, those that feed training first, then the busiest."""
    newest: dict[tuple[str, int], Loader] = {}
    for loader in sorted(loaders, key=lambda one: (one.feeds_training, -one.rank, one.id)):
        newest[loader.file, loader.line] = loader
    return sorted(newest.values(), key=lambda one: (not one.feeds_training, -one.batches, one.id))


def _place(loader: Loader, built: Sequence[Loader]) -> str:
    """``FILE:LINE`` that means this loader alone: the file's name where that is enough."""
    name = PurePath(loader.file).name
    same = [one for one in built if (PurePath(one.file).name, one.line) == (name, loader.line)]
    return f"{name if len(same) == 1 else loader.file}:{loader.line}"


def _refused(became: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, Sequence[str]]]:
    """Settings this run asked for in vain: why, and where."""
    return {
        str(row["setting"]).partition("@")[0]: (str(row["why"] or ""), row["where"])
        for row in became
        if row["status"] == outcomes.REFUSED
    }


def _of_loader(
    loader: Loader,
    name: str,
    place: str | None,
    hints: Mapping[str, Hint],
    refused: Mapping[str, tuple[str, Sequence[str]]],
) -> SettingGroup:
    values: dict[str, SettingValue] = {
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "pin_memory": loader.pin_memory,
        "prefetch_factor": loader.prefetch_factor if loader.num_workers else None,
        "persistent_workers": loader.persistent_workers,
    }
    rows = [
        _with_hint(
            SettingSeen(
                key,
                values[key],
                changes_results=SETTINGS[key][1],
                cannot=_cannot(key, loader) or refused.get(key, ("", ()))[0],
                override=key in loader.override,
            ),
            hints,
        )
        for key in LOADER_KEYS
    ]
    return SettingGroup(f"loader {name}", _purpose(loader), place, tuple(rows))


def _purpose(loader: Loader) -> str:
    words = [loader.dataset] if loader.dataset else []
    if loader.feeds_training:
        words.append("feeds training")
    elif not loader.batches:
        words.append("not used yet")
    return ", ".join(words)


def _cannot(key: str, loader: Loader) -> str:
    if key == "num_workers" and loader.iterable and not loader.num_workers:
        return "an IterableDataset would deliver every sample once per worker"
    if key == "batch_size" and (loader.custom_batch_sampler or loader.batch_size is None):
        return "its batches come from a sampler of the script's own"
    return ""


def _of_run(
    became: Sequence[Mapping[str, Any]],
    probe: Mapping[str, Any] | None,
    hints: Mapping[str, Sequence[Any]],
    non_blocking: bool | None,
) -> tuple[SettingSeen, ...]:
    state = probe or {}
    applied = {row["setting"]: row["value"] for row in became if row["status"] == outcomes.APPLIED}
    refused = _refused(became)
    cuda = state.get("cuda")
    no_gpu = isinstance(cuda, Mapping) and not cuda.get("initialized")
    plain = {key: found[0][0] for key, found in hints.items() if found}
    rows = []
    for key in SETTINGS:
        if key in LOADER_KEYS:
            continue
        known, value = _seen(key, state)
        if key == "non_blocking":
            known, value = non_blocking is not None, non_blocking
        if key in applied:
            known, value = True, applied[key]
        cannot = "it needs a GPU" if no_gpu and key in _GPU_ONLY else refused.get(key, ("", ()))[0]
        if not cannot and known and value and key not in applied and not can_be_off(key):
            cannot = "the script does it itself"
        row = SettingSeen(
            key,
            value,
            known,
            changes_results=SETTINGS[key][1],
            cannot=cannot,
            override=key in applied,
        )
        rows.append(_with_hint(row, plain))
    return tuple(rows)


def can_be_off(key: str) -> bool:
    """Whether ``--set`` can switch it off: what a script does itself is sometimes left to it."""
    try:
        parse_setting(f"{key}=false")
    except UsageProblem:
        return SETTINGS[key][0] is not bool
    return True


def _seen(key: str, state: Mapping[str, Any]) -> tuple[bool, SettingValue]:
    """Whether the probe saw how a switch stands, and how."""
    flags = state.get("flags")
    flags = flags if isinstance(flags, Mapping) else {}
    if key in ("tf32", "cudnn_benchmark", "omp_threads", "expandable_segments"):
        value = flags.get("threads" if key == "omp_threads" else key)
        return isinstance(value, bool | int), value
    if key == "bf16":
        amp = state.get("amp")
        if not isinstance(amp, Mapping) or not isinstance(amp.get("autocast"), list):
            return False, None
        entered = [row for row in amp["autocast"] if isinstance(row, Mapping)]
        return True, any(row.get("dtype") == "bfloat16" and row.get("enabled") for row in entered)
    if key == "fused":
        rows = state.get("optimizers")
        seen = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
        return bool(seen), bool(seen) and all(row.get("fused") for row in seen)
    if key == "compile" and "dynamo" in state:
        dynamo = state["dynamo"]
        # Dynamo is not even loaded in a run that compiles nothing.
        return True, isinstance(dynamo, Mapping) and bool(dynamo.get("frames"))
    return False, None


def _hints(diagnosis: Diagnosis | None) -> dict[str, list[tuple[Hint, Finding]]]:
    """What is advised for each setting, the verdict's advice first."""
    found: dict[str, list[tuple[Hint, Finding]]] = {}
    if diagnosis is None:
        return found
    for finding in filter(None, (diagnosis.verdict, *diagnosis.also)):
        for position, advice in enumerate(finding.advice):
            for key, value in (advice.setting or {}).items():
                # The gain is that of the first remedy; of the others nothing is predicted.
                gain = gain_words(finding.gain) if position == 0 else ""
                found.setdefault(key, []).append(((value, gain), finding))
    return found


def _hints_for(
    loader: Loader, hints: Mapping[str, Sequence[tuple[Hint, Finding]]], feeding: Sequence[Loader]
) -> dict[str, Hint]:
    """The hints that concern a loader: named by line, or of the one that feeds training."""
    mine: dict[str, Hint] = {}
    for key, options in hints.items():
        for hint, finding in options:
            named = {(PurePath(where.file).name, where.line) for where in finding.where}
            others = {(PurePath(one.file).name, one.line) for one in feeding}
            here = (PurePath(loader.file).name, loader.line)
            if here in named or (loader.feeds_training and not named & others):
                mine.setdefault(key, hint)
    return mine


def _with_hint(row: SettingSeen, hints: Mapping[str, Hint]) -> SettingSeen:
    hint = hints.get(row.key)
    if hint is None or row.cannot or (row.known and hint[0] == row.value):
        return row
    return replace(row, suggested=hint[0], gain=hint[1])


def gain_words(gain: Gain | None) -> str:
    """``2.1 to 2.7x``, ``up to 2.8x``; empty where nothing is predicted."""
    if gain is None:
        return ""
    if gain.expected is not None:
        low, high = (factor(number) for number in gain.expected)
        return high if low == high else f"{low.removesuffix('x')} to {high}"
    if gain.ceiling is None:
        return ""
    return f"{'at least' if gain.at_least else 'up to'} {factor(gain.ceiling)}"
