"""On a real card: every field is filled and every driver sample arrives once.

Run by hand on a machine with an NVIDIA GPU and torch: ``pytest -m gpu tests/gpu``. One child keeps
the card busy for about fifteen seconds while a collector records it; the tests judge the recording.
"""

import dataclasses
import itertools
import statistics
import subprocess
import sys
import time

import pytest

from gputop_train.collect.clock import measure_offset_ns
from gputop_train.collect.devices import match_uuid
from gputop_train.collect.nvml import NvmlCollector

pynvml = pytest.importorskip("pynvml")
pytestmark = pytest.mark.gpu

RECORD_S = 15
HELD_BYTES = 2 << 30

BUSY = """
import sys, threading, torch
held = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
host = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
for _ in range(20):
    b = a @ a
torch.cuda.synchronize()
print(torch.cuda.get_device_properties(0).uuid, flush=True)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.is_set():
    for _ in range(20):
        b = a @ a
    held[: 64 << 20].copy_(host, non_blocking=True)
    torch.cuda.synchronize()
"""


@dataclasses.dataclass
class Recording:
    uuid: str
    pid: int
    begin_ns: int
    util: list
    gpu: list
    gpm: list
    missing: dict
    devices: tuple
    raw_samples: list  # (monotonic ns, percent), the driver's buffer at the end
    raw_pids: set


@pytest.fixture(scope="module")
def nvml():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA driver: {error}")
    yield pynvml
    pynvml.nvmlShutdown()


@pytest.fixture(scope="module")
def recording(nvml):
    child = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        uuid = child.stdout.readline().strip()
        assert uuid, "the child could not use the GPU; see its traceback above"
        yield record(nvml, child.pid, uuid)
    finally:
        child.kill()
        child.communicate()


def record(nvml, pid, uuid):
    begin_ns = time.monotonic_ns()
    collector = NvmlCollector([uuid], lambda: {pid})
    util, gpu, gpm = [], [], []
    while time.monotonic_ns() - begin_ns < RECORD_S * 1e9:
        time.sleep(0.25)
        batch = collector.sample(time.monotonic_ns())
        util += batch.util
        gpu += batch.gpu
        gpm += batch.gpm
    devices, missing = collector.devices, collector.missing
    handle = handle_of(nvml, uuid)
    _, raw = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    offset_ns = measure_offset_ns()
    raw_samples = [(s.timeStamp * 1000 - offset_ns, s.sampleValue.uiVal) for s in raw]
    raw_pids = {p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    collector.close()
    return Recording(uuid, pid, begin_ns, util, gpu, gpm, missing, devices, raw_samples, raw_pids)


def handle_of(nvml, uuid):
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if match_uuid(uuid, [nvml.nvmlDeviceGetUUID(handle)]):
            return handle
    raise AssertionError(f"NVML does not show {uuid}")


def test_the_card_torch_names_is_the_one_watched_and_nothing_is_missing(recording):
    assert len(recording.devices) == 1
    assert recording.devices[0].uuid.removeprefix("GPU-") == recording.uuid.removeprefix("GPU-")
    assert recording.devices[0].name
    assert recording.devices[0].memory_total > HELD_BYTES
    assert recording.missing == {}


def test_utilisation_comes_in_the_drivers_own_windows(recording):
    times = [s.t_ns for s in recording.util]
    gaps_ms = [(b - a) / 1e6 for a, b in itertools.pairwise(times)]
    print("util samples", len(times), "gap ms median", statistics.median(gaps_ms))
    assert times == sorted(set(times))
    assert times[0] > recording.begin_ns
    assert 150 <= statistics.median(gaps_ms) <= 1050  # NVML: between 1/6 s and 1 s; H200: 200 ms
    assert all(0 <= s.util <= 100 for s in recording.util)
    assert statistics.median(s.util for s in recording.util) >= 80


def test_every_sample_of_the_driver_arrived_once(recording):
    # The driver's buffer is bounded: compare where both reach.
    tolerance_ns = 2_000_000  # the offset is measured twice
    first = max(recording.util[0].t_ns, recording.raw_samples[0][0])
    last = min(recording.util[-1].t_ns, recording.raw_samples[-1][0])
    print("driver's buffer", len(recording.raw_samples), "ours", len(recording.util))
    low, high = first - tolerance_ns, last + tolerance_ns
    theirs = [s for s in recording.raw_samples if low <= s[0] <= high]
    mine = [s for s in recording.util if low <= s.t_ns <= high]
    assert len(mine) >= 20
    assert [round(s.util) for s in mine] == [util for _, util in theirs]
    for ours, (t_ns, _) in zip(mine, theirs, strict=True):
        assert abs(ours.t_ns - t_ns) < tolerance_ns


def test_every_field_of_a_reading_is_filled(recording):
    print("gpu record", recording.gpu[-1])
    assert len(recording.gpu) >= RECORD_S - 5
    last = dataclasses.asdict(recording.gpu[-1])
    asked_apart = {"memory_ours", "foreign_processes"}
    assert [k for k, v in last.items() if v is None and k not in asked_apart] == []
    assert HELD_BYTES < last["memory_used"] <= last["memory_total"]
    assert 0 < last["power_w"] < 1.2 * last["power_limit_w"]
    assert 0 < last["sm_clock_mhz"] <= last["sm_clock_max_mhz"]
    assert 0 < last["temperature_c"] < 110
    assert 1 <= last["pcie_gen"] <= last["pcie_gen_max"]
    assert 1 <= last["pcie_width"] <= last["pcie_width_max"]
    assert max(s.pcie_rx_bytes_per_s or 0 for s in recording.gpu) > 1e6  # the child copies


def test_our_memory_is_told_only_where_nvml_knows_our_pids(recording):
    last = recording.gpu[-1]
    if recording.pid in recording.raw_pids:
        assert HELD_BYTES < last.memory_ours <= last.memory_used
        assert last.foreign_processes == len(recording.raw_pids - {recording.pid})
    else:
        assert last.memory_ours is None


def test_gpm_tells_what_the_sms_did(recording):
    if not recording.gpm:
        pytest.skip(f"this card has no GPM: {recording.missing.get('gpm')}")
    print("gpm readings", len(recording.gpm), recording.gpm[-1])
    assert len(recording.gpm) >= (RECORD_S - 5) / 5  # paced by what a reading costs: 4 s at most
    fields = [
        f.name for f in dataclasses.fields(recording.gpm[0]) if f.name not in ("t_ns", "uuid")
    ]
    for field in fields:
        values = [v for s in recording.gpm if (v := getattr(s, field)) is not None]
        print(field, len(values), statistics.median(values) if values else None)
        assert len(values) >= 0.8 * len(recording.gpm), field
    assert statistics.median(s.sm for s in recording.gpm) > 50
    assert statistics.median(s.tensor for s in recording.gpm) > 30
    assert all(s.graphics > 0 for s in recording.gpm)  # a pair without counters reads as 0
    assert max(s.pcie_rx_mib_per_s or 0 for s in recording.gpm) > 1


def test_no_card_is_watched_when_cuda_may_see_none(nvml):
    collector = NvmlCollector(None, set, env={"CUDA_VISIBLE_DEVICES": ""})
    time.sleep(1.5)
    batch = collector.sample(time.monotonic_ns())
    collector.close()
    assert (batch.util, batch.gpu, batch.gpm) == ((), (), ())
    assert collector.missing == {}


def test_a_card_can_be_named_by_the_beginning_of_its_uuid(nvml):
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
    others = [
        nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(1, nvml.nvmlDeviceGetCount())
    ]
    prefix = next(uuid[:n] for n in range(8, 41) if not any(o.startswith(uuid[:n]) for o in others))
    collector = NvmlCollector(None, set, env={"CUDA_VISIBLE_DEVICES": prefix})
    deadline = time.monotonic() + 60
    while not collector.devices and time.monotonic() < deadline:
        time.sleep(0.1)
    collector.close()
    assert [d.uuid for d in collector.devices] == [uuid]
