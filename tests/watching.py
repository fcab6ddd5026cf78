"""Scripts watched through the command line, for tests of what is said of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gputop_train.report.schema import validate

#: For verdicts on real timings. Whoever else runs on the cores of a test machine takes part in them:
#: beside five busy processes two of twelve demos read otherwise, alone none of them. What is wrong
#: three times is wrong.
undisturbed_at_least_once = pytest.mark.flaky(reruns=2)


def watch(
    run_root: Path, script: Path, *arguments: str, options: Sequence[str] = ()
) -> tuple[dict, str]:
    """The report of a script that ends well, and what was on stderr: with --json - its output."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "gputop_train", "--no-tui", "--json", "-"),
            *("--run-root", str(run_root), "--python", sys.executable, *options),
            *(str(script), *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert validate(report) == []
    return report, result.stderr


def crowded(report: dict) -> bool:
    """Whether nothing is wrong but that other tests had the cores meanwhile, which is true."""
    return (report["verdict"] or {}).get("id") == "cpu-contention"


def causes(report: dict) -> list[str]:
    """Ids of what is named, the verdict first, without those other tests."""
    named = [*([report["verdict"]] if report["verdict"] else []), *report["also"]]
    return [found["id"] for found in named if found["id"] != "cpu-contention"]


def all_watched(folder: Path, sources: Mapping[str, str]) -> dict[str, dict]:
    """The reports of scripts by name, run at the same time: for those that sleep most of it."""
    scripts = []
    for name, source in sources.items():
        scripts.append(folder / f"{name}.py")
        scripts[-1].write_text(source)
    with ThreadPoolExecutor(len(scripts)) as pool:
        watched = pool.map(lambda script: watch(folder / "runs", script)[0], scripts)
        return dict(zip(sources, watched, strict=True))
