"""A leg where other file systems are mounted in the project, as in a container with volumes.

One more process makes the mounts, in a namespace of its own, and runs the leg there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_train.launch.diversion import libc
from tests.unprivileged import REPOSITORY

pytestmark = pytest.mark.skipif(not libc.may_mount(), reason="only root makes mounts")

SCRIPT = """
import os
for name in ("f", "data/x", "tmp/y", "data/new", "tmp/new", "log", "ro/new"):
    try:
        open(name, "w").write("new")
        print(name, open(name).read())
    except OSError as error:
        print(name, type(error).__name__, error.errno)
os.mkdir("data/deep")
os.rename("data/x", "data/xx")
"""

DRIVER = """
import json, os, sys
from pathlib import Path
from gputop_train.launch import spawn
from gputop_train.launch.diversion import libc
from gputop_train.launch.options import Options, Target, TrialLeg
from gputop_train.trial.scratch import Scratch
place, root = Path(sys.argv[1]), Path(sys.argv[2])
libc.unshare(libc.CLONE_NEWNS)
libc.mount("none", "/", "", libc.MS_REC | libc.MS_PRIVATE)
layers = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
libc.mount("overlay", f"{place}/image", "overlay", 0, layers)
for source, point in (("volume", "data"), ("fixed", "ro"), ("a log", "log")):
    libc.mount(f"{place}/{source}", point, "", libc.MS_BIND)
libc.mount("none", "ro", "", libc.MS_BIND | libc.MS_REMOUNT | libc.MS_RDONLY)
libc.mount("tmpfs", "tmp", "tmpfs", 0, "size=1m")
Path("tmp/y").write_text("old")
with Scratch(root) as scratch, scratch.leg() as leg:
    options = Options(Target("script", ("train.py",)), run_root=str(root / "legs"),
                      trial=TrialLeg(1, 3, str(leg.path)))
    launched = spawn.launch(options, spawn.resolve_command(options, os.environ), os.environ)
    os.waitpid(launched.shim_pid, 0)
    os.waitpid(launched.supervisor_pid, 0)
    output = (launched.run_dir / "output.log").read_text()
    world = json.loads((leg.path / "world.json").read_text())
kept = {name: Path(name).read_text() for name in ("f", "data/x", "tmp/y", "log")}
names = [sorted(os.listdir(name)) for name in ("data", "tmp", "ro")]
print(json.dumps([output, world, kept, names, os.listdir(root)]))
"""


@pytest.mark.parametrize(
    "root",
    [pytest.param("image/runs", id="a-containers-image"), pytest.param("a, b:\\c", id="odd")],
)
def test_what_is_mounted_in_the_project_is_kept_apart_too(tmp_path: Path, root: str) -> None:
    """The image of a container is an overlay itself and holds no other: memory does."""
    for name in ("lower", "upper", "work", "image", "volume", "fixed"):
        (tmp_path / name).mkdir()
    (tmp_path / "volume" / "x").write_text("old")
    (tmp_path / "a log").write_text("old")
    project = tmp_path / "project"
    for name in ("data", "ro", "tmp"):
        (project / name).mkdir(parents=True)
    (project / "f").write_text("old")
    (project / "log").touch()
    (project / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), str(tmp_path / root)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "WorldError" in done.stderr:
        pytest.skip(f"no overlay here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    output, world, kept, names, left = json.loads(done.stdout)
    for name in ("f", "data/x", "tmp/y", "data/new", "tmp/new"):
        assert f"{name} new\n" in output
    assert "log OSError 30\n" in output and "ro/new OSError 30\n" in output  # EROFS
    assert set(kept.values()) == {"old"}
    assert names == [["x"], ["y"], []]
    assert world["in_memory"] is (root == "image/runs")
    assert left == ["legs"]
