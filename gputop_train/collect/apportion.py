"""Splits the time between edges over labels by what the stack sampler saw there.

No edge is open in a gap, so only the sampler knows what ran. It samples at random moments, hence
of all samples that fell into gaps of one kind, the share of a label estimates that label's share of
the time in such gaps, whatever the lengths of the gaps (Horvitz-Thompson with equal inclusion
probabilities). The estimator here keeps the *total* booked on each label equal to that
share of the total time, and carries what one gap was over- or under-booked on to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gputop_train.collect.words import L_FORWARD, L_OTHER
from gputop_train.model import LABELS

# What stands before and after a gap.
AT_NONE: Final = 0
AT_DATA: Final = 1
AT_BACKWARD: Final = 2
AT_OPTIMIZER: Final = 3
#: The gaps of an evaluation are of a kind of their own.
EVAL_KIND: Final = 16

#: A gap at least this many sampling periods long is split by its own samples.
LONG_PERIODS: Final = 2.0
#: Debt of the short gaps is paid back over this much gap time, so that fast steps look alike.
HORIZON_NS: Final = 500_000_000
#: What short gaps look like of late is the mean over about this many samples.
RECENT_SAMPLES: Final = 32
#: A prior is worth half a sample: it decides while nothing was seen and vanishes after.
PRIOR_SAMPLES: Final = 0.5
#: Older samples fade once a pool holds this many periods (about 25 s of gap time at 40 Hz).
MEMORY_SAMPLES: Final = 1024.0
REFRESH_GAPS: Final = 16
DEFAULT_PERIOD_NS: Final = 25_000_000


def gap_kind(before: int, after: int) -> int:
    """The kind of a gap, from the ``AT_*`` on its two sides."""
    return before << 2 | after


def prior_label(kind: int) -> int:
    """What a gap is taken for while the sampler saw none of its kind."""
    return L_FORWARD if kind == EVAL_KIND or kind & 3 == AT_BACKWARD else L_OTHER


class Pool:
    """Samples seen and time booked in gaps of one kind and one order of length."""

    __slots__ = (
        "_booked",
        "_count",
        "_gaps",
        "_prior",
        "_recent",
        "_seen",
        "_seen_total",
        "_shares",
        "_since",
        "_total",
    )

    def __init__(self, prior: int) -> None:
        self._prior = prior
        self._seen: dict[int, float] = {}
        self._recent: dict[int, float] = {}
        self._count = 0
        self._seen_total = 0.0
        self._booked: dict[int, float] = {}
        self._total = 0.0
        self._shares: list[tuple[int, float]] = [(prior, 1.0)]
        self._since = 0
        self._gaps = 0

    def add(self, label: int, period_ns: float) -> None:
        """One sample, standing for one sampling period."""
        self._seen[label] = self._seen.get(label, 0.0) + period_ns
        self._seen_total += period_ns
        self._count += 1
        fade = 1.0 - 1.0 / min(self._count, RECENT_SAMPLES)
        for other in self._recent:
            self._recent[other] *= fade
        self._recent[label] = self._recent.get(label, 0.0) + 1.0 - fade
        self._gaps = REFRESH_GAPS
        if self._seen_total > MEMORY_SAMPLES * period_ns:
            self._settle()
            self._seen = {key: value / 2 for key, value in self._seen.items()}
            self._booked = {key: value / 2 for key, value in self._booked.items()}
            self._seen_total /= 2
            self._total /= 2

    def split(self, length_ns: int, tally: list[int], period_ns: float, *, long: bool) -> None:
        """Add a gap's length to ``tally``, label by label; the parts sum to it exactly."""
        self._gaps += 1
        if long or self._gaps > REFRESH_GAPS:
            ahead = length_ns if long else HORIZON_NS
            self._refresh(ahead, 0.0 if long and self._seen_total else PRIOR_SAMPLES * period_ns)
        self._since += length_ns
        left = length_ns
        for label, share in self._shares[1:]:
            part = int(length_ns * share)
            tally[label] += part
            left -= part
        tally[self._shares[0][0]] += left

    def _settle(self) -> None:
        for label, share in self._shares:
            self._booked[label] = self._booked.get(label, 0.0) + share * self._since
        self._total += self._since
        self._since = 0

    def _refresh(self, ahead_ns: float, prior_ns: float) -> None:
        """Shares that bring the booked totals to the estimate within ``ahead_ns`` more time."""
        self._settle()
        self._gaps = 0
        if prior_ns:
            seen, recent = dict(self._seen), dict(self._recent)
            seen[self._prior] = seen.get(self._prior, 0.0) + prior_ns
            doubt = 0.0 if self._count else 1.0
            recent[self._prior] = recent.get(self._prior, 0.0) + doubt
        else:
            # A long gap follows the estimate as it stands with the gap's own samples in it.
            seen = self._seen
            recent = {label: weight / self._seen_total for label, weight in seen.items()}
        everything = self._seen_total + prior_ns
        due = {
            label: weight / everything * self._total
            - self._booked.get(label, 0.0)
            + recent.get(label, 0.0) * ahead_ns
            for label, weight in seen.items()
        }
        owed = sum(value for value in due.values() if value > 0)
        if owed <= 0:
            return
        shares = [(label, value / owed) for label, value in due.items() if value > 0]
        shares.sort(key=lambda pair: -pair[1])
        self._shares = shares


class Apportioner:
    """All pools of one training thread."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._period_ns = float(DEFAULT_PERIOD_NS)
        self._last_sample_ns: int | None = None

    @property
    def period_ns(self) -> float:
        """The sampling period of late."""
        return self._period_ns

    def note_sample(self, t_ns: int) -> None:
        """Learn the sampling period; pauses of the sampler do not count."""
        if self._last_sample_ns is not None:
            gap = t_ns - self._last_sample_ns
            if 0 < gap < 8 * self._period_ns + 1e9:
                self._period_ns += 0.05 * (gap - self._period_ns)
        self._last_sample_ns = t_ns

    def split(self, kind: int, length_ns: int, samples: Sequence[int], tally: list[int]) -> None:
        """Book one gap.

        Args:
            kind: ``gap_kind`` or ``EVAL_KIND``.
            length_ns: Time in the gap that no edge or span accounts for.
            samples: Labels of the samples that fell into that time.
            tally: Nanoseconds by label index, added to in place.
        """
        period = self._period_ns
        long = length_ns >= LONG_PERIODS * period
        pool = self._pools.get((kind, long))
        if pool is None:
            pool = self._pools[kind, long] = Pool(prior_label(kind))
        for label in samples:
            pool.add(label, period)
        pool.split(length_ns, tally, period, long=long)


def empty_tally() -> list[int]:
    """Nanoseconds by label index, all zero."""
    return [0] * len(LABELS)
