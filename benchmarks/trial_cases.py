"""Trials of given scripts with given candidates: predicted and achieved, as a Markdown table.

    python benchmarks/trial_cases.py LIST.toml [--only NAME ...] [--out FILE] [--json DIR]

LIST.toml names what is tried, paths relative to it::

    [[trial]]
    name = "workers"
    command = ["train.py", "--epochs", "1"]     # as after `gputop-train trial ...`
    cwd = "."
    search = "workers"                          # or:
    set = ["pin_memory=true", "pin_memory=true,non_blocking=true"]
    what_if = ["replay_batch"]
    options = ["--max-minutes", "4"]

Nothing here knows a script: what is tried is the list's.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


def run_trial(asked: dict[str, Any], base: Path) -> dict[str, Any]:
    """One trial of the list; what its JSON says, or why there is none."""
    command = [sys.executable, "-m", "gputop_train", "trial", "--python", sys.executable]
    for setting in asked.get("set", ()):
        command += ["--set", setting]
    for what_if in asked.get("what_if", ()):
        command += ["--what-if", what_if]
    if "search" in asked:
        command += ["--search", asked["search"]]
    with tempfile.TemporaryDirectory(prefix="gputop-trial-") as root:
        command += ["--run-root", root, "--json", "-", *asked.get("options", ())]
        done = subprocess.run(
            [*command, *asked["command"]],
            cwd=base / asked.get("cwd", "."),
            capture_output=True,
            text=True,
            check=False,
        )
    sys.stderr.write(done.stderr)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        found = {"candidates": [], "sentences": [], "problem": done.stderr.strip()[-300:]}
    return found | {"exit_code": done.returncode}


def section(name: str, found: dict[str, Any]) -> list[str]:
    """One trial as Markdown."""
    baseline = found.get("baseline") or {}
    lines = [f"## {name}", ""]
    if found.get("problem"):
        return [*lines, f"Failed: {found['problem']}", ""]
    lines += [
        f"Baseline: {cell(baseline.get('step_mean_ms'))} ms a step, "
        f"{cell(baseline.get('samples_per_s'))} samples/s, GPU busy "
        f"{cell(baseline.get('gpu_busy'), '.0%')}, {baseline.get('legs_run')} legs.",
        "",
        "| change | step ms | achieved | interval | predicted | inside | verdict | GPU | peak |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one, row in zip(found["candidates"], found["table"][1:], strict=True):
        interval = " to ".join(cell(end) for end in one["interval"] or ()) or "-"
        span = one["predicted_interval"]
        told = " to ".join(cell(end) for end in span) if span else cell(one["predicted"])
        if one["predicted"] is not None and not span:
            told = f"to {told}{' or more' if one.get('predicted_at_least') else ''}"
        inside = "-"
        if span and one["speedup"] is not None:
            inside = "yes" if span[0] <= one["speedup"] <= span[1] else "no"
        marked = f"{one['name']} ({', '.join(row['marks'])})" if row["marks"] else one["name"]
        lines.append(
            f"| {marked} | {cell(row['step_ms'])} | {cell(one['speedup'])} | {interval} | {told} "
            f"| {inside} | {one['verdict'] or one['status']} | {cell(row['gpu_busy'], '.0%')} "
            f"| {cell((row['peak_memory'] or 0) / 1e9 or None)} GB |"
        )
    said = [one["sentence"] for one in found["candidates"]] + found["sentences"]
    return [*lines, "", *(f"- {sentence}" for sentence in said if sentence), ""]


def cell(value: float | None, form: str = ".3g") -> str:
    """A number, or a dash where it was not measured."""
    return "-" if value is None else format(value, form)


def main() -> None:
    """Run the list and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("list", type=Path)
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path, metavar="DIR", help="keep the trials' JSON there")
    args = parser.parse_args()
    wanted = tomllib.loads(args.list.read_text("utf-8"))["trial"]
    lines = [f"# Trials\n\n{platform.node()}, Python {platform.python_version()}.\n"]
    for asked in wanted:
        if args.only and asked["name"] not in args.only:
            continue
        found = run_trial(asked, args.list.resolve().parent)
        lines += section(asked["name"], found)
        print("\n".join(section(asked["name"], found)), flush=True)
        if args.json is not None:
            args.json.mkdir(parents=True, exist_ok=True)
            (args.json / f"{asked['name']}.json").write_text(json.dumps(found, indent=1))
        if args.out is not None:  # after each: a machine may be taken away in between
            args.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
