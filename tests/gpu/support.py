"""Scripts on a real GPU, bare and watched: what the tests of this directory share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probe_support import Deployed, deploy

__all__ = ["Deployed", "Running", "bare_environment", "needs_cuda", "start", "watched_store"]


def needs_cuda() -> None:
    """Fail where there is no GPU: CI deselects these tests with ``-m 'not gpu'``."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.fail("these tests need an NVIDIA GPU; CI deselects them with -m 'not gpu'")


def bare_environment(**extra: str) -> dict[str, str]:
    """The environment without any probe."""
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **extra}


def watched_store(folder: Path, script: str) -> Path:
    """The store of a script that ran under ``gputop-train`` to its end, in a folder of its own."""
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-m", "gputop_train", "--no-tui", "--run-root", str(folder / "runs")]
    done = subprocess.run(
        [*command, "script.py"],
        cwd=folder,
        env=bare_environment(PYTHONPATH=str(Path(__file__).parents[2])),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (store,) = (folder / "runs").glob("*/run.sqlite")
    return store


class Running:
    """One script under way; many may run side by side, since a start takes seconds."""

    def __init__(self, process: subprocess.Popen[str], deployed: Deployed | None) -> None:
        self.process = process
        self.deployed = deployed

    def end(self, timeout_s: float = 120) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
        return self.process.returncode, out, err


def start(
    script: Path, *args: str, probe_in: Path | None = None, env: dict[str, str] | None = None
) -> Running:
    """Start a script bare, or watched by a probe deployed below ``probe_in``."""
    deployed = None
    if probe_in is not None:
        probe_in.mkdir(parents=True)
        deployed = deploy(probe_in)
    environment = deployed.env(**(env or {})) if deployed else bare_environment(**(env or {}))
    process = subprocess.Popen(
        [sys.executable, str(script), *args],
        env=environment,
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Running(process, deployed)
