"""Sites and loaders out of the probe's snapshot, whatever is missing or odd in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputop_train.model import Fetch, Loader, Site, Where

MAX_ROWS: Final = 4096
MAX_TEXT: Final = 4096
MAX_WORKERS: Final = 1024
_INT64: Final = 1 << 63


def sites_from_snapshot(rank: int, snap: Mapping[str, Any]) -> list[Site]:
    """The call sites of a snapshot; rows that make no sense are left out."""
    stats = snap.get("site_stats")
    stats = stats if isinstance(stats, dict) else {}
    sites = []
    for row in _rows(snap.get("sites")):
        if not isinstance(row, list) or len(row) < 6:
            continue
        site_id, line = _count(row[0]), _count(row[3])
        if not site_id or line is None or not all(isinstance(row[i], str) for i in (1, 2, 4, 5)):
            continue
        seen = stats.get(str(site_id))
        seen = seen if isinstance(seen, list) else []
        count, total_ns, moved, unpinned, looked_at, pairs, pair_ns, pair_bytes, after_ns = (
            _count(seen[i]) if i < len(seen) else None for i in range(9)
        )
        kind = _text(row[1])
        moves = kind in ("sync", "h2d", "save")
        paired = kind in ("sync", "h2d")
        sites.append(
            Site(
                rank=rank,
                id=site_id,
                kind=kind,
                file=_text(row[2]),
                line=line,
                func=_text(row[4]),
                call=_text(row[5]),
                label=_text(row[6]) if len(row) > 6 and isinstance(row[6], str) else None,
                count=count or 0,
                total_ns=total_ns or 0,
                bytes=moved if moves else None,
                unpinned_bytes=unpinned if kind == "h2d" else None,
                seen=looked_at if kind != "sample" else None,
                pairs=pairs if paired else None,
                pair_ns=pair_ns if paired else None,
                pair_bytes=pair_bytes if paired else None,
                after_ns=after_ns if kind == "sync" else None,
            )
        )
    return sites


def loaders_from_snapshot(rank: int, snap: Mapping[str, Any]) -> list[Loader]:
    """The DataLoaders of a snapshot; rows that make no sense are left out."""
    loaders = []
    for row in _rows(snap.get("loaders")):
        if not isinstance(row, dict):
            continue
        loader_id, workers = _count(row.get("id")), _count(row.get("num_workers"))
        if not loader_id or workers is None:
            continue
        pids = row.get("worker_pids")
        override = row.get("override")
        loaders.append(
            Loader(
                rank=rank,
                id=loader_id,
                file=_text(row.get("file")),
                line=_count(row.get("line")) or 0,
                call=_text(row.get("call")),
                dataset=_text(row.get("dataset")),
                num_workers=workers,
                batch_size=_count(row.get("batch_size")),
                pin_memory=row.get("pin_memory") is True,
                persistent_workers=row.get("persistent_workers") is True,
                prefetch_factor=_count(row.get("prefetch_factor")),
                iterable=row.get("iterable") is True,
                length=_count(row.get("length")),
                custom_batch_sampler=row.get("custom_batch_sampler") is True,
                worker_pids=tuple(pid for pid in map(_count, _rows(pids)[:MAX_WORKERS]) if pid),
                ready=_count(row.get("ready")),
                batches=_count(row.get("batches")) or 0,
                wait_ns=_count(row.get("wait_ns")) or 0,
                feeds_training=row.get("feeds_training") is True,
                epochs=_count(row.get("epochs")) or 0,
                override=override if isinstance(override, dict) else {},
                fetch=tuple(_fetches(row.get("fetch"))),
                source=_place(row.get("source")),
                collate=_place(row.get("collate")),
                dataset_length=_count(row.get("dataset_length")),
                in_order=_flag(row.get("in_order")),
                context=_text(row.get("context")) or None,
                starts=_count(row.get("starts")) or 0,
                start_ns=_count(row.get("start_ns")) or 0,
                first_waits=_count(row.get("first_waits")) or 0,
                first_wait_ns=_count(row.get("first_wait_ns")) or 0,
            )
        )
    return loaders


def _fetches(value: Any) -> Iterator[Fetch]:
    """What each process of a loader spent on its batches."""
    for row in _rows(value)[:MAX_WORKERS]:
        if not isinstance(row, list) or len(row) != 8:
            continue
        worker = -1 if row[0] == -1 else _count(row[0])
        pid, batches, fetch_ns, collate_ns, longest_ns, items, starts = map(_count, row[1:])
        counters = (batches, fetch_ns, collate_ns, longest_ns, items, starts)
        if worker is None or None in counters:
            continue
        batches, fetch_ns, collate_ns, longest_ns, items, starts = (n or 0 for n in counters)
        # A number may be read between two stores of a worker that is at work.
        collate_ns, longest_ns = min(collate_ns, fetch_ns), min(longest_ns, fetch_ns)
        yield Fetch(worker, pid or None, batches, fetch_ns, collate_ns, longest_ns, items, starts)


def _place(value: Any) -> Where | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    line, file = _count(value[1]), _text(value[0])
    return Where(file, line, _text(value[2])) if file and line else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _rows(value: Any) -> list[Any]:
    return value[:MAX_ROWS] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    """A non-negative integer that fits the store, else ``None``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _INT64:
        return None
    return value


def _text(value: Any) -> str:
    """Bounded text without control characters: it goes to a terminal some day."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in value[:MAX_TEXT])
