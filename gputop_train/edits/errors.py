"""Why a change cannot be made, as one sentence for the person who asked for it."""

from __future__ import annotations


class EditError(Exception):
    """No change can be offered; the message says why and what to do instead."""
