"""PIDs really given out twice: ``unshare -pf --mount-proc python reused_pids.py PLACE TRAINER``.

In a PID namespace of its own the next PID can be chosen, so the ids that a run's files name are
given to other processes once their owners are gone. Prints what the product makes of that, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gputop_train.launch import attach, runs, spawn
from gputop_train.launch.options import Options, Target


def stranger(pid: int) -> subprocess.Popen[bytes]:
    """A process that happens to get this PID."""
    for _ in range(100):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "600"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise SystemExit(f"PID {pid} was not given out again")


def end(pid: int) -> None:
    """Kill a process and let its PID go: as PID 1 we reap whoever has lost its parent."""
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}").exists():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.01)


def main(place: str, trainer: str) -> None:
    words = (trainer, "--steps", "20", "--until", f"{place}/never")
    wanted = Options(
        target=Target("script", words), run_root=f"{place}/runs", python=sys.executable
    )
    environ = dict(os.environ)
    launched = spawn.launch(wanted, spawn.resolve_command(wanted, environ), environ)
    directory = launched.run_dir
    while (supervisor := runs.supervisor_pid(directory)) is None:
        time.sleep(0.02)
    saw: dict[str, object] = {}

    def state() -> str | None:
        info = runs.read_run(directory)
        return info.state if info is not None else None

    end(supervisor)
    strangers = [stranger(supervisor)]
    saw["without supervisor"] = state()
    saw["supervised again"] = attach.ensure_supervised(directory)
    second = runs.supervisor_pid(directory)
    assert second is not None
    for pid in (second, launched.shim_pid, launched.child.pid):
        end(pid)
        strangers.append(stranger(pid))
    saw["without anybody"] = state()
    saw["stop"] = attach.stop_run(directory)
    report = attach.report_of(directory) or {}
    saw["exit_code"] = report["run"]["exit_code"]
    saw["exit_reason"] = report["run"]["exit_reason"]
    saw["strangers alive"] = all(process.poll() is None for process in strangers)
    for process in strangers:
        process.kill()
    print(json.dumps(saw))


if __name__ == "__main__":
    main(*sys.argv[1:])
