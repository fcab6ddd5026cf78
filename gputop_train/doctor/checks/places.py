"""Where a run's files go: the run root, the disk under it, the probe's ring, the config file."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gputop_train.doctor.facts import Facts, Place, Places
from gputop_train.doctor.findings import Check, Level, gib
from gputop_train.doctor.words import shown

#: Below this a run cannot keep its own output (at most 256 MB of it stay) and its store.
LITTLE_DISK = 1 << 30
#: Below this it hardly begins.
NO_DISK = 100 << 20
#: A run has some hundred files with the probe's copy.
FEW_INODES = 2000


def checks(facts: Facts) -> Iterator[Check]:
    """Judge the places."""
    places = facts.places
    yield _root(places)
    if places.root.problem is None:
        yield _disk(places.root)
    yield _ring(places)
    yield _config(places)


def _root(places: Places) -> Check:
    root = places.root
    values = {
        "path": str(root.path),
        "owner": root.owner,
        "mode": None if root.mode is None else f"{root.mode:04o}",
        "file_system": root.file_system,
        "remote": root.remote,
    }

    def check(level: Level, found: str, remedy: str | None = None) -> Check:
        return Check("run-root", "run root", level, found, remedy, values)

    another = "Name a directory of yours with --run-root DIR (run_root in the config file)."
    if root.problem is not None:
        return check(
            "fail", f"Runs cannot be kept in {shown(str(root.path))}: {root.problem}.", another
        )
    if root.remote and places.store is None:
        return check(
            "fail",
            f"{shown(str(root.path))} is on {root.file_system or 'a network file system'}, where "
            "SQLite's log is not safe, and no local directory is writable.",
            "Point TMPDIR at a directory on a local disk.",
        )
    if root.mode is not None and root.mode & 0o022 and not root.mode & 0o1000:
        return check(
            "warn",
            f"Others may write into {shown(str(root.path))} (mode {root.mode:04o}), and so replace "
            "your runs.",
            f"chmod go-w {shown(str(root.path))}",
        )
    if root.mode is not None and root.owner not in (None, os.geteuid()):
        return check(
            "note",
            f"{shown(str(root.path))} belongs to another user (uid {root.owner}); your runs in it "
            "are yours alone.",
            another,
        )
    if root.remote:
        return check(
            "note",
            f"{shown(str(root.path))} is on {root.file_system or 'a network file system'}: while a "
            f"run lives its store is in {places.store}, and comes home at its end.",
            "A --run-root on a local disk saves the copy.",
        )
    made = "" if root.mode is not None else ", made by the first run"
    kind = f" ({root.file_system})" if root.file_system else ""
    return check("ok", f"{shown(str(root.path))}{kind}{made}")


def _disk(root: Place) -> Check:
    values = {"free": root.free, "free_files": root.free_files}
    if root.free is None:
        return Check("disk", "disk", "unchecked", "Free space is not known.", None, values)
    remedy = "Free some (gputop-train runs --prune), or name another disk with --run-root DIR."
    if root.free < LITTLE_DISK:
        level: Level = "fail" if root.free < NO_DISK else "warn"
        found = (
            f"{gib(root.free)} are free under {shown(str(root.nearest))}: output and recording of "
            "a run take more."
        )
        return Check("disk", "disk", level, found, remedy, values)
    if root.free_files is not None and root.free_files < FEW_INODES:
        found = f"{root.free_files:,} more files fit under {shown(str(root.nearest))} (inodes)."
        return Check("disk", "disk", "warn", found, remedy, values)
    return Check("disk", "disk", "ok", f"{gib(root.free)} free; quotas not measured", None, values)


def _ring(places: Places) -> Check:
    values = {
        "path": None if places.ring is None else str(places.ring),
        "refused": list(places.ring_refused),
    }
    if places.ring is None:
        why = f" ({places.ring_refused[-1]})" if places.ring_refused else ""
        return Check(
            "ring",
            "probe's ring",
            "fail",
            f"There is no local directory for the probe's data{why}.",
            "Point TMPDIR at a writable directory on a local disk.",
            values,
        )
    strangers = [why for why in places.ring_refused if "belongs" in why or "open to" in why]
    if strangers:
        found = f"{strangers[0]}, so the probe's ring goes to {places.ring}."
        return Check("ring", "probe's ring", "note", found, "Remove it if nobody needs it.", values)
    return Check("ring", "probe's ring", "ok", str(places.ring), None, values)


def _config(places: Places) -> Check:
    values = {"path": None if places.config is None else str(places.config)}
    if places.config_problem is not None:
        found, _, remedy = places.config_problem.partition(". ")
        return Check("config", "config file", "fail", f"{shown(found)}.", remedy or None, values)
    text = shown(str(places.config)) if places.config else "none"
    return Check("config", "config file", "ok", text, None, values)
