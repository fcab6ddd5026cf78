"""The supervisor of one run: ``python -m gputop_train.launch.supervisor RUN_DIR``.

It watches and writes down; it is not the parent of training and nothing depends on its life. Killed
at any moment, it can be replaced by another one, which reads the rings and the store and goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputop_train import paths
from gputop_train.launch import control, identity, runfile, verdicts
from gputop_train.launch.conclude import (
    Conclusion,
    conclude,
    finalize,
    open_pipeline,
)
from gputop_train.launch.locking import AlreadyWatched, take_lock
from gputop_train.launch.noring import PATIENCE_NS, Absence
from gputop_train.launch.outputlog import LOG_LIMIT_BYTES, LogBound
from gputop_train.launch.own_cost import OwnCost, call_at_end
from gputop_train.launch.runs import store_path
from gputop_train.launch.stop import GRACE_S, StopOutcome, ladder
from gputop_train.store.errors import StoreBusy, StoreFull

__all__ = ["Supervisor", "finalize", "main"]

#: Steps are in the store within this and the probe's own 0.2 s: a screen looks once a second.
_TICK_S = 0.5
#: With --steps every late tick is steps too many; without pidfds the end is found by looking.
_SHORT_TICK_S = 0.25
#: Once the script is gone its exit code is milliseconds away.
_ENDING_TICK_S = 0.05
#: The shim writes exit.json within milliseconds of the end; only a stuck disk or a stopped shim
#: takes longer.
_EXIT_WAIT_S = 30.0
#: The front waits twice as long for the report.
_TASKS_WAIT_S = 5.0
_NICE = 5
_STORE_RETRY_S = 10.0
#: Of us and the training, the kernel shall take us when memory runs out.
_OOM_SCORE_ADJ = 500
_LOG_CHECK_NS = 2_000_000_000
_SOCKET_CHECK_NS = 10_000_000_000
_SELF_CHECK_NS = 10_000_000_000
_SUPERVISOR_LOG_BYTES = 1_000_000


class Supervisor:
    """Watches one run from now to its end.

    Args:
        run_dir: The run's directory.
        grace_s: Seconds of the stop ladder's first two rungs.
        log_limit_bytes: Newest bytes of output.log to keep.
        patience_ns: How long to wait for a probe before saying why there is none.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        grace_s: tuple[float, float] = GRACE_S,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
        patience_ns: int = PATIENCE_NS,
    ) -> None:
        run = runfile.read_json(run_dir / "run.json")
        child = identity.recorded_child(run) if run is not None else None
        if run is None or child is None:
            raise ValueError(f"{run_dir} does not hold a run with a process to watch")
        self._dir = run_dir
        self._run = run
        self._child = child
        self._grace_s = grace_s
        self._lock = take_lock(run_dir)
        self._cost = OwnCost()
        try:
            self._pipe = open_pipeline(
                run_dir, run, child.pid if identity.is_alive(child) else None
            )
        except BaseException:
            os.close(self._lock)
            raise
        self._guard = self._pipe.guard
        self._judge = verdicts.Judge(store_path(run_dir, run))
        self._claims = verdicts.Claims()
        self._absence = Absence(child.pid, time.monotonic_ns() + patience_ns)
        self._leave = threading.Event()
        self._wake = threading.Event()
        self._stopping: threading.Thread | None = None
        self._tasks: dict[identity.ProcessId, threading.Thread] = {}
        self._stop_reason: str | None = None
        self._stop_outcome: StopOutcome | None = None
        self._signalled = False
        self._steps_wanted = _positive(run.get("options"), "steps")
        self._server: control.Server | None = None
        log = run_dir / "output.log"
        self._log = self._guard.run("output.log", lambda: LogBound(log, log_limit_bytes))
        self._due: dict[str, int] = {}
        told_of_end = call_at_end(child, self._wake.set)
        self._tick_s = _TICK_S if told_of_end and not self._steps_wanted else _SHORT_TICK_S

    def run(self) -> Conclusion | None:
        """Watch to the end and conclude; ``None`` when told to leave before it."""
        self._open_door()
        gone_since: float | None = None
        while not self._leave.is_set():
            self._tick(time.monotonic_ns())
            if runfile.read_exit(self._dir) is not None:
                return self._conclude()
            if not identity.is_alive(self._child):
                gone_since = gone_since or time.monotonic()
                if self._exit_is_lost(time.monotonic() - gone_since):
                    return self._conclude()
            self._wake.wait(self._tick_s if gone_since is None else _ENDING_TICK_S)
            self._wake.clear()
        self._pipe.stop_sampling()
        self._pipe.commit(time.monotonic_ns())
        self._close()
        return None

    def leave(self) -> None:
        """Leave the run to another supervisor; safe to call from a signal handler."""
        self._leave.set()
        self._wake.set()

    def _tick(self, now_ns: int) -> None:
        self._pipe.tick(now_ns, stretch=self._cost.observe(now_ns))
        self._guard.run("diagnosis", lambda: self._judge_now(now_ns))
        if self._steps_wanted is not None and self._pipe.feeds.steps() >= self._steps_wanted:
            self._begin_stop("steps")
        self._record_stop()
        if self._is_due("log", now_ns, _LOG_CHECK_NS):
            self._guard.run("output.log", self._bound_log)
        if self._is_due("socket", now_ns, _SOCKET_CHECK_NS):
            self._guard.run("control", self._keep_door)
        if self._is_due("self", now_ns, _SELF_CHECK_NS):
            self._guard.run("own cost", self._tell_own_cost)
        if self._pipe.feeds.ever == 0:
            self._guard.run("absence", lambda: self._explain_absence(now_ns))

    def _judge_now(self, now_ns: int) -> None:
        diagnosis = self._judge.judge(now_ns, stretch=self._cost.stretch)
        if diagnosis is not None:
            self._pipe.writer.add_finding(now_ns, verdicts.as_body(diagnosis))
            claim = self._claims.news(diagnosis)
            if claim is not None:
                self._pipe.writer.add_note(now_ns, "claim", claim)

    def _explain_absence(self, now_ns: int) -> None:
        text = self._absence.explain(now_ns)
        if text is not None:
            self._pipe.note_once("no-probe", {"text": text})

    def _bound_log(self) -> None:
        if self._log is None:
            return
        if self._log.enforce():
            self._pipe.writer.set_meta("log_dropped_bytes", self._log.dropped_bytes)
            text = "The oldest output was given up to keep output.log within its bound."
            self._pipe.note_once("log-dropped", {"text": text})
        if self._log.unsupported is not None:
            self._pipe.note_once("log-unbounded", {"text": self._log.unsupported})

    def _tell_own_cost(self) -> None:
        self._pipe.writer.set_meta("supervisor", self._cost.told())

    # -- stopping ---------------------------------------------------------------------------------

    def _begin_stop(self, reason: str) -> None:
        """Run the ladder in a thread of its own: it takes its time, and the rings do not wait."""
        if self._stopping is not None:
            return
        self._stop_reason = reason

        def climb() -> None:
            self._stop_tasks()
            self._stop_outcome = ladder(self._child, grace_s=self._grace_s, on_signal=self._sent)
            self._wake.set()

        self._stopping = threading.Thread(target=climb, name="stop", daemon=True)
        self._stopping.start()

    def _stop_tasks(self) -> None:
        """Stop the other tasks of a step too: without the first one they would wait for it."""
        for process in self._pipe.feeds.processes() if self._run.get("step") else ():
            if process not in self._tasks and process.pid != self._child.pid:
                self._tasks[process] = threading.Thread(target=ladder, args=(process,), daemon=True)
                self._tasks[process].start()

    def _sent(self, name: str) -> None:
        self._guard.log(f"stop ({self._stop_reason}): {name}")
        self._signalled = True

    def _record_stop(self) -> None:
        if self._signalled and self._stop_reason is not None:
            self._pipe.writer.set_meta("stopped_by", self._stop_reason)
        outcome = self._stop_outcome
        if outcome is not None and not outcome.ended:
            self._pipe.note_once("stop-failed", {"text": outcome.reason})

    # -- the door ---------------------------------------------------------------------------------

    def _handle(self, op: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if op == "ping":
            return {"pid": os.getpid(), "run": self._dir.name}
        if op == "status":
            return {
                "pid": os.getpid(),
                "run": self._dir.name,
                "steps": self._pipe.feeds.steps(),
                "rings": self._pipe.feeds.ever,
                "stopping": self._stop_reason,
            }
        if op == "stop":
            self._begin_stop("user")
            return {"stopping": self._stop_reason}
        if op == "burst":
            return {"asked": self._pipe.feeds.request_burst()}
        raise LookupError(op)

    def _open_door(self) -> None:
        """Listen where run.json says, or in the run's own directory, and say where."""
        self._server = None
        for path in self._doors():
            try:
                paths.make_private_dir(path.parent)
                self._server = control.Server(path, self._handle)
                break
            except (OSError, paths.PathError) as error:
                self._guard.log(f"no control socket at {path}: {error}")
        self._announce()

    def _doors(self) -> list[Path]:
        named = self._run.get("control_socket")
        doors = [Path(named)] if isinstance(named, str) else []
        # Where we made it; a run.json of anyone's names no other place to make directories.
        doors = [door for door in doors if door.parent.name == self._dir.name]
        own = paths.socket_path(self._dir)
        short = len(os.fsencode(own)) <= paths.SOCKET_PATH_MAX_BYTES
        return [*doors, own] if short and not paths.is_network_fs(self._dir) else doors

    def _keep_door(self) -> None:
        """Open the door again when its directory was removed (logind, at the last logout)."""
        if self._server is not None and not self._server.reachable():
            self._server.close()
            self._open_door()
            text = "The runtime directory was removed under the run and made anew."
            self._pipe.note_once("runtime-removed", {"text": text})

    def _announce(self) -> None:
        body: dict[str, Any] = {
            "pid": os.getpid(),
            "start_ticks": identity.start_ticks(os.getpid()),
            "boot_id": identity.boot_id(),
            "started_wall_ns": time.time_ns(),
        }
        if self._server is not None:
            body["control_socket"] = str(self._server.path)
        with contextlib.suppress(OSError):
            verdicts.write_json(self._dir / "supervisor.json", body)

    # -- the end ----------------------------------------------------------------------------------

    def _exit_is_lost(self, waited_s: float) -> bool:
        """Whether nobody is left to tell how the script ended."""
        if waited_s < _EXIT_WAIT_S and _is_recorded_alive(self._run, "shim"):
            return False
        if waited_s < 1.0:  # the shim may have written it in the instant before it left
            return False
        reason = "The process that waits for the script (the shim) ended before it."
        if self._run.get("attached"):
            reason = "The process was joined while it ran, so nobody was there to wait for it."
        runfile.write_exit(self._dir, runfile.Exit(None, reason=reason))
        self._pipe.note_once("exit-lost", {"text": reason})
        return True

    def _conclude(self) -> Conclusion:
        self._await_tasks()
        if self._stopping is not None:
            self._stopping.join(timeout=sum(self._grace_s) + 10)
        self._record_stop()
        self._guard.run("output.log", self._bound_log)
        self._guard.run("own cost", self._tell_own_cost)
        self._judge.close()
        conclusion = conclude(self._dir, self._run, self._pipe)
        self._close()
        return conclusion

    def _await_tasks(self) -> None:
        """Let the other tasks of a step make their last steps: they end when the first one does."""
        deadline = time.monotonic() + _TASKS_WAIT_S
        while self._run.get("step") and any(feed.alive() for feed in self._pipe.feeds.active):
            if self._stop_reason is not None:
                self._stop_tasks()
            if self._leave.is_set() or time.monotonic() >= deadline:
                break
            self._pipe.tick(time.monotonic_ns(), stretch=self._cost.stretch)
            time.sleep(_ENDING_TICK_S)
        for stopping in self._tasks.values():
            stopping.join(timeout=sum(self._grace_s) + 10)

    def _close(self) -> None:
        self._judge.close()
        if self._server is not None:
            self._server.close()
        if self._log is not None:
            self._log.close()
        with contextlib.suppress(Exception):
            self._pipe.writer.close()
        os.close(self._lock)

    def _is_due(self, what: str, now_ns: int, period_ns: int) -> bool:
        if now_ns < self._due.get(what, 0):
            return False
        self._due[what] = now_ns + period_ns
        return True


def main(run_dir: str | os.PathLike[str]) -> int:
    """Watch a run to its end, in this process. Returns the exit code of the supervisor itself."""
    _be_unobtrusive()
    directory = Path(run_dir)
    _bound_own_log(directory)
    try:
        supervisor = _begin(directory)
    except AlreadyWatched:
        return 0
    except Exception as error:
        print(f"The supervisor cannot start: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: supervisor.leave())
    try:
        supervisor.run()
    except Exception as error:
        print(f"The supervisor gave up: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _begin(run_dir: Path) -> Supervisor:
    """Start watching; a full disk may have room later, a locked store is let go of.

    The rings keep minutes meanwhile.
    """
    told = False
    while True:
        try:
            return Supervisor(run_dir)
        except (StoreFull, StoreBusy) as error:
            if not told:
                print(f"{error}", file=sys.stderr)
                told = True
        run = runfile.read_json(run_dir / "run.json") or {}
        if not _is_recorded_alive(run, "child"):
            return Supervisor(run_dir)
        time.sleep(_STORE_RETRY_S)


def _be_unobtrusive() -> None:
    """Outlive the terminal, and come last for CPU and first for the memory killer."""
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    # The front fetches its signals from a blocked mask, and a mask is inherited.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_ADJ))


def _bound_own_log(run_dir: Path) -> None:
    with contextlib.suppress(OSError):
        path = run_dir / "supervisor.log"
        if path.lstat().st_size > _SUPERVISOR_LOG_BYTES:
            os.truncate(path, 0)


def _is_recorded_alive(run: Mapping[str, Any], key: str) -> bool:
    process = identity.recorded_child({**run, "child": run.get(key)})
    return process is not None and identity.is_alive(process)


def _positive(options: object, key: str) -> int | None:
    value = options.get(key) if isinstance(options, Mapping) else None
    return value if isinstance(value, int) and value > 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
