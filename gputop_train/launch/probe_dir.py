"""The per-run directory that ``PYTHONPATH`` of the training points at.

A copy, because the script's interpreter is another one, perhaps of another version, and because a
run must not change under its feet when gputop-train is upgraded while it trains.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gputop_train
from gputop_train import paths

PACKAGE = "_gputop_probe"


def install_probe(directory: Path, config: Mapping[str, Any]) -> None:
    """Fill ``directory`` with the probe, its ``sitecustomize`` and ``config.json``.

    Raises:
        OSError: The directory exists or cannot be written.
    """
    # Read, never imported: the probe only ever runs inside training.
    source = Path(gputop_train.__file__).parent / "probe"
    directory.mkdir(mode=0o700)
    _copy(source / "bootstrap" / "sitecustomize.py", directory / "sitecustomize.py")
    for file in sorted(source.rglob("*.py")):
        relative = file.relative_to(source)
        if relative.parts[0] == "bootstrap":
            continue
        target = directory / PACKAGE / relative
        _make_parents(directory, target)
        _copy(file, target)
    _write(directory / "config.json", json.dumps(config, indent=1).encode() + b"\n")


def _make_parents(top: Path, target: Path) -> None:
    for parent in reversed(target.relative_to(top).parents):
        if not (top / parent).exists():
            (top / parent).mkdir(mode=0o700)


def _copy(source: Path, target: Path) -> None:
    _write(target, source.read_bytes())


def _write(target: Path, content: bytes) -> None:
    with os.fdopen(paths.open_private_file(target), "wb") as stream:
        stream.write(content)
