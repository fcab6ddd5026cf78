"""Start real runs for the tests of the supervisor, and see that nothing outlives a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputop_train.launch import identity, runfile, spawn
from gputop_train.launch.options import Options, Target
from gputop_train.launch.processes import process_table

TRAINER = Path(__file__).with_name("ring_trainer.py")
TIMEOUT_S = 60.0


def wait_for(what: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Wait until something is true, and give it; a test hangs on nothing for ever."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Run:
    """One launched run."""

    def __init__(self, launched: spawn.Launched, gate: Path) -> None:
        self.launched = launched
        self._gate = gate
        self.dir = launched.run_dir
        self.child = launched.child
        self.supervisors = [launched.supervisor_pid]

    @property
    def ring_dir(self) -> Path:
        return Path(self.launched.run["ring_dir"])

    @property
    def output(self) -> str:
        return (self.dir / "output.log").read_text()

    @property
    def supervisor(self) -> int:
        assert self.supervisors[-1] is not None
        return self.supervisors[-1]

    def let_go(self) -> None:
        """Let a trainer that was started with ``held=True`` end after its steps."""
        self._gate.touch()

    def wait_steps(self, count: int) -> None:
        wait_for(lambda: f"step {count}\n" in self.output)

    def wait_exit(self) -> runfile.Exit:
        found: runfile.Exit = wait_for(lambda: runfile.read_exit(self.dir))
        return found

    def wait_report(self) -> dict[str, Any]:
        found: dict[str, Any] = wait_for(lambda: runfile.read_json(self.dir / "report.json"))
        return found

    def wait_supervisor(self) -> int:
        """Wait until the newest supervisor has left; give its exit code."""
        status: list[int] = []

        def gone() -> bool:
            pid, code = os.waitpid(self.supervisor, os.WNOHANG)
            status.append(code)
            return pid != 0

        wait_for(gone)
        self.supervisors[-1] = None
        return os.waitstatus_to_exitcode(status[-1])

    def watched(self) -> bool:
        body = runfile.read_json(self.dir / "supervisor.json") or {}
        return body.get("pid") == self.supervisor

    def kill_supervisor(self) -> None:
        os.kill(self.supervisor, signal.SIGKILL)
        self.wait_supervisor()

    def start_supervisor(self) -> int:
        pid = spawn.start_supervisor(self.dir, dict(os.environ))
        assert pid is not None
        self.supervisors.append(pid)
        return pid


class Runs:
    """Starts runs below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: list[Run] = []

    def start(
        self,
        *arguments: str,
        script: Path = TRAINER,
        steps: int | None = None,
        held: bool = False,
        **options: Any,
    ) -> Run:
        """Launch the trainer (or another script) as ``gputop-train`` would.

        ``held``: the trainer stays after its steps until it is let go, so that no test depends on
        how fast the machine is.
        """
        gate = self.root.parent / f"gate-{len(self._runs)}"
        if held:
            arguments = (*arguments, "--until", str(gate))
        wanted = Options(
            target=Target("script", (str(script), *arguments)),
            run_root=str(self.root),
            python=sys.executable,
            steps=steps,
            **options,
        )
        environ = dict(os.environ)
        launched = spawn.launch(wanted, spawn.resolve_command(wanted, environ), environ)
        run = Run(launched, gate)
        self._runs.append(run)
        return run

    def clean(self) -> None:
        for run in self._runs:
            for pid in filter(None, run.supervisors):
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            if identity.is_alive(run.child):
                os.killpg(run.child.pid, signal.SIGKILL)
            for process in process_table().values():
                if process.session == run.child.pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(run.launched.shim_pid, 0)
            shutil.rmtree(run.ring_dir, ignore_errors=True)
