"""The doctor on a real card: what it says agrees with torch and NVML, and it holds no card.

Run by hand on a machine with an NVIDIA GPU and torch: ``pytest -m gpu tests/gpu/test_doctor_real.py``.
"""

import os
import subprocess
import sys

import pytest

from tests.doctor_support import told

pynvml = pytest.importorskip("pynvml")
pytestmark = pytest.mark.gpu
#: Where several cards are shared out among several runs of these tests, ours.
FIRST = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def doctor(**environ):
    given = {**os.environ, **environ}
    command = [sys.executable, "-m", "gputop_train", "doctor", "--json", "--python", sys.executable]
    result = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    return told(result)


@pytest.fixture(scope="module")
def card():
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(int(FIRST))
    yield handle
    pynvml.nvmlShutdown()


def test_the_driver_torch_and_the_card_go_together(card):
    import torch

    checks = doctor()
    for id_ in ("nvml", "torch", "torch-driver", "torch-arch", "torch-cuda"):
        assert checks[id_]["level"] in ("ok", "note"), checks[id_]
    assert checks["torch-driver"]["values"]["torch_cuda"] == torch.version.cuda
    assert checks["torch-cuda"]["values"]["device_count"] == torch.cuda.device_count()
    capability = list(torch.cuda.get_device_capability(0))
    assert checks["torch-arch"]["values"]["capabilities"][0] == capability
    driver = pynvml.nvmlSystemGetDriverVersion()
    assert checks["nvml"]["values"]["driver"] == driver
    supported = bool(pynvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice)
    assert checks["gpm"]["values"]["gpm"][0] is supported


def test_visible_devices_are_judged_as_cuda_takes_them(card):
    uuid = pynvml.nvmlDeviceGetUUID(card)
    for value, level, count in (
        ("99", "fail", 0),
        ("", "warn", 0),
        ("0", "ok", 1),
        (uuid, "ok", 1),
    ):
        checks = doctor(CUDA_VISIBLE_DEVICES=value)
        assert checks["visible-devices"]["level"] == level, value
        assert len(checks["visible-devices"]["values"]["visible"]) == count
        if count:
            assert checks["torch-cuda"]["values"]["device_count"] == count


def test_a_card_held_by_another_process_is_told(card):
    total = pynvml.nvmlDeviceGetMemoryInfo(card).total
    hold = (
        "import sys, torch\n"
        f"held = torch.empty({total // 5}, dtype=torch.uint8, device='cuda')\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": FIRST},
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        found = doctor(CUDA_VISIBLE_DEVICES=FIRST)["gpu-in-use"]
        holder.stdin.close()
    assert found["level"] == "warn"
