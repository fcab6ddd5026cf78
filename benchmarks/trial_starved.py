"""`gputop-train trial demos/starved.py` beside every setting made by hand.

    python benchmarks/trial_starved.py [--rounds 3] [--max-workers N] [--out FILE]

By hand: the demo with ``--workers 0..N`` (its own argument, no override), watched by nothing, its
own rate; runs of the numbers take turns, the median of each is taken. The trial: as a person types
it. Shown: that the trial achieves 0.9x of the best by hand at least, within the gain its report
expected, and that replayed batches confirm the loader's guilt. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent.parent
SCRIPT = HERE / "demos" / "starved.py"
_RATE = re.compile(r"step (\d+)/\d+ .* (\d+) samples/s")


def by_hand(workers: int, steps: int) -> float:
    """Samples a second of a plain run, over its second half: the first fills queues."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--workers", str(workers), "--steps", str(steps)],
        capture_output=True,
        text=True,
        check=True,
    )
    seen = [(int(step), float(rate)) for step, rate in _RATE.findall(done.stdout)]
    # The demo prints the mean since its start: from two of them that of the time between.
    (s0, r0), (s1, r1) = seen[len(seen) // 2 - 1], seen[-1]
    return (s1 - s0) / (s1 / r1 - s0 / r0)


def by_trial(minutes: float) -> dict[str, Any]:
    """What the trial says, and the report of its first leg."""
    with tempfile.TemporaryDirectory(prefix="gputop-trial-") as root:
        command = [sys.executable, "-m", "gputop_train", "trial", "--run-root", root]
        command += ["--python", sys.executable, "--json", "-", "--max-minutes", str(minutes)]
        done = subprocess.run(
            [*command, str(SCRIPT)], stdout=subprocess.PIPE, text=True, check=True, cwd=HERE
        )
        found: dict[str, Any] = json.loads(done.stdout)
        first = Path(root) / "trials" / found["id"] / "runs" / found["legs"][0]["run"]
        found["report"] = json.loads((first / "report.json").read_bytes())
        return found


def shown(rates: dict[int, float], found: dict[str, Any]) -> str:
    """The comparison as Markdown."""
    best = max(rates, key=lambda n: rates[n])
    hand = rates[best] / rates[0]
    lines = [
        "# A trial of demos/starved.py beside settings made by hand",
        "",
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python "
        f"{platform.python_version()}. Rerun: `python benchmarks/trial_starved.py`",
        "",
        "| by hand | samples/s | against 0 workers |",
        "|---|---|---|",
        *(f"| {n} workers | {rate:.0f} | {rate / rates[0]:.2f}x |" for n, rate in rates.items()),
        "",
        "| trial | achieved | interval | predicted | verdict |",
        "|---|---|---|---|---|",
    ]
    for one in found["candidates"]:
        span = one["predicted_interval"] or [one["predicted"]]
        told = " to ".join(f"{value:.2f}" for value in span if value is not None)
        interval = " to ".join(f"{end:.2f}" for end in one["interval"] or ())
        speed = f"{one['speedup']:.2f}x" if one["speedup"] is not None else one["status"]
        lines.append(f"| {one['name']} | {speed} | {interval} | {told} | {one['verdict']} |")
    lines += ["", *(one["sentence"] for one in found["candidates"]), *found["sentences"], ""]
    settings = [c for c in found["candidates"] if c["settings"] and c["speedup"] is not None]
    if not settings:
        return "\n".join([*lines, "No setting was measured: **not shown**."])
    top = max(settings, key=lambda c: c["speedup"])
    expected = ((found["report"].get("verdict") or {}).get("gain") or {}).get("expected")
    within = bool(expected) and expected[0] <= top["speedup"] <= expected[1]
    replay = next((c for c in found["candidates"] if c["what_if"]), None)
    confirmed = replay is not None and "guilt is confirmed" in replay["sentence"]
    checks = [
        (top["speedup"] >= 0.9 * hand, f"achieved {top['speedup']:.2f}x of {hand:.2f}x by hand "
         f"({best} workers): {top['speedup'] / hand:.2f}, wanted 0.9"),
        (within, f"achieved {top['speedup']:.2f}x, `gain.expected` {expected}"),
        (confirmed, "the loader's guilt is confirmed by `replay_batch`"),
    ]  # fmt: skip
    return "\n".join([*lines, *(f"- {'yes' if ok else '**no**'}: {text}" for ok, text in checks)])


def main() -> None:
    """Run both and print."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs by hand of each number")
    parser.add_argument("--max-workers", type=int, default=min(8, cores))
    parser.add_argument("--steps", type=int, default=160, help="of a run by hand")
    parser.add_argument("--max-minutes", type=float, default=10.0, help="of the trial")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rates: dict[int, list[float]] = {n: [] for n in range(args.max_workers + 1)}
    for _ in range(args.rounds):
        for workers, found in rates.items():
            found.append(by_hand(workers, args.steps))
            print(f"by hand: {workers} workers {found[-1]:.0f} samples/s", file=sys.stderr)
    text = shown({n: median(found) for n, found in rates.items()}, by_trial(args.max_minutes))
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
