"""Runs of a case: watched, for its report; plain, for what its mend brings."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnosis_bench.cases import Case
from gputop_train.launch import identity, runfile, stop, verdicts
from gputop_train.launch.runs import store_path
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from gputop_train.store.recording import export_recording, import_recording

TIMED = Path(__file__).with_name("timed.py")
#: A run that was stopped at the time limit gets so long to be reported on.
GRACE_S = 45.0


@dataclass
class Watched:
    """What came of one watched run."""

    rc: int | None
    wall_s: float
    report: dict[str, Any] | None = None
    ended: str = ""  # how it went wrong, if it did
    current: dict[str, float] = field(default_factory=dict)
    told: str = ""  # when the final answer was first given live
    tail: str = ""


def arguments_of(case: Case, kind: str) -> list[str]:
    """What a case's script, or its twin, is called with."""
    extra = case.fix_args if kind == "twin" else ()
    return ["--steps", str(case.steps), *case.args, *extra]


def _environment(case: Case, kind: str) -> dict[str, str]:
    return os.environ | (dict(case.fix_env) if kind == "twin" else {})


def watch(case: Case, kind: str, seconds: float, keep: Path | None, python: str) -> Watched:
    """Run a script under the product.

    Args:
        kind: ``as is`` or ``twin``.
        seconds: It is interrupted after so long, and judged by what was seen until then.
        keep: Where its recording goes (a ``.zip`` that does not exist), if anywhere.
        python: The interpreter of both.
    """
    script = case.script if kind == "as is" else case.twin
    with tempfile.TemporaryDirectory(prefix="gputop-bench-") as scratch:
        root, answer = Path(scratch) / "runs", Path(scratch) / "report.json"
        command = [python, "-m", "gputop_train", "--no-tui", "--run-root", str(root)]
        command += ["--python", python, "--json", str(answer), str(script)]
        rc, wall_s, ended, tail = _run(
            [*command, *arguments_of(case, kind)],
            seconds,
            _environment(case, kind),
            lambda: _stop_runs(root),
        )
        found = Watched(rc, wall_s, ended=ended, tail=tail)
        if answer.exists():
            found.report = json.loads(answer.read_text())
        for run_dir in sorted(root.iterdir())[:1] if root.is_dir() else ():
            if keep is not None:
                keep.unlink(missing_ok=True)
                with contextlib.suppress(Exception):  # the answer counts, recorded or not
                    export_recording(run_dir, keep)
            if found.report is None:
                log = run_dir / "supervisor.log"
                found.tail += f"\n{log.read_text()[-1500:]}" if log.exists() else ""
            _look(run_dir, found)
    return found


def _stop_runs(root: Path) -> None:
    """End what runs below a root; the script is in a session of its own and outlives its front."""
    for run_dir in root.iterdir() if root.is_dir() else ():
        child = identity.recorded_child(runfile.read_json(run_dir / "run.json") or {})
        if child is not None:
            stop.ladder(child)


def _run(
    command: Sequence[str],
    seconds: float,
    env: Mapping[str, str],
    stop_first: Callable[[], None] | None = None,
) -> tuple[int | None, float, str, str]:
    """Exit code, wall seconds, what went wrong and the end of the output."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )
        ended = ""
        try:
            rc: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = f"interrupted after {seconds:.0f} s"
            if stop_first is not None:
                stop_first()
            rc = _end(process, 0.0 if stop_first is None else GRACE_S)
        if not ended and rc:
            ended = f"exit code {rc}"
        output.seek(max(0, output.tell() - 1500)) if output.seek(0, os.SEEK_END) else None
        tail = output.read().decode(errors="replace")
    return rc, time.monotonic() - began, ended, tail


def _end(process: subprocess.Popen[bytes], grace_s: float) -> int | None:
    """Wait for a process whose work was stopped; make it end if it does not."""
    for number, patience in ((0, grace_s), (signal.SIGINT, 10.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(patience)
    return None


def _look(run_dir: Path, found: Watched) -> None:
    """What else the store of a run says: the settings there were, and when the answer came."""
    run = runfile.read_json(run_dir / "run.json") or {}
    with contextlib.suppress(StoreError, OSError), RunReader(store_path(run_dir, run)) as reader:
        workers = [one.num_workers for one in reader.loaders() if one.feeds_training]
        if workers:
            found.current["num_workers"] = max(workers)
        found.told = _told(reader, found.report)


def _told(reader: RunReader, report: Mapping[str, Any] | None) -> str:
    """When the verdict was first given live: seconds and steps since the first step."""
    verdict = (report or {}).get("verdict")
    steps = reader.steps()
    if not verdict or not steps:
        return ""
    for one in reader.findings():
        body = one.body.get("verdict") or {}
        if body.get("id") == verdict["id"] and body.get("refined") == verdict.get("refined"):
            seen = sum(step.t1_ns <= one.t_ns for step in steps)
            return f"{(one.t_ns - steps[0].t0_ns) / 1e9:.0f} s, {seen} steps"
    return ""


def rejudge(recording: Path) -> Watched:
    """Judge a kept recording again, with the engine as it is now."""
    with tempfile.TemporaryDirectory(prefix="gputop-bench-") as scratch:
        run_dir = import_recording(recording, Path(scratch) / recording.stem)
        store = run_dir / "run.sqlite"
        run = runfile.read_json(run_dir / "run.json") or {}
        exit_ = runfile.read_json(run_dir / "exit.json")
        began = time.monotonic()
        report = verdicts.build_report(store, run, exit_, verdicts.judge_run(store, final=True))
        found = Watched(None, time.monotonic() - began, report)
        _look(run_dir, found)
        return found


def plain(case: Case, kind: str, seconds: float, python: str) -> float | None:
    """Seconds of a step over the loop of an unwatched run; ``None`` if it did not get there."""
    script = case.script if kind == "as is" else case.twin
    with tempfile.TemporaryDirectory(prefix="gputop-bench-") as scratch:
        answer = Path(scratch) / "loop.json"
        command = [python, str(TIMED), str(answer), str(script), *arguments_of(case, kind)]
        rc, _, _, _ = _run(command, seconds, _environment(case, kind))
        if rc != 0 or not answer.exists():
            return None
        body = json.loads(answer.read_text())
    between = body["calls"] - 1
    return body["loop_s"] / between if between > 0 else None


@dataclass
class Measured:
    """What a mend brought, from interleaved pairs of plain runs."""

    ratios: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def middle(self) -> float | None:
        ordered = sorted(self.ratios)
        half = len(ordered) // 2
        if not ordered:
            return None
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def measure(
    case: Case,
    pairs: int,
    seconds: float,
    deadline: float,
    run: Callable[..., float | None] = plain,
    python: str = sys.executable,
) -> Measured:
    """Run script and twin in turn (A B A B) and compare neighbours.

    Args:
        deadline: ``time.monotonic()`` after which no further pair is begun.
    """
    found = Measured()
    for _ in range(pairs):
        if time.monotonic() > deadline:
            found.note = "time was up"
            break
        a, b = (run(case, kind, seconds, python) for kind in ("as is", "twin"))
        if not a or not b:
            found.note = f"{'script' if not a else 'twin'} did not end in {seconds:.0f} s or failed"
            break
        found.ratios.append(a / b)
    return found
