"""Rows: how each table takes them, and the step tables' own from records and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from gputop_train.model import Step, UtilSample
from gputop_train.store.codec import Codecs
from gputop_train.store.rollup import SECOND_NS, StepRollup, merge, roll_up, roll_up_util

#: What is already there stays (a ring read twice) or gives way (a newer state), never fails.
INSERT = {
    "device": "INSERT OR IGNORE INTO device VALUES (?, ?)",
    "step": "INSERT OR IGNORE INTO step VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "interval": "REPLACE INTO interval VALUES (?, ?, ?, ?, ?, ?)",
    "site": "REPLACE INTO site VALUES (?, ?, ?)",
    "site_at": "REPLACE INTO site_at VALUES (?, ?, ?, ?, ?, ?, ?)",
    "loader": "REPLACE INTO loader VALUES (?, ?, ?)",
    "loader_at": "REPLACE INTO loader_at VALUES (?, ?, ?, ?, ?, ?)",
    "probe_state": "REPLACE INTO probe_state VALUES (?, ?, ?)",
    "memory": "REPLACE INTO memory VALUES (?, ?, ?, ?)",
    "util": "INSERT OR IGNORE INTO util VALUES (?, ?, ?)",
    "gpu": "REPLACE INTO gpu VALUES (?, ?, ?)",
    "gpm": "REPLACE INTO gpm VALUES (?, ?, ?)",
    "host": "REPLACE INTO host VALUES (?, ?)",
    "proc": "REPLACE INTO proc VALUES (?, ?, ?)",
    "finding": "REPLACE INTO finding VALUES (?, ?)",
    "note": "INSERT INTO note (t_ns, kind, body) VALUES (?, ?, ?)",
    "meta": "REPLACE INTO meta VALUES (?, ?)",
}


def lost_body(count: int) -> dict[str, Any]:
    """The body of the note about rows that were given up."""
    return {"rows": count, "text": f"{count:,} measured rows could not be stored and are lost."}


class _Step(msgspec.Struct, array_like=True):
    """The columns of ``step``. A struct is checked ten times faster than a tuple."""

    rank: int
    t1_ns: int
    t0_ns: int
    index: int
    labels: bytes
    exposed: bytes | None
    micro: int
    samples: int | None
    dry: float | None
    syncs: int
    measured_ns: int


class _Rollup(msgspec.Struct, array_like=True):
    """The columns of ``step_rollup``."""

    rank: int
    sec: int
    n: int
    first_idx: int
    t0_ns: int
    t1_ns: int
    min_ns: int
    max_ns: int
    median_ns: int
    labels: bytes
    exposed: bytes | None
    micro: int
    samples: int | None
    dry: float | None
    dry_n: int
    syncs: int
    measured_ns: int


#: No time of a step is longer (13 days): sums of a second's steps then fit 64 bits.
_LONGEST_NS = 1 << 50


def is_sane(s: Step) -> bool:
    """Whether a step's numbers can be summed and stored; a hostile ring can hold any."""
    times = [s.wall_ns, s.measured_ns, *s.labels.values()]
    if s.exposed:
        times += s.exposed.values()
    try:  # a sum of integers is one; of anything else it is not, or cannot be made
        whole = type(sum(times)) is int
        return whole and min(times) > -_LONGEST_NS and max(times) < _LONGEST_NS
    except TypeError:
        return False


def step_row(s: Step, codecs: Codecs) -> tuple[Any, ...]:
    """A step as a row of ``step``."""
    labels, exposed = codecs.encode_labels(s.labels), codecs.encode_exposed(s.exposed)
    head = (s.rank, s.t1_ns, s.t0_ns, s.index, labels, exposed)
    return (*head, s.micro, s.samples, s.dry, s.syncs, s.measured_ns)


def read_step(row: Sequence[Any], codecs: Codecs) -> Step:
    """A row of ``step`` as a step.

    Raises:
        ValueError: If a column is not what it should be.
    """
    r = msgspec.convert(row, _Step)
    labels, exposed = codecs.decode_labels(r.labels), codecs.decode_exposed(r.exposed)
    head = (r.rank, r.index, r.t0_ns, r.t1_ns, labels, exposed)
    return Step(*head, r.micro, r.samples, r.dry, r.syncs, r.measured_ns)


def read_rollup(row: Sequence[Any], codecs: Codecs) -> StepRollup:
    """A row of ``step_rollup`` as a rollup.

    Raises:
        ValueError: If a column is not what it should be.
    """
    r = msgspec.convert(row, _Rollup)
    labels, exposed = codecs.decode_labels(r.labels), codecs.decode_exposed_sums(r.exposed)
    times = (r.n, r.first_idx, r.t0_ns, r.t1_ns, r.min_ns, r.max_ns, r.median_ns)
    rest = (r.micro, r.samples, r.dry, r.dry_n, r.syncs, r.measured_ns)
    return StepRollup(r.rank, r.sec, *times, labels, exposed, *rest)


def refresh_step_rollup(
    db: sqlite3.Connection,
    codecs: Codecs,
    rank: int,
    sec: int,
    steps: Sequence[Step] | None = None,
) -> None:
    """Makes the rollup of one second anew.

    Args:
        db: The store, in a transaction.
        codecs: How it is written.
        rank: Whose steps.
        sec: The second.
        steps: All of them, where they are known; else those that are there.
    """
    if steps is None:
        found = db.execute(
            "SELECT * FROM step WHERE rank = ? AND t1_ns >= ? AND t1_ns < ? ORDER BY t1_ns",
            (rank, sec * SECOND_NS, (sec + 1) * SECOND_NS),
        )
        steps = [read_step(row, codecs) for row in found]
    if not steps:
        return
    _put_step_rollup(db, codecs, roll_up(steps))


def merge_step_rollups(
    db: sqlite3.Connection, codecs: Codecs, rank: int, span: tuple[int, int], size: int
) -> None:
    """Sums up a rank's rollups from one second to before another in buckets of ``size`` seconds."""
    within = "step_rollup WHERE rank = ? AND sec >= ? AND sec < ?"
    found = db.execute(f"SELECT * FROM {within} ORDER BY sec", (rank, *span)).fetchall()
    for _, bucket in groupby(found, key=lambda row: row[1] // size):
        several = [read_rollup(row, codecs) for row in bucket]
        if len(several) > 1:
            ends = (several[0].sec, several[-1].sec + 1)
            db.execute(f"DELETE FROM {within}", (rank, *ends))
            _put_step_rollup(db, codecs, merge(several))


def merge_util_rollups(db: sqlite3.Connection, span: tuple[int, int], size: int) -> None:
    """The same of utilisation, of every device."""
    found = db.execute(
        "SELECT dev, max(sec), sum(n), sum(mean * n) / sum(n), min(lo), max(hi) FROM util_rollup "
        "WHERE dev IN (SELECT id FROM device) AND sec >= ? AND sec < ? "
        f"GROUP BY dev, sec / {size:d} HAVING count(*) > 1",
        span,
    ).fetchall()
    for dev, sec, *_ in found:
        db.execute(
            "DELETE FROM util_rollup WHERE dev = ? AND sec >= ? AND sec <= ?",
            (dev, sec // size * size, sec),
        )
    db.executemany("INSERT INTO util_rollup VALUES (?, ?, ?, ?, ?, ?)", found)


def _put_step_rollup(db: sqlite3.Connection, codecs: Codecs, r: StepRollup) -> None:
    labels, exposed = codecs.encode_labels(r.labels), codecs.encode_exposed(r.exposed)
    times = (r.n, r.first_idx, r.t0_ns, r.t1_ns, r.min_ns, r.max_ns, r.median_ns)
    rest = (r.micro, r.samples, r.dry, r.dry_n, r.syncs, r.measured_ns)
    row = (r.rank, r.sec, *times, labels, exposed, *rest)
    db.execute(f"REPLACE INTO step_rollup VALUES ({', '.join('?' * len(row))})", row)


def refresh_util_rollup(db: sqlite3.Connection, dev: int, sec: int) -> None:
    """Makes the utilisation rollup of one second anew from the samples that are there."""
    found = db.execute(
        "SELECT t_ns, util FROM util WHERE dev = ? AND t_ns >= ? AND t_ns < ?",
        (dev, sec * SECOND_NS, (sec + 1) * SECOND_NS),
    )
    samples = [UtilSample(t_ns, "", util) for t_ns, util in found]
    if not samples:
        return
    r = roll_up_util(samples)
    db.execute(
        "REPLACE INTO util_rollup VALUES (?, ?, ?, ?, ?, ?)", (dev, sec, r.n, r.mean, r.lo, r.hi)
    )
