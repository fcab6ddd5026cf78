"""The probe under one version of torch: self-test, a planted loop, compile, on the CPU.

    PYTHON benchmarks/torch_versions.py measure        with that version's own interpreter; JSON
    python benchmarks/torch_versions.py table RESULT.json ...   the table, for benchmarks/results

``measure`` needs torch and the standard library only: it runs under interpreters that have nothing
else. ``table`` reads the ring each left behind with the project's own reader.
"""

from __future__ import annotations

import argparse
import ast
import base64
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROBE = ROOT / "gputop_train" / "probe"
STEPS = 100
#: Planted in each step, in ms, and timed by the script itself.
DATA_MS, FORWARD_MS, BACKWARD_MS, OPTIMIZER_MS = 6.0, 4.0, 5.0, 3.0
#: A share is right within this of what the script timed; forward is sampled, the others are edges.
TOLERANCE = {"data_wait": 0.04, "forward": 0.12, "backward": 0.04, "optimizer": 0.04}
PAUSES = ("checkpoint", "eval", "gc")

LOOP = """
import gc, io, json, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)
STEPS, DATA, FORWARD, BACKWARD, OPTIMIZER = %r

slept = dict(data_wait=0.0, forward=0.0, backward=0.0, optimizer=0.0)
def sleep(label, ms):
    begin = time.perf_counter()
    time.sleep(ms / 1e3)
    slept[label] += time.perf_counter() - begin

class Slow(Dataset):
    def __len__(self): return STEPS
    def __getitem__(self, i):
        sleep("data_wait", DATA)
        return torch.full((4,), float(i))

class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        sleep("forward", FORWARD)
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        sleep("backward", BACKWARD)
        return g

class Sleeper(nn.Module):
    def forward(self, x):
        return Sleep.apply(x)

class Sgd(torch.optim.SGD):
    def step(self, closure=None):
        sleep("optimizer", OPTIMIZER)
        return super().step(closure)

model = nn.Linear(4, 1)
sleeper = Sleeper()
optimizer = Sgd(model.parameters(), lr=1e-6)
scaler = torch.cuda.amp.GradScaler(enabled=False)
for step, x in enumerate(DataLoader(Slow(), batch_size=1)):
    loss = sleeper(model(x)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step %% 20 == 19:
        model.eval()
        with torch.no_grad():
            time.sleep(0.02)
            model(x)
        model.train()
        torch.save(model.state_dict(), io.BytesIO())
        gc.collect()
(g,) = torch.autograd.grad(model(x).sum(), model.weight)
with open("slept.json", "w") as stream:
    json.dump(slept, stream)
print(loss.item().hex(), g.sum().item().hex(), torch.randn(1).item().hex())
"""

COMPILE = """
import warnings
import torch
warnings.simplefilter("ignore")
try:
    import torch._dynamo
    from torch._dynamo.utils import counters
except Exception as error:
    print("no dynamo:", type(error).__name__)
    raise SystemExit
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
try:
    whole = torch.compile(model, backend="eager", fullgraph=True)
except RuntimeError as error:
    print("no compile:", error)
    raise SystemExit
def train(x):
    optimizer.zero_grad()
    loss = whole(x).square().mean()
    if loss.item() > 1e9: print("large")
    loss.backward()
    return loss
step, apply = torch.compile(train, backend="eager"), torch.compile(optimizer.step, backend="eager")
for n in (4, 4, 6, 9):
    loss = step(torch.ones(n, 4)); apply()
print(loss.item().hex())
# Not every counter of one version exists in another; whatever there is must be equal.
kinds = ("frames", "stats", "graph_break", "recompiles")
print({k: dict(counters[k]) for k in kinds if k in counters})
"""


def deploy(place: Path) -> dict[str, str]:
    """The probe, as a launch deploys it; returns the environment of a watched run."""
    rings = place / "rings"
    rings.mkdir(mode=0o700)
    directory = place / "probe"
    directory.mkdir()
    shutil.copy(PROBE / "bootstrap" / "sitecustomize.py", directory)
    shutil.copytree(PROBE, directory / "_gputop_probe")
    config = {"v": 1, "run_id": "versions", "ring_dir": str(rings), "overhead_budget": 0.01}
    config.update(overrides=[], gpu_events=True, sampler_hz=40, debug=False)
    (directory / "config.json").write_text(json.dumps(config))
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return {**env, "PYTHONPATH": str(directory)}


def run(script: str, place: Path, env: dict[str, str] | None) -> dict[str, Any]:
    """One process; plain without an environment."""
    file = place / "script.py"
    file.write_text(script)
    if env is None:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, str(file)], env=env, cwd=place, capture_output=True)
    return {
        "code": done.returncode,
        "out": done.stdout.decode("utf-8", "replace"),
        "err": done.stderr.decode("utf-8", "replace")[-2000:],
    }


def measure() -> dict[str, Any]:
    """Plain and watched runs under this interpreter, and the rings of the watched ones."""
    import torch

    result: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    loop = LOOP % ((STEPS, DATA_MS, FORWARD_MS, BACKWARD_MS, OPTIMIZER_MS),)
    for name, script in (("loop", loop), ("compile", COMPILE)):
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            env = deploy(place)
            plain, watched = run(script, place, None), run(script, place, env)
            rings = sorted((place / "rings").glob("*.ring"))
            result[name] = {
                "plain": plain,
                "watched": watched,
                "slept": _read(place / "slept.json"),
                "ring": base64.b64encode(rings[0].read_bytes()).decode() if rings else None,
            }
    return result


def _read(file: Path) -> Any:
    return json.loads(file.read_text()) if file.exists() else None


# -- the table: with the project's own environment ------------------------------------------------


def judge(result: dict[str, Any]) -> dict[str, Any]:
    """What the project's reader makes of the ring."""
    sys.path.insert(0, str(ROOT))
    from gputop_train.collect.ring_reader import Ring
    from gputop_train.collect.timeline import Timeline

    raw = result["loop"]["ring"]
    if raw is None:
        return {"hooks": {}, "shares": {}, "steps": 0, "intervals": {}, "errors": ["no ring"]}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "1-1.ring"
        file.touch(mode=0o600)
        file.write_bytes(base64.b64decode(raw))
        with Ring.open(file) as ring:
            snapshot = ring.snapshot() or {}
            timeline = Timeline(0)
            batches = [timeline.feed(ring.poll())]
            batches.append(timeline.finish())
    steps = [step for batch in batches for step in batch.steps]
    intervals = [interval for batch in batches for interval in batch.intervals]
    # Steps without a save or an evaluation between them: those hold what was planted, no more.
    clean = [s for s in steps[2:] if all(s.labels.get(k, 0) < 1e6 for k in PAUSES)]
    # As parts of the four together: what else a loaded machine adds to a step is not of interest.
    sums = {label: sum(s.labels.get(label, 0) for s in clean) for label in TOLERANCE}
    shares = {label: ns / max(1, sum(sums.values())) for label, ns in sums.items()}
    kinds = {i.label: sum(1 for j in intervals if j.label == i.label) for i in intervals}
    return {
        "hooks": snapshot.get("hooks", {}),
        "shares": shares,
        "steps": len(steps),
        "intervals": kinds,
        "errors": snapshot.get("errors", []),
    }


#: The clock and process id in front of a line of torch's log.
_LOG_CLOCK = re.compile(r"^[WIE]\d{4} [\d:.]+ +\d+ ", re.M)


def same(pair: dict[str, Any]) -> bool:
    """Whether plain and watched are equal: exit, output, log, graphs, breaks, recompiles."""
    ends = []
    for kind in ("plain", "watched"):
        out, counters = split(pair[kind]["out"])
        counters.pop("frames", None)
        ends.append((pair[kind]["code"], out, counters, _LOG_CLOCK.sub("", pair[kind]["err"])))
    return ends[0] == ends[1]


def split(out: str) -> tuple[str, dict[str, Any]]:
    """What a script printed, and dynamo's counters from its last line."""
    head, _, last = out.rstrip("\n").rpartition("\n")
    return (head, ast.literal_eval(last)) if last.startswith("{") else (out, {})


def compiled(result: dict[str, Any]) -> str:
    """The cell on torch.compile: graphs and breaks of the plain run and of the watched one."""
    pair = result["compile"]
    if pair["plain"]["out"].startswith("no "):
        return str(pair["plain"]["out"].splitlines()[0][:60])
    shown = []
    for kind in ("plain", "watched"):
        counters = split(pair[kind]["out"])[1]
        graphs = counters.get("stats", {}).get("unique_graphs")
        breaks = sum(counters.get("graph_break", {}).values())
        shown.append(f"{graphs}, {breaks}, {counters.get('frames', {}).get('total')}")
    return " / ".join(shown)


def slept_shares(result: dict[str, Any]) -> dict[str, float]:
    """What the script timed of itself, as parts of the four together."""
    slept = result["loop"]["slept"]
    return {label: slept[label] / sum(slept.values()) for label in TOLERANCE}


def verdict(result: dict[str, Any], found: dict[str, Any]) -> str:
    """One sentence."""
    wrong = []
    for label, planted in slept_shares(result).items():
        if abs(found["shares"].get(label, 0.0) - planted) > TOLERANCE[label]:
            wrong.append(f"{label} {found['shares'].get(label, 0.0):.2f}, not {planted:.2f}")
    wrong += [
        f"no {label}" for label in ("eval", "checkpoint") if not found["intervals"].get(label)
    ]
    if found["steps"] != STEPS:
        wrong.append(f"{found['steps']} steps of {STEPS}")
    wrong += [f"{name}: {why}" for name, why in found["hooks"].items() if why is not True]
    wrong += [f"{name} differs" for name in ("loop", "compile") if not same(result[name])]
    wrong += found["errors"]
    return "; ".join(wrong) or "as it should be"


def table(files: list[Path]) -> str:
    """Markdown, oldest torch first."""
    lines = [
        "| torch | Python | hooks in place | data wait (slept) | forward | backward | optimizer "
        "| eval, saves seen | output | graphs, breaks, frames: plain / watched | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    results = [json.loads(file.read_text()) for file in files]
    results.sort(key=lambda r: [int(n) for n in r["torch"].split("+")[0].split(".")])
    for result in results:
        found = judge(result)
        placed = [name for name, value in found["hooks"].items() if value is True]
        shares = [
            f"{found['shares'].get(label, 0.0):.2f} ({planted:.2f})"
            for label, planted in slept_shares(result).items()
        ]
        seen = f"{found['intervals'].get('eval', 0)}, {found['intervals'].get('checkpoint', 0)}"
        lines.append(
            f"| {result['torch']} | {result['python']} | {', '.join(placed)} "
            f"| {' | '.join(shares)} | {seen} "
            f"| {'same' if same(result['loop']) else 'DIFFERS'} | {compiled(result)} "
            f"| {verdict(result, found)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("action", choices=("measure", "table"))
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    print(json.dumps(measure()) if args.action == "measure" else table(args.files), end="\n")


if __name__ == "__main__":
    main()
