"""Planted regressions through the real command: python benchmarks/check_planted.py [--times N]

A repository with a small torch script whose step is mostly one wait or one computation; its one
commit is the older code, the working tree the newer one. ``gputop-train check --baseline-ref HEAD``
with nothing changed, with a step made 2%, 10% and 20% longer, and with too few steps. Writes
Markdown to stdout; exit code 1 where a 20% regression passes, equal code is called a regression, or
too few steps are anything but inconclusive. Leave the machine alone meanwhile: half a minute to
three minutes a check.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
from pace import PACE, WAITS

torch.set_num_threads(1)
data = TensorDataset(torch.zeros(8 * {steps}, 16), torch.zeros(8 * {steps}))
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
a = torch.randn(96, 96)
for x, y in DataLoader(data, batch_size=8):
    if WAITS:
        time.sleep(0.03 * PACE)
    else:
        for _ in range(round(800 * PACE)):
            a @ a
    loss = ((model(x).squeeze(1) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
#: What is planted, and what may come of it.
PLANTED = {
    "nothing": (1.0, {"pass", "inconclusive"}),
    "2% slower": (1.02, {"pass", "inconclusive"}),
    "10% slower": (1.10, {"regression", "inconclusive"}),
    "20% slower": (1.20, {"regression"}),
}
NAMES = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def repository(place: Path, *, waits: bool, steps: int = 5000) -> None:
    """A repository whose one commit is the older code."""
    place.mkdir()
    (place / "train.py").write_text(SCRIPT.format(steps=steps))
    (place / "pace.py").write_text(f"PACE = 1.0\nWAITS = {waits}\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "older"]):
        subprocess.run(["git", *words], cwd=place, check=True, env={**os.environ, **NAMES})


def check(place: Path, minutes: float) -> dict[str, Any]:
    """One check by the command line, with its wall time and exit code."""
    began = time.monotonic()
    command = [sys.executable, "-m", "gputop_train", "check", "--baseline-ref", "HEAD"]
    command += ["--run-root", str(place.parent / "runs"), "--python", sys.executable]
    done = subprocess.run(
        [*command, "--max-minutes", f"{minutes:g}", "--json", "-", "train.py"],
        cwd=place,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"The check ended with exit code {done.returncode}.\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"took_s": time.monotonic() - began, "code": done.returncode}


def row(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def told(name: str, work: str, found: dict[str, Any]) -> str:
    """What came of one check."""
    low, high = found["interval"] or (None, None)
    span = "" if low is None else f"{low:.3f} to {high:.3f}"
    ratio = "" if found["step_ratio"] is None else f"{found['step_ratio']:.3f}"
    result, pairs = f"{found['result']} ({found['code']})", str(found["pairs"] or 0)
    return row([name, work, result, ratio, span, pairs, f"{found['took_s']:.0f}"])


def main() -> int:
    """Run all checks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3, help="checks of each kind and work (3)")
    parser.add_argument("--max-minutes", type=float, default=3.0, help="of one check (3)")
    asked = parser.parse_args()
    wrong = 0
    print(row(["planted", "a step", "result (exit code)", "ratio", "interval", "pairs", "s"]))
    print(row(["---", "---", "---", "---:", "---", "---:", "---:"]))
    for work in ("waits", "computes"):
        for name, (pace, fine) in PLANTED.items():
            for _ in range(asked.times):
                with tempfile.TemporaryDirectory() as folder:
                    place = Path(folder) / "repo"
                    repository(place, waits=work == "waits")
                    (place / "pace.py").write_text(f"PACE = {pace}\nWAITS = {work == 'waits'}\n")
                    found = check(place, asked.max_minutes)
                wrong += found["result"] not in fine
                print(told(name, work, found), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "repo"
        repository(place, waits=True, steps=8)
        found = check(place, asked.max_minutes)
        wrong += found["result"] != "inconclusive"
        print(told("8 steps in all", "waits", found))
    print(f"\n{wrong} of them are not what may come of it.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
