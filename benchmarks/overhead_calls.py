"""What small pieces of Python cost inside a training step, beside what they cost in a hot loop.

A hook is a few microseconds of Python in the middle of a step whose own work has driven it from the
caches, on a host whose clock may be slow to read. This puts known pieces into a plain loop, without
any probe, in every other step or so, and says what a step was longer by. ``50 functions`` and ``one
function, 50 times`` do the same work: between them lies the cost of memory not met for a while.

    python benchmarks/overhead_calls.py                             # a CPU loop of about 1 ms
    python benchmarks/overhead_calls.py --device cuda --layers 1 --seconds 150
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from overhead_bench import calibrate, singles, stats  # noqa: E402

WITH = "with it"
LONGEST = 2.0
MANY = 50
HOT_CALLS = 2000
RESAMPLES = 400
WARM_S = 4.0

_FUNCTION = """
def f(state, clock, out, number={number}):
    if not state.on_{number}:
        start = clock()
        if start - state.since_{number} > number:
            state.seen_{number} = start
        out[number] = start
        if clock() - start > 1000000000:
            state.seen_{number} = 0
    return None
"""


class _State:
    """Something to look names up in, a name for each function."""


def pieces() -> dict[str, Callable[[], None]]:
    """The pieces of Python by name."""
    clock = time.monotonic_ns
    state, out = _State(), [0] * MANY
    functions = []
    for number in range(MANY):
        for name, value in (("on", 0), ("since", 0), ("seen", 0)):
            setattr(state, f"{name}_{number}", value)
        space: dict[str, Any] = {}
        exec(compile(_FUNCTION.format(number=number), f"<{number}>", "exec"), space)
        functions.append(space["f"])
    first = functions[0]

    def no_clock() -> int:
        return 1

    def clocks() -> None:
        for _ in range(200):
            clock()

    def cpu_clocks() -> None:
        for _ in range(20):
            time.thread_time_ns()

    def cold() -> None:
        for function in functions:
            function(state, clock, out)

    def cold_no_clock() -> None:
        for function in functions:
            function(state, no_clock, out)

    def warm() -> None:
        for _ in range(MANY):
            first(state, clock, out)

    def one() -> None:
        first(state, clock, out)

    return {
        "200 readings of the clock": clocks,
        "20 readings of the thread's CPU time": cpu_clocks,
        f"{MANY} functions": cold,
        f"{MANY} functions, no clock": cold_no_clock,
        f"one function, {MANY} times": warm,
        "one function": one,
    }


def hot_us(piece: Callable[[], None]) -> float:
    """Microseconds of a piece in a loop of nothing else: the least of five rounds' means."""
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(HOT_CALLS // 10):
            piece()
        rounds.append((time.perf_counter() - began) / (HOT_CALLS // 10))
    return 1e6 * min(rounds)


def measure(settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Each piece in the loop and hot. Times in microseconds."""
    import torch
    from overhead_bench import loop

    torch.set_num_threads(1)
    model, optimizer, loader = loop.build(settings)
    batches, device = calibrate.endless(loader), settings["device"]
    known = pieces()
    hot = {name: hot_us(piece) for name, piece in known.items()}

    def step(piece: Callable[[], None] | None) -> None:
        batch = next(batches)
        if piece is not None:
            piece()
        loop.train_step(model, optimizer, batch, device, False)

    def timed(piece: Callable[[], None] | None, arm: bool) -> tuple[str, float]:
        began = pc()
        step(piece if arm else None)
        return WITH, pc() - began

    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        step(None)
    pc, rng = time.perf_counter, random.Random(0)
    rows: dict[str, list[float]] = {name: [] for name in known}
    rows["nothing"] = []
    bases = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name in rng.sample(list(rows), len(rows)):
            quad = singles.one_quad(partial(timed, known.get(name)), rng)
            arms = (quad.plain, quad.other[WITH])
            bases.append(quad.base)
            # Cut where something else interrupted, by what this arm's own steps usually take.
            means = [
                statistics.fmean(min(t, LONGEST * statistics.median(arm)) for t in arm)
                for arm in arms
            ]
            rows[name].append(1e6 * (means[1] - means[0]))
    found = {name: (*_mean(values, rng), hot.get(name)) for name, values in rows.items()}
    return {"step_us": 1e6 * statistics.median(bases), "pieces": found}


def _mean(values: list[float], rng: random.Random) -> tuple[float, float, float]:
    means = [statistics.fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    found = stats.interval(statistics.fmean(values), means)
    return found.value, found.low, found.high


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    calibrate.add_settings(parser)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args(arguments)
    settings = {key: getattr(args, key) for key in ("device", "layers", "width", "batch")}
    found = measure(settings, args.seconds)
    print(json.dumps({"settings": settings, "step_us": found["step_us"]}))
    print("| piece | hot, us | in a step, us |\n|---|---|---|")
    for name, (value, low, high, hot) in found["pieces"].items():
        shown = "" if hot is None else f"{hot:.2f}"
        print(f"| {name} | {shown} | {value:.1f} [{low:.1f}, {high:.1f}] |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
