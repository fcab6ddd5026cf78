"""Both ends of the ring must mean the same by a word."""

from __future__ import annotations

from gputop_train.collect import words as reader
from gputop_train.model import LABELS
from gputop_train.probe import words as probe


def test_reader_and_probe_agree_on_every_code():
    names = [name for name in vars(probe) if name.isupper() and not name.startswith("L_")]
    shared = [name for name in names if hasattr(reader, name)]
    assert len(shared) >= 28
    assert {name: getattr(reader, name) for name in shared} == {
        name: getattr(probe, name) for name in shared
    }
    assert (reader.SYNC, reader.H2D) == (probe.SYNC_EDGE, probe.H2D_EDGE)


def test_the_samplers_classes_become_the_labels_of_the_same_name():
    assert reader.SAMPLE_LABELS[probe.L_IDLE] == reader.IDLE
    for index, name in enumerate(probe.LABEL_NAMES[: probe.L_IDLE]):
        label = LABELS[reader.SAMPLE_LABELS[index]]
        assert label == ("other" if name == "host_compute" else name)


def test_a_word_keeps_its_value_beside_its_code():
    value = (1 << 58) - 1
    packed = reader.word(reader.GPU_END, value)
    assert packed >> reader.CODE_BITS == value
    assert packed & reader.CODE_MASK == reader.GPU_END
    assert packed < 1 << 64


def test_a_site_argument_keeps_amount_and_site_apart():
    packed = reader.site_argument(123_456_789, 65_535)
    assert packed & reader.CODE_MASK == reader.ARG_SITE
    assert reader.split_site(packed >> reader.CODE_BITS) == (123_456_789, 65_535)


def test_precedence_is_the_one_of_the_report():
    order = "compile checkpoint eval gc logging data_wait h2d sync backward optimizer forward other"
    ranks = [reader.RANK[reader.LABEL_INDEX[label]] for label in order.split()]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)
