"""Attach from outside to scripts with a planted fault that already run, and compare what is named.

    python benchmarks/attach_cases.py DIR [--only 03 25] [--seconds 20] [--out TABLE.md]

DIR is laid out as for ``benchmarks/diagnosis.py``. Each script that shows its fault on this machine
is started plain, left alone until it trains, and attached to by its PID. Right is the expected id,
one that is allowed, or the class it is a closer cause of (``input-bound`` of ``slow-collate``); a
script without a fault is right where nothing is warned of. What stacks cannot show is told apart:
there silence is right and a wrong name is not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from diagnosis_bench import cases

from gputop_train.diagnose.rules import all_rules

#: Ids that a look from outside can name, itself or as the class it belongs to.
SEEN = {
    "input-bound",
    "checkpoint-stall",
    "eval-stall",
    "logging-stall",
    "host-compute",
    "host-sync-stall",
    "anomaly-mode",
}
STARTS_S = 90.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    on_gpu = Path("/dev/nvidiactl").exists()
    parents = {rule.id: rule.parent for rule in all_rules() if rule.parent}
    rows, right = [], 0
    for case in cases.load(args.directory, on_gpu=on_gpu, only=args.only):
        report = look(case, args.seconds)
        verdict = (report or {}).get("verdict") or {}
        good, why = judge(case, verdict, parents)
        right += good
        named = verdict.get("refined") or verdict.get("id") or (report or {}).get("status")
        place = (verdict.get("where") or [{}])[0]
        at = f"{Path(place['file']).name}:{place['line']}" if place else "-"
        samples = ((report or {}).get("attached") or {}).get("samples")
        rows.append(f"| {case.name} | {case.expected} | {named} | {at} | {samples} | {why} |")
        print(rows[-1], flush=True)
    head = [
        "# What attaching from outside names",
        "",
        f"{date.today()}, {os.cpu_count()} shared cores (load {os.getloadavg()[1]:.1f}), "
        f"{'GPU' if on_gpu else 'CPU only'}: {right} of {len(rows)} right after "
        f"{args.seconds:.0f} s each.",
        "Rerun: `python benchmarks/attach_cases.py DIR`.",
        "",
        "| case | expected | named | line | samples | |",
        "|---|---|---|---|---|---|",
    ]
    text = "\n".join([*head, *rows]) + "\n"
    print(text)
    if args.out:
        args.out.write_text(text)
    return 0


def look(case: cases.Case, seconds: float) -> dict[str, object] | None:
    """The report of a script that already trains; ``None`` when it ended before."""
    with tempfile.TemporaryDirectory(prefix="attach-cases-") as place:
        log = Path(place, "log")
        with log.open("wb") as out:
            steps = ("--steps", "20000")
            script = subprocess.Popen(
                [sys.executable, "-u", case.script, *case.args, *steps],
                stdout=out,
                stderr=out,
                cwd=place,
            )
        try:
            deadline = time.monotonic() + STARTS_S
            while script.poll() is None and time.monotonic() < deadline and not log.stat().st_size:
                time.sleep(0.2)
            time.sleep(8)
            target = Path(place, "report.json")
            command = [sys.executable, "-m", "gputop_train.cli", "attach", str(script.pid)]
            options = ["--duration", str(seconds), "--json", str(target)]
            subprocess.run([*command, *options], capture_output=True, check=False)
            return json.loads(target.read_text()) if target.exists() else None
        finally:
            script.kill()
            script.wait()


def judge(
    case: cases.Case, verdict: dict[str, object], parents: dict[str, str]
) -> tuple[bool, str]:
    named = {verdict.get("id"), verdict.get("refined")} - {None}
    warned = bool(named) and verdict.get("severity") != "info"
    if case.healthy:
        return not warned, "right" if not warned else "wrong: nothing is planted"
    wanted = {case.expected, *case.allowed}
    classes = wanted | {parents[w] for w in wanted if w in parents}
    if named & case.must_not and not named & wanted:
        return False, "wrong cause"
    if named & classes:
        return True, "right" if named & wanted else "its class"
    if not classes & SEEN and not warned:
        return True, "not to be seen from outside, and nothing else named"
    return False, "missed" if not warned else "wrong"


if __name__ == "__main__":
    sys.exit(main())
