"""Which hook costs a step what: single steps with some of the hooks beside plain ones.

``overhead.py --by-steps`` says what watching costs in all. This says where to look, in the same way
and in one process: each quad of steps has one of the given sets of hooks, or none in either arm.

    python benchmarks/overhead_hooks.py                          # a CPU loop of about 1 ms
    python benchmarks/overhead_hooks.py --device cuda --layers 1 --width 256 --batch 64

    python benchmarks/overhead_hooks.py --cold                   # nothing is in the caches

``--cold`` reads its way through memory before each step, as a driver and a model do between two
calls of a hook: on a host with small steps and warm caches it shows what hooks cost elsewhere.
A step at whose end the probe turns from one way to the other is of the kind ``turning``.

``--hooks``: ``all``, or names joined by ``+``; a wrong name is answered with those there are.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from overhead_bench import calibrate, inprocess, singles, stats, switch  # noqa: E402
from overhead_bench.toggle import Toggle  # noqa: E402

PRE, POST = "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"
HOOKS = ("none", "all", "__next__", "to", f"{PRE}+{POST}", "gc", "_get_value")
WARM_S = 6.0
RESAMPLES = 400
TURNING = "turning"
COLD_BYTES = 40 << 20
COLD_PAGES = 8192


def child(settings: dict[str, Any], hooks: Sequence[str], seconds: float) -> dict[str, Any]:
    """In a process with the probe: the excess over plain steps in us, by hooks and kind of step."""
    import torch
    from overhead_bench import loop

    torch.set_num_threads(1)
    built = loop.build(settings)
    pc, rng = time.perf_counter, random.Random(0)
    inprocess.warm_up(lambda count: _plain(built, settings, count), 8 * WARM_S)
    toggle = Toggle()
    arms = {name: switch.Switch(toggle, torch, built, settings, _chosen(name)) for name in hooks}
    state = sys.modules["_gputop_probe.state"].S
    before = _emptier(torch) if settings.get("cold") else int

    def step(arm: switch.Switch, hooked: bool) -> tuple[str, float]:
        what = singles.kind_now(state)
        took = arm.step(hooked, pc, before)
        return (what if what == singles.kind_now(state) else TURNING), took

    quads: dict[str, list[singles.Quad]] = {name: [] for name in hooks}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name in rng.sample(hooks, len(hooks)):
            quads[name].append(singles.one_quad(partial(step, arms[name]), rng))
    base = sorted(q.base for many in quads.values() for q in many)
    step_s = base[len(base) // 2]
    found = {
        name: {
            kind: row
            for kind in (*singles.KINDS, TURNING)
            if (row := _row(many, kind, step_s, rng))
        }
        for name, many in quads.items()
    }
    return {"step_ms": 1e3 * step_s, "hooks": found, "names": next(iter(arms.values())).names}


def _plain(built: Any, settings: dict[str, Any], count: int) -> None:
    from overhead_bench import loop

    model, optimizer, loader = built
    for _, batch in zip(range(count), loader, strict=False):
        loop.train_step(model, optimizer, batch, settings["device"], False)


def _emptier(torch: Any) -> Any:
    """Reads more memory than caches hold, and a word of more pages than the host knows by heart."""
    much = torch.ones(COLD_BYTES // 4)
    pages = torch.ones(COLD_PAGES * 1024)[::1024]
    return lambda: (much.sum(), pages.sum())


def _chosen(hooks: str) -> list[str] | None:
    return None if hooks == "all" else [name for name in hooks.split("+") if name != "none"]


def _row(
    quads: list[singles.Quad], kind: str, step_s: float, rng: random.Random
) -> list[float] | None:
    """Steps, mean excess in us, and its 95% interval."""
    value = singles.excess(quads, kind)
    if value is None:
        return None
    drawn = (singles.excess(rng.choices(quads, k=len(quads)), kind) for _ in range(RESAMPLES))
    found = stats.interval(value, [v for v in drawn if v is not None])
    steps = sum(len(q.other.get(kind, ())) for q in quads)
    return [steps, *(1e6 * step_s * v for v in (found.value, found.low, found.high))]


def run(settings: dict[str, Any], hooks: Sequence[str], seconds: float) -> dict[str, Any]:
    """Deploy the probe and measure in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        work = json.dumps([settings, hooks, seconds])
        done = subprocess.run(
            [sys.executable, __file__, "--child", work],
            env=inprocess.deployed(Path(folder) / "run"),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    calibrate.add_settings(parser)
    parser.add_argument("--hooks", nargs="+", default=HOOKS)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--cold", action="store_true", help="empty the caches before each step")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        print(json.dumps(child(*json.loads(args.child))))
        return 0
    settings = {key: getattr(args, key) for key in ("device", "layers", "width", "batch", "cold")}
    found = run(settings, args.hooks, args.seconds)
    if "error" in found:
        print(found["error"], file=sys.stderr)
        return 1
    print(f"A step of {found['step_ms']:.3f} ms; hooks: {', '.join(found['names'])}\n")
    print("| hooks | kind | steps | longer by, us |\n|---|---|---|---|")
    for hooks, kinds in found["hooks"].items():
        for kind, (steps, value, low, high) in kinds.items():
            print(f"| {hooks} | {kind} | {steps:,.0f} | {value:+.1f} [{low:+.1f}, {high:+.1f}] |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
