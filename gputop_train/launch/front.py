"""The process a person started: shows the run, passes signals on, leaves with the script's code.

It owns nothing the training needs. Whatever happens to it, the script, its shim and its supervisor
go on.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from gputop_train import paths
from gputop_train.launch import (
    again,
    ending,
    identity,
    runfile,
    signals,
    spawn,
    start_trial,
    tasks,
    tied,
)
from gputop_train.launch.ending import Interrupted
from gputop_train.launch.options import Options, Setting
from gputop_train.launch.runfile import Exit
from gputop_train.launch.spawn import Command, Launched, LaunchError, PlaceError
from gputop_train.launch.streams import OutputPump, Voice
from gputop_train.launch.verdict_lines import VerdictLines
from gputop_train.launch.watch import ExitWatch

_TICK_S = 0.1
#: A supervisor that keeps dying has a reason that another one meets as well.
_SUPERVISORS_MAX = 3
_SUPERVISOR_AGE_MIN_S = 5.0
_WHY_TIED = {
    "init": "this is the container's first process",
    "job": "the scheduler ends what remains of a step",
}


def run(options: Options, environ: Mapping[str, str]) -> int:
    """Launch, watch to the end or until detached, and return our exit code.

    Raises:
        CommandProblem: There is nothing to run.
        LaunchError: The run could not be set up; the script was not started.
    """
    if options.json_path not in (None, "-"):
        options = replace(options, json_path=tasks.report_file(options.json_path or "", environ))
        _check_json_path(Path(options.json_path or ""))
    command = spawn.resolve_command(options, environ)
    tasks.join(options, command, environ)
    mask = signals.block()
    try:
        while True:
            launched = _launch(options, command, environ)
            if not options.tui:
                return _Plain(launched, options, environ).run()
            screen = _Screen(launched, options, environ, mask)
            code = screen.run()
            if screen.wanted is None:
                return code
            # A run of its own with the changes: the earlier one stays, to be compared with.
            options = replace(
                options,
                settings=again.merged(options.settings, screen.wanted),
                compared_with=launched.id,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _launch(options: Options, command: Command, environ: Mapping[str, str]) -> Launched:
    """Launch; where nobody chose the run root and it takes nothing, below a spare one.

    A home that is full or mounted read-only would not have kept the script from running without us.

    Raises:
        LaunchError: As `spawn.launch`.
    """
    try:
        return spawn.launch(options, command, environ)
    except PlaceError as problem:
        if options.run_root is not None:
            raise
        try:
            root = paths.spare_root()
        except paths.PathError:
            raise problem from None
        launched = spawn.launch(replace(options, run_root=str(root)), command, environ)
        find = paths.come_back("runs", root=root)
        Voice().say(f"{problem.why}. This run is kept in {root}; find it again with: {find}")
        return launched


def _check_json_path(path: Path) -> None:
    """Find out now, and not after hours of training, that the report cannot be written there."""
    parent = path.parent
    blocked = path.is_dir() or (path.exists() and not os.access(path, os.W_OK))
    if blocked or not os.access(parent, os.W_OK | os.X_OK):
        raise LaunchError(
            f"The report cannot be written to {path}. Give --json a file in a directory that "
            "exists and is writable; the script was not started.",
            2,
        )


class _Front:
    """What both faces do: keep a supervisor, wait for the end, sum up."""

    def __init__(self, launched: Launched, options: Options, environ: Mapping[str, str]) -> None:
        self.launched = launched
        self.options = options
        self.watch = ExitWatch(launched)
        self.tie = tied.tie(environ)
        self.relay = signals.Relay(launched.child, launched.shim_pid, self.tie)
        self.voice = Voice()
        self.interrupted = False
        self._environ = environ
        self._supervisors = 1
        self._supervisor_since = time.monotonic()

    def keep_supervised(self) -> None:
        """Replace a supervisor that died while the script runs, a few times."""
        if self._supervisors >= _SUPERVISORS_MAX or not self.watch.supervisor_failed():
            return
        if time.monotonic() - self._supervisor_since < _SUPERVISOR_AGE_MIN_S:
            return
        self._supervisors += 1
        self._supervisor_since = time.monotonic()
        self.watch.adopt_supervisor(spawn.start_supervisor(self.launched.run_dir, self._environ))

    def sum_up(self, ended: Exit) -> int:
        """Print the summary, write the JSON, and return the exit code."""
        report: dict[str, Any] | None = None
        with contextlib.suppress(Interrupted):
            report = ending.await_report(
                self.launched.run_dir,
                supervisor_gone=self.watch.supervisor_gone,
                pause=self._pause,
                voice=self.voice,
            )
        if report is not None:
            ending.print_summary(
                self.launched.run_dir, report, self.voice, ascii_only=self.options.ascii
            )
        if self.options.json_path is not None:
            ending.deliver_json(self.launched.run_dir, self.options.json_path, self.voice, report)
        if ended.reason is not None:
            self.voice.say(f"The script's exit code is unknown. {ended.reason}")
        if ended.status != 0:
            ending.hint_at_failure(self.launched.run_dir, self.launched.run, self.voice)
        return 0 if _stopped_by(report) == "steps" else ended.status

    def _pause(self, seconds: float) -> None:
        """Wait a moment for the report; a signal now means that nobody wants to."""
        if _means_leave(self.relay.fetch(seconds)):
            self.interrupted = True
            raise Interrupted


def _means_leave(action: signals.Action | None) -> bool:
    """Whether a signal that comes after the script's end asks us to end too."""
    if action is None or action.kind not in ("send", "detach"):
        return False
    return action.signum != signal.SIGCONT


def _stopped_by(report: Mapping[str, Any] | None) -> object:
    run_part = (report or {}).get("run")
    return run_part.get("stopped_by") if isinstance(run_part, Mapping) else None


class _Plain(_Front):
    """Plain lines: the script's output on stdout, ours on stderr."""

    def run(self, *, start: int = 0) -> int:
        """Follow the run, its output from byte ``start`` on, to its end; 0 when detached."""
        where = paths.RunPaths(self.launched.run_dir)
        target_fd = 2 if self.options.json_path == "-" else 1
        self.pump = OutputPump(where.output_log, target_fd, start=start)
        self.voice = Voice(self.pump)
        verdicts = VerdictLines(
            Path(str(self.launched.run["store"])), self.voice, ascii_only=self.options.ascii
        )
        self.voice.say(f"run {self.launched.id}; output is kept in {where.output_log}")
        _let_go_of_stdin()
        self.pump.start()
        verdicts.start()
        ended = self._follow()
        verdicts.finish()
        if ended is None or not self._drain():
            self.relay.resume()
            return 0 if ended is None else ended.status
        return self.sum_up(ended)

    def _follow(self) -> Exit | None:
        """Wait for the script's end, passing signals on; ``None`` when we are to detach."""
        while True:
            action = self.relay.fetch(_TICK_S)
            if action is not None and action.say is not None:
                self.voice.say(action.say)
            if action is not None and action.kind == "detach":
                return None
            ended = self.watch.poll()
            if ended is not None:
                return ended
            # A script that was told to end is seen to its end, reader or not: `train.py | tee`
            # loses its reader to the same Ctrl-C.
            if self.pump.lost and not self.relay.ending and self.tie is None:
                return None
            self.keep_supervised()

    def _drain(self) -> bool:
        """Copy the rest of the output; ``False`` when a signal cut that short."""
        self.pump.finish()
        while self.pump.is_alive():
            if _means_leave(self.relay.fetch(_TICK_S)):
                return False
        if self.pump.skipped_bytes:
            self.voice.say(
                f"{self.pump.skipped_bytes} bytes of output were not shown: the log keeps only "
                "its newest part. Redirect a very long output to a file of its own."
            )
        return True


def _let_go_of_stdin() -> None:
    """Hold nothing the script reads, so that a writer into its pipe learns of its end."""
    inherited = spawn.inherited_descriptors()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    for fd in (null, *inherited):
        os.close(fd)


class _Screen(_Front):
    """The live screen, and what is said on the normal screen after it."""

    def __init__(
        self,
        launched: Launched,
        options: Options,
        environ: Mapping[str, str],
        mask: Collection[int],
    ) -> None:
        super().__init__(launched, options, environ)
        self._mask = mask
        #: What the script is to run again with; ``None`` = it is not.
        self.wanted: tuple[Setting, ...] | None = None
        self._trial_dir: Path | None = None

    def run(self) -> int:
        """Show the screen until it is left; 0 when detached."""
        # Handlers in place of fetching: while the screen is up, its event loop owns this thread.
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
            signal.signal(number, self._forward)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        left = self._show()
        signals.block()
        if left is None:
            return self._go_on_plainly()
        action, code = left.action, left.exit_code
        asked_to_end = code == 128 + signal.SIGTERM and action == "detached"
        if asked_to_end:
            self.relay.send(signal.SIGTERM)
        ended = self._outcome(wait=asked_to_end or action in ("stopped", "rerun"))
        if ended is not None:
            status = self.sum_up(ended)
            self._tell_of_trial()
            if action == "rerun" and not self.interrupted:
                self.wanted = left.settings
                words = ", ".join(map(again.typed, left.settings)) or "the same settings"
                self.voice.say(f"Running again with {words}, to compare with {self.launched.id}.")
            return status
        back = paths.come_back("attach", self.launched.run_dir)
        if self.tie is not None:
            why = _WHY_TIED[self.tie]
            self.voice.say(
                f"Leaving would end the training ({why}); the screen comes back with: {back}"
            )
            return self._go_on_plainly()
        self.voice.say(f"Detached; training goes on. Come back with: {back}")
        return code or 0

    def _show(self) -> Any:
        """Run the screen; return its `TuiResult`, ``None`` if it failed."""
        log = self.launched.run_dir / "trial.log"
        try:
            from gputop_train.launch import keeping

            app = importlib.import_module("gputop_train.tui.app")
            with keeping.repeated(self.keep_supervised):
                result = app.run_live(
                    self.launched.run_dir,
                    ascii=self.options.ascii,
                    look=self.options.look,
                    rerun=True,
                    start_trial=partial(self._start_trial, log),
                )
        except Exception as failure:
            self.voice.say(f"The screen failed ({failure}); plain lines instead.")
            return None
        return None if result.error is not None else result

    def _start_trial(self, log: Path, candidates: Sequence[str]) -> Path:
        self._trial_dir = start_trial.start(self.options, candidates, self._environ, log)
        return self._trial_dir

    def _tell_of_trial(self) -> None:
        """A trial that was started here outlives the screen."""
        place = self._trial_dir
        record = runfile.read_json(place / "trial.json") if place is not None else None
        if place is not None and record is not None and record.get("state") == "running":
            back = paths.come_back("attach", place, root=place.parent.parent)
            self.voice.say(f"The trial goes on. Come back with: {back}")

    def _go_on_plainly(self) -> int:
        """Follow the run without the screen: the person still wants to see it."""
        shown = paths.RunPaths(self.launched.run_dir).output_log.stat().st_size
        return _Plain(self.launched, self.options, self._environ).run(start=shown)

    def _outcome(self, *, wait: bool) -> Exit | None:
        """Return how the script ended; ``None`` while it runs, unless asked to wait for it."""
        while True:
            ended = self.watch.poll()
            if ended is not None or not (wait or self._just_gone()):
                return ended
            action = self.relay.fetch(_TICK_S)
            if action is not None and action.kind == "detach":
                return None

    def _just_gone(self) -> bool:
        """Whether the script is gone and only the shim's record of it is still to come."""
        return not identity.is_alive(self.launched.child)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self.relay.send(number)
