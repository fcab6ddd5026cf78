"""What is kept for how long: the rules that bound a store's size.

Newest minutes in full; beyond them rollups for ever and everything else thinned to one row a
bucket. Buckets grow with age, since a verdict on the whole run reads all of them: a month is no
more rows than a few hours. A bucket that has been thinned once is not looked at again (a watermark
per rule is kept in ``meta``), so a prune costs the same on the first day as on the tenth.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import msgspec

from gputop_train.model import GpmSample
from gputop_train.store import rows
from gputop_train.store.codec import Codecs
from gputop_train.store.rollup import SECOND_NS

#: Age up to which everything is kept in full.
KEEP_NS = 600 * SECOND_NS
#: Steps a rank kept in full, whatever their age: one minute at 1,000 steps/s.
KEEP_STEPS = 60_000
#: Bucket of thinned series, and of the work of ``prune``.
BUCKET_NS = 10 * SECOND_NS
MINUTE_NS = 60 * SECOND_NS
TEN_MINUTES_NS = 600 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
#: The run's beginning is compared with its end (a cold cache, a warm-up): from its first hour only
#: the rules for the newest minutes take anything.
HEAD_NS = HOUR_NS
#: Rollups of steps and of utilisation older than this are summed up in buckets of so long.
MERGES = ((2 * HOUR_NS, BUCKET_NS), (DAY_NS, MINUTE_NS), (7 * DAY_NS, TEN_MINUTES_NS))
#: A prune sums up so much at most: a store of an older version has days of seconds.
MERGED_AT_ONCE_NS = HOUR_NS
#: Interruptions of one label kept a bucket once old: the longest. Garbage collections can come by
#: the hundred a second; their time stays in the rollups' sums, and how many went is in ``meta``.
INTERVALS_PER_BUCKET = 30
#: Ages from which that holds, and the buckets it holds for: none, it is ``keep_ns``.
_INTERVALS = ((None, MINUTE_NS, "interval"), (DAY_NS, TEN_MINUTES_NS, "interval/600s"))
#: One-off facts of one kind kept: the first ones tell how it began, the newest how it stands.
NOTES_PER_KIND = 1_000
#: Ranks looked at in one store; a launcher watches the ranks of one host.
MAX_RANKS = 1_024

#: Watermark below which nothing but the rules for the newest minutes has worked.
HEAD = "head"

Keep = Literal["first", "last", "lowest", "mean", "none"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Rows of ``table`` older than ``age_ns`` are thinned to one a bucket and group.

    Attributes:
        keys: Leading columns of the table's key that tell its series apart.
        groups: Query that lists the values of ``keys``; ``None`` finds the ranks in the table.
        per: A further column that tells the members of a bucket apart (the processes of a poll).
        keep: Which row of a bucket stays; ``none`` deletes them all.
    """

    table: str
    keys: tuple[str, ...] = ()
    groups: str | None = None
    age_ns: int = KEEP_NS
    bucket_ns: int = BUCKET_NS
    keep: Keep = "first"
    per: str | None = None

    @property
    def name(self) -> str:
        """Key of the rule's watermark."""
        return f"{self.table}/{self.bucket_ns // SECOND_NS}s"


_DEVICES = "SELECT id FROM device"
_SITES = "SELECT rank, id FROM site"
_LOADERS = "SELECT rank, id FROM loader"

RULES: tuple[Rule, ...] = (
    Rule("util", ("dev",), _DEVICES, keep="none"),
    Rule("gpu", ("dev",), _DEVICES),
    Rule("gpm", ("dev",), _DEVICES, keep="mean"),
    Rule("host"),
    Rule("proc", per="pid"),
    # The low-water mark is what tells a leak from the ordinary rise and fall within a step.
    Rule("memory", ("rank",), keep="lowest"),
    Rule("loader_at", ("rank", "id"), _LOADERS, keep="last"),
    Rule("site_at", ("rank", "id"), _SITES, keep="last"),
    Rule("site_at", ("rank", "id"), _SITES, HOUR_NS, MINUTE_NS, "last"),
    Rule("finding", bucket_ns=MINUTE_NS, keep="last"),
    *(
        replace(rule, age_ns=age_ns, bucket_ns=bucket_ns)
        for age_ns, bucket_ns in ((6 * HOUR_NS, MINUTE_NS), (3 * DAY_NS, TEN_MINUTES_NS))
        for rule in (
            Rule("gpu", ("dev",), _DEVICES),
            Rule("gpm", ("dev",), _DEVICES, keep="mean"),
            Rule("host"),
            Rule("proc", per="pid"),
            Rule("memory", ("rank",), keep="lowest"),
            Rule("loader_at", ("rank", "id"), _LOADERS, keep="last"),
        )
    ),
    Rule("site_at", ("rank", "id"), _SITES, 3 * DAY_NS, TEN_MINUTES_NS, "last"),
    Rule("finding", (), None, DAY_NS, TEN_MINUTES_NS, "last"),
)


def ranks(db: sqlite3.Connection, table: str) -> list[int]:
    """The ranks that have rows in a table keyed by rank first, without scanning it."""
    found: list[int] = []
    query = f"SELECT min(rank) FROM {table}"
    row = db.execute(query).fetchone()
    while row is not None and isinstance(row[0], int) and len(found) < MAX_RANKS:
        found.append(row[0])
        row = db.execute(f"{query} WHERE rank > ?", (row[0],)).fetchone()
    return found


def prune_steps(db: sqlite3.Connection, rank: int, keep_ns: int, keep_steps: int) -> int:
    """Drops a rank's old steps, whole seconds at a time, and returns the oldest second kept.

    Age counts from the rank's newest step: a run that ends with an hour of evaluation still has
    its last steps in full.
    """
    newest, nth = (
        db.execute(
            "SELECT t1_ns FROM step WHERE rank = ? ORDER BY t1_ns DESC LIMIT 1 OFFSET ?",
            (rank, offset),
        ).fetchone()
        for offset in (0, keep_steps)
    )
    if newest is None:
        return 0
    oldest_sec: int = (newest[0] - keep_ns) // SECOND_NS
    if nth is not None:
        oldest_sec = max(oldest_sec, nth[0] // SECOND_NS + 1)
    # The second being written stays whole even if it alone is over the cap: its rollup is made
    # from its rows.
    oldest_sec = min(oldest_sec, newest[0] // SECOND_NS)
    db.execute("DELETE FROM step WHERE rank = ? AND t1_ns < ?", (rank, oldest_sec * SECOND_NS))
    return oldest_sec


def prune_series(db: sqlite3.Connection, codecs: Codecs, now_ns: int, keep_ns: int) -> None:
    """Thins every series that has grown out of the newest minutes."""
    marks = load_marks(db)
    head_ns = _end_of_head(db, marks, now_ns)
    for rule in RULES:
        age_ns = keep_ns if rule.age_ns == KEEP_NS else rule.age_ns
        upto_ns = (now_ns - age_ns) // rule.bucket_ns * rule.bucket_ns
        from_ns = marks.get(rule.name)
        if rule.age_ns > HOUR_NS and from_ns is None:
            if HEAD not in marks:
                continue
            from_ns = head_ns
        if from_ns is not None and upto_ns <= from_ns:
            continue
        for group in _groups(db, rule):
            _thin(db, codecs, rule, group, from_ns, upto_ns)
        marks[rule.name] = upto_ns
    for age_ns, bucket_ns in MERGES if HEAD in marks else ():
        _merge(db, codecs, marks, head_ns, now_ns - age_ns, bucket_ns)
    for old_ns, bucket_ns, name in _INTERVALS:
        upto_ns = (now_ns - (keep_ns if old_ns is None else old_ns)) // bucket_ns * bucket_ns
        if upto_ns > marks.get(name, upto_ns - 1):
            _thin_intervals(db, marks.get(name), upto_ns, bucket_ns)
            marks[name] = upto_ns
    _thin_notes(db)
    _put_meta(db, "thinned_to_ns", marks)


def _end_of_head(db: sqlite3.Connection, marks: dict[str, int], now_ns: int) -> int:
    """Until when a run is kept as it is: an hour from its first step on.

    From the first look where a day brought no step; until then nothing is summed up.
    """
    if HEAD in marks:
        return marks[HEAD]
    firsts = [
        db.execute("SELECT min(sec) FROM step_rollup WHERE rank = ?", (rank,)).fetchone()[0]
        for rank in ranks(db, "step_rollup")
    ]
    looked_ns = marks.setdefault("begin", now_ns)
    begin_ns = min(firsts) * SECOND_NS if firsts else looked_ns
    head_ns: int = (begin_ns + HEAD_NS) // TEN_MINUTES_NS * TEN_MINUTES_NS + TEN_MINUTES_NS
    if now_ns > head_ns and (firsts or now_ns - looked_ns > DAY_NS):
        marks[HEAD] = head_ns
    return head_ns


def _merge(
    db: sqlite3.Connection,
    codecs: Codecs,
    marks: dict[str, int],
    head_ns: int,
    old_ns: int,
    bucket_ns: int,
) -> None:
    """Sums up rollups older than ``old_ns`` in buckets, as far as that was not done yet."""
    size = bucket_ns // SECOND_NS
    for table in ("step_rollup", "util_rollup"):
        name = f"{table}/{size}s"
        from_ns = marks.get(name, head_ns)
        upto_ns = min(old_ns // bucket_ns * bucket_ns, from_ns + MERGED_AT_ONCE_NS)
        if upto_ns <= from_ns:
            continue
        span = (from_ns // SECOND_NS, upto_ns // SECOND_NS)
        if table == "step_rollup":
            for rank in ranks(db, table):
                rows.merge_step_rollups(db, codecs, rank, span, size)
        else:
            rows.merge_util_rollups(db, span, size)
        marks[name] = upto_ns


def _groups(db: sqlite3.Connection, rule: Rule) -> Sequence[tuple[Any, ...]]:
    if not rule.keys:
        return [()]
    if rule.groups is None:
        return [(rank,) for rank in ranks(db, rule.table)]
    return db.execute(rule.groups).fetchall()


def _thin(
    db: sqlite3.Connection,
    codecs: Codecs,
    rule: Rule,
    group: tuple[Any, ...],
    from_ns: int | None,
    upto_ns: int,
) -> None:
    """Thins one group's rows between two times, in buckets aligned to the clock."""
    where = "".join(f"{key} = ? AND " for key in rule.keys) + "t_ns >= ? AND t_ns < ?"
    since = from_ns if from_ns is not None else -(2**62)
    args = (*group, since, upto_ns)
    if rule.keep == "none":
        db.execute(f"DELETE FROM {rule.table} WHERE {where}", args)
    elif rule.keep == "mean":
        _average(db, codecs, group[0], since, upto_ns, rule.bucket_ns)
    else:
        # SQLite takes the other columns of a row from where min() or max() was found.
        pick = {"first": "min(t_ns)", "last": "max(t_ns)", "lowest": "min(allocated)"}[rule.keep]
        per = f", {rule.per}" if rule.per else ""
        kept = (
            f"SELECT t_ns{per} FROM (SELECT t_ns{per}, {pick} FROM {rule.table} "
            f"WHERE {where} GROUP BY t_ns / {rule.bucket_ns}{per})"
        )
        db.execute(
            f"DELETE FROM {rule.table} WHERE {where} AND (t_ns{per}) NOT IN ({kept})", args + args
        )


def _average(
    db: sqlite3.Connection, codecs: Codecs, dev: int, from_ns: int, upto_ns: int, bucket_ns: int
) -> None:
    """Replaces GPM readings by one mean a bucket, at the time of the bucket's last reading."""
    found = db.execute(
        "SELECT t_ns, body FROM gpm WHERE dev = ? AND t_ns >= ? AND t_ns < ? ORDER BY t_ns",
        (dev, from_ns, upto_ns),
    ).fetchall()
    means = []
    for _, bucket in groupby(found, key=lambda row: row[0] // bucket_ns):
        samples = [codecs.gpm.decode(body, t_ns=t_ns, uuid="") for t_ns, body in bucket]
        means.append((dev, samples[-1].t_ns, codecs.gpm.encode(mean_gpm(samples))))
    db.execute("DELETE FROM gpm WHERE dev = ? AND t_ns >= ? AND t_ns < ?", (dev, from_ns, upto_ns))
    db.executemany("INSERT INTO gpm VALUES (?, ?, ?)", means)


def mean_gpm(samples: Sequence[GpmSample]) -> GpmSample:
    """The mean of each reading over the samples that have it, at the last one's time."""
    fields: dict[str, float | None] = {}
    for name in GpmSample.__dataclass_fields__:
        if name in ("t_ns", "uuid"):
            continue
        values = [value for s in samples if (value := getattr(s, name)) is not None]
        fields[name] = sum(values) / len(values) if values else None
    return GpmSample(samples[-1].t_ns, samples[-1].uuid, **fields)


def _thin_intervals(
    db: sqlite3.Connection, from_ns: int | None, upto_ns: int, bucket_ns: int
) -> None:
    since = from_ns if from_ns is not None else -(2**62)
    short = db.execute(
        "SELECT rank, label, t0_ns, t1_ns FROM (SELECT rank, label, t0_ns, t1_ns, row_number() "
        f"OVER (PARTITION BY rank, label, t0_ns / {bucket_ns} ORDER BY t1_ns - t0_ns DESC) "
        "AS place FROM interval WHERE t0_ns >= ? AND t0_ns < ?) WHERE place > ?",
        (since, upto_ns, INTERVALS_PER_BUCKET),
    ).fetchall()
    if not short:
        return
    db.executemany(
        "DELETE FROM interval WHERE rank = ? AND label = ? AND t0_ns = ?",
        [row[:3] for row in short],
    )
    row = db.execute("SELECT value FROM meta WHERE key = 'intervals_thinned'").fetchone()
    gone: dict[str, dict[str, int]] = msgspec.json.decode(row[0]) if row else {}
    for _, label, t0_ns, t1_ns in short:
        sums = gone.setdefault(label, {"count": 0, "total_ns": 0})
        sums["count"] += 1
        sums["total_ns"] += t1_ns - t0_ns
    _put_meta(db, "intervals_thinned", gone)


def _thin_notes(db: sqlite3.Connection) -> None:
    half = NOTES_PER_KIND // 2
    crowded = db.execute(
        "SELECT kind FROM note GROUP BY kind HAVING count(*) > ?", (NOTES_PER_KIND,)
    ).fetchall()
    for (kind,) in crowded:
        db.execute(
            "DELETE FROM note WHERE kind = ? AND id NOT IN (SELECT id FROM (SELECT id FROM note "
            "WHERE kind = ? ORDER BY id LIMIT ?)) AND id NOT IN (SELECT id FROM (SELECT id FROM "
            "note WHERE kind = ? ORDER BY id DESC LIMIT ?))",
            (kind, kind, half, kind, half),
        )


def load_marks(db: sqlite3.Connection) -> dict[str, int]:
    """Up to which time each rule has done its work, by the rule's name."""
    row = db.execute("SELECT value FROM meta WHERE key = 'thinned_to_ns'").fetchone()
    return msgspec.json.decode(row[0], type=dict[str, int]) if row else {}


def _put_meta(db: sqlite3.Connection, key: str, value: object) -> None:
    db.execute("REPLACE INTO meta VALUES (?, ?)", (key, msgspec.json.encode(value).decode()))


def bucket_s(marks: Mapping[str, int], sec: int) -> int:
    """How many seconds a rollup of utilisation at this second sums up."""
    t_ns = sec * SECOND_NS
    if t_ns < marks.get(HEAD, t_ns + 1):
        return 1
    sizes = [bucket_ns // SECOND_NS for _, bucket_ns in MERGES]
    return max((n for n in sizes if t_ns < marks.get(f"util_rollup/{n}s", t_ns)), default=1)
