"""Throw old runs away: the newest 50 or 5 GB stay, and never a live or a named one goes."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gputop_train.launch.runs import RunInfo, list_runs, read_run

KEEP_RUNS = 50
KEEP_BYTES = 5 * 10**9
_TRASH = ".trash-"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a pruning removed."""

    removed: tuple[str, ...]
    freed_bytes: int
    failed: tuple[str, ...] = ()


def surplus(
    runs: Sequence[RunInfo], *, keep_runs: int = KEEP_RUNS, keep_bytes: int = KEEP_BYTES
) -> list[RunInfo]:
    """The runs to remove: those past the newest ``keep_runs``, or past ``keep_bytes`` in total.

    Protected runs (live, named, or perhaps alive on another machine) always stay and count towards
    neither limit: otherwise a few named baselines would push every new run out.

    Args:
        runs: Newest first, as `list_runs` gives them.
        keep_runs: How many runs may stay.
        keep_bytes: How much they may take together.
    """
    total = 0
    kept = 0
    remove: list[RunInfo] = []
    for run in runs:
        if run.protected:
            continue
        total += run.size_bytes
        kept += 1
        # The newest always stays, however large: it is what the person has just watched.
        if kept > 1 and (kept > keep_runs or total > keep_bytes):
            remove.append(run)
            total -= run.size_bytes
            kept -= 1
    return remove


def prune(
    root: str | os.PathLike[str], *, keep_runs: int = KEEP_RUNS, keep_bytes: int = KEEP_BYTES
) -> Pruned:
    """Remove the surplus runs below ``root``; only directories that are runs of this user.

    Safe to call from several processes at once: a run is renamed away first, and who renames it
    deletes it.
    """
    root = Path(root)
    removed: list[str] = []
    failed: list[str] = []
    freed = 0
    _sweep(root)
    for run in surplus(list_runs(root), keep_runs=keep_runs, keep_bytes=keep_bytes):
        # Seconds may have passed since the list was read: someone may have named the run, or
        # attached to it.
        now = read_run(run.path)
        if now is None or now.protected:
            continue
        trash = root / f"{_TRASH}{run.id}-{secrets.token_hex(4)}"
        try:
            run.path.rename(trash)
        except OSError:
            failed.append(run.id)
            continue
        shutil.rmtree(trash, ignore_errors=True)
        removed.append(run.id)
        freed += run.size_bytes
    return Pruned(tuple(removed), freed, tuple(failed))


def _sweep(root: Path) -> None:
    """Finish removals that were interrupted."""
    try:
        leftovers = [entry for entry in root.iterdir() if entry.name.startswith(_TRASH)]
    except OSError:
        return
    for entry in leftovers:
        if entry.is_dir() and not entry.is_symlink() and entry.lstat().st_uid == os.geteuid():
            shutil.rmtree(entry, ignore_errors=True)
