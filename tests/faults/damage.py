"""Ways a file gets damaged, as hypothesis draws them: cut, overwritten, foreign, gone, or not a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

#: Values that no one wrote where they stand.
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**70, 10**400, 1e308, float("nan"), float("inf"), [], {}, [1], {"a": 1}),
    *("x" * 3000, "\x1b]52;c;eA==\x07", "\ud800", "../../etc", "‮"),
)


@dataclass(frozen=True)
class Damage:
    """One damaged file of a run.

    Attributes:
        file: Its name.
        how: ``bytes``, ``cut``, ``zeros``, ``foreign``, ``value``, ``gone``, ``directory`` or ``fifo``.
        places: Where, as fractions of the file, or of its JSON's values.
        noise: What is written there.
    """

    file: str
    how: str
    places: tuple[float, ...]
    noise: bytes

    def strike(self, run_dir: Path) -> None:
        """Do it."""
        path = run_dir / self.file
        if self.how in ("gone", "directory", "fifo"):
            path.unlink(missing_ok=True)
            if self.how == "directory":
                path.mkdir()
            elif self.how == "fifo":
                os.mkfifo(path, 0o600)
            return
        whole = path.read_bytes()
        path.unlink()
        path.touch(mode=0o600)
        path.write_bytes(self._damaged(whole))

    def _damaged(self, whole: bytes) -> bytes:
        at = int(self.places[0] * len(whole))
        if self.how == "cut":
            return whole[:at]
        if self.how == "zeros":  # as after a power cut: the length is there, the blocks are not
            return whole[:at] + bytes(len(whole) - at)
        if self.how == "foreign":
            return self.noise * 40
        if self.how == "value":
            return _with_odd_values(whole, self.places)
        content = bytearray(whole)
        for place in self.places:
            at = int(place * len(content))
            content[at : at + len(self.noise)] = self.noise[: len(content) - at]
        return bytes(content)


def damages(*files: str) -> st.SearchStrategy[Damage]:
    """Any damage to any of these files."""
    fractions = st.floats(0, 1, exclude_max=True)
    hows = (
        "bytes",
        "bytes",
        "cut",
        "zeros",
        "foreign",
        "value",
        "value",
        "gone",
        "directory",
        "fifo",
    )
    return st.builds(
        Damage,
        st.sampled_from(files),
        st.sampled_from(hows),
        st.lists(fractions, min_size=1, max_size=20).map(tuple),
        st.binary(min_size=1, max_size=200),
    )


def _with_odd_values(whole: bytes, places: tuple[float, ...]) -> bytes:
    try:
        body = json.loads(whole)
    except ValueError:
        return whole[: int(places[0] * len(whole))]
    for number, place in enumerate(places[:3]):
        slots = list(_slots(body))
        if slots:
            holder, key = slots[int(place * len(slots))]
            holder[key] = ODD[int(place * 1e6 + number) % len(ODD)]
    return json.dumps(body).encode()


def _slots(body: Any) -> Iterator[tuple[Any, Any]]:
    inside = body.items() if isinstance(body, dict) else enumerate(body)
    for key, value in list(inside):
        yield body, key
        if isinstance(value, (dict, list)):
            yield from _slots(value)
