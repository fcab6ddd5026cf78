"""Deploy the probe the way a launch does, and run scripts under it as real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROBE = Path(__file__).resolve().parent.parent / "gputop_train" / "probe"


@dataclass(frozen=True)
class Deployed:
    directory: Path
    rings: Path

    def env(self, **extra: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return {**env, "PYTHONPATH": str(self.directory), **extra}

    def ring_files(self) -> list[Path]:
        return sorted(self.rings.glob("*.ring"))


def deploy(tmp_path: Path, **config: object) -> Deployed:
    """A run's probe directory and ring directory."""
    directory, rings = tmp_path / "probe", tmp_path / "rings"
    directory.mkdir()
    rings.mkdir(mode=0o700)
    shutil.copy(PROBE / "bootstrap" / "sitecustomize.py", directory)
    shutil.copytree(PROBE, directory / "_gputop_probe")
    settings = {"v": 1, "run_id": "t", "ring_dir": str(rings), "overhead_budget": 0.01}
    settings.update(overrides=[], gpu_events=True, sampler_hz=40, debug=False)
    settings.update(config)
    (directory / "config.json").write_text(json.dumps(settings))
    return Deployed(directory, rings)


def run(
    script: Path, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a script bare (no env given) or watched."""
    if env is None:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(script), *args],
        env=env,
        cwd=cwd or script.parent,
        capture_output=True,
        timeout=240,
        check=False,
    )
