"""The GPU records of a run, replayed from an H200, and what is said when they are not to be had."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from gputop_train.collect.nvml import NvmlCollector
from gputop_train.collect.nvml_session import NvmlSession
from gputop_train.model import GpuProcess
from tests.nvml_replay import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RECORDING,
    UNINITIALIZED,
    UNKNOWN,
    VERSION_MISMATCH,
    WALL_US,
    Card,
    FakeNvml,
    recorded_card,
    recorded_samples,
)

MONO_NS = 5_000_000_000_000
A = "GPU-5a4e0f4c-0001-4a6e-9d1c-6f0a7d5b2c11"
B = "GPU-77777777-0002-4a6e-9d1c-6f0a7d5b2c12"


class Run:
    """A session on clocks the test sets: seconds since the run began."""

    def __init__(self, nvml, uuids=None, env=None):
        self.nvml = nvml
        self.session = NvmlSession(
            uuids, nvml, env or {}, MONO_NS, lambda: WALL_US * 1000 - MONO_NS
        )
        self.out = self.session.out

    def fast(self, seconds):
        self.nvml.now_us = WALL_US + round(seconds * 1e6)
        self.session.fast(MONO_NS + round(seconds * 1e9))

    def slow(self, seconds):
        self.session.slow(MONO_NS + round(seconds * 1e9))

    def until(self, seconds, begin=0.0):
        for tick in range(round((seconds - begin) * 4) + 1):
            self.fast(begin + tick / 4)

    def utils(self, uuid=A):
        return [s.util for s in self.out.util if s.uuid == uuid]


def recorded_utils(until_s=99.0, from_s=0.0):
    return [float(u) for t, u in RECORDING["samples"] if from_s < t <= until_s]


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


# -- readings


def test_a_run_records_the_drivers_series_and_a_reading_a_second():
    run = Run(FakeNvml(recorded_card()))
    run.until(9.0)
    assert run.utils() == recorded_utils(9.0)
    assert [s.t_ns - MONO_NS for s in run.out.gpu] == [s * 1_000_000_000 for s in range(10)]
    assert run.session.missing == {}


def test_a_reading_carries_every_field_in_its_unit():
    run = Run(FakeNvml(recorded_card(processes=[(70, 5 << 30)])))
    run.session.ours = frozenset({70})
    run.fast(0)
    for tick in range(6):
        run.slow(tick / 2)
    run.fast(3)
    sample = run.out.gpu[-1]
    assert (sample.memory_used, sample.memory_total) == (31 << 30, 143771 << 20)
    assert (sample.memory_ours, sample.foreign_processes) == (5 << 30, 0)
    assert sample.power_w == pytest.approx(RECORDING["poll"][0][2] / 1000)
    assert sample.power_limit_w == pytest.approx(700)
    assert (sample.sm_clock_mhz, sample.sm_clock_max_mhz) == (1755, 1980)
    assert sample.temperature_c == 47
    assert sample.throttle_reasons == pynvml.nvmlClocksEventReasonSwPowerCap
    assert (sample.pcie_gen, sample.pcie_gen_max) == (4, 5)
    assert (sample.pcie_width, sample.pcie_width_max) == (8, 16)
    assert None not in (sample.pcie_rx_bytes_per_s, sample.pcie_tx_bytes_per_s)


def test_a_reading_the_card_lacks_is_none_and_is_not_asked_for_again():
    nvml = FakeNvml(recorded_card(failing={"nvmlDeviceGetPowerUsage": NOT_SUPPORTED}))
    run = Run(nvml)
    run.until(5)
    assert {s.power_w for s in run.out.gpu} == {None}
    assert {s.temperature_c for s in run.out.gpu} == {47}
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 1


def test_a_reading_that_fails_once_comes_back():
    card = recorded_card(failing={"nvmlDeviceGetPowerUsage": UNKNOWN})
    run = Run(FakeNvml(card))
    run.fast(0)
    card.failing.clear()
    run.fast(1)
    assert [s.power_w is None for s in run.out.gpu] == [True, False]


def without_gpm(**changes):
    card = recorded_card(**changes)
    card.gpm = []
    return card


def test_blocking_pcie_throughput_is_asked_by_the_slow_thread_alone_and_seldom():
    nvml = FakeNvml(without_gpm())
    run = Run(nvml)
    run.until(6)
    assert "nvmlDeviceGetPcieThroughput" not in nvml.calls
    for tick in range(70):
        run.slow(tick * 0.3)
    assert nvml.calls.count("nvmlDeviceGetPcieThroughput") == 2 * 3  # rx, tx at 0, 10.2, 20.4 s


def test_where_gpm_counts_pcie_traffic_the_blocking_call_is_not_made():
    nvml = FakeNvml(recorded_card())
    run = Run(nvml)
    run.fast(0)
    for tick in range(6):
        run.slow(tick / 2)
    run.fast(3)
    sample, gpm = run.out.gpu[-1], run.out.gpm[-1]
    assert sample.pcie_rx_bytes_per_s == gpm.pcie_rx_mib_per_s * 2**20
    assert sample.pcie_tx_bytes_per_s == gpm.pcie_tx_mib_per_s * 2**20
    assert "nvmlDeviceGetPcieThroughput" not in nvml.calls


def test_gpm_that_counts_no_pcie_traffic_leaves_it_to_the_blocking_call():
    card = recorded_card()
    card.gpm = [[*row[:6], None, None] for row in card.gpm]
    run = Run(FakeNvml(card))
    run.fast(0)
    run.slow(0)
    run.slow(0.5)
    run.slow(1.0)
    run.fast(2)
    assert run.out.gpu[-1].pcie_rx_bytes_per_s == 9e6


@pytest.mark.parametrize("make", [recorded_card, without_gpm])
def test_throughput_of_a_held_up_slow_thread_is_not_shown_as_current(make):
    run = Run(FakeNvml(make()))
    run.fast(0)
    for tick in range(3):
        run.slow(tick * 0.5)
    run.until(60, begin=1.25)
    assert run.out.gpu[2].pcie_rx_bytes_per_s is not None
    assert run.out.gpu[-1].pcie_rx_bytes_per_s is None


def test_limits_of_a_card_are_not_asked_for_every_second():
    nvml = FakeNvml(recorded_card())
    run = Run(nvml)
    run.until(30)
    assert {s.power_limit_w for s in run.out.gpu} == {700}
    assert nvml.calls.count("nvmlDeviceGetEnforcedPowerLimit") == 4  # at 0, 10, 20, 30 s
    assert nvml.calls.count("nvmlDeviceGetTemperature") == len(run.out.gpu) == 31


def test_a_dear_reading_is_made_seldomer_and_its_last_answer_repeated():
    class Dear(FakeNvml):
        def nvmlDeviceGetPowerUsage(self, card):
            until = time.thread_time_ns() + 2_000_000
            while time.thread_time_ns() < until:
                pass
            return super().nvmlDeviceGetPowerUsage(card)

    nvml = Dear(recorded_card())
    run = Run(nvml)
    run.until(20)
    # 2 ms at 0.05% of a core: every 4 s at the most, every 10 s at the least.
    assert 3 <= nvml.calls.count("nvmlDeviceGetPowerUsage") <= 6
    assert all(s.power_w == pytest.approx(RECORDING["poll"][0][2] / 1000) for s in run.out.gpu)


def test_rates_are_polled_often_only_where_the_driver_keeps_no_samples():
    kept, silent = Run(FakeNvml(recorded_card())), Run(FakeNvml(recorded_card()))
    silent.nvml.cards[0].samples = []
    for run in (kept, silent):
        run.until(6)
    assert (kept.session.fast_period_s, silent.session.fast_period_s) == (1.0, 0.25)


def test_an_older_package_without_the_newer_names_serves_too():
    nvml = FakeNvml(recorded_card())
    nvml.lacking = {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMigMode"}
    run = Run(nvml)
    run.fast(0)
    assert run.out.gpu[0].throttle_reasons == pynvml.nvmlClocksThrottleReasonSwPowerCap
    assert run.session.missing == {}


# -- processes


def processes_seen(card_processes, ours, host_pids):
    run = Run(FakeNvml(recorded_card(processes=card_processes)))
    run.session._host_pids = host_pids
    run.session.ours = frozenset(ours)
    run.fast(0)
    sample = run.out.gpu[0]
    return sample.memory_ours, sample.foreign_processes


def test_our_memory_is_summed_and_strangers_are_counted():
    listed = [(70, 5 << 30), (71, 1 << 30), (900, 9 << 30)]
    assert processes_seen(listed, {70, 71, 72}, host_pids=False) == (6 << 30, 1)


def test_strangers_are_named_and_we_are_not():
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        card = recorded_card(processes=[(os.getpid(), 5 << 30), (stranger.pid, 9 << 30)])
        run = Run(FakeNvml(card))
        run.session.ours = frozenset({os.getpid()})
        run.fast(0)
        named = Path(f"/proc/{stranger.pid}/comm").read_text().strip()
        assert run.out.gpu[0].foreign == (GpuProcess(stranger.pid, named, 9 << 30),)
    finally:
        stranger.kill()
        stranger.wait()


def test_strangers_that_may_be_ourselves_are_not_named():
    run = Run(FakeNvml(recorded_card(processes=[(48211, 5 << 30)])))
    run.session._host_pids = False
    run.session.ours = frozenset({70})
    run.fast(0)
    assert run.out.gpu[0].foreign == ()


def test_host_pids_seen_from_a_container_tell_nothing():
    assert processes_seen([(48211, 5 << 30)], {70}, host_pids=False) == (None, None)


def test_on_the_host_strangers_are_strangers_before_we_use_the_card():
    assert processes_seen([(900, 9 << 30)], {70}, host_pids=True) == (None, 1)


def test_memory_the_driver_does_not_tell_is_none():
    assert processes_seen([(70, None), (900, None)], {70}, host_pids=True) == (None, 1)


def test_a_process_that_left_the_card_holds_nothing_there():
    card = recorded_card(processes=[(70, 5 << 30)])
    run = Run(FakeNvml(card))
    run.session.ours = frozenset({70})
    run.fast(0)
    card.processes = []
    run.fast(1)
    assert [s.memory_ours for s in run.out.gpu] == [5 << 30, 0]


def others_busy(card, *seconds, ours=(70,)):
    run = Run(FakeNvml(card))
    run.session.ours = frozenset(ours)
    for second in seconds:
        run.fast(second)
    return [s.foreign_util for s in run.out.gpu]


NEIGHBOUR = [(70, 5 << 30), (900, 9 << 30)]


def test_what_others_keep_the_card_busy_is_summed_over_their_processes():
    rows = [(70, WALL_US, 60), (900, WALL_US, 40), (900, WALL_US + 1, 20), (901, WALL_US, 10)]
    card = recorded_card(processes=[*NEIGHBOUR, (901, 1 << 20)], process_util=rows)
    assert others_busy(card, 0) == [40.0]


def test_a_card_of_ones_own_is_busy_with_nobody_else_and_nobody_is_asked():
    card = recorded_card(processes=[(70, 5 << 30)], process_util=[(70, WALL_US, 60)])
    run = Run(FakeNvml(card))
    run.session.ours = frozenset({70})
    run.fast(0)
    assert [s.foreign_util for s in run.out.gpu] == [0.0]
    assert "nvmlDeviceGetProcessUtilization" not in run.nvml.calls


def test_no_news_of_processes_is_no_zero():
    card = recorded_card(processes=NEIGHBOUR, process_util=[(900, WALL_US, 40)])
    assert others_busy(card, 0, 11) == [40.0, None]


def test_a_driver_that_does_not_tell_by_process_is_asked_once():
    failing = {"nvmlDeviceGetProcessUtilization": NOT_SUPPORTED}
    card = recorded_card(processes=NEIGHBOUR, failing=failing)
    run = Run(FakeNvml(card))
    run.session.ours = frozenset({70})
    for turn in range(5):
        run.fast(11 * turn)
    assert {s.foreign_util for s in run.out.gpu} == {None}
    assert {s.foreign_processes for s in run.out.gpu} == {1}
    assert run.nvml.calls.count("nvmlDeviceGetProcessUtilization") == 1


def test_after_a_wall_clock_set_back_others_are_heard_of_again():
    card = recorded_card(processes=NEIGHBOUR, process_util=[(900, WALL_US, 40)])
    run = Run(FakeNvml(card))
    run.session.ours = frozenset({70})
    run.fast(0)
    card.process_util = [(900, WALL_US - 3_600_000_000, 30)]
    for turn in range(1, 40):
        run.fast(11 * turn)
    assert 30.0 in [s.foreign_util for s in run.out.gpu]


def test_processes_withheld_are_missing_and_the_rest_goes_on():
    card = recorded_card(failing={"nvmlDeviceGetComputeRunningProcesses": NO_PERMISSION})
    run = Run(FakeNvml(card))
    run.session.ours = frozenset({70})
    run.until(3)
    assert {(s.memory_ours, s.foreign_processes) for s in run.out.gpu} == {(None, None)}
    assert {s.memory_used for s in run.out.gpu} == {31 << 30}
    assert "Insufficient Permissions" in run.session.missing["gpu_processes"]


# -- which cards


def two_cards():
    return FakeNvml(recorded_card(uuid=A), recorded_card(uuid=B, rate=3))


@pytest.mark.parametrize(
    ("env", "uuids"),
    [
        ({}, [A, B]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [B]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [B, A]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-777"}, [B]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_only_cards_shown_to_cuda_are_watched(env, uuids):
    run = Run(two_cards(), env=env)
    run.fast(0)
    assert [s.uuid for s in run.out.gpu] == uuids
    assert [d.uuid for d in run.session.devices] == uuids
    assert run.session.missing == {}


def test_the_card_the_script_reports_narrows_the_watch_and_doubles_nothing():
    run = Run(two_cards())
    run.until(2)
    for tick in range(9, 37):
        run.session.set_uuids([B.removeprefix("GPU-")])  # as torch says it, again and again
        run.fast(tick / 4)
    assert run.utils(A) == recorded_utils(2.0)
    assert run.utils(B) == recorded_utils(9.0)
    assert [d.uuid for d in run.session.devices] == [B]
    gpu_b = [s.t_ns for s in run.out.gpu if s.uuid == B]
    assert len(gpu_b) == pytest.approx(10, abs=1)


def test_a_run_without_a_gpu_watches_none():
    nvml = two_cards()
    run = Run(nvml, uuids=[])
    run.until(2)
    run.slow(2)
    assert not run.out.util
    assert not run.out.gpu
    assert "nvmlDeviceGetSamples" not in nvml.calls


def test_a_card_the_driver_does_not_show_is_named():
    run = Run(two_cards(), uuids=["GPU-dead"])
    run.fast(0)
    assert "GPU-dead" in run.session.missing["nvml"]
    run.session.set_uuids([A])
    run.fast(1)
    assert run.session.missing == {}
    assert [s.uuid for s in run.out.gpu] == [A]


def test_an_index_among_different_cards_stays_silent_until_the_script_tells():
    nvml = FakeNvml(recorded_card(uuid=A, name="NVIDIA T400"), recorded_card(uuid=B))
    run = Run(nvml, env={"CUDA_VISIBLE_DEVICES": "0"})
    run.until(1)
    assert not run.out.gpu
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in run.session.missing["nvml"]
    run.session.set_uuids([B])
    run.fast(2)
    assert [s.uuid for s in run.out.gpu] == [B]
    assert run.session.missing == {}


def test_a_machine_whose_driver_shows_no_card_says_so():
    run = Run(FakeNvml())
    run.fast(0)
    assert "no card" in run.session.missing["nvml"]


# -- MIG


def mig_card():
    card = recorded_card(
        uuid=A,
        mig_mode=True,
        failing={
            "nvmlDeviceGetSamples": NOT_SUPPORTED,
            "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED,
        },
    )
    card.instances = [
        Card(uuid=f"MIG-{n}", parent=card, memory=(n << 30, 16 << 30), gpu_instance=n + 6)
        for n in (1, 2)
    ]
    return card


def test_a_mig_instance_has_its_own_memory_and_no_utilisation_ever():
    run = Run(FakeNvml(mig_card()), uuids=["MIG-2"])
    run.until(8)
    assert not run.out.util
    assert "MIG" in run.session.missing["util"]
    sample = run.out.gpu[-1]
    assert (sample.uuid, sample.memory_used, sample.memory_total) == ("MIG-2", 2 << 30, 16 << 30)
    assert (sample.power_w, sample.power_limit_w) == (None, None)  # the neighbours draw it too
    assert sample.temperature_c == 47


def test_gpm_of_a_mig_instance_is_its_own():
    nvml = FakeNvml(mig_card())
    run = Run(nvml, uuids=["MIG-2"])
    run.fast(0)
    for tick in range(6):
        run.slow(tick * 0.3)
    assert {s.uuid for s in run.out.gpm} == {"MIG-2"}
    assert "nvmlGpmMigSampleGet" in nvml.calls
    assert "nvmlDeviceGetPcieThroughput" not in nvml.calls


def test_a_card_in_mig_mode_stands_for_its_first_instance():
    run = Run(FakeNvml(mig_card()), env={"CUDA_VISIBLE_DEVICES": "0"})
    run.fast(0)
    assert [d.uuid for d in run.session.devices] == ["MIG-1"]


# -- drivers in trouble


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (LIBRARY_NOT_FOUND, "no NVIDIA driver on this machine"),
        (DRIVER_NOT_LOADED, "not loaded"),
        (VERSION_MISMATCH, "version mismatch"),
        (NO_PERMISSION, "/dev/nvidia"),
        (UNKNOWN, "Unknown Error"),
    ],
)
def test_a_driver_that_does_not_start_is_said_once_and_asked_again_seldom(code, words):
    nvml = FakeNvml(recorded_card())
    nvml.init_error = code
    run = Run(nvml)
    run.until(600)
    assert words in run.session.missing["nvml"]
    assert set(run.session.missing) == {"nvml"}
    assert nvml.calls.count("nvmlInit") == 5  # at 0, 30, 90, 210, 450 s
    assert not run.out.gpu


def test_a_driver_that_starts_later_is_used_from_then_on():
    nvml = FakeNvml(recorded_card())
    nvml.init_error = DRIVER_NOT_LOADED
    run = Run(nvml)
    run.fast(0)
    nvml.init_error = None
    run.fast(31)
    assert run.session.missing == {}
    assert len(run.out.gpu) == 1


def test_a_lost_card_ends_its_series_and_no_other():
    nvml = two_cards()
    run = Run(nvml)
    run.until(3)
    nvml.cards[0].failing["*"] = GPU_IS_LOST
    run.until(9, begin=3.25)
    assert run.utils(A) == recorded_utils(3.0)
    assert run.utils(B) == recorded_utils(9.0)
    assert "lost GPU 0 (NVIDIA H200)" in run.session.missing["nvml"]
    assert [d.uuid for d in run.session.devices] == [A, B]


def test_a_card_that_comes_back_repeats_nothing():
    nvml = two_cards()
    run = Run(nvml)
    run.until(3)
    nvml.cards[0].failing["*"] = GPU_IS_LOST
    run.until(5, begin=3.25)
    nvml.cards[0].failing.clear()
    run.until(35, begin=5.25)
    assert run.utils(A) == recorded_utils(99.0)
    assert run.session.missing == {}


def test_a_card_that_stays_lost_is_looked_for_seldom():
    nvml = two_cards()
    run = Run(nvml, uuids=[A])
    run.until(1)
    nvml.cards[0].failing["*"] = GPU_IS_LOST
    before = nvml.calls.count("nvmlDeviceGetCount")
    run.until(300, begin=1.25)
    assert nvml.calls.count("nvmlDeviceGetCount") - before == 3  # after 30, 90 and 210 s
    assert "lost GPU 0" in run.session.missing["nvml"]


def test_a_library_that_stops_working_is_started_anew_without_repeats():
    nvml = two_cards()
    run = Run(nvml, uuids=[B])
    run.until(3)
    run.slow(3)
    nvml.cards[1].failing["*"] = UNINITIALIZED
    run.until(4, begin=3.25)
    assert "stopped answering" in run.session.missing["nvml"]
    assert nvml.started == 0
    nvml.cards[1].failing.clear()
    run.until(35, begin=4.25)
    assert run.utils(B) == recorded_utils(99.0)
    assert run.session.missing == {}
    assert nvml.started == 1


# -- threads


def test_records_arrive_through_the_collectors_threads_and_closing_frees_all():
    nvml = FakeNvml(recorded_card(processes=[(70, 1 << 30)]))
    offset_us = (time.time_ns() - time.monotonic_ns()) // 1000
    begin_us = time.monotonic_ns() // 1000 + offset_us
    nvml.cards[0].samples = recorded_samples(begin_us)[:3]
    nvml.now_us = begin_us + 10_000_000
    collector = NvmlCollector([A], lambda: {70}, nvml, since_ns=time.monotonic_ns() - 10**9)
    util, gpu, gpm = [], [], []

    def complete() -> bool:
        batch = collector.sample(time.monotonic_ns())
        util.extend(batch.util)
        gpu.extend(batch.gpu)
        gpm.extend(batch.gpm)
        return len(util) >= 3 and any(s.memory_ours for s in gpu) and len(gpm) >= 2

    assert wait_for(complete), (util, gpu, gpm, collector.missing)
    assert [s.util for s in util] == recorded_utils()[:3]
    assert [d.name for d in collector.devices] == ["NVIDIA H200"]
    collector.close()
    collector.close()
    assert (nvml.started, nvml.gpm_buffers) == (0, 0)


def test_a_driver_that_hangs_never_holds_up_the_caller_and_is_named():
    import threading

    release = threading.Event()
    hanging = threading.Event()

    class Hanging(FakeNvml):
        def nvmlDeviceGetSamples(self, *args):
            hanging.set()
            release.wait(60)
            return super().nvmlDeviceGetSamples(*args)

    collector = NvmlCollector(None, set, Hanging(recorded_card()))
    try:
        assert hanging.wait(20)
        assert collector.sample(time.monotonic_ns()).util == ()
        assert collector.missing == {}
        collector.sample(time.monotonic_ns() + 31_000_000_000)
        assert "has not answered for" in collector.missing["nvml"]
    finally:
        release.set()
    assert wait_for(
        lambda: bool(collector.sample(time.monotonic_ns()).gpu) and collector.missing == {}
    )
    collector.close()


def test_pids_that_cannot_be_had_do_not_disturb_the_caller():
    def fail():
        raise RuntimeError("the table is being rebuilt")

    collector = NvmlCollector(None, fail, FakeNvml(recorded_card()))
    assert wait_for(lambda: bool(collector.sample(time.monotonic_ns()).gpu))
    collector.close()


def test_an_answer_of_the_wrong_shape_is_named_and_the_series_goes_on():
    nvml = FakeNvml(recorded_card())
    nvml.cards[0].memory = ("?", None)
    collector = NvmlCollector(None, set, nvml)
    assert wait_for(lambda: "nvml" in collector.missing)
    assert collector.missing["nvml"].startswith("Reading the GPU failed")
    nvml.cards[0].memory = (1 << 30, 2 << 30)
    assert wait_for(lambda: bool(collector.sample(time.monotonic_ns()).gpu))
    assert wait_for(lambda: collector.missing == {})
    collector.close()


def test_the_real_library_on_a_machine_without_a_driver_is_missing():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has an NVIDIA driver")
    collector = NvmlCollector(None, set)
    assert wait_for(lambda: "nvml" in collector.missing)
    assert "driver" in collector.missing["nvml"]
    assert collector.sample(time.monotonic_ns()).gpu == ()
    collector.close()
