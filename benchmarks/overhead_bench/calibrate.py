"""Find, on this machine and now, the model and batch that give a step of so many milliseconds.

On a CPU the batch is tuned. On a GPU steps up to 2 ms are made of launches, so the number of layers
is tuned while each kernel stays tiny; longer ones are made of work for the device, so the batch is.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

TOLERANCE = 0.10  # of the wanted step
HOST_BOUND_MS = 2.0  # up to here a GPU step is host-bound
_CPU = {0.5: (2, 64), 1.0: (2, 128), 2.0: (3, 256), 10.0: (4, 768), 50.0: (4, 1536)}
_GPU_WIDTH = {10.0: 4096, 50.0: 8192}


def first_guess(step_ms: float, device: str) -> tuple[dict[str, Any], str]:
    """Settings to start from, and the key that is tuned."""
    if device == "cuda" and step_ms <= HOST_BOUND_MS:
        layers = max(1, round(step_ms * 8))
        return {"layers": layers, "width": 256, "batch": 64}, "layers"
    nearest = min(_CPU, key=lambda ms: abs(math.log(ms / step_ms)))
    if device == "cuda":
        width = _GPU_WIDTH[10.0 if step_ms < 25 else 50.0]
        return {"layers": 4, "width": width, "batch": 256}, "batch"
    layers, width = _CPU[nearest]
    return {"layers": layers, "width": width, "batch": 32}, "batch"


def calibrate(
    step_ms: float, base: dict[str, Any], measure: Callable[[dict[str, Any]], float]
) -> dict[str, Any]:
    """Settings whose step takes ``step_ms``, with the time found in ``calibrated_ms``.

    Args:
        step_ms: The wanted step.
        base: Settings to keep: ``device`` and whatever else the loop understands.
        measure: Milliseconds a step takes with given settings.
    """
    guess, key = first_guess(step_ms, base["device"])
    settings = {**base, **guess}
    known: dict[int, float] = {}
    best: tuple[float, dict[str, Any]] = (math.inf, settings)
    for _ in range(10):
        size = settings[key]
        if size in known:
            break
        known[size] = measure(settings)
        error = abs(math.log(known[size] / step_ms))
        if error < best[0]:
            best = (error, {**settings, "calibrated_ms": known[size]})
        if error < math.log1p(TOLERANCE / 3):
            break
        settings = {**settings, key: _next(known, step_ms)}
    return best[1]


def _next(known: dict[int, float], step_ms: float) -> int:
    """Where the line through the two nearest measurements meets the wanted step."""
    sizes = sorted(known, key=lambda size: abs(math.log(known[size] / step_ms)))
    size, took = sizes[0], known[sizes[0]]
    wanted = size * step_ms / took
    if len(sizes) > 1:
        slope = (took - known[sizes[1]]) / (size - sizes[1])
        if slope > 0:
            wanted = size + (step_ms - took) / slope
    chosen = max(1, min(round(wanted), size * 8), round(size / 8))
    if chosen in known:  # noise larger than the slope: take a step that shows
        chosen = max(1, round(size * (1.5 if took < step_ms else 0.67)))
    return chosen


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The settings of a loop that is given, not calibrated: about 1 ms a step on a CPU."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)


def endless(loader: Any) -> Iterator[Any]:
    """Batches, epoch after epoch."""
    while True:
        yield from loader


def measured_step_ms(settings: dict[str, Any]) -> float:
    """Milliseconds a step of the loop takes here, the device's work included."""
    import torch

    from . import loop

    model, optimizer, loader = loop.build(settings)
    batches = endless(loader)
    device, item = settings["device"], settings.get("item", False)

    def timed(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            loop.train_step(model, optimizer, next(batches), device, item)
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) * 1e3 / count

    timed(5)
    count = max(3, min(400, int(60 / timed(3))))
    timed(count)
    # The least of five: other work on the machine only ever adds.
    return min(timed(count) for _ in range(5))
