"""Scripts on a real GPU, bare and watched: what the tests of this directory share."""

from __future__ import annotations

import os
from pathlib import Path

from tests.probe_support import Deployed, deploy, run

__all__ = ["Deployed", "bare_environment", "deploy_quietly", "run"]


def bare_environment(**extra: str) -> dict[str, str]:
    """The environment without any probe."""
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **extra}


def deploy_quietly(directory: Path, **config: object) -> Deployed:
    """A probe in its own directory below this one."""
    place = directory / "deployed"
    place.mkdir()
    return deploy(place, **config)
