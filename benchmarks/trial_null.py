"""Null and planted trials through the real command: python benchmarks/trial_null.py

``gputop-train trial`` on a small torch script, with a setting that changes nothing: three batches
ahead of a loader that keeps up with two. The script reads the share to plant from an environment
variable and makes a step's work so much longer with that setting: 0 = a null trial. Ten null
trials, then 5% and 1%: about twelve minutes; leave the machine alone meanwhile, the legs are
compared but their scatter is what is measured. Writes Markdown to stdout; exit code 1 where fewer
than 9 of 10 null intervals hold 1.0, 5% is not found, or 1% is reversed or denied.
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
import os
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
share = float(os.environ.get("PLANTED", "0"))
data = TensorDataset(torch.randn(65536, 64), torch.randint(0, 10, (65536,)))
loader = DataLoader(data, batch_size=32, num_workers=1, prefetch_factor=2)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
a = torch.randn(96, 96)
units = 200
waits = os.environ["WORK"] == "wait"
for _ in range(100):
    for x, y in loader:
        more = share if loader.prefetch_factor == 3 else 0.0  # set when iteration begins
        if waits:
            time.sleep(0.05 * (1 + more))
        else:
            for _ in range(round(units * (1 + more))):
                a @ a
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
SETTING = "prefetch_factor=3"


def trial(
    script: Path, root: Path, planted: float, work: str, minutes: float, name: str
) -> dict[str, Any]:
    """One trial by the command line: its only candidate, with the trial's wall time."""
    command = [sys.executable, "-m", "gputop_train", "trial", "--run-root", str(root)]
    command += ["--python", sys.executable, "--set", SETTING, "--max-minutes", f"{minutes:g}"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--json", "-", str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PLANTED": str(planted), "WORK": work},
        stdin=subprocess.DEVNULL,
        timeout=60 * minutes + 300,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{name} ended with exit code {done.returncode}.\n{done.stderr}")
    found = json.loads(done.stdout)
    candidate = dict(found["candidates"][0])
    if not candidate["pairs"]:
        raise SystemExit(f"{name} has no pair of legs. {candidate['why']} {found['sentences']}")
    candidate["took_s"] = time.monotonic() - began
    candidate["step_ms"] = found["baseline"]["step_mean_ms"]
    print(f"{name}: {candidate['verdict']}, {candidate['pairs']} pairs", file=sys.stderr)
    return candidate


def row(name: str, planted: float, one: dict[str, Any]) -> str:
    interval = one["interval"]
    if interval is None:
        shown, holds = "", "none"
    else:
        shown = f"{interval[0]:.3f} to {interval[1]:.3f}"
        holds = "yes" if interval[0] <= 1 / (1 + planted) <= interval[1] else "no"
    speedup = "" if one["speedup"] is None else f"{one['speedup']:.3f}"
    return (
        f"| {name} | {speedup} | {shown} | {holds} | {one['verdict']} | {one['pairs']} | "
        f"{one['step_ms']:.1f} | {one['took_s']:.0f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nulls", type=int, default=10)
    parser.add_argument("--null-minutes", type=float, default=0.75)
    parser.add_argument("--planted-minutes", type=float, default=3.5, help="5%%; 1%% has half")
    parser.add_argument(
        "--work",
        choices=("arithmetic", "wait"),
        default="arithmetic",
        help="what a step mostly does; a wait is steady on a machine with other work",
    )
    asked = parser.parse_args()
    failures = []
    rows = []
    with tempfile.TemporaryDirectory(prefix="trial-null-") as directory:
        script = Path(directory) / "train.py"
        script.write_text(SCRIPT)
        root = Path(directory) / "runs"
        held = 0
        for n in range(1, asked.nulls + 1):
            one = trial(script, root, 0.0, asked.work, asked.null_minutes, f"null {n}")
            interval = one["interval"]
            held += interval is not None and interval[0] <= 1 <= interval[1]
            rows.append(row(f"null {n}", 0.0, one))
        if held < 0.9 * asked.nulls:
            failures.append(f"only {held} of {asked.nulls} null intervals hold 1.0")
        for planted, part in ((0.05, 1.0), (0.01, 0.5)):
            minutes = part * asked.planted_minutes
            one = trial(script, root, planted, asked.work, minutes, f"planted {planted:.0%}")
            rows.append(row(f"{planted:.0%} slower", planted, one))
            wanted = ("slower",) if planted == 0.05 else ("slower", "inconclusive")
            if one["verdict"] not in wanted:
                failures.append(f"planted {planted:.0%} was called {one['verdict']}")
    print("# Null and planted trials through the real command, CPU\n")
    print(
        f"`python benchmarks/trial_null.py --nulls {asked.nulls} --null-minutes "
        f"{asked.null_minutes:g} --planted-minutes {asked.planted_minutes:g} --work {asked.work}`, "
        f"{os.cpu_count()} cores. The truth of a planted share s is 1 / (1 + s), less what a step "
        "spends outside the lengthened part.\n"
    )
    print("| trial | speed-up | interval | holds the truth | verdict | pairs | step ms | s |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    print(f"\n{held} of {asked.nulls} null intervals hold 1.0.")
    for failure in failures:
        print(f"\nFailed: {failure}.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
