"""What runs the same loop: bare, under gputop-train, and under three other tools.

Only gputop-train takes the script as it is. The others need edits; theirs go on a copy, as their
own documentation has it, and each edit must find its line or the run counts as failed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOP = Path(__file__).with_name("loop.py")
_IMPORT = "import torch\n"
_STEP = "            train_step(model, optimizer, batch, device, item)\n"
_RUN = "    ends = run(model, optimizer, loader, settings)\n"


class Unusable(Exception):
    """A tool cannot be run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One way to run the loop.

    Attributes:
        name: As in the table.
        command: The command line of (script, its arguments, an empty folder, a free port).
        edits: (line of the loop, what stands there instead), for the tool's own copy.
        package: The distribution it needs, ``None`` for what is always there.
        how: What is run and edited, in words, for the table's notes.
    """

    name: str
    command: Callable[[str, Sequence[str], Path, int], list[str]]
    edits: tuple[tuple[str, str], ...] = ()
    package: str | None = None
    module: str | None = None
    how: str = ""

    def version(self) -> str | None:
        """The installed version; None where it is not installed, or needs no installing."""
        if self.package is None or self.module is None:
            return None
        if importlib.util.find_spec(self.module) is None:
            return None
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    def check(self) -> None:
        """Raise Unusable where it is not installed."""
        if self.package is not None and self.version() is None:
            raise Unusable(f"not installed (pip install {self.package})")

    def script(self, folder: Path) -> Path:
        """The loop for this tool: the one file, or a copy with its edits."""
        if not self.edits:
            return LOOP
        text = LOOP.read_text(encoding="utf-8")
        for line, instead in self.edits:
            if text.count(line) != 1:
                raise Unusable(f"an edit no longer fits the loop: {line.strip()}")
            text = text.replace(line, instead)
        copy = folder / "loop.py"
        copy.write_text(text, encoding="utf-8")
        return copy


def _plain(script: str, arguments: Sequence[str], folder: Path, port: int) -> list[str]:
    return [sys.executable, script, *arguments]


def _watched(script: str, arguments: Sequence[str], folder: Path, port: int) -> list[str]:
    own = [sys.executable, "-m", "gputop_train", "--no-tui", "--run-root", str(folder / "runs")]
    return [*own, "--python", sys.executable, script, *arguments]


def _traceml(script: str, arguments: Sequence[str], folder: Path, port: int) -> list[str]:
    own = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", script]
    own += ["--logs-dir", str(folder / "logs"), "--run-name", "loop"]
    # Both ports are fixed by default: two parts on one machine would meet.
    own += ["--aggregator-port", str(port), "--master-port", str(port + 1)]
    return [*own, "--args", *arguments]


def _indented(lines: str) -> str:
    return "".join(f"    {line}\n" for line in lines.splitlines())


PLAIN = Tool("plain", _plain, how="the loop alone")
WATCHED = Tool("gputop-train", _watched, how="`gputop-train --no-tui loop.py`, no edit")
TRACEML = Tool(
    "TraceML",
    _traceml,
    (
        (_IMPORT, _IMPORT + 'import traceml_ai as traceml\n\ntraceml.init(mode="auto")\n'),
        (_STEP, "            with traceml.trace_step(model):\n" + _indented(_STEP)),
    ),
    "traceml-ai",
    "traceml_ai",
    '`traceml.init(mode="auto")`, `trace_step(model)` around each step, `traceml run loop.py`',
)
GPUPROF = Tool(
    "gpuprof",
    _plain,
    (
        (_IMPORT, _IMPORT + "import gpuprof\n"),
        (_RUN, '    with gpuprof.profile("loop"):\n' + _indented(_RUN)),
    ),
    "gpuprof",
    "gpuprof",
    '`with gpuprof.profile("loop"):` around the loop',
)
PROFILER = Tool(
    "torch.profiler",
    _plain,
    (
        (_STEP, _STEP + "            profiler.step()\n"),
        (
            _RUN,
            "    schedule = torch.profiler.schedule(skip_first=10, wait=5, warmup=1, active=3)\n"
            "    with torch.profiler.profile(\n"
            "        schedule=schedule, on_trace_ready=lambda p: p.key_averages()\n"
            "    ) as profiler:\n" + _indented(_RUN),
        ),
    ),
    how="`torch.profiler.profile` around the loop, `profiler.step()` in it; schedule of its recipe "
    "(wait 5, warm-up 1, record 3), repeated as long as the run lasts, `key_averages()` each time",
)
PEERS = (TRACEML, GPUPROF, PROFILER)
ALL = {tool.name: tool for tool in (PLAIN, WATCHED, *PEERS)}
