"""What is seen of a live run after its last step, once that is a while ago."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.window import Since
from gputop_train.model import Where
from gputop_train.store.reader import RunReader

#: Before this nothing is looked up: live windows are read every few seconds.
AFTER_NS = 60_000_000_000


def since(
    reader: RunReader, rank: int, uuid: str | None, end: int, probe: Mapping[str, Any]
) -> Since | None:
    """From the last step's end to the probe's last word; ``None`` while that is less than 60 s."""
    now = probe.get("t_ns")
    if not isinstance(now, int) or now - end < AFTER_NS or not end:
        return None
    util = [s.util for s in reader.util(end, now) if s.uuid == uuid]
    cpu = [
        p.cpu
        for p in reader.procs(end, now)
        if p.role == "trainer" and p.cpu is not None and p.rank in (rank, None)
    ]
    sampled = [s for s in reader.sites_between(end, now) if s.kind == "sample" and s.rank == rank]
    top = max(sampled, key=lambda s: (s.count, -s.id), default=None)
    return Since(
        seconds=(now - end) / 1e9,
        util=sum(util) / len(util) if util else None,
        trainer=sum(cpu) / len(cpu) if cpu else None,
        label=top.label if top is not None else None,
        place=Where(top.file, top.line, top.call or top.func) if top is not None else None,
    )
