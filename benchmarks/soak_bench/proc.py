"""What a process holds now, from ``/proc``, and what files hold on disk."""

from __future__ import annotations

from pathlib import Path


def held(pid: int) -> dict[str, float] | None:
    """Memory in MB, descriptors and threads of a process; ``None`` when it is gone.

    What cannot be read is left out (``smaps_rollup`` of a kernel without it).
    """
    proc = Path(f"/proc/{pid}")
    found: dict[str, float] = {}
    try:
        status = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
        )
        if status["State"].split()[0] in "ZX":
            return None
        found["rss_mb"] = int(status["VmRSS"].split()[0]) / 1024
        found["threads"] = int(status["Threads"])
        found["fds"] = sum(1 for _ in (proc / "fd").iterdir())
    except (OSError, KeyError, ValueError):
        return None
    try:
        rollup = (proc / "smaps_rollup").read_text()
        sizes = {line.split(":")[0]: line.split() for line in rollup.splitlines()[1:]}
        found["pss_mb"] = int(sizes["Pss"][1]) / 1024
        private = int(sizes["Private_Clean"][1]) + int(sizes["Private_Dirty"][1])
        found["private_mb"] = private / 1024
    except (OSError, KeyError, ValueError, IndexError):
        pass
    return found


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        tasks = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(child) for task in tasks for child in task.read_text().split()]
    except (OSError, ValueError):
        return []


def size_mb(path: Path) -> float:
    """What a file or a folder's files take on disk, holes left out; 0 for none."""
    try:
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        return sum(file.stat().st_blocks * 512 for file in files) / 1e6
    except OSError:
        return 0.0
