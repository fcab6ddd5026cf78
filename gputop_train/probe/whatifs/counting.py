"""Optimizer steps so far, those that only ticked included."""

from __future__ import annotations

from .. import quiet
from ..state import S


def steps_done() -> int:
    """Optimizer steps this process has ended."""
    return S.steps + quiet.ticked()
