"""A trial's directory and its ``trial.json``: what a screen, a person and ``--json`` read.

``<run root>/trials/<id>/`` (0700) holds ``trial.json`` (0600), rewritten whole after every change,
so that a reader sees the old one or the new one, and ``runs/``, where each leg is an ordinary run.
docs/contracts.md lists every key.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train import paths
from gputop_train.launch import identity, runfile
from gputop_train.launch.identity import ProcessId

SCHEMA = 1
TRIALS, RUNS, FILE = "trials", "runs", "trial.json"
#: Trials that stay, and bytes they may take together; older ones go first, named ones never. The
#: store of a leg takes about a megabyte, so twenty trials of ten legs are a few hundred.
KEEP_TRIALS, KEEP_BYTES = 20, 10**9
_DIGITS = 6


class TrialStoreError(Exception):
    """The trial's directory cannot be used; the message is one sentence and what to do."""


@dataclass(frozen=True, slots=True)
class TrialPaths:
    """Where the files of one trial are."""

    trial_dir: Path

    @property
    def id(self) -> str:
        """The trial's id: the directory's name."""
        return self.trial_dir.name

    @property
    def json(self) -> Path:
        """The record of the trial."""
        return self.trial_dir / FILE

    @property
    def runs(self) -> Path:
        """Run root of its legs."""
        return self.trial_dir / RUNS


def make(root: Path, trial_id: str | None = None) -> TrialPaths:
    """Make the private directory of a new trial below a run root.

    Args:
        root: The run root; made if need be.
        trial_id: For a caller who has to know it beforehand; must be new.

    Raises:
        TrialStoreError: It cannot be made.
    """
    parent = root / TRIALS
    try:
        while True:
            chosen = trial_id or f"t{os.urandom(3).hex()}"
            try:
                made = TrialPaths(paths.make_run_dir(parent, chosen))
                break
            except FileExistsError:
                if trial_id is not None:
                    raise TrialStoreError(f"There is a trial {trial_id} in {parent}.") from None
        made.runs.mkdir(mode=0o700)
    except (OSError, paths.PathError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise TrialStoreError(
            f"There is no place for the trial in {parent}: {why}. "
            "Free some space there, or name another directory with --run-root."
        ) from failure
    return made


def write(trial: TrialPaths, body: Mapping[str, Any]) -> None:
    """Replace ``trial.json``.

    Raises:
        TrialStoreError: The disk is full or the directory is gone.
    """
    temporary = trial.json.with_name(f".{FILE}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        fd = paths.open_private_file(temporary)
        with os.fdopen(fd, "wb") as stream:
            stream.write(encode(body))
        temporary.replace(trial.json)
    except OSError as failure:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise TrialStoreError(
            f"{trial.json} cannot be written: {failure.strerror or failure}. "
            "Free some space there, or name another directory with --run-root."
        ) from failure


def encode(body: Mapping[str, Any]) -> bytes:
    """The JSON of a trial; NaN and infinity are not measured."""
    return json.dumps(plain(body), indent=1).encode("ascii") + b"\n"


def plain(value: Any) -> Any:
    """Only JSON's own types, floats rounded to what can mean something."""
    if isinstance(value, float):
        return round(value, _DIGITS) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def read(trial_dir: Path) -> dict[str, Any] | None:
    """``trial.json``, or ``None`` when there is none, it is damaged or of a newer schema."""
    found = runfile.read_json(trial_dir / FILE)
    return found if found is not None and found.get("schema") == SCHEMA else None


def owner(body: Mapping[str, Any]) -> ProcessId | None:
    """The process that runs the trial, as it recorded itself."""
    pid, ticks, boot = body.get("pid"), body.get("start_ticks"), body.get("boot_id")
    if isinstance(pid, int) and isinstance(ticks, int) and isinstance(boot, str):
        return ProcessId(pid, ticks, boot)
    return None


def is_running(body: Mapping[str, Any]) -> bool:
    """Whether somebody still works on it: a state of ``running`` alone may be of a killed one."""
    who = owner(body)
    return body.get("state") == "running" and who is not None and identity.is_alive(who)


def trials(root: Path) -> Iterator[TrialPaths]:
    """The trials of this user below a run root, newest first."""
    found = []
    with contextlib.suppress(OSError):
        for entry in (root / TRIALS).iterdir():
            known = entry.lstat()
            if entry.is_symlink() or not entry.is_dir() or known.st_uid != os.geteuid():
                continue
            body = read(entry)
            if body is not None:
                started = body.get("started_wall_ns")
                found.append((started if isinstance(started, int) else 0, entry))
    for _, entry in sorted(found, reverse=True):
        yield TrialPaths(entry)


def prune(root: Path, *, keep: int = KEEP_TRIALS, keep_bytes: int = KEEP_BYTES) -> list[str]:
    """Remove old trials; never one that runs, was named, or whose host is another.

    Returns:
        Ids of those removed.
    """
    removed, kept, size = [], 0, 0
    for trial in trials(root):
        body = read(trial.trial_dir) or {}
        if body.get("name") or is_running(body) or body.get("host") != os.uname().nodename:
            continue
        kept += 1
        size += _allocated(trial.trial_dir)
        if kept > 1 and (kept > keep or size > keep_bytes):
            # Renamed first: whoever renames it deletes it, and a half-deleted one is no trial.
            trash = trial.trial_dir.with_name(f".trash-{trial.id}-{time.time_ns()}")
            with contextlib.suppress(OSError):
                trial.trial_dir.rename(trash)
                shutil.rmtree(trash, ignore_errors=True)
                removed.append(trial.id)
    return removed


def _allocated(directory: Path) -> int:
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118
    return total
