"""Which signals a window lacks, and why: what was told of the probe, the supervisor and NVML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import StoredNote

#: The probe writes its state twice a second; this long without it, while the trainer runs, is a
#: probe that died (a C call that holds the GIL can delay it by seconds).
STALE_NS = 20_000_000_000
#: Words lost beyond this part of a step's usual 20 words make the phases unreliable.
LOST_PART, WORDS_PER_STEP = 0.01, 20
#: Notes of the supervisor that say why no step was seen.
ABSENCE_NOTES = ("no-probe", "ring-refused")
#: Parts of the supervisor without which no step reaches the store.
STEP_PARTS = ("ring", "store")
#: So many steps counted by the probe and none stored is a loss; fewer may have been under way.
COUNTED_STEPS = 20
FINAL_ABSENCE_NOTE = "no-probe-after"


def missing_signals(
    reader: RunReader,
    probe: Mapping[str, Any],
    rank: int,
    steps: int,
    end: int,
    *,
    final: bool,
) -> dict[str, str]:
    """Signal -> why it is not there, in words.

    Args:
        reader: The run's store.
        probe: The newest state of the probe of ``rank``.
        rank: Whose steps are judged.
        steps: Steps seen of it.
        end: The window's end.
        final: Whether the run has ended.
    """
    told = {str(k): str(v) for k, v in _mapping(reader.meta("missing")).items()}
    missing = dict(told)
    for key in ("util", "nvml"):
        if key in told:
            missing.setdefault("gpu_util", told[key].rstrip("."))
    trouble = _probe_trouble(reader, probe, steps, end, final=final)
    if trouble is not None:
        missing["probe"] = trouble
    loaders = [ld for ld in reader.loaders() if ld.rank == rank]
    if steps and any(ld.epochs for ld in loaders) and not any(ld.batches for ld in loaders):
        missing["hook:data"] = "a DataLoader was iterated, but none of its batches passed the probe"
    for name, placed in _mapping(probe.get("hooks")).items():
        if placed is not True:  # the probe's own reason, where its self-test gave one
            could_not = f"the probe could not place its {name} hook"
            missing.setdefault(f"hook:{name}", placed if isinstance(placed, str) else could_not)
    events = _mapping(probe.get("gpu_events"))
    if events.get("off_reason"):
        missing["gpu_events"] = f"GPU events are off: {events['off_reason']}"
    elif not events.get("steps"):
        missing["gpu_events"] = "no GPU events were recorded"
    return missing


def _probe_trouble(
    reader: RunReader, probe: Mapping[str, Any], steps: int, end: int, *, final: bool
) -> str | None:
    notes = reader.notes()
    broken = _broken_part(notes)
    if not steps:
        return _absence(notes, broken) or (_uncounted(reader) if final else None)
    if broken is not None and broken.body.get("off"):
        return _sentence(broken.body, "a part that reads the probe failed")
    ring = _mapping(probe.get("ring"))
    if ring.get("failed"):
        return "the probe gave up inside the script, so later steps were not measured"
    lost = sum(v for v in (ring.get("lost"), ring.get("probe_lost")) if isinstance(v, int))
    if lost > LOST_PART * WORDS_PER_STEP * steps:
        return f"{lost:,} records of the probe were lost"
    seen = probe.get("t_ns")
    trainers = [
        p.t_ns
        for p in reader.procs(end, None)
        if p.role == "trainer" and p.pid == ring.get("pid", p.pid)
    ]
    if isinstance(seen, int) and trainers and max(trainers) - max(seen, end) > STALE_NS:
        return f"the probe has been silent for {(max(trainers) - seen) / 1e9:.0f} s"
    return None


def _broken_part(notes: Sequence[StoredNote]) -> StoredNote | None:
    """The newest failure of a part that brings steps from the probe to the store."""
    failed = [
        note
        for note in notes
        if note.kind == "part-failed" and str(note.body.get("part")).startswith(STEP_PARTS)
    ]
    return failed[-1] if failed else None


def _absence(notes: Sequence[StoredNote], broken: StoredNote | None) -> str | None:
    """Why not one step is there, if it is not that the script made none."""
    refused = next((note for note in notes if note.kind == "ring-refused"), None)
    for note in notes:
        # What was found at the end outranks what was guessed under way; what we ourselves could
        # not read outranks both, for then the probe is not to blame.
        if note.kind == FINAL_ABSENCE_NOTE:
            if note.body.get("blocked") is False:
                return None
            return _sentence((broken or refused or note).body, "the probe did not report")
    if broken is not None:
        return _sentence(broken.body, "a part that reads the probe failed")
    for note in notes:
        # A script that never loaded torch, or only evaluates, has no steps: nothing is wrong.
        if note.kind in ABSENCE_NOTES and note.body.get("blocked") is not False:
            return _sentence(note.body, "the probe did not report")
    return None


def _uncounted(reader: RunReader) -> str | None:
    """Steps that the probe counted and nobody stored, whatever became of them."""
    counts = [_mapping(s.get("cost")).get("steps") for s in reader.probe_states().values()]
    counted = max((n for n in counts if isinstance(n, int)), default=0)
    if counted < COUNTED_STEPS:
        return None
    return f"the probe counted {counted:,} steps, but none of them was recorded"


def _sentence(body: Mapping[str, Any], otherwise: str) -> str:
    text = body.get("text")
    return text.rstrip(".") if isinstance(text, str) and text else otherwise


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
