"""Where training runs: containers, control groups, environments, cards that come and go.

docs/environments.md says what each of them comes to; these are the rows no other test shows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop_train.collect.cgroup import CgroupLimits, group_directories
from gputop_train.launch.interpreter import choose_interpreter
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from tests.integration.supervised import TRAINER
from tests.launching import needs_namespaces, wait_for, world


@pytest.fixture
def here(tmp_path):
    with world(tmp_path) as made:
        yield made


def trainer(*arguments: str) -> tuple[str, ...]:
    return ("--", sys.executable, str(TRAINER), *arguments)


@needs_namespaces
def test_a_run_in_a_container_is_seen_from_outside_and_left_to_itself(here):
    """The run root is shared; the PIDs in it are another namespace's."""
    stay = here.place / "stay"
    outer = subprocess.Popen(
        ["unshare", "-pf", "--mount-proc", "--kill-child",
         *here.command("--json", "report.json", *trainer("--steps", "40", "--until", str(stay)))],
        cwd=here.place, env=here.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    ours = [sys.executable, "-m", "gputop_train.cli"]
    root = ("--run-root", str(here.root))

    def ask(*words):
        done = subprocess.run(
            [*ours, *words, *root], cwd=here.place, env=here.environ,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    try:
        here.wait_for_output(b"step 39")
        name = here.run_dir().name
        (listed,) = json.loads(ask("runs", "--json")[1])
        assert listed["state"] == "elsewhere"
        assert "in a container" in ask("runs")[1]
        # Its data can be read, and its processes are not looked up here, let alone ended.
        wait_for(lambda: "40 " in ask("report", name)[1], "a report from outside")
        code, said = ask("attach", name, "--no-tui")
        assert (code, "in another container of this machine" in said) == (2, True)
        assert not (here.run_dir() / "exit.json").exists()
        assert outer.poll() is None
        stay.touch()
        outer.wait(timeout=90)
    finally:
        outer.kill()
        outer.wait()
    assert outer.returncode == 0
    assert json.loads((here.place / "report.json").read_bytes())["steps"]["count"] == 40
    assert json.loads(ask("runs", "--json")[1])[0]["state"] == "finished"


def group_of(controller: str) -> tuple[Path, bool] | None:
    """Our own group of a controller, if children can be made in it, and whether it is of v2."""
    texts = [Path(f"/proc/self/{name}").read_text() for name in ("cgroup", "mountinfo")]
    for directory, is_v2 in group_directories(*texts, controller):
        place = Path(directory)
        wanted = "cpu.max" if is_v2 else {"cpu": "cpu.cfs_quota_us"}.get(controller)
        found = (place / (wanted or "memory.limit_in_bytes")).exists() and os.access(place, os.W_OK)
        if found and not is_v2:
            return place, is_v2
    return None


@pytest.mark.skipif(
    group_of("cpu") is None or group_of("memory") is None,
    reason="no control groups (v1) can be made here; v2 is read from recorded trees, test_host",
)
def test_limits_of_a_real_control_group_are_read_by_a_process_in_it():
    name = f"gputop-train-test-{os.getpid()}"
    made = {}
    try:
        for controller in ("cpu", "memory"):
            found = group_of(controller)
            assert found is not None
            made[controller] = found[0] / name
            made[controller].mkdir()
        (made["cpu"] / "cpu.cfs_period_us").write_text("100000")
        (made["cpu"] / "cpu.cfs_quota_us").write_text("150000")
        (made["memory"] / "memory.limit_in_bytes").write_text(str(1 << 30))
        code = (
            "import os, sys\n"
            "for place in sys.argv[1:]:\n"
            "    with open(place + '/cgroup.procs', 'w') as procs: procs.write(str(os.getpid()))\n"
            "from gputop_train.collect.cgroup import read_limits\n"
            "print(read_limits(*(open('/proc/self/' + n).read() for n in ('cgroup', 'mountinfo'))))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, made.values())],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        limits = eval(done.stdout, {"CgroupLimits": CgroupLimits})
    finally:
        for place in made.values():
            place.rmdir()
    assert (limits.cpu_quota, limits.mem_limit) == (1.5, 1 << 30)
    assert 0 < limits.mem_used < 1 << 30


@pytest.mark.parametrize(
    ("first", "chosen"), [("conda", "conda"), ("venv", "venv"), ("elsewhere", "venv")]
)
def test_of_two_active_environments_the_one_that_path_has_first(tmp_path, first, chosen):
    for name in ("venv", "conda", "elsewhere"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
    environ = {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": f"{tmp_path / first / 'bin'}:{tmp_path / 'venv' / 'bin'}",
    }
    assert choose_interpreter(None, environ) == str(tmp_path / chosen / "bin" / "python")


@pytest.mark.long
@pytest.mark.parametrize("tool", ["venv", "virtualenv", "uv", "poetry"])
def test_an_environment_made_by(here, tool):
    """Each makes one, with torch on its path; the script runs in it, ours lies elsewhere."""
    program = sys.executable if tool == "venv" else shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not installed")
    made = here.place / ".venv"
    make = {
        "venv": ("-m", "venv", "--without-pip", str(made)),
        "virtualenv": ("-p", sys.executable, str(made)),
        "uv": ("venv", "--offline", "--python", sys.executable, str(made)),
        "poetry": ("--version",),
    }[tool]
    subprocess.run([program, *make], check=True, capture_output=True, cwd=here.place)
    if tool == "poetry":  # its own would be made far from here
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
        text = '[project]\nname = "p"\nversion = "0"\nrequires-python = ">=3.10"\n'
        (here.place / "pyproject.toml").write_text(text + "[tool.poetry]\npackage-mode = false\n")
    (site,) = made.glob("lib/python3*/site-packages")
    (site / "torch.pth").write_text(str(Path(pytest.__file__).parent.parent))
    here.script(
        """
        import sys, torch
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(30):
            optimizer.zero_grad(); model(torch.ones(2, 2)).sum().backward(); optimizer.step()
        print(sys.prefix)
        """
    )
    run = {
        "uv": ("--", program, "run", "--offline", "--no-project", "python", "train.py"),
        "poetry": ("--", program, "run", "python", "train.py"),
    }.get(tool, ("--python", str(made), "train.py"))
    done = here.run("--json", "report.json", *run)
    assert done.stdout.decode().strip().endswith(str(made)), done.stderr
    assert json.loads((here.place / "report.json").read_bytes())["steps"]["count"] == 30


@pytest.mark.long
def test_a_worker_that_torchrun_restarts_is_the_same_rank_again(here):
    here.script(
        """
        import os, sys, torch
        again = os.environ["TORCHELASTIC_RESTART_COUNT"]
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for n in range(60):
            optimizer.zero_grad(); model(torch.ones(2, 2)).sum().backward(); optimizer.step()
            if n == 39 and again == "0":
                sys.exit(9)
        """
    )
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=1")
    words = (sys.executable, *launcher, "--master-port=29741", "train.py")
    process = here.start("--json", "report.json", "--", *words)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    report = json.loads((here.place / "report.json").read_bytes())
    assert (report["run"]["attempts"], report["steps"]["count"]) == (2, 100)
    assert report["time"]["shares"]["restart"] > 0.5


def test_steps_asked_for_end_a_run_on_a_second_node(here):
    """Its lowest rank is not 0."""
    done = here.run(
        "--steps", "20", "--json", "report.json",
        *trainer("--steps", "9999", "--step-ms", "10", "--rank", "8"),
    )  # fmt: skip
    report = json.loads((here.place / "report.json").read_bytes())
    assert (done.returncode, report["run"]["stopped_by"]) == (0, "steps")
    assert [rank["rank"] for rank in report["ranks"]] == [8]


def test_a_torch_for_rocm_is_known_and_no_nvidia_driver_is_missed(monkeypatch):
    import torch

    from gputop_train.launch import sampling
    from gputop_train.probe import snapshot

    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    monkeypatch.setattr(snapshot.S, "torch", torch)
    told = snapshot._cuda()
    assert (told["built"], told["hip"]) == (True, "6.4.1")
    assert sampling._on_rocm({"cuda": told})
    assert not sampling._on_rocm({"cuda": {**told, "hip": None}})
    assert "rocm-smi" in sampling._ROCM


STAND_IN = """
# In place of the driver's library: what an H200 answered, and what becomes of it.
import importlib, os, sys, time
sys.path[:] = [place for place in sys.path if place != os.path.dirname(__file__)]
del sys.modules["pynvml"]
importlib.invalidate_caches()
import pynvml as real
from tests import nvml_replay
BEGAN = time.time()
class Failing(dict):
    def get(self, name, default=None):
        return 15 if time.time() - BEGAN > {after} else default
class Driver(nvml_replay.FakeNvml):
    @property
    def now_us(self):
        return time.time_ns() // 1000
    @now_us.setter
    def now_us(self, _value):
        pass
card = nvml_replay.recorded_card(int(BEGAN * 1e6), failing=Failing())
{more}
sys.modules["pynvml"] = Driver(card)
"""


def watched_card(here, lost_after: float, more: str, seen: Callable[[RunReader], object]) -> dict:
    """The report of a run beside a driver that is a stand-in; it lasts until ``seen`` is stored."""
    place, stay = here.place / "standin", here.place / "stay"
    place.mkdir()
    text = STAND_IN.replace("{after}", str(lost_after)).replace("{more}", more)
    (place / "pynvml.py").write_text(text)
    here.environ["PYTHONPATH"] = str(place)
    words = trainer("--steps", "40", "--until", str(stay), "--exit", "3")
    process = here.start("--json", "report.json", *words)

    def stored() -> object:
        try:
            with RunReader(here.run_dir() / "run.sqlite") as reader:
                return seen(reader)
        except StoreError:
            return None

    wait_for(stored, "what the driver says")
    stay.touch()
    _, said = process.communicate(timeout=90)
    assert process.returncode == 3, said
    report = json.loads((here.place / "report.json").read_bytes())
    assert report["steps"]["count"] == 40
    return {**report, "said": " ".join(said.decode().split())}


def test_a_card_that_falls_off_the_bus_under_way_is_said_and_costs_nothing(here):
    report = watched_card(here, 2.0, "", lambda reader: reader.notes("gpu-lost"))
    assert report["gpu"]["util_mean"] is None or report["gpu"]["util_mean"] > 0
    assert "nvml" in report["run"]["signals_missing"]
    assert [lost["what"] for lost in report["data_lost"]] == ["GPU readings"]
    assert "The driver lost GPU 0 (NVIDIA H200)" in report["said"]
    assert "look for Xid in dmesg. Readings of GPUs end there." in report["said"]


def test_a_mig_instance_has_no_utilisation_and_never_zero(here):
    more = (
        "part = nvml_replay.Card(uuid='MIG-0a1b2c3d-aaaa-5a6b-8c7d-000000000001', parent=card,\n"
        "                        gpu_instance=1, failing={'nvmlDeviceGetSamples': 3,\n"
        "                        'nvmlDeviceGetUtilizationRates': 3})\n"
        "card.instances.append(part); card.mig_mode = True"
    )
    report = watched_card(here, 1e9, more, lambda reader: reader.gpu())
    (gpu,) = report["run"]["gpus"]
    assert gpu["uuid"].startswith("MIG-")
    assert (gpu["util_mean"], report["gpu"]["util_mean"], report["gpu"]["busy_share"]) == (
        None,
    ) * 3
    assert "mean utilisation not measured" in report["said"]
