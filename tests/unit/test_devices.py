"""Which cards a process may use, for every form of CUDA_VISIBLE_DEVICES."""

import pytest

from gputop_train.collect.devices import Device, index_is_certain, match_uuid, visible_devices

A = "GPU-5a4e0f4c-0001-4a6e-9d1c-6f0a7d5b2c11"
B = "GPU-5a4e9999-0002-4a6e-9d1c-6f0a7d5b2c12"
C = "GPU-c0ffee00-0003-4a6e-9d1c-6f0a7d5b2c13"
M0 = "MIG-0a1b2c3d-aaaa-5a6b-8c7d-000000000001"
M1 = "MIG-0a1b2c3d-bbbb-5a6b-8c7d-000000000002"
CARDS = [A, B, C]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (A, B, C)),
        ("", ()),
        ("0", (A,)),
        ("2,0", (C, A)),
        (" 1 , 2 ", (B, C)),
        ("0,1,2,3", (A, B, C)),
        ("0,7,1", (A,)),
        ("0,-1,1", (A,)),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("none", ()),
        ("0,abc,1", (A,)),
        ("1gpu", (B,)),
        ("1,1", ()),
        ("0,,1", (A,)),
        (A, (A,)),
        (f"{C},{A}", (C, A)),
        ("GPU-c0ffee", (C,)),
        ("GPU-C0FFEE", (C,)),
        ("GPU-5a4e0", (A,)),
        ("GPU-5a4e", ()),  # a prefix of two cards
        ("GPU-5a4e0,GPU-c0f,GPU-dead,GPU-5a4e9", (A, C)),
        (f"{A},{A}", ()),
        (f"{A},1", (A,)),  # a number among UUIDs is invalid
        ("GPU-ffff", ()),
    ],
)
def test_a_value_shows_these_cards(value, expected):
    assert visible_devices(value, CARDS) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (M1, (M1,)),
        ("MIG-0a1b2c3d-b", (M1,)),
        (f"{M0},{M1}", (M0,)),  # CUDA gives a process one instance
        ("MIG-0a1b2c3d", ()),
        ("0", (A,)),  # an index counts cards, not instances
        (None, (A, B)),
    ],
)
def test_mig_instances_are_meant_by_uuid_only(value, expected):
    assert visible_devices(value, [A, M0, M1, B]) == expected


def test_no_card_at_all_shows_nothing():
    assert visible_devices(None, []) == ()
    assert visible_devices("0", []) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", ["0", "2,0", "0,-1,1", "-1", "", "1gpu,2x", "1,1", "0,abc,1", " 1 , 2 ", "NoDevFiles"]
)
def test_numbers_read_as_torch_reads_them(value, monkeypatch):
    cuda = pytest.importorskip("torch.cuda")
    parse = getattr(cuda, "_parse_visible_devices", None)
    if parse is None:
        pytest.skip("this torch has no _parse_visible_devices")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    theirs: list[str] = []
    for index in parse():
        if not 0 <= index < len(CARDS):
            break
        theirs.append(CARDS[index])
    assert visible_devices(value, CARDS) == tuple(theirs)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (A, A),
        (A.removeprefix("GPU-"), A),
        (A.upper(), A),
        (M0.removeprefix("MIG-"), M0),
        ("5a4e0f4c", None),
        ("", None),
        ("GPU-00000000-0000-0000-0000-000000000000", None),
    ],
)
def test_a_uuid_is_known_with_or_without_its_prefix(reported, expected):
    assert match_uuid(reported, [A, B, M0]) == expected


def test_an_index_is_certain_among_alike_cards_or_with_the_order_set():
    shown = {"CUDA_VISIBLE_DEVICES": "0"}
    assert index_is_certain(shown, ["NVIDIA H200", "NVIDIA H200"])
    assert index_is_certain(shown, ["NVIDIA T4"])
    assert index_is_certain({**shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["NVIDIA T4", "H200"])
    assert index_is_certain({}, ["NVIDIA T4", "NVIDIA H200"])
    assert index_is_certain({"CUDA_VISIBLE_DEVICES": B}, ["NVIDIA T4", "NVIDIA H200"])


def test_an_index_is_uncertain_among_different_cards():
    shown = {"CUDA_VISIBLE_DEVICES": "0"}
    assert not index_is_certain(shown, ["NVIDIA T4", "NVIDIA H200"])
    assert not index_is_certain(shown, ["NVIDIA H200", None])
    assert not index_is_certain({**shown, "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, ["T4", "H200"])


def test_a_mig_instance_says_so():
    assert Device(M0, 0, parent_uuid=A).is_mig
    assert not Device(A, 0).is_mig
