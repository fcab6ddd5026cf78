"""Run every demo under the product and table its verdicts; on a GPU machine also record the runs.

    python benchmarks/run_demos.py OUT_DIR [--only NAME ...] [--trial]

Writes ``OUT_DIR/demos.json`` (reports and machine), ``OUT_DIR/<demo>.zip`` (recordings) and prints
a table. ``--trial`` reruns `starved` with the advised setting and compares with the predicted gain.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gputop_train.store.recording import export_recording

HERE = Path(__file__).resolve().parent.parent
DEMOS = ("starved", "syncing", "checkpointing", "erratic", "launch_bound", "leaking", "healthy")


def run_demo(name: str, out: Path, *options: str) -> dict[str, Any]:
    """One watched run: its report, exit code and wall seconds."""
    root = out / "runs"
    report = out / f"{name}.report.json"
    command = [sys.executable, "-m", "gputop_train", "--no-tui", "--run-root", str(root)]
    command += ["--python", sys.executable, "--json", str(report), *options]
    started = time.monotonic()
    done = subprocess.run(
        [*command, str(HERE / "demos" / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    wall_s = time.monotonic() - started
    body = json.loads(report.read_text()) if report.exists() else {}
    return {"report": body, "rc": done.returncode, "wall_s": wall_s, "stderr": done.stderr[-2500:]}


def row(name: str, result: dict[str, Any]) -> str:
    """One line of the table."""
    report = result["report"]
    verdict = report.get("verdict") or {}
    also = [finding["id"] for finding in report.get("also", [])]
    where = [f"{Path(w['file']).name}:{w['line']}" for w in verdict.get("where") or []]
    shares = {k: round(v, 2) for k, v in report.get("time", {}).get("shares", {}).items() if v}
    gpu = report.get("gpu", {})
    return (
        f"{name:14} rc={result['rc']} {result['wall_s']:.0f}s {report.get('status')} "
        f"{verdict.get('id')}/{verdict.get('refined')} {verdict.get('confidence')} where={where} "
        f"also={also} gain={verdict.get('gain')} n={report.get('steps', {}).get('count')} "
        f"median={report.get('steps', {}).get('median_ms')} util={gpu.get('util_mean')} "
        f"{gpu.get('util_shape')} shares={shares} "
        f"exposed={gpu.get('exposed')} over={report.get('overhead')} "
        f"abstained={report.get('abstained')}"
    )


def record(out: Path, name: str) -> None:
    """Export the newest run of the run root."""
    runs = sorted((out / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    target = out / f"{name}.zip"
    target.unlink(missing_ok=True)
    export_recording(runs[-1], target)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "gpu": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": len(__import__("os").sched_getaffinity(0)),
    }


def main() -> None:
    """Run, table, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=DEMOS)
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--plain", action="store_true", help="also time each demo unwatched")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine(), "demos": {}}
    for name in args.only:
        result = run_demo(name, args.out)
        results["demos"][name] = result
        print(row(name, result), flush=True)
        if not result["report"]:
            print(result["stderr"], flush=True)
        try:
            record(args.out, name)
        except Exception as error:  # a demo that cannot be recorded must not end the table
            print(f"{name}: not recorded: {error!r}", flush=True)
        (args.out / "demos.json").write_text(json.dumps(results, indent=1))
    if args.trial and "starved" in results["demos"]:
        results["trial"] = trial(results["demos"]["starved"]["report"], args.out)
        print("trial", results["trial"], flush=True)
    (args.out / "demos.json").write_text(json.dumps(results, indent=1))


def trial(report: dict[str, Any], out: Path) -> dict[str, Any]:
    """The advised setting against the run as it is, interleaved A B A B, by median step."""
    verdict = report["verdict"]
    setting = next(a["setting"] for a in verdict["advice"] if a["setting"])
    options = [part for k, v in setting.items() for part in ("--set", f"{k}={v}")]
    medians: dict[str, list[float]] = {"as is": [], "advised": []}
    for _ in range(2):
        for label, extra in (("as is", []), ("advised", options)):
            result = run_demo("starved", out, *extra)
            medians[label].append(step_ms(result["report"]))
    best = {label: sorted(values)[len(values) // 2] for label, values in medians.items()}
    achieved = best["as is"] / best["advised"]
    return {"setting": setting, "step_ms": medians, "achieved": achieved, "gain": verdict["gain"]}


def step_ms(report: dict[str, Any]) -> float:
    """Mean wall time of a step over the training loop: what a person waits for."""
    return float(report["time"]["training_s"]) * 1e3 / float(report["steps"]["count"])


if __name__ == "__main__":
    main()
