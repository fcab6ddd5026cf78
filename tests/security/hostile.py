"""Runs in which every text, and many a number, is what somebody chose to do harm with."""

from __future__ import annotations

import io
import json
import unicodedata
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputop_train.model import GpuProcess, GpuSample, MemorySample
from gputop_train.store.writer import RunWriter
from tests.store_support import GPU, SECOND, loader, site
from tests.unit.report_runs import RUN, START, UUID, Recorded, ended, feeding_loader, steps_of

#: Clears the screen, sets title and clipboard, begins strings that swallow what follows, C1 forms
#: of the same, backspaces, turns the reading direction; and markup of Rich, Markdown and HTML.
EVIL = (
    "x\x1b[2J\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x1b\\\x1bP+q\x1b\\\x9b31m\x9d52;c;ZQ==\x9c\x90q\x9c"
    "\b\b\x7f\r\n\u202egnp\u2066\u200f\u2028"
    "[red]r[/red][/nope][link=file:///etc/passwd]l[/link]<img src=x onerror=y>`|*"
)
#: What a terminal, a Markdown reader or a browser must never be given of it.
CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def disturbing(shown: str) -> set[str]:
    """Characters among these that move, hide, reorder or command, a line's end apart."""
    return {c for c in shown if unicodedata.category(c) in CATEGORIES and c != "\n"}


def tainted(value: Any) -> Any:
    """The same JSON with every text in it hostile, keys of objects apart."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, Mapping):
        return {key: tainted(item) for key, item in value.items()}
    return [tainted(item) for item in value] if isinstance(value, list) else value


#: Words the report is read by: with another one it is no report, which is a case of its own.
_CHOSEN = {"status", "severity", "confidence", "util_shape", "basis", "stopped_by"}


def tainted_report(value: Any, key: str = "") -> Any:
    """A report that is well formed and hostile in every text that may be any text."""
    if isinstance(value, str):
        return value if key in _CHOSEN else value + EVIL
    if isinstance(value, Mapping):
        return {name: tainted_report(item, name) for name, item in value.items()}
    return [tainted_report(item, key) for item in value] if isinstance(value, list) else value


def run_json(run_dir: Path) -> dict[str, Any]:
    """What was launched, in hostile words; the run is found by its id, which is its directory."""
    told = {**RUN, "name": "n", "cwd": "/w", "script": "train.py", "mode": "script"}
    evil = tainted({**told, "overrides": {f"num_workers@{EVIL}": EVIL, "num_workers": 4}})
    evil["what_if"] = evil["changes_results"] = [EVIL]
    return {**evil, "id": run_dir.name}


def make_run(run_dir: Path, *, report: bool = True) -> Path:
    """A finished run whose files are hostile throughout."""
    run_dir.mkdir(mode=0o700, parents=True)
    where = {"file": f"/w/{EVIL}.py", "func": EVIL, "call": f"f({EVIL}"}
    recorded = Recorded(run_dir).train(
        steps_of(200, {"data_wait": 170, "h2d": 6, "forward": 40, "backward": 40}), on_gpu=True
    )
    writer = recorded.writer
    last = START + 50 * SECOND
    _places(writer, where, last)
    _machine(writer, last)
    run = run_json(run_dir)
    writer.set_meta("run", run)
    writer.commit()
    (run_dir / "run.json").write_text(json.dumps(run))
    (run_dir / "exit.json").write_text(json.dumps(ended(1, reason=EVIL)))
    (run_dir / "output.log").write_text(f"{EVIL}\n" * 50)
    made = recorded.report(ended(1, reason=EVIL), run=run)
    writer.add_finding(last, tainted_report(_diagnosis(made)))
    writer.add_note(last, "part-failed", {"text": EVIL})
    writer.close()
    if report:
        text = json.dumps(tainted_report(made))
        (run_dir / "report.json").write_text(text)
    for path in run_dir.iterdir():
        path.chmod(0o600)
    return run_dir


def _places(writer: RunWriter, where: dict[str, str], last: int) -> None:
    from dataclasses import replace

    kinds = ("sync", "h2d", "save", "sample", "nograd", "logging", "gc", "compile")
    sites = [
        replace(site(n + 1, 400, 9 * SECOND), kind=kind, label=EVIL, bytes=1 << 30, **where)
        for n, kind in enumerate(kinds)
    ]
    writer.put_sites(sites, t_ns=last)
    evil = replace(feeding_loader(), file=where["file"], call=where["call"], dataset=EVIL)
    writer.put_loaders(
        [evil, replace(loader(), id=2, call=EVIL, dataset=EVIL, override={EVIL: EVIL})], t_ns=last
    )


def _machine(writer: RunWriter, last: int) -> None:
    writer.set_meta("devices", [{"uuid": UUID, "index": 0, "name": EVIL, "memory_total": 1 << 37}])
    writer.set_meta("missing", {"gpm": EVIL, EVIL: EVIL})
    writer.add_gpu(
        [
            GpuSample(last - s * SECOND, uuid, 1 << 30, 1 << 37, None, 1, foreign=(stranger,))
            for s in range(1, 9)
            for uuid in (UUID, GPU)
            for stranger in (GpuProcess(4711, EVIL, 1 << 34),)
        ]
    )
    writer.add_memory(MemorySample(0, START + s * SECOND, s, "rss-anon", 1 << 30) for s in range(9))
    state = {
        "host": EVIL,
        "torch": EVIL,
        "python": EVIL,
        "param_device": "cuda:0",
        "cuda": {"built": True, "initialized": True, "uuid": EVIL, "name": EVIL},
        "hooks": {"data": True, "backward": True, "optimizer": True, "sync": EVIL, EVIL: EVIL},
        "errors": [EVIL],
        "flags": {"threads": 1, "tf32": EVIL, EVIL: EVIL},
        "optimizers": [{"cls": EVIL, "fused": False, "dtypes": [EVIL]}],
        "dynamo": {"recompiles": 3, "reasons": [[EVIL, EVIL, 1, EVIL, 3]], "unique_graphs": 2},
        "ddp": [{"backend": EVIL, "device": EVIL, "world_size": 2, "samples": 3}],
        "overrides": [
            {"key": EVIL, "named": EVIL, "loader": EVIL, "status": "refused", "why": EVIL}
        ],
        "oom": {"count": 1, "stack": [{"file": EVIL, "line": 1, "call": EVIL}], "lines": [EVIL]},
        "held": {"parameters": 5, "device": EVIL},
    }
    writer.put_probe_state(0, state, t_ns=last)


def _diagnosis(report: Mapping[str, Any]) -> dict[str, Any]:
    named = ("status", "healthy", "verdict", "also", "abstained", "note")
    return {name: report[name] for name in named}


def recording(run_dir: Path, target: Path) -> Path:
    """A run packed by somebody's own hand: nothing is masked or looked at."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("recording.json", json.dumps({"recording": 1, "version": EVIL}))
        for name in ("run.json", "exit.json", "report.json", "output.log", "run.sqlite"):
            if (run_dir / name).exists():
                archive.writestr(name, (run_dir / name).read_bytes())
    target.write_bytes(packed.getvalue())
    return target
