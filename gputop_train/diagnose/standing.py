"""Which diagnosis stands while a run lives: a new one must be seen twice to replace it. Pure.

A live window moves. Where two causes cost about the same, or one lies near its threshold, each
judgement alone is right and the sequence of them is of no use to anyone.
"""

from __future__ import annotations

from gputop_train.model import Diagnosis

#: Judgements in a row that a new claim must hold to replace a standing one.
HOLDS = 2
#: Only these are claims. Of a probe that failed, or of too few steps, one word is enough.
CLAIMS = ("verdict", "healthy")


class Standing:
    """The diagnosis that stands; fed one judgement after another."""

    def __init__(self) -> None:
        self._stands: Diagnosis | None = None
        self._rival: tuple[str, ...] | None = None
        self._seen = 0

    def settle(self, found: Diagnosis) -> Diagnosis:
        """What to tell after this judgement: it, or still the one before.

        The same claim with new numbers is told at once, and so is the first.
        """
        stands = self._stands
        key = claim_of(found)
        if stands is None or key == claim_of(stands) or not _contested(stands, found):
            self._rival, self._seen = None, 0
        else:
            self._seen = self._seen + 1 if key == self._rival else 1
            self._rival = key
            if self._seen < HOLDS:
                return stands
            self._rival, self._seen = None, 0
        self._stands = found
        return found


def claim_of(diagnosis: Diagnosis) -> tuple[str, ...]:
    """What a diagnosis says, numbers aside: its status, and its verdict's ids."""
    finding = diagnosis.verdict
    if finding is None:
        return (diagnosis.status,)
    return (diagnosis.status, finding.id, finding.refined or "")


def _contested(stands: Diagnosis, found: Diagnosis) -> bool:
    if found.status == "abstained" and any(a.id == "probe" for a in found.abstained):
        return False  # what a broken probe says next is no second opinion
    return stands.status in CLAIMS and found.status in (*CLAIMS, "abstained")
