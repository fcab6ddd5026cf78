"""JSON from files that anything may have become of: no number in it is more than counters hold."""

from __future__ import annotations

import json
import math
from typing import Any

#: Digits of the longest number that is read: nothing here counts further.
_DIGITS = 19


def loads(raw: bytes) -> Any:
    """Parse; what is no finite number, or beyond 19 digits, is ``None``: not measured.

    Raises:
        ValueError: It is no JSON, or no UTF-8.
        RecursionError: It nests too deep.
    """
    return json.loads(raw, parse_int=_bounded, parse_float=_finite, parse_constant=lambda _: None)


def _bounded(text: str) -> int | None:
    return int(text) if len(text) <= _DIGITS else None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
