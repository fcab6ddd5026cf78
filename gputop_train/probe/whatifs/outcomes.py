"""What became of each what-if, place by place, for the snapshot (docs/wire-format.md)."""

from __future__ import annotations

from typing import Any

APPLIED, REFUSED, INCONCLUSIVE = "applied", "refused", "inconclusive"
#: What-ifs whose having met nothing is no refusal.
_WITHOUT_EFFECT = frozenset(("sync_every",))
MAX_ROWS = 48
MAX_WHY = 240


class Outcomes:
    """Rows of one process.

    Args:
        asked: What-ifs of this leg, key to value.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self._rows: dict[tuple[str, str | None], dict[str, Any]] = {}
        #: Said of a what-if that met nothing it could change.
        self.unmet: dict[str, str] = {}
        #: Why nothing this leg shows can be trusted; of every what-if.
        self.spoilt: str | None = None

    def tell(self, key: str, place: str | None, status: str, why: str = "", more: int = 0) -> None:
        """Set what became of a what-if at a place; ``more`` is added to its count.

        Once inconclusive, a row stays it.
        """
        row = self._rows.get((key, place))
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                return
            row = {"key": key, "value": self.asked.get(key), "place": place, "count": 0}
            self._rows[key, place] = row
        row["count"] += more
        if row.get("status") != INCONCLUSIVE:
            row["status"], row["why"] = status, why[:MAX_WHY]

    def count(self, key: str, place: str | None, more: int = 1) -> None:
        """Add to the count of a row that exists."""
        row = self._rows.get((key, place))
        if row is not None:
            row["count"] += more

    def met(self, key: str) -> bool:
        """Whether anything was told of a what-if."""
        return any(known == key for known, _ in list(self._rows))

    def report(self) -> list[dict[str, Any]]:
        """For the snapshot: at least one row for each what-if that was asked for."""
        rows = [dict(row) for row in list(self._rows.values())]
        met = {row["key"] for row in rows}
        for key, value in self.asked.items():
            if key not in met:
                why = self.unmet.get(key, "")
                told = {"key": key, "value": value, "place": None, "count": 0}
                status = "no effect" if key in _WITHOUT_EFFECT else REFUSED
                rows.append({**told, "status": status, "why": why})
        if self.spoilt:
            for row in rows:
                if row["status"] == APPLIED:
                    row.update(status=INCONCLUSIVE, why=self.spoilt)
        return rows
