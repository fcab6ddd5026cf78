"""Whole processes side by side: the same loop bare and under each tool, in random order."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .tools import Tool, Unusable

HERE = Path(__file__).resolve().parent
HUNG_S = 90.0  # beyond its loop, what it may take at all


def calibrate(sizes: Sequence[float], base: dict[str, Any]) -> dict[float, dict[str, Any]]:
    """Settings for each size, found in one process without any tool."""
    done = subprocess.run(
        [sys.executable, "-m", "overhead_bench.whole", json.dumps([list(sizes), base])],
        env=_environment(HERE.parent),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return dict(zip(sizes, found, strict=True))


def run_once(tool: Tool, settings: dict[str, Any]) -> dict[str, Any]:
    """One process. What it did, or ``error``: a run that failed is a row like any other."""
    row: dict[str, Any] = {"tool": tool.name, "version": tool.version()}
    with tempfile.TemporaryDirectory(prefix="overhead-") as place:
        folder, result = Path(place), Path(place) / "result.json"
        started = time.perf_counter()
        try:
            tool.check()
            script = tool.script(folder)
            arguments = [json.dumps(settings), str(result)]
            command = tool.command(str(script), arguments, folder, _free_port())
            limit_s = settings["warm_s"] + settings["steady_s"] + HUNG_S
            done = _run(command, folder, limit_s)
        except Unusable as reason:
            return {**row, "error": str(reason)}
        except subprocess.TimeoutExpired:
            return {**row, "error": "did not end in time"}
        row["wall_s"] = round(time.perf_counter() - started, 3)
        if done.returncode or not result.exists():
            return {**row, "error": _last_words(done)}
        loop = json.loads(result.read_text(encoding="utf-8"))
    ends = loop["ends_s"]
    steps = [b - a for a, b in itertools.pairwise(ends)]
    row.update(torch=loop["torch"], steps=len(steps))
    row["mean_ms"] = (ends[-1] - ends[0]) / len(steps) * 1e3
    row["median_ms"] = statistics.median(steps) * 1e3
    return row


def rounds(
    tools: Sequence[Tool], settings: dict[str, Any], numbers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Every tool once a round, in an order drawn for the round.

    A tool that cannot run here is asked once, and its answer stands for the other rounds.
    """
    unusable: dict[str, str] = {}
    for number in numbers:
        order = list(tools)
        random.Random(f"{settings['step_ms']}-{number}").shuffle(order)
        for tool in order:
            try:
                tool.check()
            except Unusable as reason:
                if tool.name not in unusable:
                    unusable[tool.name] = str(reason)
                    yield {"round": number, "tool": tool.name, "error": str(reason)}
                continue
            yield {"round": number, **run_once(tool, settings)}


def _run(command: list[str], folder: Path, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run in a session of its own, so that a tool that hangs is ended with all its processes."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(HERE.parent.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _environment(*path: Path) -> dict[str, str]:
    """This environment with our folders importable."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    joined = os.pathsep.join([*(str(p) for p in path), *(p for p in before if p)])
    return {**os.environ, "PYTHONPATH": joined}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stderr.strip() or done.stdout).splitlines()]
    said = " / ".join(line for line in lines[-4:] if line) or "no message"
    return f"exit code {done.returncode}: {said[-400:]}".replace("|", "/")


def _calibrate_here(sizes: Sequence[float], base: dict[str, Any]) -> list[dict[str, Any]]:
    import torch

    from . import calibrate as finder

    torch.set_num_threads(base.get("threads", 1))
    found = []
    for size in sizes:
        started = {**base, "step_ms": size}
        found.append(finder.calibrate(size, started, finder.measured_step_ms))
    return found


if __name__ == "__main__":
    print(json.dumps(_calibrate_here(*json.loads(sys.argv[1]))))
