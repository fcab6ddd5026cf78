"""Merged results as Markdown: every run that was made has its row."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from . import stats
from .tools import ALL, PLAIN, WATCHED

BUSY_BAR = 1.02
Runs = Sequence[dict[str, Any]]


def markdown(bodies: Sequence[dict[str, Any]]) -> str:
    """The whole table of results that belong together."""
    where = bodies[0]["machine"]
    runs = [run for body in sorted(bodies, key=lambda b: b["started"]) for run in body["runs"]]
    card = where["card"] or "unknown processor"
    driver = f", driver {where['driver']}" if where["driver"] else ""
    days = sorted({body["started"][:10] for body in bodies})
    loads = [run["load"] for run in runs if run.get("load") is not None]
    cores = sorted({body["machine"]["cpus"] for body in bodies})
    clock = where.get("clock") or "not looked at"
    lines = [
        f"# What watching costs a step: {'CPU' if where['device'] == 'cpu' else card}",
        "",
        f"{' and '.join(days)}, {card}{driver}, torch {where['torch']}, Python {where['python']}, "
        f"CPUs a part: {' or '.join(map(str, cores))}, clock: {clock}, commit {where['commit']}"
        + (f", load {min(loads):.1f} to {max(loads):.1f} as items began." if loads else "."),
        "",
        "Run with:",
        "",
        "```bash",
        *[body["command"] for body in bodies],
        "```",
    ]
    for kind, section in (("inprocess", in_process), ("peers", peers), ("busy", busy)):
        chosen = [run for run in runs if run["kind"] == kind and "singles" not in run]
        if chosen:
            lines += ["", *section(chosen)]
    if any("singles" in run for run in runs):
        lines += ["", *by_steps([run for run in runs if "singles" in run])]
    return "\n".join(lines) + "\n"


def in_process(runs: Runs) -> list[str]:
    """Quads toggled in one process."""
    lines = [
        "## In one process, probe out and in",
        "",
        "Mean step with the probe over mean step without, in quads of neighbouring blocks; the",
        "null control toggles from plain to plain. The bar is for 1 + the upper end of the",
        "difference. Quads: real + null, and how many undisturbed ones these are worth.",
        "",
        "| asked | step without | ratio | null control | difference | 1 + upper | bar | verdict "
        "| quads | probe's own figure |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    sizes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in sorted(runs, key=lambda r: (r["item"], r["step_ms"])):
        asked = f"{run['step_ms']:g} ms{', `.item()`' if run['item'] else ''}"
        if run.get("settings", {}).get("cpu_time"):
            asked += " (CPU time)"
        if "quads" not in run:
            lines.append(f"| {asked} | {run.get('error', 'no result')} | | | | | | | | |")
            continue
        sizes[asked].append(run)
        lines.append(_in_process_row(asked, [run]))
    pooled = [_in_process_row(f"{a}, all {len(r)} runs", r) for a, r in sizes.items() if r[1:]]
    return lines + pooled


def _in_process_row(asked: str, runs: Runs) -> str:
    """Ratio, null control, difference and verdict over the quads of these runs."""
    real = [quad for run in runs for quad in quads_of(run, "real")]
    null = [quad for run in runs for quad in quads_of(run, "null")]
    found = stats.compare(real, null)
    limit = stats.bar(runs[0]["step_ms"])
    worth = stats.undisturbed(real), stats.undisturbed(null)
    said = stats.verdict(found["difference"], limit, min(worth))
    step_ms = statistics.fmean(a for q in (*real, *null) for a in q.a) * 1e3
    counted = f"{len(real)} + {len(null)} ({worth[0]:.0f} + {worth[1]:.0f})"
    own = own_figure(runs[0], step_ms) if len(runs) == 1 else ""
    return (
        f"| {asked} | {step_ms:.2f} ms | {_shown(found['ratio'])} | {_shown(found['null'])} "
        f"| {_shown(found['difference'], signed=True)} | {1 + found['difference'].high:.4f} "
        f"| {limit or '-'} | {said} | {counted} | {own} |"
    )


def by_steps(runs: Runs) -> list[str]:
    """Single steps; several runs of one size stand below one another."""
    lines = [
        "## In one process, step by step",
        "",
        "Hooks in and out of single steps, ABBA or BAAB at random; the excess of each kind of step",
        "over the plain ones around it, in percent of a plain step. The difference puts them",
        "together as often as the loop left alone has them, adds the helper thread (steps it woke",
        "up in, against their neighbours), and takes the null control off. All with 95% intervals.",
        "",
        "| asked | step | unrecorded | recorded | with events | of steps | helper | null "
        "| difference | 1 + upper | bar | verdict | probe's own figure |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda r: (r["item"], r["step_ms"])):
        found = run["singles"]
        asked = f"{run['step_ms']:g} ms{', `.item()`' if run['item'] else ''}"
        interval = stats.Interval(*found["difference"])
        limit = stats.bar(run["step_ms"])
        shown = [_points(found.get(kind)) for kind in ("unrecorded", "recorded", "events")]
        often = ", ".join(f"{found['natural'][k]:.1%}" for k in ("recorded", "events"))
        said = stats.verdict(interval, limit)
        lines.append(
            f"| {asked} | {found['step_ms']:.2f} ms | {' | '.join(shown)} | {often} "
            f"| {_points(found['helper'])} | {_points(found['null'])} "
            f"| {_points(found['difference'])} | {1 + interval.high:.4f} | {limit or '-'} | {said} "
            f"| {own_figure(run, found['step_ms'])} |"
        )
    return lines


def _points(values: Sequence[float] | None) -> str:
    if values is None:
        return "-"
    value, low, high = (100 * v for v in values)
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def own_figure(run: dict[str, Any], step_ms: float) -> str:
    """What the probe says it cost, as a share of the plain step."""
    probe = run.get("probe") or {}
    cost = probe.get("cost") or {}
    errors = f", {len(probe['errors'])} errors of it" if probe.get("errors") else ""
    if not cost.get("total_ns") or not cost.get("steps"):
        return f"-{errors}"
    return f"{cost['total_ns'] / cost['steps'] / (step_ms * 1e6):.2%}{errors}"


def quads_of(run: dict[str, Any], kind: str) -> list[stats.Quad]:
    """The quads of one kind."""
    rows = [row for row in run["quads"] if row["kind"] == kind]
    return [stats.Quad((r["a"][0], r["a"][1]), (r["b"][0], r["b"][1])) for r in rows]


def peers(runs: Runs) -> list[str]:
    """Whole processes: gputop-train and the other tools."""
    lines = [
        "## Whole processes: gputop-train and others",
        "",
        "The same loop as a process of its own under each tool, in random order within a round.",
        "Mean step of the steady part over that of the plain run of the same round, with Student's",
        "95% interval; then the same for median steps. The last column sets gputop-train against",
        "the tool, by means.",
        "",
        "| asked | tool | rounds | mean step | of means | of medians | wall | gputop-train is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    told = []
    for (item, step_ms), group in _by_size(runs):
        tools = by_tool(group)
        for name in tools:
            wanted = _mean_row(tools, name)
            against = "" if name in (PLAIN.name, WATCHED.name) else standing(tools, name)
            variant = ", `.item()`" if item else ""
            lines.append(f"| {step_ms:g} ms{variant} | {name} | {wanted} | {against} |")
            told += [f"{name} at {step_ms:g} ms{variant}"] if against.startswith("behind") else []
    lines += ["", f"gputop-train is behind: {', '.join(told) or 'none, at no size'}."]
    lines += ["", "How each was run:", ""]
    versions = {run["tool"]: run.get("version") for run in runs if run.get("version")}
    for tool in ALL.values():
        if any(run.get("tool") == tool.name for run in runs):
            version = f" {versions[tool.name]}" if tool.name in versions else ""
            lines.append(f"- {tool.name}{version}: {tool.how}.")
    return lines + every_run(runs)


def busy(runs: Runs) -> list[str]:
    """Training that keeps two CPUs busy, supervisor on the same two."""
    lines = [
        "## Two busy CPUs, supervisor included",
        "",
        "Training and two loader workers that together want more than the two CPUs everything is",
        f"held to; whole processes, mean steps. Goal: upper end at most {BUSY_BAR}.",
        "",
        "| asked | tool | rounds | mean step | of means | of medians | wall | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (_, step_ms), group in _by_size(runs):
        tools = by_tool(group)
        for name in tools:
            ratio = stats.paired(_pairs(tools, PLAIN.name, name, "mean_ms"))
            said = ""
            if name != PLAIN.name and ratio is not None:
                shifted = stats.Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1)
                said = stats.verdict(shifted, BUSY_BAR)
            lines.append(f"| {step_ms:g} ms | {name} | {_mean_row(tools, name)} | {said} |")
    return lines + every_run(runs)


def every_run(runs: Runs) -> list[str]:
    """One row for every process that was started, or could not be."""
    lines = [
        "",
        "<details><summary>Every run</summary>",
        "",
        "| asked | round | tool | mean step ms | median | steps | wall s |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda r: (r["item"], r["step_ms"], r["round"])):
        start = f"| {run['step_ms']:g} ms | {run['round']} | {run.get('tool', '-')} "
        if "error" in run:
            lines.append(f"{start}| {run['error']} | | | {run.get('wall_s', '')} |")
            continue
        lines.append(
            f"{start}| {run['mean_ms']:.4f} | {run['median_ms']:.4f} | {run['steps']} "
            f"| {run['wall_s']:.1f} |"
        )
    return [*lines, "", "</details>"]


def by_tool(runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """Runs of each tool, in the order of the table."""
    return {
        name: [run for run in runs if run.get("tool") == name]
        for name in ALL
        if any(run.get("tool") == name for run in runs)
    }


def standing(tools: dict[str, list[dict[str, Any]]], name: str) -> str:
    """``ahead``, ``behind`` or ``not distinguishable``, with the ratio and its interval."""
    ratio = stats.paired(_pairs(tools, name, WATCHED.name, "mean_ms"))
    if ratio is None:
        return "not compared: fewer than two rounds"
    word = "ahead" if ratio.high < 1 else "behind" if ratio.low > 1 else "not distinguishable"
    return f"{word}: {_shown(ratio)} of it"


def _mean_row(tools: dict[str, list[dict[str, Any]]], name: str) -> str:
    good = [run for run in tools[name] if "error" not in run]
    failed = len(tools[name]) - len(good)
    count = f"{len(good)}" + (f", {failed} failed" if failed else "")
    if not good:
        return f"{count} | {tools[name][0]['error']} | | | "
    shown = []
    for key in ("mean_ms", "median_ms"):
        ratio = stats.paired(_pairs(tools, PLAIN.name, name, key))
        shown.append("" if name == PLAIN.name else _shown(ratio) if ratio else "-")
    mean_ms = statistics.fmean(run["mean_ms"] for run in good)
    wall_s = statistics.fmean(run["wall_s"] for run in good)
    return f"{count} | {mean_ms:.3f} ms | {shown[0]} | {shown[1]} | {wall_s:.1f} s"


def _pairs(
    tools: dict[str, list[dict[str, Any]]], first: str, second: str, key: str
) -> list[tuple[float, float]]:
    """Values of the rounds that both have, a round being one of one result file."""
    found: dict[Any, dict[str, float]] = defaultdict(dict)
    for name in (first, second):
        for run in tools.get(name, []):
            if key in run:
                found[run["series"], run["round"]][name] = run[key]
    return [(v[first], v[second]) for v in found.values() if first in v and second in v]


def _by_size(runs: Runs) -> Iterable[tuple[tuple[bool, float], Runs]]:
    groups: dict[tuple[bool, float], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["item"], run["step_ms"]].append(run)
    return sorted(groups.items())


def _shown(interval: stats.Interval, signed: bool = False) -> str:
    if signed:
        return f"{interval.value:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"
    return f"{interval.value:.4f} [{interval.low:.4f}, {interval.high:.4f}]"
