"""Run things as a user who may not mount: in CI the tests may be root, whom every door is open to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gputop_train.launch.diversion import libc

NOBODY = 65534
REPOSITORY = Path(__file__).resolve().parent.parent


def run_as_nobody(code: str, *arguments: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code as uid 65534, its output captured; root only.

    The interpreter may lie where only root gets in: then its directories are shown to that process
    alone, at the same place.
    """
    given.setdefault("timeout", 120)
    return subprocess.run(
        [sys.executable, __file__, code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        **given,
    )


def open_to_all(path: Path) -> Path:
    """Let everybody reach ``path``, a temporary directory of pytest's."""
    for place in (path, *path.parents):
        if place.stat().st_uid == os.geteuid() and place.stat().st_mode & 0o005 != 0o005:
            place.chmod(place.stat().st_mode | 0o055)
        if place == Path("/tmp"):
            break
    return path


def _become_nobody() -> None:
    needed = {Path(sys.base_prefix), Path(sys.prefix), REPOSITORY}
    shut = {path: top for path in needed if (top := _shut(path)) is not None}
    if shut:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount("none", "/", "", libc.MS_REC | libc.MS_PRIVATE)
        held = {path: os.open(path, os.O_PATH) for path in shut}
        for top in set(shut.values()):
            libc.mount("tmpfs", str(top), "tmpfs", 0, "mode=0755,size=1m")
        for path, fd in held.items():
            path.mkdir(parents=True, exist_ok=True)
            libc.mount(f"/proc/self/fd/{fd}", str(path), "", libc.MS_BIND)
            os.close(fd)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def _shut(path: Path) -> Path | None:
    """The first directory on the way that only its owner enters."""
    for place in reversed(path.parents):
        if place.stat().st_mode & 0o001 == 0:
            return place
    return None


if __name__ == "__main__":
    _become_nobody()
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": "/nonexistent"}
    environ.pop("XDG_RUNTIME_DIR", None)
    os.execve(sys.executable, [sys.executable, "-c", *sys.argv[1:]], environ)
