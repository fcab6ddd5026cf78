"""The shape of a GPU utilisation series: an explanation beside the verdict, never its ground.

A driver sample is a mean over about 200 ms (measured on an H200), so a loop that starves the GPU in
every 10 ms step reads a flat 50. Hence a flat series is never called fine, and the verdict comes
from interval attribution; the shape only says what a person sees on the chart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gputop_train.diagnose.stats import SEED, Floats
from gputop_train.diagnose.window import Window, once
from gputop_train.model import Loader

ShapeLabel = Literal["saturated", "periodic", "erratic", "flat-low", "idle", "unknown"]

MIN_SAMPLES = 10
#: Catalogue section 7, step 2.
SATURATED_MEDIAN, SATURATED_P5 = 85.0, 60.0
FLAT_SD = 10.0
PERIODIC_AUTOCORRELATION, MIN_PERIODS = 0.3, 5
#: Proposed here: an idle device still shows the odd percent of a display or a context.
IDLE_MEDIAN, IDLE_P95 = 5.0, 10.0
SURROGATES, SIGNIFICANCE, HARMONICS = 200, 0.995, 8
#: Two regimes differ by at least this many points (twice the flatness limit) ...
MIN_JUMP = 20.0
#: ... and last at least this long; shorter ones are part of a pattern.
MIN_REGIME_S, MIN_REGIME_PART = 5.0, 0.15
MAX_REGIMES = 6
#: Occurrences that make a clock; passes from which their mean is closer than the loader's length.
MIN_CLOCK, WHOLE_EPOCHS = 3, 10


@once
def shape_of(window: Window) -> Shape:
    """The shape of a window's own device, its period compared with the loop's clocks."""
    series = sorted(window.util, key=lambda s: s.t_ns)
    t_s = [(s.t_ns - window.t0_ns) / 1e9 for s in series]
    return classify(t_s, [s.util for s in series], clocks_of(window))


def clocks_of(window: Window) -> dict[str, float]:
    """Known periods of the loop in seconds: step, workers x step, log, save, eval, epoch.

    A step takes ``micro`` batches; ``workers`` batches go by from one batch of a worker to its
    next. An epoch lasts as long as its batches took, saves and evaluations included.
    """
    if window.median_ms is None:
        return {}
    step_s = window.median_ms / 1e3
    clocks = {"step": step_s}
    micro = max(1.0, float(np.mean([s.micro for s in window.steps]))) if window.steps else 1.0
    for loader in window.feeding_loaders[:1]:
        if loader.num_workers > 1:
            clocks["workers x step"] = loader.num_workers * step_s / micro
        batches = _epoch_batches(loader)
        if batches is not None and window.totals.steps:
            mean_s = window.totals.wall_ns / window.totals.steps / 1e9
            clocks["epoch"] = batches * mean_s / micro
    for name, label in (("save", "checkpoint"), ("eval", "eval")):
        starts = sorted(i.t0_ns for i in window.intervals if i.label == label)
        if len(starts) >= MIN_CLOCK:
            clocks[name] = float(np.median(np.diff(starts))) / 1e9
    logged = [s.t0_ns for s in window.steps if s.labels.get("logging", 0) > 0]
    if MIN_CLOCK <= len(logged) <= len(window.steps) / 2:
        clocks["log"] = float(np.median(np.diff(logged))) / 1e9
    return clocks


def _epoch_batches(loader: Loader) -> float | None:
    """Batches in one pass: as read in many of them (a loop may leave early), else the length."""
    if loader.epochs >= WHOLE_EPOCHS and loader.batches:
        return loader.batches / loader.epochs  # the last pass may be cut short
    return loader.length or None


@dataclass(frozen=True, slots=True)
class Regime:
    """A stretch of the series with one shape. Times are seconds on the series' own clock."""

    t0_s: float
    t1_s: float
    label: ShapeLabel
    mean: float
    period_s: float | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The series' shape.

    Attributes:
        period_s: Length of the cycle for ``periodic``; where the driver's sampling folded it
            (``aliased``), the period of the matched clock, or ``None`` without a match.
        clock: Which known clock of the loop has this period (``"step"``, ``"save"``...).
        regimes: Stretches in order; the shape is that of the longest one.
    """

    label: ShapeLabel
    period_s: float | None = None
    clock: str | None = None
    aliased: bool = False
    regimes: tuple[Regime, ...] = ()


def classify(
    t_s: Sequence[float], util: Sequence[float], clocks: Mapping[str, float] | None = None
) -> Shape:
    """Name the shape of one device's driver samples.

    Args:
        t_s: Sample times in seconds, increasing.
        util: Percent, same length.
        clocks: Known periods of the loop in seconds by name, compared with the one found.
    """
    t, u = np.asarray(t_s, dtype=float), np.asarray(util, dtype=float)
    # The first sample averages over time before the series, so it carries the last workload.
    t, u = t[1:], u[1:]
    if len(u) < MIN_SAMPLES:
        return Shape("unknown")
    regimes = tuple(_regime(t[a:b], u[a:b]) for a, b in _segments(t, u))
    longest = max(regimes, key=lambda r: r.t1_s - r.t0_s)
    if longest.label != "periodic" or longest.period_s is None:
        return Shape(longest.label, regimes=regimes)
    dt = float(np.median(np.diff(t)))
    period, clock, aliased = _match(
        longest.period_s, dt, longest.t1_s - longest.t0_s, dict(clocks or {})
    )
    return Shape("periodic", period, clock, aliased, regimes)


def _regime(t: Floats, u: Floats) -> Regime:
    label, period = _label(t, u)
    return Regime(float(t[0]), float(t[-1]), label, float(u.mean()), period)


def _label(t: Floats, u: Floats) -> tuple[ShapeLabel, float | None]:
    if len(u) < MIN_SAMPLES:
        return "unknown", None
    median, p5, p95 = (float(np.quantile(u, q)) for q in (0.5, 0.05, 0.95))
    if median < IDLE_MEDIAN and p95 < IDLE_P95:
        return "idle", None
    if median >= SATURATED_MEDIAN and p5 >= SATURATED_P5:
        return "saturated", None
    if float(u.std()) < FLAT_SD and median < SATURATED_MEDIAN:
        return "flat-low", None
    period = _period(t, u)
    return ("periodic", period) if period is not None else ("erratic", None)


def _period(t: Floats, u: Floats) -> float | None:
    """Period in seconds when autocorrelation and periodogram agree on one, else ``None``."""
    dt = float(np.median(np.diff(t)))
    if dt <= 0:
        return None
    grid = np.arange(t[0], t[-1] + dt / 2, dt)
    x = np.interp(grid, t, u)
    x = x - x.mean()
    n, variance = len(x), float((x * x).mean())
    if n < MIN_SAMPLES or variance <= 0:
        return None
    lag = _autocorrelation_peak(x, variance)
    if lag is None:
        return None
    if n / lag < MIN_PERIODS or not _significant(x, lag):
        return None
    return lag * dt


def _autocorrelation_peak(x: Floats, variance: float) -> float | None:
    """First strong lag (samples, fractional) after the autocorrelation crosses zero."""
    n = len(x)
    spectrum = np.abs(np.fft.rfft(x, 2 * n)) ** 2
    # Unbiased: a long lag has fewer products, which must not look like a weaker echo.
    acf = np.fft.irfft(spectrum)[:n] / np.arange(n, 0, -1) / variance
    longest = n // 2
    negative = np.flatnonzero(acf[:longest] < 0)
    if not len(negative):
        return None
    start = int(negative[0])
    best = start + int(np.argmax(acf[start:longest])) if start < longest else start
    if acf[best] < PERIODIC_AUTOCORRELATION:
        return None
    # The tallest peak may be a multiple of the period: take the first nearly as tall.
    for k in range(start + 1, best):
        if acf[k] >= 0.8 * acf[best] and acf[k] >= acf[k - 1] and acf[k] >= acf[k + 1]:
            best = k
            break
    if not 0 < best < n - 1:
        return float(best)
    left, mid, right = acf[best - 1], acf[best], acf[best + 1]
    bend = left - 2 * mid + right
    return best + (0.5 * (left - right) / bend if bend < 0 else 0.0)


def _significant(x: Floats, lag: float) -> bool:
    """Does the periodogram support the lag that the autocorrelation chose?

    Two statistics, since a cycle can be sharp (saves: narrow dips, all harmonics) or smeared (steps
    of varying length: a broad hump): the power on the comb of harmonics of the lag, and the mean
    power in a band of 10% around it. Each is compared with surrogates that keep the smoothed
    spectrum (an AR(1) with the series' own lag-1 correlation) and get random phases; plain phase
    shuffling would keep the very peak under test.
    """
    n = len(x)
    memory = float(np.clip((x[1:] @ x[:-1]) / (x @ x), 0.0, 0.95))
    smooth = _ar1(np.asarray(np.fft.rfftfreq(n), dtype=float), memory)
    smooth[0] = 0.0
    rng = np.random.default_rng(SEED)
    size = (SURROGATES, len(smooth))
    noise = rng.normal(size=size) + 1j * rng.normal(size=size)
    draws = np.fft.irfft(noise * np.sqrt(smooth), n, axis=1)
    draws *= (x.std() / draws.std(axis=1))[:, None]
    statistics = _comb_and_band(np.vstack([x, draws]), 1 / lag, memory)
    return any(s[0] > np.quantile(s[1:], SIGNIFICANCE) for s in statistics)


def _ar1(freq: Floats, memory: float) -> Floats:
    """Power spectrum of red noise, up to a factor; ``freq`` in cycles per sample."""
    return np.asarray(1 / (1 + memory**2 - 2 * memory * np.cos(2 * np.pi * freq)))


def _comb_and_band(rows: Floats, f0: float, memory: float) -> tuple[Floats, Floats]:
    """Whitened power of each row: best comb near ``f0``, and the mean around ``f0``."""
    n = rows.shape[1]
    padded = 4 * n
    freq = np.asarray(np.fft.rfftfreq(padded), dtype=float)
    power = np.abs(np.fft.rfft(rows * np.hanning(n), padded, axis=1)) ** 2 / _ar1(freq, memory)
    # Frequency resolution of the series is one cycle over its length: look no closer than that.
    nearest = np.flatnonzero(np.abs(freq - f0) <= 0.5 / n)
    band = np.flatnonzero(np.abs(freq - f0) <= max(0.1 * f0, 1 / n))
    harmonics = np.arange(1, max(1, min(HARMONICS, int(0.5 / f0))) + 1)
    combs = np.array(
        [power[:, np.minimum(k * harmonics, len(freq) - 1)].sum(axis=1) for k in nearest]
    )
    return combs.max(axis=0), power[:, band].mean(axis=1)


def _segments(t: Floats, u: Floats) -> list[tuple[int, int]]:
    """Split at changes of level (binary segmentation on CUSUM), coarse enough to keep cycles whole.

    A series that is periodic as a whole is one regime, however deep it swings.
    """
    if float(u.std()) < FLAT_SD or _period(t, u) is not None:
        return [(0, len(u))]
    parts = [(0, len(u))]
    while len(parts) < MAX_REGIMES:
        splits = [(s, p) for p in parts if (s := _split(t, u, *p)) is not None]
        if not splits:
            break
        cut, part = splits[0]
        at = parts.index(part)
        parts[at : at + 1] = [(part[0], cut), (cut, part[1])]
    return parts


def _split(t: Floats, u: Floats, a: int, b: int) -> int | None:
    x = u[a:b]
    n = len(x)
    least = max(MIN_SAMPLES, int(MIN_REGIME_PART * len(u)))
    dt = float(np.median(np.diff(t)))
    least = max(least, int(MIN_REGIME_S / dt)) if dt > 0 else least
    if n < 2 * least or float(x.std()) == 0:
        return None
    left = np.cumsum(x)[:-1]
    k = np.arange(1, n)
    jump = left / k - (x.sum() - left) / (n - k)
    score = np.abs(jump) * np.sqrt(k * (n - k) / n)
    score[: least - 1] = 0
    score[n - least :] = 0
    cut = int(np.argmax(score))
    before, after = x[: cut + 1], x[cut + 1 :]
    within = float(np.sqrt((before.var() * len(before) + after.var() * len(after)) / n))
    # A change of level explains more than the scatter on either side, or it is the pattern itself.
    if abs(float(jump[cut])) < max(MIN_JUMP, 1.5 * within):
        return None
    return a + cut + 1


def _match(
    period: float, dt: float, span_s: float, clocks: Mapping[str, float]
) -> tuple[float | None, str | None, bool]:
    """Which clock of the loop could make this period, folded by the sampling where it is fast?"""
    rate, found = 1 / dt, 1 / period
    best: tuple[float, str, float, bool] | None = None
    for name, clock in clocks.items():
        if clock <= 0:
            continue
        cycles = 1 / clock
        folded = abs(cycles - round(cycles / rate) * rate)
        off = abs(folded - found)
        if off <= max(0.05 * found, 1 / span_s) and (best is None or off < best[0]):
            best = (off, name, clock, cycles > rate / 2)
    if best is not None:
        _, name, clock, aliased = best
        return (clock if aliased else period), name, aliased
    # Below five samples a cycle, a faster one folded down looks the same: give no number.
    return (period, None, False) if period >= 5 * dt else (None, None, True)
