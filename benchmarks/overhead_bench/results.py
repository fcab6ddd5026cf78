"""Result files: on what machine, with which versions, what was run and what came of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = 1
#: Results that differ in one of these are not of one measurement: (key, how it is called).
IDENTITY = (
    ("device", "devices"),
    ("card", "cards"),
    ("driver", "driver versions"),
    ("torch", "torch versions"),
    ("python", "Python versions"),
    ("commit", "commits"),
)


class MixedResults(Exception):
    """Result files that must not share a table; the message says why."""


def machine(device: str, gpu: int | None, named: str | None = None) -> dict[str, Any]:
    """What the results depend on. No host names: cards, processors and versions only.

    Args:
        device: ``cpu`` or ``cuda``.
        gpu: Index of the card.
        named: The commit of a copy without git; a hash of its sources is put beside it.
    """
    card, driver = (_processor(), None) if device == "cpu" else _card(gpu or 0)
    return {
        "device": device,
        "card": card,
        "driver": driver,
        "torch": _version("torch"),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "clock": _clock(),
        "commit": commit(named=named),
    }


def _clock() -> str:
    """What reading the clock costs: 25 times as much where the kernel has to be asked for it."""
    try:
        source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        name = source.read_text().strip()
    except OSError:
        name = "unknown"
    began = time.perf_counter_ns()
    for _ in range(10_000):
        time.monotonic_ns()
    return f"{name}, {(time.perf_counter_ns() - began) / 10_000:.0f} ns a reading"


def commit(root: Path = ROOT, named: str | None = None) -> str:
    """The commit; with ``-dirty-`` and a hash of the difference where files were changed.

    Without git, a hash of the sources that matter, after the name that was given.
    """
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    if head is None or named is not None:
        return f"{named + '-' if named else ''}tree-{_sources_hash(root)}"
    difference = _git(root, "diff", "HEAD") or ""
    if not difference:
        return head
    return f"{head}-dirty-{hashlib.sha256(difference.encode()).hexdigest()[:8]}"


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _sources_hash(root: Path) -> str:
    found = hashlib.sha256()
    for folder in (root / "gputop_train", root / "benchmarks"):
        for file in sorted(folder.rglob("*.py")):
            found.update(str(file.relative_to(root)).encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _card(index: int) -> tuple[str | None, str | None]:
    try:
        import pynvml

        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
        return str(name), str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return None, None


class ResultFile:
    """One part's results on disk, complete after every item."""

    def __init__(
        self, path: Path, where: dict[str, Any], command: Sequence[str], named: str | None = None
    ) -> None:
        self._path, self._named = path, named
        self.body: dict[str, Any] = {
            "schema": SCHEMA,
            "machine": where,
            "command": " ".join(command),
            "started": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "runs": [],
        }
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, run: dict[str, Any]) -> None:
        """Keep one run, whatever came of it."""
        self.body["runs"].append(run)
        self.write()

    def close(self) -> None:
        """Note a tree that changed under the measurement: such results mix commits."""
        now = commit(named=self._named)
        if now != self.body["machine"]["commit"]:
            self.body["machine"]["commit"] += f" to {now}"
        self.write()

    def write(self) -> None:
        """Write the file anew."""
        self._path.write_text(json.dumps(self.body), encoding="utf-8")


def load(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Result files that belong together.

    Raises:
        MixedResults: They do not, or one is no result file.
    """
    if not files:
        raise MixedResults("Name the result files to merge.")
    loaded: list[dict[str, Any]] = []
    for file in files:
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise MixedResults(f"{file} could not be read: {error}.") from error
        if not isinstance(body, dict) or body.get("schema") != SCHEMA:
            raise MixedResults(f"{file} is not a result of this benchmark.")
        loaded.append(body)
    for key, called in IDENTITY:
        values = sorted({str(body["machine"].get(key)) for body in loaded})
        if len(values) > 1:
            raise MixedResults(
                f"These results are from different {called} ({', '.join(values)}): "
                "they are not one measurement. Merge those of one only."
            )
    return loaded
