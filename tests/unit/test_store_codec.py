"""Records survive the trip into bytes and back, also between versions; other bytes are refused."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_train.model import EXPOSED_LABELS, LABELS, GpuSample
from gputop_train.store.codec import Codecs, current_layout
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter
from tests import store_support as any_of
from tests.store_support import GPU, loader, site, small

CODECS = Codecs()
KINDS = {
    "site": (any_of.sites, ("rank", "id")),
    "loader": (any_of.loaders, ("rank", "id")),
    "memory": (any_of.memories, ("rank", "t_ns", "allocated")),
    "gpu": (any_of.gpus, ("uuid", "t_ns")),
    "gpm": (any_of.gpms, ("uuid", "t_ns")),
    "host": (any_of.hosts, ("t_ns",)),
    "proc": (any_of.procs, ("t_ns", "pid")),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_record_comes_back_equal(kind, data):
    strategy, keys = KINDS[kind]
    record = data.draw(strategy)
    codec = getattr(CODECS, kind)
    again = codec.decode(codec.encode(record), **{key: getattr(record, key) for key in keys})
    assert again == record


@pytest.mark.parametrize("kind", KINDS)
@given(body=st.binary(max_size=60))
def test_other_bytes_give_a_record_or_a_value_error(kind, body):
    strategy_keys = {"rank": 0, "id": 1, "t_ns": 1, "uuid": "", "allocated": 1, "pid": 1}
    keys = {key: strategy_keys[key] for key in KINDS[kind][1]}
    try:
        record = getattr(CODECS, kind).decode(body, **keys)
    except ValueError:
        return
    assert dataclasses.is_dataclass(record)


@given(st.dictionaries(st.sampled_from(LABELS), small))
def test_labels_come_back_with_the_missing_ones_as_zero(labels):
    assert CODECS.decode_labels(CODECS.encode_labels(labels)) == dict.fromkeys(LABELS, 0) | labels


@given(st.dictionaries(st.sampled_from(EXPOSED_LABELS), small))
def test_exposed_labels_come_back_without_the_missing_ones(exposed):
    assert CODECS.decode_exposed(CODECS.encode_exposed(exposed)) == exposed
    assert CODECS.decode_exposed(CODECS.encode_exposed(None)) is None


@given(st.binary(max_size=60))
def test_other_bytes_are_no_labels(body):
    for decode in (CODECS.decode_labels, CODECS.decode_exposed, CODECS.decode_exposed_sums):
        try:
            found = decode(body)
        except ValueError:
            continue
        assert set(found) <= {*LABELS, *EXPOSED_LABELS}


def test_a_store_of_an_older_version_lacks_a_field_and_reads_as_not_measured():
    layout = current_layout()
    layout["GpuSample"] = [name for name in layout["GpuSample"] if name != "power_w"]
    older = Codecs(layout)
    sample = GpuSample(5, GPU, power_w=300.0, temperature_c=61)
    again = older.gpu.decode(older.gpu.encode(sample), t_ns=5, uuid=GPU)
    assert (again.power_w, again.temperature_c) == (None, 61)


def test_a_store_of_a_newer_version_has_a_field_that_is_passed_over():
    layout = current_layout()
    layout["GpuSample"] = ["fan_rpm", *layout["GpuSample"]]
    newer = Codecs(layout)
    body = msgspec.msgpack.encode([1200, 1, 2])
    assert newer.gpu.decode(body, t_ns=5, uuid=GPU) == GpuSample(5, GPU, 1, 2)


def test_time_under_a_label_of_another_version_counts_as_other():
    layout = current_layout()
    layout["labels"] = ["prefetch", *LABELS]
    newer = Codecs(Codecs(layout).layout)
    labels = newer.decode_labels(msgspec.msgpack.encode([7, *range(len(LABELS))]))
    assert labels["other"] == 7 + LABELS.index("other")
    assert sum(labels.values()) == 7 + sum(range(len(LABELS)))
    assert CODECS.decode_labels(CODECS.encode_labels({"prefetch": 5}))["other"] == 5


def test_the_layout_survives_its_own_trip():
    assert Codecs.from_json(CODECS.to_json()).layout == current_layout()


def test_names_that_are_no_utf_8_are_kept_as_escapes(tmp_path: Path) -> None:
    name = os.fsdecode(b"/data/caf\xe9/train.py")
    with RunWriter(tmp_path / "run.sqlite") as writer:
        writer.set_meta("run", {"command": ["python", name], name: (1, None)})
        writer.put_sites([dataclasses.replace(site(1, 1, 1), file=name)], t_ns=1)
        writer.put_loaders([dataclasses.replace(loader(), dataset=name)], t_ns=1)
    with RunReader(tmp_path / "run.sqlite") as reader:
        kept = "/data/caf\\udce9/train.py"
        assert reader.meta("run", {}) == {"command": ["python", kept], kept: [1, None]}
        assert [found.file for found in reader.sites()] == [kept]
        assert [found.dataset for found in reader.loaders()] == [kept]
