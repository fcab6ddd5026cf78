"""What of a run was not recorded, counted and in words: a report must not pass for a whole one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.store.reader import RunReader

#: Steps that are under way or in the probe's last fifth of a second are not lost.
_FEW_STEPS = 20


def losses(reader: RunReader) -> list[dict[str, Any]]:
    """Each kind of loss: ``what``, its ``count``, and a sentence.

    Raises:
        StoreError: The store cannot be read.
    """
    found = []
    for rank, state in reader.probe_states().items():
        ring = _mapping(state.get("ring"))
        records = sum(n for n in (ring.get("lost"), ring.get("probe_lost")) if isinstance(n, int))
        if records:
            steps = _steps_missing(reader, rank, state)
            text = f"{records:,} records of rank {rank} were overwritten before they could be read"
            text += f", and with them about {steps:,} of its steps." if steps else "."
            found.append({"what": "probe records", "count": records, "text": text})
        spoiled = ring.get("spoiled")
        if isinstance(spoiled, int) and spoiled > 0:
            text = f"About {spoiled:,} records of rank {rank} were left out: "
            text += "something else than the probe wrote into its ring."
            found.append({"what": "spoiled records", "count": spoiled, "text": text})
    rows = [n.body.get("rows") for n in reader.notes("store-rows-dropped")]
    count = sum(n for n in rows if isinstance(n, int))
    if count:
        text = f"{count:,} measured rows could not be stored: no room to write, or to wait."
        found.append({"what": "rows", "count": count, "text": text})
    gone = reader.notes("gpu-lost")
    if gone:
        back = "nvml" not in _mapping(reader.meta("missing"))
        then = "Readings of GPUs have a gap." if back else "Readings of GPUs end there."
        text = f"{gone[-1].body.get('text')} {then}"
        found.append({"what": "GPU readings", "count": len(gone), "text": text})
    dropped = reader.meta("log_dropped_bytes")
    if isinstance(dropped, int) and dropped > 0:
        text = f"The oldest {dropped:,} bytes of output were given up to keep output.log bounded."
        found.append({"what": "output bytes", "count": dropped, "text": text})
    return found


def _steps_missing(reader: RunReader, rank: int, state: Mapping[str, Any]) -> int | None:
    """Steps the probe counted and the store lacks; ``None`` where the two cannot be compared."""
    attempts = reader.meta("attempts", 1)
    counted = _mapping(state.get("cost")).get("steps")
    if attempts != 1 or not isinstance(counted, int):
        return None
    missing = counted - sum(rollup.n for rollup in reader.step_rollups(rank=rank))
    return missing if missing >= _FEW_STEPS else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
