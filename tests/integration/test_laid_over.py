"""Older code shown over its own place, as ``check`` runs it: same paths, and nothing changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_trial_safety import USERS, fingerprint, settle
from tests.unprivileged import REPOSITORY, run_as_nobody

#: Enters the world of a leg with ``older`` laid over ``repo``, and says what is seen there.
DRIVER = """
import json, os, subprocess, sys
from pathlib import Path
from gputop_train.launch.diversion import libc
from gputop_train.launch.diversion.way import way
from gputop_train.launch.options import TrialLeg
from gputop_train.trial.git_tree import white_out
from gputop_train.trial.scratch import Scratch, guard_available

place, mounted = Path(sys.argv[1]), sys.argv[2] == "mounted"
repo, older = place / "repo", place / "older"
assert white_out(older, "fresh") and white_out(older, "pkg/added.py")
if mounted:
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", "", libc.MS_REC | libc.MS_PRIVATE)
    libc.mount(str(place / "disk"), str(repo / "data"), "", libc.MS_BIND)
over = ((str(repo), str(older)),)
print(json.dumps(guard_available(repo, place / "runs", over)), flush=True)
look = '''
import os
found = {}
for top, _, names in os.walk("."):
    found |= {os.path.join(top, n)[2:]: open(os.path.join(top, n)).read() for n in names}
print(__import__("json").dumps([os.getcwd(), found, os.path.lexists("fresh"), os.getuid()]))
for name in ("train.py", "pkg/gone.py", "data/x", "fresh"):
    open(name, "w").write("changed")
os.remove("pkg/a.py")
'''
with Scratch(place / "runs") as scratch, scratch.leg() as leg:
    wanted = TrialLeg(warmup=0, steps=0, scratch=str(leg.path), over=over)
    with way(wanted, sys.executable, (sys.executable, "-c", look), ()) as entry:
        done = subprocess.run(
            entry.argv, executable=entry.executable, cwd=repo, pass_fds=entry.pass_fds
        )
        print(json.dumps([done.returncode, entry.failure()]))
"""


def plant(place: Path) -> None:
    files = {
        "repo/train.py": "new",
        "repo/pkg/a.py": "new a",
        "repo/pkg/added.py": "added",
        "repo/fresh/__init__.py": "",
        "repo/data/x": "data",
        "disk/x": "mounted data",
        "older/train.py": "old",
        "older/pkg/a.py": "old a",
        "older/pkg/gone.py": "gone",
    }
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def enter(place: Path, user: int, how: str) -> list[list]:
    settle(place, user)
    if user == os.geteuid():
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(place), how],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    else:
        done = run_as_nobody(DRIVER, str(place), how)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("user", USERS)
def test_a_leg_sees_the_older_tree_at_its_own_place(tmp_path: Path, user: int) -> None:
    plant(tmp_path)
    settle(tmp_path, user)
    before = fingerprint(tmp_path / "repo")
    guard, *rest = enter(tmp_path, user, "plain")
    if guard[0] != "overlay":
        pytest.skip(f"no overlay here: {guard[1]}")
    (cwd, found, fresh, uid), (code, failure) = rest
    assert (code, failure) == (0, None)
    assert (cwd, uid, fresh) == (str(tmp_path / "repo"), user, False)
    assert found == {
        "train.py": "old",
        "pkg/a.py": "old a",
        "pkg/gone.py": "gone",
        "data/x": "data",
    }
    assert fingerprint(tmp_path / "repo") == before
    assert (tmp_path / "older" / "train.py").read_text() == "old"
    assert (tmp_path / "older" / "pkg" / "a.py").read_text() == "old a"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount something below the tree")
def test_a_disk_mounted_below_the_tree_stays_where_it_is(tmp_path: Path) -> None:
    plant(tmp_path)
    guard, *rest = enter(tmp_path, 0, "mounted")
    if guard[0] != "overlay":
        pytest.skip(f"no overlay here: {guard[1]}")
    (_, found, *_), (code, failure) = rest
    assert (code, failure) == (0, None)
    assert found["data/x"] == "mounted data" and found["train.py"] == "old"
    assert (tmp_path / "disk" / "x").read_text() == "mounted data"
