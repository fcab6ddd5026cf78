"""The doctor finds faults that were really planted in an environment, and none in a sound one."""

from __future__ import annotations

import os
import pty
import resource
import select
import signal
import subprocess
import sys
import time

import pytest

from gputop_train.launch.diversion import libc
from tests.doctor_support import (
    Driver,
    bare_python,
    examined,
    free_card,
    installed,
    stub_torch,
    told,
)
from tests.nvml_replay import NO_PERMISSION, VERSION_MISMATCH
from tests.unprivileged import REPOSITORY, open_to_all, run_as_nobody

COMMAND = [sys.executable, "-m", "gputop_train", "doctor"]
UUID = free_card().uuid


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return bare_python(tmp_path_factory.mktemp("bare") / "env")


@pytest.fixture
def environ(tmp_path):
    """Ours, without what would change the answers."""
    keep = {n: v for n, v in os.environ.items() if n in ("PATH", "HOME", "GPUTOP_CONFIG", "TMPDIR")}
    return {**keep, "LC_ALL": "C.UTF-8", "XDG_STATE_HOME": str(tmp_path / "state")}


def with_torch(environ, place):
    return {**environ, "PYTHONPATH": str(place)}


def run(python, environ, *options, **given):
    return subprocess.run(
        [*COMMAND, "--python", python, "--json", *options],
        env={**environ, "PYTHONPATH": f"{environ.get('PYTHONPATH', '')}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        **given,
    )


def bad(checks):
    return {id_ for id_, check in checks.items() if check.level in ("fail", "warn")}


# -- torch and its GPU


def test_a_torch_without_cuda_beside_a_gpu(bare, environ, tmp_path):
    place = stub_torch(tmp_path, "2.9.1+cpu", cuda=None, archs="", available=False, count=0)
    found = examined(bare, with_torch(environ, place), nvml=Driver(free_card()))["torch-build"]
    assert found.level == "fail"
    assert "built without CUDA while the driver shows 1 NVIDIA H200" in found.found
    assert "CUDA 12.8 or older" in (found.remedy or "")


def test_a_torch_for_a_newer_cuda_than_the_drivers(bare, environ, tmp_path):
    place = stub_torch(tmp_path, "2.9.1+cu130", "13.0", available=False, count=0)
    checks = examined(bare, with_torch(environ, place), nvml=Driver(free_card(), cuda=12040))
    assert checks["torch-driver"].level == "fail"
    assert "CUDA 13.0" in checks["torch-driver"].found
    assert "12.4 at most" in checks["torch-driver"].found
    assert "580.65.06" in (checks["torch-driver"].remedy or "")
    assert checks["torch-cuda"].level == "fail"


def test_a_newer_minor_version_is_served_by_the_driver(bare, environ, tmp_path):
    nvml = Driver(free_card(), cuda=12020)
    found = examined(bare, with_torch(environ, stub_torch(tmp_path)), nvml=nvml)["torch-driver"]
    assert (found.level, found.values["torch_cuda"]) == ("ok", "12.8")


def test_a_card_torch_has_no_code_for(bare, environ, tmp_path):
    place = stub_torch(tmp_path, archs="sm_50 sm_70 sm_86")
    found = examined(bare, with_torch(environ, place), nvml=Driver(free_card()))["torch-arch"]
    assert found.level == "fail"
    assert "sm_90" in found.found


def test_a_torch_too_old_for_the_probe(bare, environ, tmp_path):
    place = stub_torch(tmp_path, "2.0.1+cu118", "11.8")
    found = examined(bare, with_torch(environ, place), nvml=Driver(free_card()))["torch"]
    assert (found.level, "2.0.1" in found.found) == ("fail", True)


def test_cuda_packages_of_two_major_versions(bare, environ, tmp_path):
    place = stub_torch(tmp_path)
    installed(place, "torch", "2.9.1", "nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'")
    installed(place, "nvidia-cudnn-cu12", "9.10.2.21")
    installed(place, "nvidia-cudnn-cu13", "9.13.0.50")
    found = examined(bare, with_torch(environ, place), nvml=Driver(free_card()))["cuda-packages"]
    assert found.level == "warn"
    assert "nvidia-cudnn-cu12 and nvidia-cudnn-cu13" in found.found


def test_a_cuda_package_torch_did_not_ask_for(bare, environ, tmp_path):
    place = stub_torch(tmp_path)
    installed(place, "torch", "2.9.1", "nvidia-nccl-cu12 (==2.27.5)", "numpy==1; extra == 'np'")
    installed(place, "nvidia-nccl-cu12", "2.21.5")
    found = examined(bare, with_torch(environ, place), nvml=Driver(free_card()))["cuda-packages"]
    assert found.level == "warn"
    assert "nvidia-nccl-cu12 is 2.21.5 and torch asks for 2.27.5" in found.found


def test_a_library_of_cuda_from_elsewhere_than_its_package(bare, environ, tmp_path):
    other = tmp_path / "libcudnn.so.8"
    other.write_bytes(b"x" * 4096)
    maps = f"import mmap; _f = open({str(other)!r}, 'rb')\n_m = mmap.mmap(_f.fileno(), 0, prot=1)"
    place = stub_torch(tmp_path / "site", first=maps)
    installed(place, "nvidia-cudnn-cu12", "9.10.2.21")
    found = examined(bare, with_torch(environ, place))["cuda-loaded"]
    assert (found.level, str(other) in found.found) == ("note", True)


def test_an_import_of_torch_that_hangs(bare, environ, tmp_path):
    place = stub_torch(tmp_path, first="import time; time.sleep(3600)")
    checks = examined(bare, with_torch(environ, place), nvml=Driver(free_card()), limit_s=2)
    assert checks["torch"].level == "fail"
    assert "was not done after 2 s" in checks["torch"].found
    assert "torch-cuda" not in checks


def test_an_import_of_torch_that_crashes_and_one_that_fails(bare, environ, tmp_path):
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    place = stub_torch(tmp_path / "crash", first=crash)
    found = examined(bare, with_torch(environ, place))["torch"]
    assert (found.level, "killed by SIGSEGV" in found.found) == ("fail", True)
    loud = "print('x' * 10**7); import sys; sys.stderr.write('y' * 10**7)\nimport libtorch_x"
    place = stub_torch(tmp_path / "error", first=loud)
    found = examined(bare, with_torch(environ, place))["torch"]
    assert (found.level, "No module named 'libtorch_x'" in found.found) == ("fail", True)


def test_an_import_that_answers_without_end(bare, environ, tmp_path):
    flood = "import os, sys\nwhile True:\n    os.write(int(sys.argv[1]), b'x' * 65536)"
    place = stub_torch(tmp_path, first=flood)
    found = examined(bare, with_torch(environ, place))["torch"]
    assert (found.level, "without end" in found.found) == ("fail", True)


def test_a_call_of_cuda_that_never_returns(bare, environ, tmp_path):
    place = stub_torch(tmp_path)
    hang = "\nimport time\ncuda.is_available = lambda: time.sleep(3600)\n"
    with (place / "torch" / "__init__.py").open("a") as file:
        file.write(hang)
    checks = examined(bare, with_torch(environ, place), nvml=Driver(free_card()), limit_s=3)
    assert checks["torch"].level == "ok"
    assert "did not return within 3 s" in checks["torch-cuda"].found


def test_no_torch_and_what_is_no_torch(bare, environ, tmp_path):
    found = examined(bare, environ)["torch"]
    assert (found.level, "not installed" in found.found) == ("fail", True)
    (tmp_path / "torch.py").write_text("weights = 1\n")
    found = examined(bare, with_torch(environ, tmp_path))["torch"]
    assert (found.level, "is not PyTorch" in found.found) == ("fail", True)


# -- the interpreter


def test_a_python_that_is_none(environ, tmp_path):
    for text in ("#!/bin/true\n", "#!/bin/sh\necho no python here >&2; exit 9\n", "\x00\x01"):
        false = tmp_path / "python"
        false.write_text(text)
        false.chmod(0o755)
        checks = examined(str(false), environ)
        assert checks["python"].level == "fail"
        assert str(false) in checks["python"].found
        assert checks["torch"].level == "unchecked"
    assert "no python here" in examined_of(tmp_path, environ, "echo no python here >&2; exit 9")


def examined_of(place, environ, line):
    shell = place / "sh-python"
    shell.write_text(f"#!/bin/sh\n{line}\n")
    shell.chmod(0o755)
    return examined(str(shell), environ)["python"].found


def test_a_wrapper_that_keeps_the_probe_out(bare, environ, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {bare} -I "$@"\n')
    wrapper.chmod(0o755)
    checks = examined(str(wrapper), environ)
    assert checks["probe-entry"].level == "fail"
    assert "ignores PYTHONPATH" in checks["probe-entry"].found


def test_a_module_in_place_of_the_standard_librarys(bare, environ, tmp_path):
    (stub_torch(tmp_path) / "wave.py").write_text("")
    found = examined(bare, with_torch(environ, tmp_path))["python-path"]
    assert (found.level, str(tmp_path / "wave.py") in found.found) == ("warn", True)


def test_a_sitecustomize_the_probe_hands_over_to(bare, environ, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("")
    checks = examined(bare, with_torch(environ, tmp_path))
    assert (checks["sitecustomize"].level, checks["probe-entry"].level) == ("note", "ok")


# -- the driver and its cards


@pytest.mark.parametrize(
    ("value", "level", "words"),
    [
        ("99", "fail", "names no card"),
        ("", "warn", "hides every card"),
        ("-1", "warn", "hides every card"),
        ("0,0", "fail", "twice"),
        ("0,7", "warn", "ends for CUDA at 7"),
        ("GPU-00000000", "fail", "names no card"),
        ("MIG-1234", "fail", "names no card"),
        ("0", "ok", "1 of 1 card"),
        (UUID, "ok", "1 of 1 card"),
    ],
)
def test_cuda_visible_devices_in_its_forms(bare, environ, value, level, words):
    given = {**environ, "CUDA_VISIBLE_DEVICES": value}
    found = examined(bare, given, nvml=Driver(free_card()))["visible-devices"]
    assert (found.level, words in found.found) == (level, True)


def test_two_mig_instances_of_which_cuda_gives_one(bare, environ):
    instances = [free_card(gpu_instance=n) for n in (1, 2)]
    for number, instance in enumerate(instances):
        instance.uuid = f"MIG-0000000{number}"
    card = free_card(mig_mode=True, instances=instances)
    for instance in instances:
        instance.parent = card
    given = {**environ, "CUDA_VISIBLE_DEVICES": "MIG-00000000,MIG-00000001"}
    checks = examined(bare, given, nvml=Driver(card))
    assert checks["visible-devices"].level == "warn"
    assert "one MIG instance" in checks["visible-devices"].found
    assert (checks["mig"].level, "n/a, not 0" in checks["mig"].found) == ("note", True)


@pytest.mark.parametrize(
    ("code", "words"),
    [(VERSION_MISMATCH, "version mismatch"), (NO_PERMISSION, "refuses us access")],
)
def test_a_driver_that_does_not_answer(bare, environ, code, words):
    nvml = Driver(free_card())
    nvml.init_error = code
    found = examined(bare, environ, nvml=nvml)["nvml"]
    assert (found.level, words in found.found, bool(found.remedy)) == ("fail", True, True)


def test_a_driver_without_a_card(bare, environ):
    assert examined(bare, environ, nvml=Driver())["nvml"].level == "warn"


def test_a_card_in_trouble_and_one_in_use(bare, environ):
    card = free_card(processes=[(4242, 90 << 30)])
    card.memory = (90 << 30, 143771 << 20)
    checks = examined(bare, environ, nvml=Driver(card, pending=1, mode=3, persistence=0))
    assert bad(checks) >= {"gpu-health", "gpu-mode", "gpu-in-use"}
    assert "1 process" in checks["gpu-in-use"].found
    assert checks["gpu-persistence"].level == "note"
    assert bad(examined(bare, environ, nvml=Driver(free_card(), ecc=3))) >= {"gpu-health"}


# -- the host, by limits that hold for the doctor itself


def test_few_open_files(bare, environ):
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731
    result = run(bare, environ, preexec_fn=limit)
    found = told(result)["open-files"]
    assert (found["level"], "may open 64 files" in found["found"]) == ("fail", True)
    assert result.returncode == 1


def test_one_core_of_several(bare, environ):
    allowed = sorted(os.sched_getaffinity(0))
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one core cannot be a part of it")
    found = told(run(bare, environ, preexec_fn=lambda: os.sched_setaffinity(0, allowed[:1])))
    assert found["cores"]["level"] == "warn"
    assert "the affinity mask" in found["cores"]["found"]


def test_a_small_dev_shm(bare, environ):
    new_user = 0 if os.geteuid() == 0 else 0x10000000  # CLONE_NEWUSER
    flags = libc.CLONE_NEWNS | new_user
    code = (
        "import os, sys\n"
        "from gputop_train.launch.diversion import libc\n"
        "try:\n"
        f"    libc.unshare({flags})\n"
        "    libc.mount('none', '/', '', libc.MS_REC | libc.MS_PRIVATE)\n"
        "    libc.mount('tmpfs', '/dev/shm', 'tmpfs', 0, 'size=64m')\n"
        "except OSError as failure:\n"
        "    sys.exit(f'no mounts: {failure}')\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *COMMAND[1:], "--python", bare, "--json"],
        env={**environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    if "no mounts" in result.stderr:
        pytest.skip(result.stderr.strip())
    found = told(result)["shm"]
    assert (found["level"], found["values"]["total"]) == ("warn", 64 << 20)
    assert "--shm-size" in found["do"]


def test_a_cpu_quota_and_a_memory_limit_nearly_used_up(bare, environ, tmp_path):
    group = tmp_path / "cgroup" / "job"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "memory.max").write_text(f"{8 << 30}\n")
    (group / "memory.current").write_text(f"{8 << 30}\n")
    (group / "memory.stat").write_text("inactive_file 1024\n")
    (group / "pids.max").write_text("100\n")
    (group / "pids.current").write_text("90\n")
    proc = planted_proc(
        tmp_path, "0::/job\n", f"1 1 0:1 / {tmp_path}/cgroup rw - cgroup2 cgroup rw\n"
    )
    place = stub_torch(tmp_path / "site")
    checks = examined(bare, with_torch(environ, place), proc=str(proc))
    assert "0.5 of" in checks["cores"].found
    assert "a CPU quota" in checks["cores"].found
    assert bad(checks) >= {"cores", "memory", "threads"}
    assert "10 more threads" in checks["threads"].found


def planted_proc(place, cgroup="", mountinfo="", status="CapEff:\t0000000000000000\n", scope=None):
    proc = place / "proc"
    (proc / "self").mkdir(parents=True)
    for name, text in (("cgroup", cgroup), ("mountinfo", mountinfo), ("status", status)):
        (proc / "self" / name).write_text(text)
    if scope is not None:
        (proc / "sys/kernel/yama").mkdir(parents=True)
        (proc / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    return proc


@pytest.mark.parametrize(
    ("scope", "capabilities", "level"),
    [(0, 0, "ok"), (1, 0, "note"), (2, 0, "warn"), (3, 0, "warn"), (2, 1 << 19, "ok")],
)
def test_tracing_as_yama_has_it(bare, environ, tmp_path, scope, capabilities, level):
    proc = planted_proc(tmp_path, status=f"CapEff:\t{capabilities:016x}\n", scope=scope)
    found = examined(bare, environ, proc=str(proc))["tracing"]
    assert (found.level, found.values["ptrace_scope"]) == (level, scope)


# -- places, text and terminal


def test_a_run_root_that_is_not_ours(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    shut = open_to_all(tmp_path) / "runs"
    shut.mkdir(mode=0o755)
    code = "import sys; sys.argv[0] = 'gputop-train'; from gputop_train.cli import main; main()"
    result = run_as_nobody(code, "doctor", "--json", "--run-root", str(shut))
    found = told(result)["run-root"]
    assert (found["level"], "is not ours to write" in found["found"]) == ("fail", True)
    assert "--run-root" in found["do"]
    assert result.returncode == 1


def test_a_run_root_others_may_write_into(bare, environ, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o777)
    found = examined(bare, environ, run_root=str(tmp_path / "runs"))["run-root"]
    assert (found.level, "chmod go-w" in (found.remedy or "")) == ("warn", True)


def test_a_config_file_that_cannot_be_taken(bare, environ, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("no_such_key = 1\n")
    file.chmod(0o600)
    result = run(bare, {**environ, "GPUTOP_CONFIG": str(file)})
    assert "no_such_key" in told(result)["config"]["found"]
    assert result.returncode == 1


def test_output_that_is_ascii_only(bare, environ):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = run(bare, {**environ, **ascii_only})
    found = told(result)["encoding"]
    assert (found["level"], "UnicodeEncodeError" in found["found"]) == ("warn", True)
    plain = subprocess.run(
        [*COMMAND, "--python", bare],
        env={**environ, **ascii_only, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=False,
        timeout=200,
    )
    assert plain.stdout.isascii()
    assert b"->" in plain.stdout
    assert examined(bare, {**environ, "LC_ALL": "C"})["encoding"].level == "note"


def test_a_terminal_that_cannot_show_the_screen(bare, environ):
    given = {**environ, "TERM": "dumb", "PYTHONPATH": str(REPOSITORY)}
    output = on_a_terminal([*COMMAND, "--python", bare], given)
    assert "TERM=dumb" in output
    assert "plain lines" in output
    output = on_a_terminal([*COMMAND, "--python", bare], {**given, "TERM": "xterm-256color"})
    assert "plain lines" not in output


def on_a_terminal(command, environ):
    """Run with a terminal of 100x40 and return what it showed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environ)
    os.set_blocking(fd, False)
    termios_size(fd)
    shown, deadline = b"", time.monotonic() + 200
    while time.monotonic() < deadline:
        if select.select([fd], [], [], 1)[0]:
            try:
                chunk = os.read(fd, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            shown += chunk
    else:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    return " ".join(shown.decode("utf-8", "replace").split())


def termios_size(fd):
    import fcntl
    import struct
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))


# -- nothing in the way


def test_a_sound_environment_has_nothing_to_mend(bare, environ, tmp_path):
    place = stub_torch(tmp_path)
    installed(place, "torch", "2.9.1", "nvidia-cudnn-cu12==9.10.2.21")
    installed(place, "nvidia-cudnn-cu12", "9.10.2.21")
    checks = examined(bare, with_torch(environ, place), nvml=Driver(free_card()))
    assert bad(checks) <= of_this_machine()
    assert {"torch", "torch-driver", "torch-arch", "torch-cuda", "cuda-packages", "nvml"} <= {
        id_ for id_, check in checks.items() if check.level in ("ok", "note")
    }


def of_this_machine():
    """What is really short where the tests run, by other means than the doctor's."""
    shm, disk = os.statvfs("/dev/shm"), os.statvfs("/tmp")
    short = set()
    if 0 < shm.f_blocks * shm.f_frsize <= 64 << 20 or shm.f_bavail * 10 < shm.f_blocks:
        short.add("shm")
    if disk.f_bavail * disk.f_frsize < 1 << 30:
        short.add("disk")
    if len(os.sched_getaffinity(0)) < 4 and len(os.sched_getaffinity(0)) * 2 <= os.cpu_count():
        short.add("cores")
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1024:
        short.add("open-files")
    return short


def test_the_interpreter_of_these_tests_is_told_right(environ):
    import torch

    result = run(sys.executable, environ)
    checks = told(result)
    assert checks["torch"]["values"]["version"] == torch.__version__
    assert checks["probe-entry"]["level"] == "ok"
    assert result.stderr == ""
    assert result.returncode == int("fail" in {check["level"] for check in checks.values()})


def test_modules_of_the_standard_library_in_the_way_are_named(bare, environ, tmp_path):
    for name in ("json", "re", "email"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not that module')\n")
    found = examined(bare, {**environ, "PYTHONPATH": str(tmp_path)})
    assert found["python"].level == "ok"
    assert (found["python-path"].level, "2 more" in found["python-path"].found) == ("warn", True)


def test_an_interrupt_leaves_nothing_behind(bare, environ, tmp_path):
    mark = tmp_path / "pid"
    hang = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    given = {**environ, "PYTHONPATH": f"{stub_torch(tmp_path, first=hang)}:{REPOSITORY}"}
    command = [*COMMAND, "--python", bare]
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE) as process:
        assert until(lambda: mark.exists() and mark.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert until(lambda: not os.path.exists(f"/proc/{mark.read_text()}"))


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True
