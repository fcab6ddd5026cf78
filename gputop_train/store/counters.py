"""Sites and loaders as they stood at a time, or as their counters grew between two."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from gputop_train.model import Loader, Site
from gputop_train.store.session import Session

#: Count, nanoseconds, bytes and unpinned bytes.
Counters = tuple[int, int, int | None, int | None]


def standing(session: Session, rank: int | None, until_ns: int | None) -> list[Site]:
    """Sites as they stood at a time, or stand now; those not yet seen then are left out."""
    sites = _newest(session, rank)
    if until_ns is None:
        return sites
    stood = ((site, _at(session, site, until_ns)) for site in sites)
    return [_with(site, counters) for site, counters in stood if counters is not None]


def between(session: Session, rank: int | None, t0_ns: int | None, t1_ns: int) -> list[Site]:
    """Sites whose counters grew between two times, by how much they did."""
    found = []
    for site in _newest(session, rank):
        end = _at(session, site, t1_ns)
        start = None if t0_ns is None else _at(session, site, t0_ns)
        gain = None if end is None else difference(start, end)
        if gain is not None and gain[:2] != (0, 0):
            found.append(_with(site, gain))
    return found


def loaders(session: Session, rank: int | None, until_ns: int | None) -> list[Loader]:
    """Loaders as they stood at a time, or stand now; those not yet seen then are left out."""
    query = "SELECT rank, id, body FROM loader WHERE (? IS NULL OR rank = ?) ORDER BY rank, id"
    decode = session.codecs.loader.decode
    found = [
        decode(body, rank=one, id=number) for one, number, body in session.rows(query, (rank, rank))
    ]
    if until_ns is None:
        return found
    return [stood for loader in found if (stood := _stood(session, loader, until_ns)) is not None]


def _stood(session: Session, loader: Loader, until_ns: int) -> Loader | None:
    seen = session.rows(
        "SELECT * FROM (SELECT ready, batches, wait_ns FROM loader_at "
        "WHERE rank = ? AND id = ? AND t_ns <= ? ORDER BY t_ns DESC LIMIT 1)",
        (loader.rank, loader.id, until_ns),
    )
    if not seen:
        return None
    ready, batches, wait_ns = msgspec.convert(seen[0], tuple[int | None, int, int])
    return replace(loader, ready=ready, batches=batches, wait_ns=wait_ns)


def difference(start: Counters | None, end: Counters) -> Counters:
    """What was added between two times; counters that fell were started again by a new process."""
    if start is None or end[0] < start[0] or end[1] < start[1]:
        return end
    moved, unpinned = (
        None if after is None else after - (before or 0)
        for before, after in zip(start[2:], end[2:], strict=True)
    )
    return end[0] - start[0], end[1] - start[1], moved, unpinned


def _newest(session: Session, rank: int | None) -> list[Site]:
    query = "SELECT rank, id, body FROM site WHERE (? IS NULL OR rank = ?) ORDER BY rank, id"
    decode = session.codecs.site.decode
    return [
        decode(body, rank=one, id=number) for one, number, body in session.rows(query, (rank, rank))
    ]


def _at(session: Session, site: Site, t_ns: int) -> Counters | None:
    """The counters at a time; ``None`` before the site was first seen."""
    key = (site.rank, site.id)
    ((last_ns,),) = session.rows("SELECT max(t_ns) FROM site_at WHERE rank = ? AND id = ?", key)
    if last_ns is None or t_ns >= last_ns:
        # Counters are kept at a cadence; what has come since the last row is in the site itself.
        return site.count, site.total_ns, site.bytes, site.unpinned_bytes
    found = session.rows(
        "SELECT * FROM (SELECT count, total_ns, bytes, unpinned_bytes FROM site_at "
        "WHERE rank = ? AND id = ? AND t_ns <= ? ORDER BY t_ns DESC LIMIT 1)",
        (*key, t_ns),
    )
    return msgspec.convert(found[0], Counters) if found else None


def _with(site: Site, counters: Counters) -> Site:
    count, total_ns, moved, unpinned = counters
    # The rest of a site is kept as it stands now only, which would not go with these.
    return replace(
        site,
        count=count,
        total_ns=total_ns,
        bytes=moved,
        unpinned_bytes=unpinned,
        seen=None,
        pairs=None,
        pair_ns=None,
        pair_bytes=None,
        after_ns=None,
    )
