"""Sites and loaders from whatever a snapshot holds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gputop_train.collect.timeline import loaders_from_snapshot, sites_from_snapshot
from gputop_train.model import Fetch, Loader, Site, Where

LOADER = {
    "id": 1, "file": "train.py", "line": 41, "call": "DataLoader(ds, 8)", "dataset": "Rows",
    "num_workers": 2, "batch_size": 8, "pin_memory": True, "persistent_workers": False,
    "prefetch_factor": 2, "iterable": False, "length": 100, "custom_batch_sampler": False,
    "worker_pids": [11, 12], "ready": 3, "batches": 7, "wait_ns": 9, "feeds_training": True,
    "epochs": 1, "override": {"num_workers": 2},
}  # fmt: skip


def test_a_site_carries_its_counters():
    snap = {
        "sites": [[3, "h2d", "train.py", 7, "main", "x.to(device)", None]],
        "site_stats": {"3": [10, 500, 4096, 1024]},
    }
    assert sites_from_snapshot(2, snap) == [
        Site(2, 3, "h2d", "train.py", 7, "main", "x.to(device)", None, 10, 500, 4096, 1024)
    ]


def test_a_site_says_on_how_many_calls_and_event_pairs_its_numbers_rest():
    snap = {
        "sites": [
            [1, "sync", "a.py", 7, "f", "loss.item()", None],
            [2, "save", "a.py", 9, "f", "torch.save(m)", None],
            [3, "sample", "a.py", 3, "f", "g()", "forward"],
        ],
        "site_stats": {"1": [160, 900, 0, 0, 10, 3, 70, 12, 5], "2": [1, 5, 8, 0, 1, 0, 0, 0, 0]},
    }
    read, save, sample = sites_from_snapshot(0, snap)
    assert (read.count, read.seen, read.pairs, read.pair_ns, read.pair_bytes) == (
        160,
        10,
        3,
        70,
        12,
    )
    assert (read.after_ns, save.after_ns) == (5, None)
    assert (save.seen, save.pairs, save.pair_ns) == (1, None, None)
    assert (sample.seen, sample.pairs) == (None, None)


def test_a_probe_that_does_not_tell_of_pairs_measured_none():
    snap = {
        "sites": [[3, "h2d", "train.py", 7, "main", "x.to(device)", None]],
        "site_stats": {"3": [10, 500, 4096, 1024]},
    }
    (site,) = sites_from_snapshot(0, snap)
    assert (site.seen, site.pairs, site.pair_ns, site.pair_bytes) == (None, None, None, None)


def test_bytes_stay_unknown_where_nothing_moves():
    snap = {
        "sites": [[1, "sample", "train.py", 7, "main", "loss(x)", "forward"]],
        "site_stats": {"1": [10, 0, 0, 0]},
    }
    (site,) = sites_from_snapshot(0, snap)
    assert (site.label, site.count, site.bytes, site.unpinned_bytes) == ("forward", 10, None, None)


def test_a_loader_carries_its_queue_and_its_line():
    assert loaders_from_snapshot(1, {"loaders": [LOADER]}) == [
        Loader(
            1, 1, "train.py", 41, "DataLoader(ds, 8)", "Rows", 2, 8, True, False, 2, False, 100,
            False, (11, 12), 3, 7, 9, True, 1, {"num_workers": 2},
        )
    ]  # fmt: skip


def test_a_loader_carries_what_its_processes_spent_and_whose_code_it_was():
    row = {
        **LOADER, "dataset_length": 800, "in_order": False, "context": "fork", "starts": 2,
        "start_ns": 50, "first_waits": 3, "first_wait_ns": 60,
        "source": ["data.py", 9, "Rows.__getitem__"], "collate": ["data.py", 20, "pile"],
        "fetch": [[0, 11, 5, 100, 40, 30, 40, 2], [-1, 0, 1, 10, 99, 98, 8, 1]],
    }  # fmt: skip
    (loader,) = loaders_from_snapshot(0, {"loaders": [row]})
    # Collate read after its batch's fetch: bounded by it.
    assert loader.fetch == (
        Fetch(0, 11, 5, 100, 40, 30, 40, 2),
        Fetch(-1, None, 1, 10, 10, 10, 8, 1),
    )
    assert loader.source == Where("data.py", 9, "Rows.__getitem__")
    assert loader.collate == Where("data.py", 20, "pile")
    assert (loader.dataset_length, loader.in_order, loader.context) == (800, False, "fork")
    assert (loader.starts, loader.start_ns) == (2, 50)
    assert (loader.first_waits, loader.first_wait_ns) == (3, 60)


def test_a_loader_of_an_older_probe_has_no_fetches():
    (loader,) = loaders_from_snapshot(0, {"loaders": [LOADER]})
    assert (loader.fetch, loader.source, loader.collate, loader.in_order) == ((), None, None, None)


def test_what_a_snapshot_does_not_say_is_not_measured():
    (loader,) = loaders_from_snapshot(0, {"loaders": [{"id": 1, "num_workers": 0}]})
    assert (loader.batch_size, loader.length, loader.ready) == (None, None, None)
    assert sites_from_snapshot(0, {}) == []
    assert loaders_from_snapshot(0, {}) == []


def test_rows_that_make_no_sense_are_left_out_and_the_others_kept():
    good = [1, "sync", "a.py", 2, "f", "x.item()", None]
    snap = {"sites": [None, [], [0, *good[1:]], ["1", *good[1:]], [2, 3, "a", 1, "f", "c"], good]}
    assert [site.id for site in sites_from_snapshot(0, snap)] == [1]
    loaders = [None, {}, {**LOADER, "id": True}, {**LOADER, "num_workers": -1}, LOADER]
    assert [loader.id for loader in loaders_from_snapshot(0, {"loaders": loaders})] == [1]


def test_escape_sequences_never_reach_the_terminal():
    snap = {"sites": [[1, "sync", "a\x1b[2J.py", 2, "f\n", "x\x07", None]]}
    (site,) = sites_from_snapshot(0, snap)
    assert "\x1b" not in site.file
    assert (site.func, site.call) == ("f ", "x ")


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=8), st.dictionaries(st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=30,
)


@given(anything, anything, anything)
def test_any_snapshot_yields_only_well_formed_records(sites: Any, stats: Any, loaders: Any):
    snap = {"sites": sites, "site_stats": stats, "loaders": loaders}
    for site in sites_from_snapshot(0, snap):
        assert 0 <= site.count < 1 << 63 and 0 <= site.line < 1 << 63
    for loader in loaders_from_snapshot(0, snap):
        assert loader.num_workers >= 0


NEWER = ["fetch", "source", "collate", "in_order", "context", "starts", "first_wait_ns"]


@given(st.dictionaries(st.sampled_from(sorted([*LOADER, *NEWER])), anything))
def test_a_loader_with_odd_fields_is_still_a_loader_or_nothing(odd: dict[str, Any]):
    for loader in loaders_from_snapshot(0, {"loaders": [{**LOADER, **odd}]}):
        assert isinstance(loader.file, str)
        assert isinstance(loader.pin_memory, bool)
        assert all(isinstance(pid, int) and pid > 0 for pid in loader.worker_pids)
        assert all(0 <= fetch.collate_ns <= fetch.fetch_ns for fetch in loader.fetch)
