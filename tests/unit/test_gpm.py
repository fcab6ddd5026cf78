"""GPM readings, replayed from an H200 whose counters stand still between some sample pairs."""

import itertools
import math

import pytest

from gputop_train.collect.gpm import GpmReader, is_empty_pair
from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure
from gputop_train.collect.nvml_session import NvmlSession
from tests.nvml_replay import GPU_IS_LOST, NO_PERMISSION, RECORDING, FakeNvml, recorded_card

CARD = "GPU-5a4e0f4c-0001-4a6e-9d1c-6f0a7d5b2c11"


def read_all(nvml, count, period_ns=50_000_000):
    api = NvmlApi(nvml)
    api.start()
    clock = itertools.count(1_000_000_000, period_ns)
    reader = GpmReader(api, nvml.cards[0], CARD)
    readings = [reader.read(lambda: next(clock)) for _ in range(count)]
    reader.close()
    return [r for r in readings if r is not None]


def rows(name):
    return [row for row in RECORDING[name] if any(row[1:])]


@pytest.mark.parametrize("name", ["gpm_steady", "gpm_idle"])
def test_pairs_in_which_the_counters_stood_still_are_no_readings(name):
    nvml = FakeNvml(recorded_card())
    nvml.cards[0].gpm = RECORDING[name]
    readings = read_all(nvml, len(RECORDING[name]))
    moved = [row for row in RECORDING[name][1:] if any(row[1:])]
    assert [(r.graphics, r.sm, r.sm_occupancy, r.tensor, r.dram) for r in readings] == [
        tuple(row[1:6]) for row in moved
    ]
    assert [(r.pcie_tx_mib_per_s, r.pcie_rx_mib_per_s) for r in readings] == [
        tuple(row[6:8]) for row in moved
    ]


def test_the_first_reading_needs_a_pair():
    assert read_all(FakeNvml(recorded_card()), 1) == []


def test_a_single_nan_is_none_and_the_rest_is_kept():
    nvml = FakeNvml(recorded_card())
    nvml.cards[0].gpm = [[0.0] * 8, [0.3, 99.0, 96.0, 14.0, 93.0, None, 6.0, 14.0]]
    (reading,) = read_all(nvml, 2)
    assert (reading.dram, reading.sm, reading.tensor) == (None, 96.0, 93.0)


def test_a_card_that_never_tells_dram_still_shows_its_idle_time():
    nvml = FakeNvml(recorded_card())
    nvml.cards[0].gpm = [[0.3 * n, 0.0, 0.0, 0.0, 0.0, None, 0.0, 0.0] for n in range(12)]
    readings = read_all(nvml, 12, period_ns=300_000_000)
    assert len(readings) == 5  # a pair that spans 600 ms surely saw the counters move
    assert {(r.sm, r.dram) for r in readings} == {(0.0, None)}


def test_a_metric_the_driver_refuses_is_none():
    nvml = FakeNvml(recorded_card())
    answer = nvml.nvmlGpmMetricsGet

    def without_tensor(request):
        answer(request)
        request.metrics[3].nvmlReturn = 3
        return request

    nvml.nvmlGpmMetricsGet = without_tensor
    assert {r.tensor for r in read_all(nvml, 20)} == {None}


def test_both_buffers_are_freed():
    nvml = FakeNvml(recorded_card())
    read_all(nvml, 3)
    assert nvml.calls.count("nvmlGpmSampleAlloc") == 2
    assert nvml.gpm_buffers == 0


def test_a_card_without_gpm_is_unsupported_and_holds_no_buffer():
    nvml = FakeNvml(recorded_card())
    nvml.cards[0].gpm = []
    with pytest.raises(NvmlFailure) as caught:
        read_all(nvml, 1)
    assert caught.value.kind == "unsupported"
    assert nvml.gpm_buffers == 0


def session_of(nvml):
    session = NvmlSession(None, nvml, {}, 0, lambda: 0)
    session.fast(1)
    return session


def test_a_card_without_gpm_is_missing_and_not_asked_again():
    nvml = FakeNvml(recorded_card())
    nvml.cards[0].gpm = []
    session = session_of(nvml)
    for tick in range(10):
        session.slow(tick * 300_000_000)
    assert "Hopper" in session.missing["gpm"]
    assert nvml.calls.count("nvmlGpmQueryDeviceSupport") == 1


def test_counters_withheld_are_missing_with_the_remedy():
    nvml = FakeNvml(recorded_card(failing={"nvmlGpmSampleGet": NO_PERMISSION}))
    session = session_of(nvml)
    session.slow(1)
    assert "root" in session.missing["gpm"]
    assert nvml.gpm_buffers == 0


def test_counters_that_fail_are_tried_again_later():
    nvml = FakeNvml(recorded_card())
    session = session_of(nvml)
    session.slow(1)
    nvml.cards[0].failing["nvmlGpmSampleGet"] = GPU_IS_LOST
    session.slow(10_000_000_000)
    assert nvml.gpm_buffers == 0
    nvml.cards[0].failing.clear()
    for second in range(11, 60):
        session.slow(second * 1_000_000_000)
    assert session.out.gpm
    session.close()
    assert nvml.gpm_buffers == 0


def test_an_empty_pair_has_nan_among_zeros():
    assert is_empty_pair([0.0, math.nan, 0.0])
    assert not is_empty_pair([0.0, 0.0, 1.6])
    assert not is_empty_pair([0.0, 0.0])
    assert not is_empty_pair([96.0, math.nan])
    assert not is_empty_pair([None, None])
