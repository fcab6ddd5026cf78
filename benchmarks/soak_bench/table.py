"""What a soak found, as Markdown: first and last values, slope with interval, bound, verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from soak_bench.trend import Trend, trend

DAYS, DAY_S = 30, 86_400
#: Bounds of "flat" an hour of real time can show. What a month brings is the other table's.
MEMORY_MB_PER_H, COUNT_PER_H = 1.0, 0.5
MEMORY_MB_PER_DAY, COUNT_PER_DAY, STORE_MB_PER_DAY = 0.5, 0.1, 1.0
#: One run may take this much of disk by default housekeeping (5 GB for all runs) and still be kept.
STORE_MB_PER_H = 5_000 / (24 * DAYS)
_MIB = 1.048576
#: Where a file cannot grow further: retention and limits of docs/store.md and design.md. Of rings
#: there are two where one process follows another: one is read to its end as the next begins.
CAPS_MB = {
    "log of the store (-wal)": (256 * _MIB, "commits wait above 256 MiB"),
    "rings": (2 * 2 * _MIB, "2 MiB a process, two as one follows another"),
    "output.log": (272 * _MIB, "256 MiB of the newest text, and a sixteenth"),
    "supervisor.log": (1 * _MIB, "1 MiB"),
}
MEMORY = {"rss_mb": "RSS", "pss_mb": "PSS", "private_mb": "private"}
COUNTS = {"fds": "descriptors", "threads": "threads"}
OURS = ("supervisor", "screen", "shim")
THEIRS = "trainer, not watched"


def live(found: dict[str, Any], settle_minutes: float | None) -> str:
    """The table of a real soak."""
    samples: Sequence[dict[str, Any]] = found["samples"]
    settle_s = found["minutes"] * 20 if settle_minutes is None else settle_minutes * 60
    steady = [sample for sample in samples if sample["t_s"] >= settle_s]
    lines = [
        f"# A soak of {found['minutes']:g} minutes on {found['device']}",
        "",
        f"{found['at']}, Python {found['python']}: `{found['command']}`. {len(samples)} samples; "
        f"slopes are over the {len(steady)} after the first {settle_s / 60:g} minutes.",
        "",
        f"The training made {found['steps']} steps and was judged {found['status']} "
        f"({found['verdict']}); the command ended with {found['exit']}, the training without us "
        f"with {found['bare_exit']}. The supervisor "
        f"{'is STILL THERE' if found['left_running'] else 'is gone'}, and "
        f"{'complained:' if found['supervisor_log'] else 'complained of nothing.'}",
    ]
    if found["supervisor_log"]:
        lines += ["", "```text", found["supervisor_log"].rstrip(), "```"]
    lines += [
        "",
        "| process | what | begin of steady | end | slope an hour (95%) | bound | |",
        "|---|---|---|---|---|---|---|",
        *_processes(steady),
        "",
        "| file | end | slope an hour (95%) | in 30 days | bound | |",
        "|---|---|---|---|---|---|",
        *_files(steady),
        "",
        _reads(samples),
    ]
    return "\n".join(lines) + "\n"


def _processes(steady: Sequence[dict[str, Any]]) -> Iterator[str]:
    for name in (*OURS, "trainer", THEIRS):
        for key, word in {**MEMORY, **COUNTS}.items():
            found = _series(steady, name, key)
            if found is None:
                continue
            bound = MEMORY_MB_PER_H if key in MEMORY else COUNT_PER_H
            unit = " MB" if key in MEMORY else ""
            if name not in OURS and key != "rss_mb":
                continue  # what is shared with forked workers comes and goes with them
            # PSS moves with what others share of the same pages.
            judged = found.verdict(bound) if name in OURS and key != "pss_mb" else ""
            yield (
                f"| {name} | {word} | {found.first:.1f}{unit} | {found.last:.1f}{unit} "
                f"| {_slope(found, unit)} | {f'{bound:g}{unit}' if judged else ''} | {judged} |"
            )
    found = _difference(steady, "rss_mb")
    if found is not None:
        yield (
            f"| trainer, watched less not | RSS | {found.first:.1f} MB | {found.last:.1f} MB "
            f"| {_slope(found, ' MB')} | {MEMORY_MB_PER_H:g} MB "
            f"| {found.verdict(MEMORY_MB_PER_H)} |"
        )


def _series(steady: Sequence[dict[str, Any]], name: str, key: str) -> Trend | None:
    seen = [
        (s["t_s"] / 3600, s["held"][name][key]) for s in steady if key in s["held"].get(name, ())
    ]
    return trend(*zip(*seen, strict=True)) if seen else None


def _difference(steady: Sequence[dict[str, Any]], key: str) -> Trend | None:
    seen = [
        (s["t_s"] / 3600, s["held"]["trainer"][key] - s["held"][THEIRS][key])
        for s in steady
        if key in s["held"].get("trainer", ()) and key in s["held"].get(THEIRS, ())
    ]
    return trend(*zip(*seen, strict=True)) if seen else None


def _slope(found: Trend, unit: str) -> str:
    if found.slope is None:
        return "-"
    return f"{found.slope:+.3f}{unit} ({found.low:+.3f} to {found.high:+.3f})"


def _files(steady: Sequence[dict[str, Any]]) -> Iterator[str]:
    for name in steady[-1]["files"] if steady else ():
        seen = [(s["t_s"] / 3600, s["files"][name]) for s in steady]
        found = trend(*zip(*seen, strict=True))
        projected, judged, bound = "", "", ""
        if name in CAPS_MB:
            cap, why = CAPS_MB[name]
            bound, judged = f"{cap:.0f} MB: {why}", "within" if found.highest <= cap else "**over**"
            if found.slope is not None:
                projected = f"{min(cap, found.last + found.slope * 24 * DAYS):.0f} MB"
        elif found.slope is not None and name == "store":
            bound = f"{STORE_MB_PER_H:.1f} MB an hour: 5 GB in 30 days"
            projected = f"{found.last + found.slope * 24 * DAYS:.0f} MB"
            judged = "within" if (found.high or 0) <= STORE_MB_PER_H else "**over**"
        yield (
            f"| {name} | {found.last:.2f} MB | {_slope(found, ' MB')} | {projected} "
            f"| {bound} | {judged} |"
        )


def _reads(samples: Sequence[dict[str, Any]]) -> str:
    times = [s["read_ms"] for s in samples if "read_ms" in s]
    failed = [s["read_failed"] for s in samples if "read_failed" in s]
    if not times:
        return f"The newest minute was never read: {failed[:1]}."
    third = max(1, len(times) // 3)
    return (
        f"Opening the run and reading its newest minute, as a screen begins, took "
        f"{median(times[:third]):.1f} ms of processor time in the first third of the run and "
        f"{median(times[-third:]):.1f} ms in the last (medians of {third}); "
        f"{len(failed)} reads failed."
    )


def compressed(found: dict[str, Any]) -> str:
    """The table of days in compressed time."""
    samples, views = found["samples"], found["views"]
    half = samples[-1]["t_s"] / 2
    steady = [sample for sample in samples if sample["t_s"] >= half]
    lines = [
        f"# {samples[-1]['t_s'] / DAY_S:g} days in compressed time",
        "",
        f"{found['at']}, Python {found['python']}: `{found['command']}`. "
        f"{samples[-1]['steps']:,} steps went through the ring; the supervisor's process used "
        f"{samples[-1]['cpu_s']:.0f} s of processor time, the making of the data included.",
        "",
        "| supervisor's process | at half of it | end | slope a day (95%) | bound | |",
        "|---|---|---|---|---|---|",
        *_by_day(steady, MEMORY_MB_PER_DAY),
        "",
        "| a screen's process | at half of it | end | slope a day (95%) | bound | |",
        "|---|---|---|---|---|---|",
        *_by_day([view for view in views if view["t_s"] >= half], MEMORY_MB_PER_DAY),
        *_view_times(views, half),
        "",
        "| file | day 1 | day 2 | day 7 | end | slope a day over the last half (95%) | bound | |",
        "|---|---|---|---|---|---|---|---|",
        *_files_by_day(samples, steady),
        "",
        f"The end of the run (the last of the ring, the verdict on all of it, the report) took "
        f"{found['end_cpu_s']:.1f} s of processor time and at most {found['end_peak_mb']:.0f} MB "
        f"({found['end_before_mb']:.0f} MB before): {found['steps']:,} steps, "
        f"{found['status']} ({found['verdict']})"
        + (f"; {found['problem']}" if found["problem"] else "")
        + f". Notes: {found['notes'] or 'none'}.",
        "",
        "| table | rows | MB |",
        "|---|---|---|",
        *(f"| {name} | {n:,} | {mb:.2f} |" for name, (n, mb) in found["rows"].items() if n),
    ]
    return "\n".join(lines) + "\n"


def _by_day(steady: Sequence[dict[str, Any]], bound: float) -> Iterator[str]:
    for key, word in {**MEMORY, **COUNTS}.items():
        seen = [(s["t_s"] / DAY_S, s["held"][key]) for s in steady if key in (s["held"] or ())]
        if not seen:
            continue
        found = trend(*zip(*seen, strict=True))
        unit = " MB" if key in MEMORY else ""
        most = bound if key in MEMORY else COUNT_PER_DAY
        judged = found.verdict(most) if key != "pss_mb" else ""
        yield (
            f"| {word} | {found.first:.1f}{unit} | {found.last:.1f}{unit} | {_slope(found, unit)} "
            f"| {f'{most:g}{unit}' if judged else ''} | {judged} |"
        )


def _view_times(views: Sequence[dict[str, Any]], half: float) -> Iterator[str]:
    for key, word in (("ms", "the newest minute, any page"), ("long_ms", "the longest window")):
        first = [v[key] for v in views if key in v and v["t_s"] < half]
        last = [v[key] for v in views if key in v and v["t_s"] >= half]
        if first and last:
            yield (
                f"| reading {word} | {median(first):.1f} ms | {median(last):.1f} ms "
                f"| medians of {len(first)} and {len(last)} | | |"
            )
    failed = [v["failed"] for v in views if "failed" in v]
    if failed:
        yield f"| reads that failed | | {len(failed)} | {failed[0][:80]} | 0 | **over** |"


def _files_by_day(
    samples: Sequence[dict[str, Any]], steady: Sequence[dict[str, Any]]
) -> Iterator[str]:
    for name in samples[-1]["files"]:
        at = [
            next((s["files"][name] for s in samples if s["t_s"] >= day * DAY_S), None)
            for day in (1, 2, 7)
        ]
        told = " | ".join("-" if value is None else f"{value:.1f} MB" for value in at)
        found = trend(*zip(*((s["t_s"] / DAY_S, s["files"][name]) for s in steady), strict=True))
        if name in CAPS_MB:
            cap, why = CAPS_MB[name]
            bound, judged = f"{cap:.0f} MB: {why}", "within" if found.highest <= cap else "**over**"
        else:
            bound, judged = f"{STORE_MB_PER_DAY:g} MB a day", found.verdict(STORE_MB_PER_DAY)
        yield (
            f"| {name} | {told} | {found.last:.1f} MB | {_slope(found, ' MB')} | {bound} "
            f"| {judged} |"
        )
