"""Painting intervals over one another."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gputop_train.collect.apportion import AT_BACKWARD, AT_DATA, Apportioner, empty_tally, gap_kind
from gputop_train.collect.tiling import divide, flatten, paint, union
from gputop_train.collect.words import (
    L_COMPILE,
    L_DATA_WAIT,
    L_FORWARD,
    L_OPTIMIZER,
    L_OTHER,
    L_SYNC,
    PRECEDENCE,
    RANK,
)

labels = st.sampled_from(PRECEDENCE)
overlays = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), labels).map(
        lambda t: (min(t[:2]), max(t[:2]), t[2])
    ),
    max_size=12,
)


def by_instant(tiles):
    """Label of every unit of time; the strongest where several overlap."""
    seen = {}
    for begin, end, label in tiles:
        for t in range(begin, end):
            if t not in seen or RANK[label] > RANK[seen[t]]:
                seen[t] = label
    return seen


@given(overlays)
def test_flattened_overlays_are_disjoint_and_keep_the_strongest_of_every_instant(items):
    flat = flatten(items)
    assert all(one[1] <= other[0] for one, other in pairwise(flat))
    assert by_instant(flat) == by_instant(items)


@given(
    overlays, st.lists(st.tuples(st.integers(1, 20), st.one_of(st.just(-1), labels)), max_size=8)
)
def test_painting_keeps_every_instant_and_the_stronger_label(items, lengths):
    tiles, at = [], 0
    for length, label in lengths:
        tiles.append((at, at + length, label))
        at += length
    painted = paint(tiles, flatten(items))
    before = {t: label for begin, end, label in tiles for t in range(begin, end)}
    over = by_instant(items)
    expected = {}
    for t, label in before.items():
        top = over.get(t)
        wins = top is not None and (label < 0 or RANK[top] > RANK[label])
        expected[t] = top if wins else label
    after = [(t, label) for begin, end, label in painted for t in range(begin, end)]
    assert after == sorted(expected.items())


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda t: (min(t), max(t)))),
    st.lists(st.integers(1, 20), max_size=8),
)
def test_dividing_puts_every_instant_on_its_side_once(intervals, lengths):
    tiles, at = [], 0
    for length in lengths:
        tiles.append((at, at + length, L_OTHER))
        at += length
    inside, outside = divide(tiles, union(intervals))
    covered = {t for begin, end in intervals for t in range(begin, end)}
    assert [t for b, e, _ in inside for t in range(b, e)] == [t for t in range(at) if t in covered]
    assert [t for b, e, _ in outside for t in range(b, e)] == [
        t for t in range(at) if t not in covered
    ]


def test_a_compile_paints_over_an_optimizer_and_a_sync_does_not_over_a_loader():
    tiles = [(0, 10, L_OPTIMIZER), (10, 20, L_DATA_WAIT)]
    painted = paint(tiles, flatten([(5, 7, L_COMPILE), (8, 15, L_SYNC)]))
    assert painted == [
        (0, 5, L_OPTIMIZER),
        (5, 7, L_COMPILE),
        (7, 8, L_OPTIMIZER),
        (8, 10, L_SYNC),
        (10, 20, L_DATA_WAIT),
    ]


# -- apportioning gaps ----------------------------------------------------------------------------

KIND = gap_kind(AT_DATA, AT_BACKWARD)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.lists(st.tuples(st.just(0), labels), max_size=5)),
        min_size=1,
        max_size=40,
    )
)
def test_the_parts_of_a_gap_sum_to_it_exactly(gaps):
    gaps_in = Apportioner()
    for length, samples in gaps:
        tally = empty_tally()
        gaps_in.split(KIND, length, samples, tally)
        assert sum(tally) == length
        assert min(tally) >= 0


def test_a_gap_of_a_kind_never_sampled_is_what_its_place_suggests():
    gaps = Apportioner()
    tally = empty_tally()
    gaps.split(KIND, 1000, (), tally)
    gaps.split(gap_kind(AT_BACKWARD, AT_DATA), 500, (), tally)
    assert (tally[L_FORWARD], tally[L_OTHER]) == (1000, 500)


def test_two_kinds_of_gap_do_not_mix():
    gaps = Apportioner()
    after = gap_kind(AT_BACKWARD, AT_DATA)
    for _ in range(100):
        gaps.split(after, 10_000_000, [(0, L_SYNC)], empty_tally())
    tally = empty_tally()
    gaps.split(KIND, 10_000_000, (), tally)
    assert tally[L_FORWARD] == 10_000_000
