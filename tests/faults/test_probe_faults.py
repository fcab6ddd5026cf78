"""What can go wrong around the probe: the training never notices, the reader says what is missing.

As root, faults of permission and of limits are hidden; the scripts then become another user first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop_train.collect.ring_reader import Ring, RingError
from gputop_train.collect.timeline import Timeline
from gputop_train.launch import noring
from tests.probe_support import Deployed, deploy, run

#: Trains for as many steps as it is told; EVENT runs after the first ones.
TRAINER = """
import os, resource, sys, time
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
m = nn.Linear(8, 1)
o = torch.optim.AdamW(m.parameters())
with torch.profiler.record_function("warm"):
    pass  # torch imports parts of itself at the first step, and reports it when it cannot

def train(steps, pause=0.0):
    for _ in range(steps):
        loss = m(torch.randn(4, 8)).square().mean()
        o.zero_grad(); loss.backward(); o.step()
        time.sleep(pause)
    return loss.item().hex()

def somebody_else():
    if os.getuid() == 0:
        os.setgroups([]); os.setgid(61234); os.setuid(61234)
"""
#: What the trainer computes, known from a run without the probe.
FORTY = """
print(train(10))
{event}
print(train(30, 0.01))
"""


@pytest.fixture(scope="module")
def as_without_us(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    script = tmp_path_factory.mktemp("bare") / "script.py"
    script.write_text(TRAINER + FORTY.format(event=""))
    result = run(script)
    assert result.returncode == 0 and result.stdout, result.stderr
    return result.stdout


def train_with(tmp_path: Path, *, before: str = "", event: str = "") -> tuple[Deployed, bytes]:
    """Run the trainer under the probe with something going wrong before or under way."""
    deployed = deploy(tmp_path)
    script = tmp_path / "script.py"
    lines = textwrap.dedent(before) + FORTY.format(event=textwrap.dedent(event))
    script.write_text(TRAINER + lines.replace("RINGS", repr(str(deployed.rings))))
    result = run(script, env=deployed.env(PYTHONDONTWRITEBYTECODE="1"))
    assert (result.returncode, result.stderr) == (0, b"")
    return deployed, result.stdout


def test_a_run_directory_of_somebody_else_costs_only_the_ring(
    tmp_path: Path, as_without_us: bytes
) -> None:
    deployed, printed = train_with(tmp_path, before="somebody_else()")
    assert printed == as_without_us
    assert not deployed.ring_files() or os.getuid() != 0
    if os.getuid() == 0:
        assert not (deployed.directory / noring.PACKAGE / "seen-training").exists()
        # It could leave no word of the training either, so nothing is claimed about that.
        text, _ = noring.explain_afterwards(deployed.directory)
        assert "the probe told of no backward" in text


@pytest.mark.parametrize("what", ["ring", "all"])
def test_what_is_deleted_under_way_is_not_missed(
    what: str, tmp_path: Path, as_without_us: bytes
) -> None:
    remove = "import shutil, glob; time.sleep(0.5)\n"
    if what == "ring":
        remove += "for f in glob.glob(RINGS + '/*'): os.unlink(f)"
    else:
        remove += f"shutil.rmtree(RINGS); shutil.rmtree({str(tmp_path / 'probe')!r})"
    deployed, printed = train_with(tmp_path, event=remove)
    assert printed == as_without_us
    assert deployed.ring_files() == []


def test_a_file_limit_under_way_fails_only_the_ring(tmp_path: Path, as_without_us: bytes) -> None:
    """Nor does its signal reach a script that would end of it."""
    limit = """
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY)); time.sleep(0.5)
    """
    deployed, printed = train_with(tmp_path, event=limit)
    assert printed == as_without_us
    (ring,) = deployed.ring_files()
    with Ring.open(ring) as reader:
        assert not reader.finished  # it could not even say good-bye


@pytest.fixture
def small_disk(tmp_path: Path):
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(place)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("no file system may be mounted here: " + mounted.stderr.decode().strip())
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_without_room_for_a_ring_leaves_none(
    small_disk: Path, tmp_path: Path, as_without_us: bytes
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    deployed = deploy(home, ring_dir=str(small_disk))
    script = home / "script.py"
    script.write_text(TRAINER + FORTY.format(event=""))
    result = run(script, env=deployed.env())
    assert (result.returncode, result.stdout, result.stderr) == (0, as_without_us, b"")
    assert list(small_disk.iterdir()) == []
    text, kept_out = noring.explain_afterwards(deployed.directory)
    assert "could not open its ring (No space left on device)" in text and kept_out


def test_no_file_descriptor_left_costs_only_the_ring(tmp_path: Path, as_without_us: bytes) -> None:
    exhaust = """
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True: held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    """
    deployed, printed = train_with(tmp_path, before=exhaust)
    assert printed == as_without_us
    assert deployed.ring_files() == []
    # Not even a mark of that could be opened; it takes none.
    text, kept_out = noring.explain_afterwards(deployed.directory)
    assert "(Too many open files). The script itself was at its limit" in text and kept_out


def test_no_thread_to_be_had_costs_only_the_probe(tmp_path: Path, as_without_us: bytes) -> None:
    limits = f"""
        os.chown({str(tmp_path / "rings")!r}, 61234, 61234) if os.getuid() == 0 else None
        somebody_else()
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    """
    # The way there must be open to that user too.
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.getuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o011)
    deployed, printed = train_with(tmp_path, before=limits)
    assert printed == as_without_us
    (ring,) = deployed.ring_files()
    with Ring.open(ring) as reader:
        assert reader.failed  # and so the run says that the probe gave up


def test_no_memory_for_the_probe_costs_only_the_probe(tmp_path: Path, as_without_us: bytes) -> None:
    limit = """
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
    """
    deployed, printed = train_with(tmp_path, before=limit)
    assert printed == as_without_us
    for ring in deployed.ring_files():
        with Ring.open(ring) as reader:
            assert reader.failed


@pytest.mark.long
def test_workers_of_workers_end_as_they_would(tmp_path: Path) -> None:
    deployed = deploy(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(
        TRAINER
        + textwrap.dedent("""
        print(train(3), flush=True)
        children = []
        for number in range(64):
            pid = os.fork()
            if pid == 0:
                inner = os.fork()
                if inner == 0:
                    if number % 16 == 0: train(2)
                    os._exit(7)
                _, status = os.waitpid(inner, 0)
                os._exit(os.waitstatus_to_exitcode(status) + number % 2)
            children.append(pid)
        print(sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
        print(train(3))
        """)
    )
    bare, watched = run(script), run(script, env=deployed.env())
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout)
    assert (watched.returncode, watched.stderr) == (0, b"")
    assert (
        len(deployed.ring_files()) == 1 + 4
    )  # the trainer's, and those of grandchildren that train


def test_a_fork_finds_no_second_thread_where_there_was_none(tmp_path: Path) -> None:
    """Python 3.12 and newer warn of a fork with threads; the hooks are called here by hand."""
    deployed = deploy(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(
        TRAINER
        + textwrap.dedent("""
        from _gputop_probe import arming
        threads = lambda: int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[17])
        counts = []
        for _ in range(3):
            train(20, 0.01)
            counts.append(threads()); arming._before_fork()
            time.sleep(0.2); counts.append(threads()); arming._forked()
        print(counts)
        train(20, 0.01)
        """)
    )
    result = run(script, env=deployed.env(OMP_NUM_THREADS="1"))
    assert (result.returncode, result.stdout, result.stderr) == (0, b"[2, 1, 2, 1, 2, 1]\n", b"")
    (ring,) = deployed.ring_files()
    with Ring.open(ring) as reader:
        assert reader.finished and (reader.snapshot() or {})["cost"]["steps"] == 80


def test_an_interpreter_without_the_package_runs_as_ever(tmp_path: Path) -> None:
    deployed = deploy(tmp_path)
    for file in sorted((deployed.directory / "_gputop_probe").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    done = subprocess.run(
        [sys.executable, "-c", "print(1)"], env=deployed.env(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


def interpreters() -> list[str]:
    """Every Python that can be found, old ones above all; at least the one that runs this."""
    names = [f"python{v}" for v in ("2.7", "3.6", "3.7", "3.8", "3.9", "3.12", "3.13", "3.14")]
    places = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path(sys.base_prefix).parent.glob("*/bin"))
    found = {p.resolve(): None for place in places for n in names if (p := place / n).is_file()}
    return [sys.executable, *map(str, found)]


@pytest.mark.parametrize("python", interpreters())
def test_the_bootstrap_is_inert_in_any_interpreter_it_leaks_into(
    python: str, tmp_path: Path
) -> None:
    deployed = deploy(tmp_path)
    works = subprocess.run([python, "-c", "print(1)"], capture_output=True, check=False)
    if works.stdout != b"1\n":
        return  # a shim without its interpreter: it does not run without us either
    for environment in (deployed.env(), {"PYTHONPATH": str(deployed.directory)}):
        done = subprocess.run(
            [python, "-c", "print(1)"], env=environment, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")


@pytest.mark.parametrize("blinded", [["-I"], ["-E"], ["-S"], ["env -i"]])
def test_where_the_probe_cannot_get_in_the_reason_is_told(
    blinded: list[str], tmp_path: Path
) -> None:
    deployed = deploy(tmp_path)
    command = [sys.executable, *blinded, "-c", "print(1)"]
    if blinded == ["env -i"]:
        command = ["/usr/bin/env", "-i", sys.executable, "-c", "print(1)"]
    done = subprocess.run(command, env=deployed.env(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")
    text, kept_out = noring.explain_afterwards(deployed.directory)
    assert "no Python read it" in text and kept_out


@pytest.fixture(scope="module")
def real_ring(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("ring")
    deployed = deploy(place)
    script = place / "script.py"
    script.write_text(TRAINER + FORTY.format(event=""))
    assert run(script, env=deployed.env()).returncode == 0
    (ring,) = deployed.ring_files()
    return ring.read_bytes()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    hits=st.lists(
        st.tuples(st.integers(0, 1 << 19), st.binary(min_size=1, max_size=64)), max_size=12
    ),
    header=st.lists(st.tuples(st.integers(0, 136), st.binary(min_size=1, max_size=8)), max_size=3),
    size=st.integers(0, 1 << 19),
)
def test_whatever_a_ring_holds_reading_it_is_bounded(
    hits: list[tuple[int, bytes]],
    header: list[tuple[int, bytes]],
    size: int,
    real_ring: bytes,
    tmp_path: Path,
) -> None:
    file = tmp_path / "1-1.ring"
    content = bytearray(real_ring)
    for at, raw in [*hits, *header]:
        content[at : at + len(raw)] = raw
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(content)
    try:
        ring = Ring.open(file)
    except RingError:
        return
    with ring:
        timeline = Timeline(0)
        delivered = 0
        for _ in range(4):
            words = ring.poll()
            delivered += len(words)
            timeline.feed(words)
            ring.snapshot()
            os.truncate(file, max(size, 0))
        timeline.finish()
        assert delivered <= 2 * ring.header.cap_words
