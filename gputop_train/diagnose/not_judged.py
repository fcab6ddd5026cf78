"""Diagnoses of the catalogue that no rule judges, each with the signal that cannot be had."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A diagnosis that is known and not judged.

    Attributes:
        number: In the catalogue the diagnoses were collected in.
        title: A few words, as on the page of a rule.
        why: Which signal it takes and why that is not measured.
        instead: What a person can look at meanwhile.
    """

    number: int
    id: str
    title: str
    why: str
    instead: str


NOT_JUDGED: tuple[NotJudged, ...] = ()
