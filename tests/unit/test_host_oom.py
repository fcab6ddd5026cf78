"""A kill for lack of memory is told from the control group's own count."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputop_train.launch.host_oom import KillCount, explain


class Machine:
    """A ``/proc`` and a memory hierarchy of files."""

    def __init__(self, folder: Path, *, v2: bool) -> None:
        self.root = folder / "cgroup"
        self.group = self.root / "job"
        self.group.mkdir(parents=True)
        self.name = "memory.events" if v2 else "memory.oom_control"
        self.proc = folder / "proc"
        (self.proc / "7").mkdir(parents=True)
        kind, options = ("cgroup2", "rw") if v2 else ("cgroup", "rw,memory")
        (self.proc / "7" / "cgroup").write_text("0::/job\n" if v2 else "4:memory:/job\n")
        (self.proc / "7" / "mountinfo").write_text(
            f"30 24 0:26 / {self.root} rw,nosuid - {kind} {kind} {options}\n"
        )

    def kills(self, group: int | None, root: int | None = None) -> None:
        for directory, kills in ((self.group, group), (self.root, root)):
            if kills is not None:
                (directory / self.name).write_text(f"low 0\noom 3\noom_kill {kills}\n")

    def count(self) -> KillCount:
        return KillCount.of(7, str(self.proc))


@pytest.mark.parametrize("v2", [True, False])
def test_a_kill_during_the_run_is_told(tmp_path: Path, v2: bool) -> None:
    machine = Machine(tmp_path, v2=v2)
    machine.kills(2)
    count = machine.count()
    assert explain(count, 137) is None  # earlier kills are another run's
    machine.kills(3)
    assert "killed a process of the run's control group for lack" in str(explain(count, 137))
    machine.kills(5)
    assert "killed 3 processes" in str(explain(count, 1))  # a launcher turns it into its own code


def test_a_run_that_ended_well_is_left_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, v2=True)
    machine.kills(0)
    count = machine.count()
    machine.kills(1)
    assert explain(count, 0) is None


def test_a_group_without_a_count_leaves_its_parents(tmp_path: Path) -> None:
    machine = Machine(tmp_path, v2=True)
    machine.kills(None, 4)
    count = machine.count()
    machine.kills(None, 5)
    assert count.since() == 1


def test_where_nobody_counts_nothing_is_said(tmp_path: Path) -> None:
    machine = Machine(tmp_path, v2=True)
    assert explain(machine.count(), 137) is None
    assert explain(KillCount.of(8, str(machine.proc)), 137) is None
    assert explain(None, 137) is None
