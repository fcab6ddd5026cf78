"""Is a training the same with gputop-train and without? Bit for bit, script by script.

    python benchmarks/harmlessness.py [DIRECTORY_OR_SCRIPT ...] [--jobs N] [--device cpu|cuda]

Each script runs three times as ``cmd >file 2>&1`` and once or more watched, from the same empty
working directory, with the same stdin, and writes down at exit what it was like
(``harmless_recorder``). Compared: output, exit code, random streams, bits of parameters, gradients
and optimizer state, dynamo's counters, warnings, files written, and what the process was given
(signals, limits, threads). Each is compared where the three plain runs agree with each other.

A script may say how it wants to be run, in comments: ``# needs: module ...``, ``# device: cuda``,
``# run: COMMAND`` (``{python}`` and ``{script}`` are filled in), ``# stdin: TEXT``. Scripts that
know ``--steps`` get ``--steps N``. One that builds kernels (``# builds: kernels``) runs once before
all this, so that every run that counts finds them built.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harmless_compare import Outcome, Row, compare, mask, recorded, table, tree

ROOT = Path(__file__).resolve().parent.parent
OWN_SCRIPTS = ROOT / "tests" / "harmless_scripts"
RECORDER = Path(__file__).resolve().parent / "harmless_recorder"
PLAIN_RUNS = 3
LIMIT_S = 420


@dataclass(frozen=True)
class Script:
    """One script and how it wants to be run."""

    path: Path
    needs: tuple[str, ...] = ()
    device: str | None = None
    run: str | None = None
    stdin: bytes | None = None
    arguments: tuple[str, ...] = ()
    builds: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    @classmethod
    def read(cls, path: Path, steps: int) -> Script:
        text = path.read_text("utf-8")
        said = dict(re.findall(r"^# (needs|device|run|stdin|builds): *(.+)$", text, re.M))
        stdin = said.get("stdin")
        return cls(
            path,
            tuple(said.get("needs", "").split()),
            said.get("device"),
            said.get("run"),
            stdin.encode().decode("unicode_escape").encode() if stdin is not None else None,
            ("--steps", str(steps)) if '"--steps"' in text else (),
            "builds" in said,
        )

    def command(self) -> list[str]:
        """As a person would type it."""
        if self.run is not None:
            words = self.run.split()
            return [w.format(python=sys.executable, script=self.path) for w in words]
        return [sys.executable, str(self.path), *self.arguments]

    def watched(self, run_root: Path) -> list[str]:
        """The same behind gputop-train."""
        main = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = 'gputop-train'; "
            "from gputop_train.cli import main; main()"
        )
        launch = [sys.executable, "-c", main, "--no-tui", "--run-root", str(run_root)]
        if self.run is not None:
            return [*launch, "--", *self.command()]
        return [*launch, "--python", sys.executable, *self.command()[1:]]

    def not_here(self, device: str) -> str | None:
        """Why it cannot run on this machine."""
        if self.device == "cuda" and device != "cuda":
            return "needs CUDA"
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{', '.join(absent)} not installed" if absent else None


class Bench:
    """Runs scripts and compares; thread-safe, one script per thread."""

    def __init__(self, device: str, watched: int, scratch: Path, keep: Path | None) -> None:
        self.device = device
        self.watched = watched
        self.scratch = scratch
        self.keep = keep
        self._lock = threading.Lock()

    def judge(self, script: Script) -> Row:
        row = Row(script.name, not_run=script.not_here(self.device))
        if row.not_run is None:
            if script.builds:
                self._run(script, "plain", -1)
            kinds = ["plain"] * PLAIN_RUNS + ["watched"] * self.watched
            row.outcomes = [self._run(script, kind, n) for n, kind in enumerate(kinds)]
            compare(row)
        with self._lock:
            took = sum(o.seconds for o in row.outcomes)
            word = row.not_run or row.left_out or ", ".join(row.differs) or "same"
            print(f"{script.name:32s} {took:6.1f} s  {word}", flush=True)
        if self.keep is not None and (row.differs or row.left_out):
            for number, outcome in enumerate(row.outcomes):
                place = self.keep / f"{script.name}.{number}.{outcome.kind}"
                place.with_suffix(f".{outcome.kind}.log").write_text(outcome.log)
                place.with_suffix(f".{outcome.kind}.json").write_text(
                    json.dumps(outcome.seen, indent=1, sort_keys=True, default=str)
                )
        return row

    def _environment(self, records: Path) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONSTARTUP"}
        env.update(
            # For both kinds: without what is on the path the supervisor may lack its packages.
            PYTHONPATH=os.pathsep.join(filter(None, (str(RECORDER), env.get("PYTHONPATH")))),
            PYTHONHASHSEED="0",
            PYTHONWARNINGS="always",
            # The launcher sets it where it is unset; it decides how stdout and stderr mix.
            PYTHONUNBUFFERED="1",
            HARMLESS_OUT=str(records),
            OMP_NUM_THREADS="1",
            CUBLAS_WORKSPACE_CONFIG=":4096:8",
            HF_HUB_OFFLINE="1",
            TOKENIZERS_PARALLELISM="false",
        )
        if self.device == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""
        return env

    def _run(self, script: Script, kind: str, number: int) -> Outcome:
        # The same path for each run: a script may print where it is.
        place = self.scratch / script.name
        shutil.rmtree(place, ignore_errors=True)
        work, records, root = place / "work", place / "records", place / "runs"
        for directory in (work, records):
            directory.mkdir(parents=True)
        command = script.command() if kind == "plain" else script.watched(root)
        log, errors = place / "log", place / "errors"
        started = time.monotonic()
        with log.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=work,
                env=self._environment(records),
                stdin=subprocess.DEVNULL if script.stdin is None else subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT if kind == "plain" else err,
            )
            try:
                process.communicate(script.stdin, timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
        outcome = Outcome(kind, time.monotonic() - started)
        outcome.log = log.read_bytes().decode("utf-8", "backslashreplace")
        outcome.overhead = errors.read_text("utf-8", "replace")
        outcome.seen = {
            "output": mask(outcome.log),
            "exit": process.returncode if process.returncode >= 0 else 128 - process.returncode,
            "files": tree(work),
            **recorded(records),
        }
        if kind == "watched":
            self._check_watched(script, root, outcome)
        return outcome

    @staticmethod
    def _check_watched(script: Script, root: Path, outcome: Outcome) -> None:
        """What passed through must be what the script wrote; and the probe must have been there."""
        logs = list(root.glob("*/output.log"))
        whole = logs[0].read_bytes().decode("utf-8", "backslashreplace") if logs else None
        if whole != outcome.log:
            outcome.seen["output"] = f"output.log differs from stdout\n{outcome.seen['output']}"
        if not logs or not (logs[0].parent / "probe" / "seen-started").exists():
            outcome.seen["exit"] = f"the probe was not there: {outcome.overhead[-300:]}"
            return
        report = logs[0].parent / "report.json"
        if not report.exists():
            outcome.seen["exit"] = f"nobody watched the probe: {outcome.overhead[-300:]}"
            return
        outcome.steps = json.loads(report.read_text())["steps"]["count"]


def find_scripts(places: Iterable[str], steps: int) -> list[Script]:
    """Scripts below the places given, and the project's own."""
    found: dict[Path, None] = {}
    for place in [OWN_SCRIPTS, *map(Path, places)]:
        for path in [place] if place.is_file() else sorted(place.glob("*.py")):
            found.setdefault(path.resolve())
    return [Script.read(path, steps) for path in found]


def heading(device: str, watched: int, command: str) -> str:
    """What was run, where."""
    versions = [f"Python {platform.python_version()}"]
    for name in ("torch", "transformers", "accelerate", "pytorch_lightning"):
        if importlib.util.find_spec(name) is not None:
            from importlib.metadata import version

            versions.append(f"{name} {version(name.replace('_', '-'))}")
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    where = "CPU" if device == "cpu" else _card()
    return (
        f"# Harmlessness, {where}\n\n"
        f"{', '.join(versions)}; commit {commit or 'unknown'}.\n"
        f"{PLAIN_RUNS} plain runs and {watched} watched one{'s' if watched > 1 else ''} of each "
        f"script.\nRerun: `{command}`"
    )


def _card() -> str:
    import torch

    return str(torch.cuda.get_device_name(0))


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("scripts", nargs="*", help="scripts or directories of scripts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2, help="scripts at a time")
    parser.add_argument("--watched", type=int, default=1, help="watched runs of each script")
    parser.add_argument("--steps", type=int, default=12, help="for scripts that take --steps")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    parser.add_argument("--keep", type=Path, help="where logs of differing scripts go")
    args = parser.parse_args()
    # A shell without job control starts background commands with these ignored, and the launcher
    # gives a script the defaults: both kinds of run begin with a terminal's signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    scripts = [
        script
        for script in find_scripts(args.scripts, args.steps)
        if not args.only or any(part in script.name for part in args.only)
    ]
    with tempfile.TemporaryDirectory(prefix="harmless-") as scratch:
        bench = Bench(args.device, args.watched, Path(scratch), args.keep)
        places = " DIRECTORY" if args.scripts else ""
        command = f"python benchmarks/harmlessness.py{places} --device {args.device}"
        top = heading(args.device, args.watched, command)
        rows: list[Row] = []
        with ThreadPoolExecutor(args.jobs) as pool:
            for row in pool.map(bench.judge, scripts):
                rows.append(row)
                text = table(rows, top, len(scripts) - len(rows))
                if args.out is not None:  # as far as it goes, should the run be cut short
                    args.out.write_text(text)
    print(text)
    return 1 if any(row.differs for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
