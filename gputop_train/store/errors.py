"""What can go wrong with a run's store, each in words a person can act on."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot be used. The message says what happened and what to do, in two sentences."""


class StoreFull(StoreError):
    """The disk takes no more: full, over quota, or failing.

    What was committed before stays readable; the writer keeps a bounded backlog and tries again at
    its next commit.
    """


class StoreBusy(StoreError):
    """Another program holds it locked; nothing is wrong with the file."""


class RecordingError(StoreError):
    """A recording file cannot be made or opened."""
