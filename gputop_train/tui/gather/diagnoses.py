"""Stored diagnoses as records; one that this version cannot read counts as none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gputop_train.model import Diagnosis
from gputop_train.store.reader import RunReader


def decoded(body: Mapping[str, Any]) -> Diagnosis | None:
    """A stored body as a record."""
    try:
        return msgspec.convert(body, Diagnosis, strict=False)
    except msgspec.ValidationError:
        return None


def latest(reader: RunReader) -> Diagnosis | None:
    """The diagnosis that stands.

    Raises:
        StoreError: The store cannot be read.
    """
    found = reader.latest_finding()
    return None if found is None else decoded(found.body)
