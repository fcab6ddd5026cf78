"""Whether the kernel killed a process of the run for lack of memory, by its group's own count."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.collect.cgroup import group_directories, parse_keys
from gputop_train.collect.procfs import read_text


@dataclass(frozen=True, slots=True)
class KillCount:
    """Kills of the run's control group before it went on.

    Attributes:
        directories: The group and its ancestors as far as they are mounted, with whether they are
            of cgroup v2.
        kills: Processes killed in the group or below it until now; ``None`` where nothing counts.
    """

    directories: tuple[tuple[str, bool], ...]
    kills: int | None

    @classmethod
    def of(cls, pid: int, proc: str = "/proc") -> KillCount:
        """Begin to count for the group of a process."""
        cgroup, mounts = read_text(f"{proc}/{pid}/cgroup"), read_text(f"{proc}/{pid}/mountinfo")
        if cgroup is None or mounts is None:
            return cls((), None)
        found = tuple(group_directories(cgroup, mounts, "memory"))
        return cls(found, _kills(found))

    def since(self) -> int | None:
        """Kills since then; ``None`` where nobody counts."""
        now = _kills(self.directories)
        return None if now is None or self.kills is None else max(0, now - self.kills)


def _kills(directories: tuple[tuple[str, bool], ...]) -> int | None:
    """The group's own count, else that of its nearest ancestor (its own may be gone by the end)."""
    for directory, is_v2 in directories:
        # v2 counts the whole subtree; v1 has the field from Linux 4.13 on.
        name = "memory.events" if is_v2 else "memory.oom_control"
        kills = parse_keys(read_text(f"{directory}/{name}")).get("oom_kill")
        if kills is not None:
            return kills
    return None


def explain(count: KillCount | None, status: int | None) -> str | None:
    """One sentence for a run that ended badly while its group lost processes; else ``None``.

    Args:
        count: Begun when the run was taken up.
        status: Exit code as a shell shows it; ``None`` while unknown.
    """
    killed = count.since() if count is not None else None
    if not killed or status == 0:
        return None
    what = "a process" if killed == 1 else f"{killed} processes"
    return (
        f"The kernel killed {what} of the run's control group for lack of memory (oom_kill). "
        "Lower what the host must hold (workers, prefetch, pinned memory) or raise the limit."
    )
