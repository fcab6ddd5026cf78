"""One process, one model: quads of blocks with the probe out (A) and in (B), and null quads."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import calibrate, singles, stats, switch
from .toggle import NothingToToggle, Toggle

BLOCK_S = (0.06, 0.6)
QUADS = 96  # about so many of either kind in the time given
LEAST_QUADS = 24
ENOUGH_WIDTH = 0.004
WARM_S = (4.0, 10.0)
PATIENCE_S = 30.0
START_S = 15.0  # what calibration and warm-up may take on top of the time given


def measure(settings: dict[str, Any], seconds: float, seed: int = 0) -> dict[str, Any]:
    """In a process with the probe: warm up, then toggle for ``seconds``.

    Args:
        settings: Calibrated ones. Not calibrated here: a process that has trained ten models has
            ten optimizers, and the probe would treat it as such.
        seconds: Length of the measuring; less when the interval is narrow enough before.
        seed: Of the order and length of the blocks.

    Raises:
        NothingToToggle: The probe is not as expected, or its writing did not follow the toggle.
    """
    import torch

    from . import loop

    torch.set_num_threads(settings.get("threads", 1))
    model, optimizer, loader = loop.build(settings)
    batches = calibrate.endless(loader)
    device, item = settings["device"], settings.get("item", False)
    synchronise = synchroniser(torch, device)

    def steps(count: int) -> None:
        for _ in range(count):
            loop.train_step(model, optimizer, next(batches), device, item)

    warmed_s = warm_up(steps, seconds)
    toggle = Toggle()
    step_ms = settings["calibrated_ms"]
    if settings.get("by_steps"):
        by_steps = switch.Switch(toggle, torch, (model, optimizer, loader), settings)
        found = {"singles": singles.measure(by_steps, synchronise, seconds, seed)}
    else:
        clock = time.process_time if settings.get("cpu_time") else time.perf_counter
        found = quads(toggle, steps, synchronise, clock, step_ms, seconds, seed)
    toggle.check()
    return {
        "settings": settings,
        "warmed_s": round(warmed_s, 1),
        "switched": toggle.names,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0) if device == "cuda" else None,
        **found,
    }


def synchroniser(torch: Any, device: str) -> Callable[[], None]:
    """What waits for the device, past the probe, which is not to see the benchmark wait."""
    own = getattr(torch._C, "_cuda_synchronize", None) if device == "cuda" else None
    return getattr(own, "__wrapped__", own) or (lambda: None)


def warm_up(steps: Callable[[int], None], seconds: float) -> float:
    """Until the probe had time to place its late hooks and to choose how much to record."""
    least, most = min(WARM_S[0], seconds), WARM_S[1]
    started = time.monotonic()
    until = started + max(least, min(most, seconds / 8))
    while time.monotonic() < until:
        steps(10)
    return time.monotonic() - started


def quads(
    toggle: Toggle,
    steps: Callable[[int], None],
    synchronise: Callable[[], None],
    clock: Callable[[], float],
    step_ms: float,
    seconds: float,
    seed: int,
) -> dict[str, Any]:
    """Real and null quads in random order, and proof that the toggle toggled."""
    rng = random.Random(seed)
    block_s = min(max(seconds / (8.6 * QUADS), BLOCK_S[0]), BLOCK_S[1])
    rows: list[dict[str, Any]] = []
    words = {"plain": 0, "watched": 0}
    watched_steps = 0
    beats = toggle.beats()

    def block(enter: Callable[[], None], count: int) -> float:
        nonlocal watched_steps
        enter()
        steps(max(2, count // 8))  # caches settle
        patience = time.monotonic() + PATIENCE_S
        while not toggle.settled:
            steps(1)
            if time.monotonic() > patience:
                raise NothingToToggle("the helper thread does not come to rest")
        synchronise()
        before = toggle.words()
        started = clock()
        steps(count)
        synchronise()
        took = (clock() - started) / count
        words["watched" if toggle.on else "plain"] += toggle.words() - before
        watched_steps += count if toggle.on else 0
        return took

    end = time.monotonic() + seconds
    real: list[stats.Quad] = []
    null: list[stats.Quad] = []
    stopped_early = False
    while time.monotonic() < end and not stopped_early:
        kinds = ["real", "null"]
        rng.shuffle(kinds)
        for kind in kinds:
            # Lengths vary so that blocks lock onto no period of the probe's.
            count = max(4, round(block_s * rng.uniform(0.75, 1.25) / (step_ms / 1e3)))
            enter = toggle.watched if kind == "real" else toggle.plain
            plain_first = rng.random() < 0.5
            order = [toggle.plain, enter, enter, toggle.plain]
            if not plain_first:
                order = [enter, toggle.plain, toggle.plain, enter]
            took = [block(e, count) for e in order]
            outer, inner = (took[0], took[3]), (took[1], took[2])
            quad = stats.Quad(outer, inner) if plain_first else stats.Quad(inner, outer)
            (real if kind == "real" else null).append(quad)
            rows.append({"kind": kind, "steps": count, "a": quad.a, "b": quad.b})
        stopped_early = stats.narrow_enough(real, null, ENOUGH_WIDTH, LEAST_QUADS)
    after = toggle.beats()
    if words["plain"]:
        raise NothingToToggle(f"{words['plain']} words were written while the probe was out")
    if not words["watched"]:
        raise NothingToToggle("the probe wrote nothing while it was in")
    if after[0] == beats[0]:
        raise NothingToToggle("the helper thread did nothing while the probe was in")
    return {
        "quads": rows,
        "words_a_watched_step": round(words["watched"] / watched_steps, 3),
        "snapshots": (after[1] - beats[1]) // 2,
        "stopped_early": stopped_early,
    }


def deployed(folder: Path) -> dict[str, str]:
    """Deploy the probe in a new folder as a launch does; the environment of who is to have it."""
    from gputop_train.launch.probe_dir import install_probe

    folder.mkdir(parents=True)
    probe, rings = folder / "probe", folder / "rings"
    rings.mkdir(mode=0o700)
    config = {"v": 1, "run_id": "overhead", "ring_dir": str(rings), "overhead_budget": 0.01}
    config.update(overrides=[], gpu_events=True, sampler_hz=40, debug=False)
    install_probe(probe, config)
    benchmarks = str(Path(__file__).resolve().parent.parent)
    path = [str(probe), benchmarks, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p)}


def run_child(work: dict[str, Any], folder: Path, limit_s: float) -> dict[str, Any]:
    """Deploy the probe and measure in a process of its own."""
    from gputop_train.collect.ring_reader import Ring

    done = subprocess.run(
        [sys.executable, "-m", "overhead_bench.inprocess", json.dumps(work)],
        env=deployed(folder),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for file in (folder / "rings").glob("*.ring"):
        with Ring.open(file) as ring:
            snapshot = ring.snapshot() or {}
        keys = ("detail", "gpu_events", "cost", "sampler", "hooks", "errors")
        result["probe"] = {k: snapshot.get(k) for k in keys}
    return result


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(measure(given["settings"], given["seconds"], given["seed"])))
