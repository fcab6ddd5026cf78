"""How the front learns that the script has ended, and reaps what is its to reap."""

from __future__ import annotations

import os

from gputop_train.launch import identity, runfile
from gputop_train.launch.identity import ProcessId
from gputop_train.launch.runfile import Exit
from gputop_train.launch.spawn import Launched

#: The reason in exit.json when the one witness of the script's end is gone.
SHIM_LOST = "The process that waits for the script (the shim) ended before it."


class ExitWatch:
    """Follows one run from the process that launched it."""

    def __init__(self, launched: Launched) -> None:
        self._run_dir = launched.run_dir
        self._child: ProcessId = launched.child
        self._shim_pid = launched.shim_pid
        self._supervisor_pid = launched.supervisor_pid
        self._statuses: dict[int, int] = {}
        self._is_init = os.getpid() == 1

    def adopt_supervisor(self, pid: int | None) -> None:
        """Follow another supervisor from now on."""
        self._supervisor_pid = pid

    def supervisor_gone(self) -> bool:
        """Return whether the supervisor we started has ended, or never was."""
        self._reap()
        return self._supervisor_pid is None or self._supervisor_pid in self._statuses

    def supervisor_failed(self) -> bool:
        """Return whether the supervisor we started ended by a signal or with an error."""
        return self.supervisor_gone() and self._statuses.get(self._supervisor_pid or 0, 1) != 0

    def poll(self) -> Exit | None:
        """Return how the script ended; ``None`` while it runs. Never waits.

        No file is touched while the script runs: on a network's file system that does not answer,
        who asks would be held, and signals to the script with them.
        """
        self._reap()
        if self._shim_pid not in self._statuses:
            return None if identity.is_alive(self._child) else runfile.read_exit(self._run_dir)
        return runfile.read_exit(self._run_dir) or self._without_record()

    def _without_record(self) -> Exit | None:
        shim = self._statuses[self._shim_pid]
        if os.WIFEXITED(shim):
            code = os.WEXITSTATUS(shim)
            ended = Exit(None, code - 128) if code > 128 else Exit(code)
        elif self._child.pid in self._statuses:
            ended = _from_wait(self._statuses[self._child.pid])  # as PID 1, orphans come to us
        elif identity.is_alive(self._child):
            return None
        else:
            ended = Exit(None, reason=SHIM_LOST)
        runfile.write_exit(self._run_dir, ended)
        return ended

    def _reap(self) -> None:
        if self._is_init:
            # Whoever is PID 1 inherits every orphan of the container; unreaped they fill its table.
            while self._wait(-1):
                pass
            return
        for pid in (self._shim_pid, self._supervisor_pid):
            if pid is not None and pid not in self._statuses:
                self._wait(pid)

    def _wait(self, which: int) -> bool:
        try:
            pid, status = os.waitpid(which, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid:
            self._statuses[pid] = status
        return bool(pid)


def _from_wait(status: int) -> Exit:
    if os.WIFSIGNALED(status):
        return Exit(None, os.WTERMSIG(status))
    return Exit(os.WEXITSTATUS(status))
