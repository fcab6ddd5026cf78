"""Which hook costs a step what, in place: step times beside plain ones, by place after a toggle.

``overhead.py`` says what watching costs in all. This says where to look: some hooks are put in and
taken out in blocks as there, in one process, and the excess over the plain steps of the same quad
is shown as quantiles, which no interruption moves, and by how long ago the hooks were put in.

    python benchmarks/overhead_hooks.py                          # a CPU loop of about 1 ms
    python benchmarks/overhead_hooks.py --device cuda --layers 1 --hooks all none step to __next__

``--hooks``: ``all``, ``none`` (a sham), ``step`` (the optimizers' global hooks), or the name of
what is wrapped, such as ``__next__``, ``to``, ``item``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from overhead_bench import calibrate, inprocess, singles  # noqa: E402
from overhead_bench.toggle import Toggle  # noqa: E402

#: Steps since the toggle at which the rows of "by place" begin.
PLACES = (0, 1, 2, 4, 8, 16, 32, 64)
#: So many steps at least are needed of a row's.
LEAST = 20
KINDS = ("plain", "null", *singles.KINDS)
WARM_S = 6.0


def child(settings: dict[str, Any], hooks: str, seconds: float, block_s: float) -> dict[str, Any]:
    """In a process with the probe: the excess in percent, by kind of step."""
    import torch
    from overhead_bench import loop

    torch.set_num_threads(1)
    model, optimizer, loader = loop.build(settings)
    batches, device = calibrate.endless(loader), settings["device"]
    wait = inprocess.synchroniser(torch, device)

    def step() -> None:
        loop.train_step(model, optimizer, next(batches), device, False)

    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        step()
    toggle = Toggle()
    state = sys.modules["_gputop_probe.state"].S
    if hooks != "all":
        toggle._wrappers = [w for w in toggle._wrappers if w[1] == hooks]
        toggle._properties = []
        toggle._tables = [t for t in toggle._tables if hooks == "step" and "optimizer" in t[0]]
    pc, rng = time.perf_counter, random.Random(0)
    began = pc()
    for _ in range(50):
        step()
    step_s = (pc() - began) / 50

    def kind(arm: int, real: bool) -> str:
        if not arm or not real:
            return "null" if arm else "plain"
        return singles.kind_now(state)

    found: dict[str, dict[int, list[float]]] = {name: {} for name in KINDS}
    bases = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        real = rng.random() < 0.6
        count = max(8, round(block_s * rng.uniform(0.8, 1.2) / step_s))
        rows: list[tuple[str, int, float]] = []
        for arm in (0, 1, 1, 0) if rng.random() < 0.5 else (1, 0, 0, 1):
            toggle.hooks(arm == 1 and real)
            wait()
            for place in range(count):
                what, began = kind(arm, real), pc()
                step()
                rows.append((what, place, pc() - began))
        base = statistics.median(t for what, place, t in rows if what == "plain" and place >= 3)
        bases.append(base)
        for what, place, took in rows:
            found[what].setdefault(place, []).append(100 * (took / base - 1))
    return {"step_ms": 1e3 * statistics.median(bases), "kinds": _summary(found)}


def _summary(found: dict[str, dict[int, list[float]]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, by_place in found.items():

        def between(first: int, last: int, rows: dict[int, list[float]] = by_place) -> list[float]:
            return sorted(v for place, many in rows.items() if first <= place < last for v in many)

        late = between(singles.SETTLE_STEPS, 1 << 30)
        if len(late) < LEAST:
            continue
        quantiles = [round(late[int(q * len(late))], 2) for q in (0.1, 0.25, 0.5, 0.75)]
        parts = {a: between(a, b) for a, b in zip(PLACES, (*PLACES[1:], 1 << 30), strict=True)}
        places = {a: round(statistics.median(p), 2) for a, p in parts.items() if len(p) >= LEAST}
        out[name] = {"n": len(late), "quantiles": quantiles, "by_place": places}
    return out


def run(settings: dict[str, Any], hooks: str, seconds: float, block_s: float) -> dict[str, Any]:
    """Deploy the probe and measure in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        work = json.dumps([settings, hooks, seconds, block_s])
        done = subprocess.run(
            [sys.executable, __file__, "--child", work],
            env=inprocess.deployed(Path(folder) / "run"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def lines(hooks: str, found: dict[str, Any]) -> list[str]:
    """One table row for each kind of step."""
    if "error" in found:
        return [f"| {hooks} | {found['error']} |"]
    rows = []
    for name, row in found["kinds"].items():
        quantiles = " / ".join(f"{q:+.2f}" for q in row["quantiles"])
        places = ", ".join(f"{first}: {value:+.2f}" for first, value in row["by_place"].items())
        step = f"{found['step_ms']:.2f} ms"
        rows.append(f"| {hooks} | {step} | {name} | {row['n']:,} | {quantiles} | {places} |")
    return rows


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hooks", nargs="+", default=["all", "none", "step", "__next__"])
    parser.add_argument("--seconds", type=float, default=30.0, help="for each")
    parser.add_argument("--block-s", type=float, default=0.1)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        print(json.dumps(child(*json.loads(args.child))))
        return 0
    settings = {key: getattr(args, key) for key in ("device", "layers", "width", "batch")}
    print(
        "| hooks | step | kind | steps | excess, %: 10th / 25th / 50th / 75th | median by place |"
    )
    print("|---|---|---|---|---|---|")
    for hooks in args.hooks:
        found = run(settings, hooks, args.seconds, args.block_s)
        print("\n".join(lines(hooks, found)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
