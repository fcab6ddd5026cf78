"""A leg of a trial changes no file that was there before it, and leaves nothing behind.

Real legs, launched as a trial launches them: as root, and as a user who may not mount. What a tree
is, is hashed: names, contents, modes, times and links.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from gputop_train.launch import identity, spawn
from gputop_train.launch.offline import offline_environment
from gputop_train.launch.options import Options, Target, TrialLeg
from gputop_train.trial.inhabitants import living_in
from gputop_train.trial.scratch import Scratch, guard_available, sweep
from tests.launching import wait_for
from tests.probe_support import deploy
from tests.trees import PLAIN, PLAIN_BEFORE, fingerprint
from tests.unprivileged import NOBODY, REPOSITORY, open_to_all, run_as_nobody

#: Runs one leg in the working directory and tells how it went.
DRIVER = """
import json, os, sys
from pathlib import Path
from gputop_train.launch import runfile, spawn
from gputop_train.launch.options import Options, Target, TrialLeg
from gputop_train.trial.scratch import Scratch, guard_available, sweep
from gputop_train.trial.inhabitants import living_in
runs, guard, script = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if guard == "overlay":
    found = guard_available(".", runs)
    if found[0] != "overlay":
        print(json.dumps({"unavailable": found[1]}))
        raise SystemExit
with Scratch(runs) as scratch, scratch.leg() as leg:
    options = Options(Target("script", (script,)), run_root=str(runs / "legs"),
                      trial=TrialLeg(1, 3, str(leg.path), guard))
    launched = spawn.launch(options, spawn.resolve_command(options, os.environ), os.environ)
    if len(sys.argv) > 4:
        print(launched.child.pid, flush=True)
    os.waitpid(launched.shim_pid, 0)
    os.waitpid(launched.supervisor_pid, 0)
    told = {
        "exit": json.loads((launched.run_dir / "exit.json").read_text()),
        "output": (launched.run_dir / "output.log").read_text(),
        "refused": (leg.path / "refused.jsonl").read_text().strip("\\0\\n"),
        "world": json.loads((leg.path / "world.json").read_text()) if guard == "overlay" else None,
    }
told["left"] = sorted(p.name for p in runs.iterdir())
print(json.dumps(told))
"""

#: Every way to write that no special library is needed for; each is a function of the tree.
WRITERS = {
    "rename over": "t = open('model.tmp', 'w'); t.write('new'); t.close(); os.replace('model.tmp', 'model.pt')",
    "json": "json.dump({'step': 2}, open('metrics.json', 'w'))",
    "append": "open('metrics.json', 'a').write('more')",
    "rmtree": "shutil.rmtree('checkpoint-1')",
    "sqlite": "c = sqlite3.connect('log.db'); c.execute('insert into t values (2)'); c.commit(); c.close()",
    "truncate": "os.truncate('model.pt', 1)",
    "a shell": "subprocess.run(['sh', '-c', 'echo more >> metrics.json'], check=True)",
    "O_TRUNC": "os.close(os.open('model.pt', os.O_WRONLY | os.O_TRUNC))",
    "r+": "f = open('model.pt', 'r+b'); f.seek(1); f.write(b'x'); f.close()",
    "mmap": "f = open('model.pt', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:1] = b'x'; m.flush()",
    "its own file": "os.unlink(__file__)",
    "chmod": "os.chmod('model.pt', 0o600)",
    "utime": "os.utime('model.pt')",
    "rename a directory": "os.rename('checkpoint-1', 'checkpoint-2')",
    "through a link": "open('latest', 'w').write('new')",
    "a link over a file": "os.symlink('model.pt', 'l.tmp'); os.replace('l.tmp', 'latest')",
    "a worker": "p = multiprocessing.get_context('fork').Process(target=lambda: open('model.pt', 'w').close()); p.start(); p.join(); os.listdir()",
}
HEADER = """
import json, mmap, multiprocessing, os, shutil, sqlite3, subprocess, sys
os.makedirs('out/deep'); open('out/deep/new.txt', 'w').write('1'); open('out/deep/new.txt', 'a').write('2')
open('new.log', 'w').write('1'); os.rename('new.log', 'newer.log'); os.chmod('newer.log', 0o600)
os.makedirs('out', exist_ok=True); open('checkpoint-1/more', 'w').close()
print('began', os.getuid(), open('model.pt').read(), flush=True)
"""


def plant(place: Path) -> Path:
    """A working tree as a training has left it."""
    project = place / "project"
    (project / "checkpoint-1" / "deep").mkdir(parents=True)
    (project / "checkpoint-1" / "deep" / "state").write_text("old")
    (project / "model.pt").write_text("old")
    (project / "metrics.json").write_text("{}")
    (project / "latest").symlink_to("metrics.json")
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sqlite3; c = sqlite3.connect('log.db'); c.execute('create table t (x)'); c.commit()",
        ],
        cwd=project,
        check=True,
    )
    return project


def leg(place: Path, project: Path, guard: str, user: int, *more: str) -> dict:
    """Run ``train.py`` of the project as one leg."""
    runs = place / "runs"
    arguments = (str(runs), guard, "train.py", *more)
    if user == 0:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *arguments],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    else:
        done = run_as_nobody(DRIVER, *arguments, cwd=project)
    assert done.returncode == 0, done.stderr
    told: dict = json.loads(done.stdout.splitlines()[-1])
    return told


def settle(place: Path, user: int) -> None:
    """Give everything to the user the leg runs as."""
    (place / "runs").mkdir(exist_ok=True)
    if user:
        open_to_all(place)
        for path in [place, *place.rglob("*")]:
            os.chown(path, user, user, follow_symlinks=False)


USERS = [
    pytest.param(os.geteuid(), id="as-we-are"),
    pytest.param(
        NOBODY,
        id="unprivileged",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else"),
    ),
]


@pytest.mark.parametrize("user", USERS)
def test_in_an_overlay_every_way_to_write_works_and_changes_nothing(
    tmp_path: Path, user: int
) -> None:
    project = plant(tmp_path)
    lines = [HEADER]
    for name, writer in WRITERS.items():
        if name == "rename a directory" and user:
            continue  # the kernel has no redirects for a user's own overlays: EXDEV, see the docs
        lines.append(f"try:\n    {writer}\nexcept Exception as e: print('FAILED {name}', repr(e))")
        if name == "rmtree":
            lines.append(
                "os.makedirs('checkpoint-1/deep'); open('checkpoint-1/deep/state', 'w').close()"
            )
    lines.append("print('model', repr(open('model.pt').read()[:3]), sorted(os.listdir('.')))")
    (project / "train.py").write_text("\n".join(lines))
    settle(tmp_path, user)
    before = fingerprint(project)
    told = leg(tmp_path, project, "overlay", user)
    if "unavailable" in told:
        pytest.skip(f"no overlay here: {told['unavailable']}")
    assert told["exit"]["exit_code"] == 0, told["output"]
    assert "FAILED" not in told["output"]
    assert f"began {user} old" in told["output"]
    assert "newer.log" in told["output"]
    assert "train.py" not in told["output"].splitlines()[-1]  # gone, as the script saw it
    assert fingerprint(project) == before
    assert told["left"] == ["legs"]


@pytest.mark.parametrize("user", USERS)
def test_a_guarded_leg_is_ended_from_its_worker_and_its_new_files_go(
    tmp_path: Path, user: int
) -> None:
    project = plant(tmp_path)
    (project / "train.py").write_text(HEADER + WRITERS["a worker"] + "\nprint('went on')")
    settle(tmp_path, user)
    before = fingerprint(project)
    told = leg(tmp_path, project, "refuse", user)
    assert "began" in told["output"] and "went on" not in told["output"]
    assert json.loads(told["refused"]) == {"call": "open", "path": str(project / "model.pt")}
    assert told["exit"]["signal"] == signal.SIGKILL
    assert fingerprint(project) == before
    assert told["left"] == ["legs"]


def test_legs_hash_alike_and_a_seed_of_the_users_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("import os\nprint('seed', os.environ['PYTHONHASHSEED'])")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert "seed 0\n" in leg(tmp_path / "a", project, "refuse", 0)["output"]
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert "seed 7\n" in leg(tmp_path / "b", project, "refuse", 0)["output"]


def guarded(place: Path, project: Path) -> tuple[int, str, str]:
    """Run code under the guard alone: exit code, output, and the line it was ended with."""
    (place / "run").mkdir()  # what the run keeps for itself is free
    deployed = deploy(place / "run")
    with Scratch(place) as scratch, scratch.leg() as leg:
        variables = offline_environment(TrialLeg(1, 1, str(leg.path), "refuse"))
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=project,
            env=deployed.env(**variables),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            start_new_session=True,
        )
        refused = (leg.path / "refused.jsonl").read_text().strip("\0\n")
    return done.returncode, done.stdout + done.stderr, refused


@pytest.mark.parametrize("writer", WRITERS)
def test_the_guard_ends_a_leg_before_it_changes_a_file(tmp_path: Path, writer: str) -> None:
    project = plant(tmp_path)
    (project / "train.py").write_text(HEADER + WRITERS[writer] + "\nprint('went on')")
    before = fingerprint(project)
    code, output, refused = guarded(tmp_path, project)
    assert "began" in output and "went on" not in output
    row = json.loads(refused)
    assert row["path"] and ("program" in row) is (writer == "a shell")
    assert code == (-signal.SIGKILL if writer == "a worker" else 97)
    assert fingerprint(project) == before


def test_the_guard_sees_what_torch_and_numpy_write_without_telling_python(tmp_path: Path) -> None:
    """New files first, then the one that was there: only that is refused."""
    project = plant(tmp_path)
    (project / "train.py").write_text(
        textwrap.dedent(
            """
            import numpy, torch
            torch.save({}, "new.pt"); torch.save({}, "new.pt"); torch.load("new.pt")
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "new.ts")
            numpy.save("new.npy", numpy.zeros(3)); numpy.save("new.npy", numpy.zeros(3))
            numpy.memmap("new.bin", mode="w+", shape=4)
            print("began", torch.serialization is not None, flush=True)
            torch.save({}, "model.pt")
            print("went on")
            """
        )
    )
    before = fingerprint(project)
    code, output, refused = guarded(tmp_path, project)
    assert "began" in output and "went on" not in output
    assert json.loads(refused) == {"call": "torch.save", "path": str(project / "model.pt")}
    assert code == 97
    assert fingerprint(project) == before


def test_the_guard_lets_readers_and_its_own_python_run(tmp_path: Path) -> None:
    project = plant(tmp_path)
    (project / "hub.lock").touch()
    (project / "train.py").write_text(
        textwrap.dedent(
            """
            import os, platform, sqlite3, subprocess, sys
            subprocess.run(["uname", "-a"], check=True)
            subprocess.run("cat metrics.json 2>/dev/null | wc -c", shell=True, check=True)
            subprocess.run([sys.executable, "-c", "open('out.txt', 'w').close(); print('child')"], check=True)
            open("out.txt", "a").write("the child's file is the leg's")
            os.close(os.open("hub.lock", os.O_RDWR | os.O_TRUNC))
            sqlite3.connect(":memory:").execute("create table t (x)")
            sqlite3.connect("file:log.db?mode=ro", uri=True).execute("select * from t").fetchall()
            open("/dev/null", "w").close()
            print("went on", flush=True)
            subprocess.run([sys.executable, "-c", "open('model.pt', 'w').close(); print('child')"])
            print("too far")
            """
        )
    )
    before = fingerprint(project)
    _, output, refused = guarded(tmp_path, project)
    assert "went on" in output and "too far" not in output, output
    assert json.loads(refused)["path"] == str(project / "model.pt")
    assert fingerprint(project) == before


def test_a_killed_owner_leaves_a_leg_that_the_next_trial_ends_and_removes(tmp_path: Path) -> None:
    project = plant(tmp_path)
    (project / "train.py").write_text(
        "import os, subprocess, sys, time\n"
        "open('model.pt', 'w').write('new')\n"
        "subprocess.Popen(['env', '-i', sys.executable, '-S', '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    before = fingerprint(project)
    runs = tmp_path / "runs"
    runs.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(runs), "overlay", "train.py", "announce"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    first = owner.stdout.readline()
    if "unavailable" in first:
        owner.wait()
        pytest.skip(f"no overlay here: {first}")
    child = int(first)
    (log,) = wait_for(lambda: list(runs.glob("legs/*/output.log")), "the leg's output")
    wait_for(lambda: "up" in log.read_text(), "the leg")
    (leg_scratch,) = runs.glob(".trial-*/leg-1")
    inside = wait_for(lambda: len(living_in(leg_scratch)) >= 2 and living_in(leg_scratch), "both")
    assert child in {process.pid for process in inside}
    assert sweep(runs) == []  # in use
    owner.kill()
    owner.wait()
    assert sweep(runs) == [leg_scratch.parent]
    for process in inside:
        wait_for(lambda p=process: not identity.is_alive(p), "the end of the leg")
    assert not list(runs.glob(".trial-*"))
    assert fingerprint(project) == before
    mounts = Path("/proc/self/mountinfo").read_text()
    assert leg_scratch.parent.name not in mounts


@pytest.mark.parametrize("guard", ["overlay", "refuse"])
def test_a_trial_by_the_command_keeps_what_the_script_saves_over(
    tmp_path: Path, guard: str
) -> None:
    project, runs = tmp_path / "project", tmp_path / "runs"
    project.mkdir()
    (project / "train.py").write_text(PLAIN)
    subprocess.run([sys.executable, "-c", PLAIN_BEFORE], cwd=project, check=True)
    before = fingerprint(project)
    command = [sys.executable, "-m", "gputop_train.cli", "trial", "--run-root", str(runs)]
    asked = ["--set", "num_workers=1", "--steps", "10", "--warmup", "5", "--rounds", "1"]
    done = subprocess.run(
        [*command, *asked, "--guard", guard, "train.py"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "cannot be diverted here" in done.stderr and guard == "overlay":
        pytest.skip(f"no overlay here: {done.stderr}")
    assert fingerprint(project) == before
    assert [path.name for path in runs.iterdir()] == ["trials"]
    outputs = [path.read_text() for path in runs.glob("trials/*/runs/*/output.log")]
    assert all("found -1 [] [0.0]" in output for output in outputs), outputs
    if guard == "refuse":
        assert done.returncode == 1, done.stderr
        assert "model.pt" in done.stderr and "os.replace" in done.stderr
        assert len(outputs) == 1 and "saved" not in outputs[0]
    else:
        assert done.returncode == 0, done.stderr
        assert len(outputs) == 2 and all("saved" in output for output in outputs), outputs


def test_sockets_of_services_work_through_the_overlay(tmp_path: Path) -> None:
    project = plant(tmp_path)
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as service:
        service.bind(f"{short}/s")
        service.listen()
        (project / "train.py").write_text(
            f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{short}/s'); print('met')"
        )
        (tmp_path / "runs").mkdir()
        told = leg(tmp_path, project, "overlay", os.geteuid())
    if "unavailable" in told:
        pytest.skip(f"no overlay here: {told['unavailable']}")
    assert "met" in told["output"], told["output"]


#: Enters a leg's world while somebody else's sockets go, between being listed and being held.
VANISHING = """
import json, os, sys
from pathlib import Path
from gputop_train.launch.diversion import way, world
scratch, *sockets = sys.argv[1:]
listed = world.meetings
def meetings(mounts, kept):
    found = listed(mounts, kept)
    assert set(sockets) <= set(found), found
    os.unlink(sockets[0])
    return found
world.meetings = meetings
print(world.enter(json.loads(way.write_plan(Path(scratch), ()).read_text()))["diverted"])
print(os.path.exists(sockets[0]), os.path.exists(sockets[1]))
"""


def test_a_socket_of_others_that_goes_meanwhile_keeps_no_leg_from_its_start(
    tmp_path: Path,
) -> None:
    how, why = guard_available(tmp_path, tmp_path)
    if how != "overlay":
        pytest.skip(f"no overlay here: {why}")
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as short,
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
        Scratch(tmp_path) as scratch,
        scratch.leg() as leg,
    ):
        first.bind(f"{short}/first")
        second.bind(f"{short}/second")
        done = subprocess.run(
            [sys.executable, "-c", VANISHING, str(leg.path), f"{short}/first", f"{short}/second"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False True"


def test_what_cannot_be_guarded_is_not_started(tmp_path: Path) -> None:
    with Scratch(tmp_path) as scratch, scratch.leg() as leg:
        for command in (("sh", "-c", "echo > model.pt"), (sys.executable, "-I", "-c", "pass")):
            options = Options(
                Target("command", command),
                run_root=str(tmp_path / "legs"),
                trial=TrialLeg(1, 1, str(leg.path), "refuse"),
            )
            found = spawn.resolve_command(options, os.environ)
            with pytest.raises(spawn.WorldError, match="cannot be kept from changing files"):
                spawn.launch(options, found, os.environ)
    assert list((tmp_path / "legs").iterdir()) == []
