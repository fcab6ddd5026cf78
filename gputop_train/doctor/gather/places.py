"""Facts about where a run's files would go, found without making any of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from gputop_train import config, paths
from gputop_train.doctor.facts import Place, Places


def gather(run_root: str | None, environ: Mapping[str, str]) -> Places:
    """Look at the run root, the place of the ring and the config file.

    Args:
        run_root: ``--run-root``, else what the config file says.
        environ: The environment a run would get.
    """
    root = look_at(paths.run_root(run_root))
    ring, refused = _ring(root.path)
    file = paths.config_file(environ)
    return Places(
        root=root,
        store=_store(root),
        ring=ring,
        ring_refused=refused,
        config=file if file is not None and file.exists() else None,
        config_problem=_config_problem(environ),
    )


def look_at(path: Path) -> Place:
    """What would come of making ``path`` and writing into it."""
    nearest = _nearest(path)
    mode = _mode(path)
    try:
        owner: int | None = nearest.stat().st_uid
        room = os.statvfs(nearest)
        free: int | None = room.f_bavail * room.f_frsize
        files = room.f_favail if room.f_files else None
    except OSError:
        owner = free = files = None
    return Place(
        path=path,
        nearest=nearest,
        problem=_problem(path, nearest),
        owner=owner,
        mode=mode,
        file_system=_file_system(nearest),
        remote=paths.is_network_fs(path),
        free=free,
        free_files=files,
    )


def _problem(path: Path, nearest: Path) -> str | None:
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    if os.access(nearest, os.W_OK | os.X_OK):
        return None
    try:
        if os.statvfs(nearest).f_flag & os.ST_RDONLY:
            return f"{nearest} is mounted read-only"
    except OSError as failure:
        return f"{nearest} cannot be looked at: {failure.strerror or failure}"
    if nearest == path:
        return f"{path} is not ours to write"
    return f"{path} cannot be made, since {nearest} is not ours to write"


def _nearest(path: Path) -> Path:
    place = path
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def _file_system(place: Path) -> str | None:
    """The type of the mount that holds ``place``: the deepest one on its way (proc(5))."""
    try:
        real = place.resolve()
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    best, kind = -1, None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = Path(fields[4].replace("\\040", " "))
        if real.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def _store(root: Place) -> Path | None:
    """Where the store would go: what `paths.choose_store` would choose, unmade."""
    if not root.remote:
        return root.path
    for base in ("/var/tmp", os.environ.get("TMPDIR") or "/tmp", "/tmp"):
        place = Path(base) / f"gputop-train-{os.geteuid()}"
        if not paths.is_network_fs(place) and _refusal(place) is None:
            return place
    return None


def _ring(root: Path) -> tuple[Path | None, tuple[str, ...]]:
    refused: list[str] = []
    for place in _once(paths.runtime_candidates(root)):
        problem = _refusal(place)
        if problem is None:
            return place, tuple(refused)
        refused.append(problem)
    return None, tuple(refused)


def _once(places: Iterator[Path]) -> Iterator[Path]:
    yield from dict.fromkeys(places)


def _refusal(place: Path) -> str | None:
    """Why `paths.make_private_dir` would not take ``place``."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        return _problem(place, _nearest(place))
    except OSError as failure:
        return f"{place} cannot be looked at: {failure.strerror or failure}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{place} is not a directory"
    if found.st_uid != os.geteuid():
        return f"{place} belongs to another user"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"{place} is open to other users"
    return _problem(place, place)


def _config_problem(environ: Mapping[str, str]) -> str | None:
    try:
        config.load(environ)
    except config.ConfigProblem as problem:
        return str(problem)
    return None
