"""All ranks side by side, and all cards a run may use: what one rank's window does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.stats import median
from gputop_train.diagnose.steady import totals_of
from gputop_train.diagnose.window import RankView, bare_uuid
from gputop_train.model import GpuSample
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import StepRollup

#: Ranks are compared over this much time at most: a run of ten hours has as many rows a rank.
RECENT_NS = 600_000_000_000
#: Equal stretches that must agree on the slowest rank, and the fewest seconds of each.
PARTS, PART_SECONDS = 10, 2
#: Cards that no rank uses are watched no longer than this.
EARLY_NS = 60_000_000_000


def ranks(
    reader: RunReader, states: Mapping[int, Mapping[str, Any]], begin: int, end: int
) -> dict[int, RankView]:
    """Sums of every rank; empty where there is only one."""
    known = reader.ranks()
    if len(known) < 2:
        return {}
    begin = max(begin, end - RECENT_NS)
    clocks = _clocks(reader, begin, end)
    found = {}
    for rank in known:
        rows = reader.step_rollups(begin, end, rank)
        if rows:
            cuda = states.get(rank, {}).get("cuda")
            uuid = cuda.get("uuid") if isinstance(cuda, Mapping) else None
            clock = clocks.get(bare_uuid(uuid)) if isinstance(uuid, str) else None
            found[rank] = RankView(totals_of((), rows), _parts(rows, begin, end), clock)
    return found


def _parts(rows: list[StepRollup], begin: int, end: int) -> tuple[Any, ...]:
    width = (end - begin) / PARTS
    if width < PART_SECONDS * 1e9:
        return ()
    chunks: list[list[StepRollup]] = [[] for _ in range(PARTS)]
    for row in rows:
        chunks[min(PARTS - 1, max(0, int((row.t1_ns - begin) / width)))].append(row)
    return tuple(totals_of((), chunk) for chunk in chunks)


def _clocks(reader: RunReader, begin: int, end: int) -> dict[str, float]:
    seen: dict[str, list[float]] = {}
    for sample in reader.gpu(begin, end):
        if sample.sm_clock_mhz:
            seen.setdefault(bare_uuid(sample.uuid), []).append(float(sample.sm_clock_mhz))
    return {uuid: value for uuid, mhz in seen.items() if (value := median(mhz)) is not None}


def cards(reader: RunReader) -> tuple[GpuSample, ...]:
    """The last early reading of every card the run may use."""
    span = reader.span()
    if span is None:
        return ()
    newest = {sample.uuid: sample for sample in reader.gpu(span[0], span[0] + EARLY_NS)}
    return tuple(newest[uuid] for uuid in sorted(newest))
