"""Splits the time between edges over labels by what the stack sampler saw there.

No edge is open in a gap, so only the sampler knows what ran there. Samples are pooled over all gaps
of one kind by their relative position in the gap, because the gaps of a training loop resemble each
other: what a label's share is at each position, weighted by how much of the gap that position is,
estimates the label's share of the time (post-stratification). That is far more precise than
counting samples, and does not mind that a sampler which waits for the interpreter lock is let in
more often where the training thread has just gone to sleep.

The *total* booked on each label follows that estimate; what one gap was over- or under-booked is
carried on to the next.
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
#: Time in a step of which only the end was recorded, beyond what recorded steps take.
UNEXPLAINED_KIND: Final = 32

#: A gap at least this many sampling periods long is split by its own samples.
LONG_PERIODS: Final = 2.0
#: Debt of the short gaps is paid back over this much gap time, so that fast steps look alike.
HORIZON_NS: Final = 500_000_000
#: Resolution of positions in a gap.
BINS: Final = 64
#: Neighbouring bins are taken together until they hold this many samples.
SAMPLES_PER_STRATUM: Final = 2
#: What short gaps look like of late is the mean over about this many samples.
RECENT_SAMPLES: Final = 32
#: A prior is worth half a sample: it decides while nothing was seen and vanishes after.
PRIOR_SAMPLES: Final = 0.5
#: Older samples fade once a pool holds this many periods (about 25 s of gap time at 40 Hz).
MEMORY_SAMPLES: Final = 1024.0
REFRESH_GAPS: Final = 16
#: What is known of short gaps is worked out anew once it has grown by this part: one sample more of
#: hundreds changes nothing that could be seen, and forty a second would be worked out for nothing.
NEWS_PART: Final = 32
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
        "_estimated",
        "_gaps",
        "_news",
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
        self._seen: list[dict[int, float]] = [{} for _ in range(BINS)]
        self._seen_total = 0.0
        self._estimated: dict[int, float] | None = None
        self._recent: dict[int, float] = {}
        self._count = 0
        self._booked: dict[int, float] = {}
        self._total = 0.0
        self._shares: list[tuple[int, float]] = [(prior, 1.0)]
        self._since = 0
        self._gaps = 0
        self._news = 0

    def add(self, label: int, position: float, period_ns: float, *, long: bool = True) -> None:
        """One sample at a relative position (0..1), standing for one sampling period."""
        here = self._seen[min(int(position * BINS), BINS - 1)]
        here[label] = here.get(label, 0.0) + period_ns
        self._seen_total += period_ns
        self._count += 1
        self._news += 1
        if long or self._news * NEWS_PART > self._count or self._news >= RECENT_SAMPLES:
            self._estimated, self._news = None, 0
        fade = 1.0 - 1.0 / min(self._count, RECENT_SAMPLES)
        for other in self._recent:
            self._recent[other] *= fade
        self._recent[label] = self._recent.get(label, 0.0) + 1.0 - fade
        self._gaps = REFRESH_GAPS
        if self._seen_total > MEMORY_SAMPLES * period_ns:
            self._settle()
            self._seen = [{key: value / 2 for key, value in bin_.items()} for bin_ in self._seen]
            self._booked = {key: value / 2 for key, value in self._booked.items()}
            self._seen_total /= 2
            self._total /= 2

    def split(
        self, length_ns: int, tally: list[int], period_ns: float, *, long: bool, sampled: bool
    ) -> None:
        """Add a gap's length to ``tally``, label by label; the parts sum to it exactly."""
        self._gaps += 1
        shares = self._shares
        if not self._count:
            # The sampler was not at work. What is booked on a guess is no debt to pay back.
            shares = [(self._prior, 1.0)]
        elif long and not sampled:
            shares = sorted(self._estimate(period_ns).items(), key=lambda pair: -pair[1])
        else:
            if long or self._gaps > REFRESH_GAPS:
                self._refresh(length_ns if long else HORIZON_NS, period_ns, long=long)
                shares = self._shares
            self._since += length_ns
        left = length_ns
        for label, share in shares[1:]:
            part = int(length_ns * share)
            tally[label] += part
            left -= part
        tally[shares[0][0]] += left

    def _settle(self) -> None:
        for label, share in self._shares:
            self._booked[label] = self._booked.get(label, 0.0) + share * self._since
        self._total += self._since
        self._since = 0

    def _estimate(self, period_ns: float) -> dict[int, float]:
        """Each label's share of the time in gaps of this kind; empty without samples."""
        if self._estimated is not None:
            return self._estimated
        shares: dict[int, float] = {}
        stratum: dict[int, float] = {}
        weight = 0.0
        width = 0
        enough = SAMPLES_PER_STRATUM * period_ns
        if self._seen_total < enough * 2:
            enough = self._seen_total
        remaining = self._seen_total
        for index, bin_ in enumerate(self._seen):
            width += 1
            for label, value in bin_.items():
                stratum[label] = stratum.get(label, 0.0) + value
                weight += value
            # The last stratum takes all that is left, so that none ends up too thin.
            last = index == BINS - 1
            if not last and (weight < enough * 0.999 or remaining - weight < enough * 0.999):
                continue
            if weight > 0.0:
                for label, value in stratum.items():
                    shares[label] = shares.get(label, 0.0) + value / weight * width / BINS
            remaining -= weight
            stratum, weight, width = {}, 0.0, 0
        self._estimated = shares
        return shares

    def _refresh(self, ahead_ns: float, period_ns: float, *, long: bool) -> None:
        """Shares that bring the booked totals to the estimate within ``ahead_ns`` more time."""
        self._settle()
        self._gaps = 0
        shares = self._estimate(period_ns)
        if long and shares:
            # A long gap follows the estimate as it stands with the gap's own samples in it.
            recent = shares
        else:
            doubt = PRIOR_SAMPLES / (self._count + PRIOR_SAMPLES)
            shares = {label: share * (1.0 - doubt) for label, share in shares.items()}
            shares[self._prior] = shares.get(self._prior, 0.0) + doubt
            recent = self._recent or {self._prior: 1.0}
        due = {
            label: share * self._total
            - self._booked.get(label, 0.0)
            + recent.get(label, 0.0) * ahead_ns
            for label, share in shares.items()
        }
        owed = sum(value for value in due.values() if value > 0)
        if owed <= 0:
            return
        parts = [(label, value / owed) for label, value in due.items() if value > 0]
        parts.sort(key=lambda pair: -pair[1])
        self._shares = parts


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

    def split(
        self, kind: int, length_ns: int, samples: Sequence[tuple[int, int]], tally: list[int]
    ) -> None:
        """Book one gap.

        Args:
            kind: ``gap_kind`` or ``EVAL_KIND``.
            length_ns: Time in the gap that no edge or span accounts for.
            samples: ``(offset_ns, label)`` of the samples that fell into that time.
            tally: Nanoseconds by label index, added to in place.
        """
        period = self._period_ns
        long = length_ns >= LONG_PERIODS * period
        pool = self._pools.get((kind, long))
        if pool is None:
            pool = self._pools[kind, long] = Pool(prior_label(kind))
        for offset, label in samples:
            pool.add(label, offset / length_ns if length_ns else 0.0, period, long=long)
        pool.split(length_ns, tally, period, long=long, sampled=bool(samples))


def empty_tally() -> list[int]:
    """Nanoseconds by label index, all zero."""
    return [0] * len(LABELS)
