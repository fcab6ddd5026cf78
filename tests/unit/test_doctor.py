"""What the doctor makes of facts, and how it prints it; faults in real environments are planted elsewhere."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_train.collect.devices import Device
from gputop_train.doctor import as_json, examine
from gputop_train.doctor.checks.packages import pins
from gputop_train.doctor.checks.torch_build import runs_on
from gputop_train.doctor.facts import (
    Asked,
    Card,
    Facts,
    Gpus,
    Host,
    Interpreter,
    Place,
    Places,
    Terminal,
)
from gputop_train.doctor.findings import LEVELS, Check, exit_code, plural, worst_first
from gputop_train.doctor.gather import gpus as gather_gpus
from gputop_train.doctor.gather import places as gather_places
from gputop_train.doctor.text import lines

GIB = 1 << 30
UUID = "GPU-5a4e0f4c-0001-4a6e-9d1c-6f0a7d5b2c11"
CARD = Card(
    Device(UUID, 0, "NVIDIA H200"),
    capability=(9, 0),
    persistence=True,
    memory_used=GIB,
    memory_total=140 * GIB,
    processes=(),
    throttle=0,
    repair_pending=False,
    ecc_errors=0,
    gpm=True,
    compute_mode=0,
)
ABOUT = {
    "version": [3, 12, 4],
    "encoding": "utf-8",
    "base_prefix": "/usr",
    "torch_origin": "/env/torch/__init__.py",
    "dists": {"torch": "2.9.1", "nvidia-nccl-cu12": "2.27.5"},
    "requires": ["nvidia-nccl-cu12==2.27.5"],
}
TORCH = {
    "stage": "done",
    "torch": "2.9.1+cu128",
    "file": "/env/torch/__init__.py",
    "cuda": "12.8",
    "hip": None,
    "archs": ["sm_80", "sm_90"],
    "threads": 16,
    "available": True,
    "count": 1,
}
HOST = Host(
    shm_total=64 * GIB,
    shm_free=63 * GIB,
    shm_writable=True,
    nofile=(65536, 65536),
    nproc=-1,
    memlock=-1,
    address_space=-1,
    online=16,
    affinity=16,
    memory=128 * GIB,
    yama=0,
    traces_all=False,
    py_spy="/env/bin/py-spy",
    initial_pids=True,
    clocksource="tsc",
    year=2026,
)
ROOT = Place(
    Path("/home/a/runs"),
    Path("/home/a/runs"),
    mode=0o700,
    file_system="ext4",
    free=100 * GIB,
    free_files=10**6,
)
SOUND = Facts(
    interpreter=Interpreter(
        "/env/bin/python", about=Asked(ABOUT), torch=Asked(TORCH), entered=True
    ),
    gpus=Gpus(driver="570.124.06", cuda=(12, 8), cards=(CARD,), on_pci=1),
    host=HOST,
    places=Places(ROOT, store=ROOT.path, ring=Path("/dev/shm/gputop-train-1000")),
    terminal=Terminal(True, None, 120, 40, True, False),
    environ={"LANG": "en_US.UTF-8", "TERM": "xterm-256color"},
)


def found(facts):
    return {check.id: check for check in examine.judge(facts)}


def of_host(**changes):
    return found(replace(SOUND, host=replace(HOST, **changes)))


def of_torch(gpus=SOUND.gpus, **changes):
    python = replace(SOUND.interpreter, torch=Asked({**TORCH, **changes}))
    return found(replace(SOUND, interpreter=python, gpus=gpus))


def of_root(**changes):
    return found(replace(SOUND, places=replace(SOUND.places, root=replace(ROOT, **changes))))


def test_a_sound_machine_is_well_in_every_line():
    checks = examine.judge(SOUND)
    assert {check.level for check in checks} == {"ok"}
    assert len(checks) > 30
    assert len({check.id for check in checks}) == len(checks)


def test_every_finding_but_a_good_one_is_a_sentence_and_says_what_to_do():
    nothing = Facts(
        Interpreter(problem="There is no python on PATH. Name one with --python PATH."),
        Gpus(hung=True),
        Host(),
        Places(replace(ROOT, problem="/home/a is not ours to write", mode=None)),
        Terminal(),
        {"CUDA_VISIBLE_DEVICES": "0"},
    )
    checks = examine.judge(nothing)
    assert not [check.id for check in checks if check.id.endswith("-checks")]
    for check in checks:
        if check.level in ("fail", "warn"):
            assert check.remedy, check.id
        if check.level != "ok":
            assert check.found.endswith("."), check.id
    assert exit_code(checks) == 1


def test_worst_first_and_the_exit_code():
    checks = [Check(level, level, level, "x") for level in reversed(LEVELS)]
    assert [check.level for check in worst_first(checks)] == list(LEVELS)
    assert [exit_code([c]) for c in worst_first(checks)] == [1, 0, 0, 0, 0]
    assert [exit_code([c], strict=True) for c in worst_first(checks)] == [1, 1, 0, 0, 0]


def test_a_check_that_fails_says_so_and_the_others_go_on():
    checks = found(replace(SOUND, host=None))
    assert checks["host-checks"].level == "unchecked"
    assert checks["torch"].level == "ok"


def test_nothing_measured_is_never_a_number_and_never_well():
    card = Card(Device(UUID, 0, "NVIDIA H200"))
    checks = found(replace(SOUND, gpus=Gpus(cards=(card,), cuda=None)))
    for id_ in ("gpu-health", "gpu-clocks", "gpu-mode", "gpu-in-use", "gpu-persistence"):
        assert checks[id_].level == "unchecked", id_
        assert "not measured" in checks[id_].found
    assert checks["torch-driver"].level == checks["torch-arch"].level == "unchecked"


def test_an_old_python_is_told_and_not_asked_for_more():
    python = replace(SOUND.interpreter, about=Asked({**ABOUT, "version": [3, 8, 18]}))
    checks = found(replace(SOUND, interpreter=python))
    assert (checks["python"].level, "probe-entry" in checks) == ("fail", False)


# -- torch


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (["sm_80"], (8, 9), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["compute_80"], (12, 0), True),
        (["compute_120"], (9, 0), False),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_100f"], (10, 3), True),
        (["sm_120"], (12, 0), True),
        (["gfx90a"], (9, 0), False),
    ],
)
def test_code_and_the_cards_it_runs_on(archs, capability, runs):
    assert runs_on(archs, capability) is runs


def test_what_torch_pins_of_cuda():
    assert pins(
        [
            "nvidia-cublas-cu12==12.8.4.1; platform_system == 'Linux'",
            "nvidia_nvtx (==13.0.39)",
            "nvidia-cudnn-cu12>=9",
            "nvidia-extra==1; extra == 'x'",
            "numpy==2",
            "cuda-toolkit[cudart]==13.0.2",
        ]
    ) == {"nvidia-cublas-cu12": "12.8.4.1", "nvidia-nvtx": "13.0.39"}
    assert pins(None) == {}


def test_an_older_driver_that_works_through_a_compatibility_package():
    checks = of_torch(cuda="13.0", gpus=replace(SOUND.gpus, cuda=(12, 4)))
    assert checks["torch-driver"].level == "ok"
    assert "compatibility package" in checks["torch-driver"].found


def test_a_rocm_build_says_what_works():
    checks = of_torch(cuda=None, hip="6.4.43482", gpus=Gpus(failure=(12, "none"), on_pci=0))
    assert checks["torch-build"].level == "note"
    assert "utilisation, power and other processes are not" in checks["torch-build"].found
    assert "torch-cuda" not in checks


def test_torch_that_sees_fewer_cards_than_there_are():
    second = replace(CARD, device=Device("GPU-7", 1, "NVIDIA H200"))
    both = replace(SOUND.gpus, cards=(CARD, second))
    assert of_torch(gpus=both)["torch-cuda"].level == "warn"
    facts = replace(SOUND, gpus=both, environ={**SOUND.environ, "CUDA_VISIBLE_DEVICES": "1"})
    assert found(facts)["torch-cuda"].level == "ok"


def test_only_cards_the_run_would_use_are_judged():
    busy = replace(CARD, device=Device("GPU-7", 1, "NVIDIA H200"), memory_used=100 * GIB)
    facts = replace(SOUND, gpus=replace(SOUND.gpus, cards=(CARD, busy)))
    assert found(facts)["gpu-in-use"].level == "warn"
    chosen = replace(facts, environ={**SOUND.environ, "CUDA_VISIBLE_DEVICES": "0"})
    assert found(chosen)["gpu-in-use"].level == "ok"


# -- driver


def test_a_card_on_the_bus_and_no_driver():
    gpus = Gpus(failure=(12, "There is no NVIDIA driver; install one."), on_pci=2)
    assert of_torch(gpus=gpus)["nvml"].level == "fail"
    assert of_torch(gpus=gpus, cuda=None)["nvml"].level == "warn"
    assert of_torch(gpus=replace(gpus, on_pci=None))["nvml"].level == "unchecked"
    none = of_torch(gpus=replace(gpus, on_pci=0))
    assert (none["nvml"].level, none["torch-driver"].level) == ("ok", "ok")


def test_a_driver_that_hangs_is_left_after_its_time():
    gate = threading.Event()

    class Stuck:
        def nvmlInit(self):
            gate.wait(60)

        def nvmlShutdown(self):
            pass

        def nvmlDeviceGetCount(self):
            return 0

    assert gather_gpus.gather(Stuck(), limit_s=0.05).hung
    gate.set()
    assert found(replace(SOUND, gpus=Gpus(hung=True)))["nvml"].level == "fail"


def test_device_files_that_are_closed_and_cards_on_the_bus(tmp_path):
    slot = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    audio = tmp_path / "sys/bus/pci/devices/0000:01:00.1"
    for place, kind in ((slot, "0x030200"), (audio, "0x040300")):
        place.mkdir(parents=True)
        (place / "vendor").write_text("0x10de\n")
        (place / "class").write_text(f"{kind}\n")

    class Nothing:
        def nvmlInit(self):
            raise RuntimeError("no")

    seen = gather_gpus.gather(Nothing(), system=str(tmp_path))
    assert (seen.on_pci, seen.refused) == (1, ())
    assert gather_gpus.gather(Nothing(), system=str(tmp_path / "none")).on_pci is None


def test_a_pid_namespace_of_our_own():
    check = of_host(initial_pids=False)["gpu-processes"]
    assert (check.level, "not measured" in check.found) == ("note", True)


# -- host


@pytest.mark.parametrize(
    ("changes", "id_", "level"),
    [
        ({"shm_total": None}, "shm", "fail"),
        ({"shm_total": 0, "shm_free": 0}, "shm", "ok"),
        ({"shm_total": 64 << 20, "shm_free": 64 << 20}, "shm", "warn"),
        ({"shm_free": GIB}, "shm", "warn"),
        ({"nofile": (1024, 4096)}, "open-files", "ok"),
        ({"nofile": (512, 4096)}, "open-files", "warn"),
        ({"nofile": (128, 128)}, "open-files", "fail"),
        ({"nofile": (-1, -1)}, "open-files", "ok"),
        ({"nproc": 1000, "threads": 900}, "threads", "warn"),
        ({"nproc": 4096, "threads": 900}, "threads", "ok"),
        ({"memlock": 8 << 20, "infiniband": True}, "locked-memory", "warn"),
        ({"address_space": 32 * GIB}, "address-space", "warn"),
        ({"affinity": 2}, "cores", "warn"),
        ({"affinity": 8}, "cores", "ok"),
        ({"quota": 1.5}, "cores", "warn"),
        ({"online": 1, "affinity": 1}, "cores", "ok"),
        ({"online": 2, "affinity": 2}, "cores", "ok"),
        ({"quota": 4.0}, "omp", "warn"),
        ({"memory_limit": 10 * GIB, "memory_used": 9 * GIB + 1}, "memory", "warn"),
        ({"memory_limit": 10 * GIB, "memory_used": 8 * GIB}, "memory", "ok"),
        ({"clocksource": "hpet"}, "clock", "note"),
        ({"year": 1970}, "clock", "warn"),
        ({"py_spy": None}, "py-spy", "note"),
    ],
)
def test_a_limit_of_the_host(changes, id_, level):
    assert of_host(**changes)[id_].level == level


# -- places and text


@pytest.mark.parametrize(
    ("changes", "id_", "level"),
    [
        ({"remote": True, "file_system": "nfs4"}, "run-root", "note"),
        ({"mode": 0o777}, "run-root", "warn"),
        ({"mode": 0o1777}, "run-root", "ok"),
        ({"mode": 0o755}, "run-root", "ok"),
        ({"problem": "/mnt is mounted read-only"}, "run-root", "fail"),
        ({"free": 500 << 20}, "disk", "warn"),
        ({"free": 50 << 20}, "disk", "fail"),
        ({"free_files": 3}, "disk", "warn"),
        ({"free_files": None}, "disk", "ok"),
    ],
)
def test_a_run_root(changes, id_, level):
    assert of_root(**changes)[id_].level == level


def test_nowhere_for_ring_or_store():
    places = replace(SOUND.places, ring=None, store=None, root=replace(ROOT, remote=True))
    checks = found(replace(SOUND, places=places))
    assert checks["ring"].level == checks["run-root"].level == "fail"


def test_a_place_is_looked_at_and_not_made(tmp_path, monkeypatch):
    wanted = tmp_path / "a" / "b"
    place = gather_places.look_at(wanted)
    assert (place.nearest, place.problem, place.mode) == (tmp_path, None, None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    gather_places.gather(str(wanted), {"GPUTOP_CONFIG": ""})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("")
    assert "is not a directory" in (gather_places.look_at(wanted).problem or "")


def test_lines_fit_and_carry_nothing_of_a_terminal():
    hostile = {**SOUND.environ, "CUDA_VISIBLE_DEVICES": "\x1b]0;x\x07" + "9" * 500, "LC_ALL": "C"}
    host = replace(HOST, shm_total=64 << 20, py_spy="/ä/\x1b[31m" + "p" * 300)
    checks = examine.judge(replace(SOUND, environ=hostile, host=host))
    for width in (40, 80, 100, 300):
        for ascii_only in (False, True):
            plain = [line.plain for line in lines(checks, width, ascii_only=ascii_only)]
            assert max(map(len, plain)) <= min(width, 100)
            assert all(line.isprintable() for line in plain)
            assert not ascii_only or all(line.isascii() for line in plain)
    assert plain[0].split()[0] == "FAIL"


def test_the_document_has_every_check():
    document = as_json.document(examine.judge(SOUND))
    assert (document["schema"], document["exit_code"]) == (1, 0)
    assert sum(document["counts"].values()) == len(document["checks"])
    assert set(document["checks"][0]) == {"id", "level", "found", "do", "values"}


def test_plurals():
    given = [(1, "GPU"), (2, "GPU"), (3, "process"), (1200, "directory")]
    assert [plural(*each) for each in given] == [
        "1 GPU",
        "2 GPUs",
        "3 processes",
        "1,200 directories",
    ]
