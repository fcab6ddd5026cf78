"""``clock-throttling``: heat or the power supply holds the clocks down while the card is loaded.

Looks for: the driver's reasons "hardware slowdown", "thermal" (hardware or software) or "power
brake" in > 5% of the readings taken under load (catalogue 40, proposed; gpuprof: >= 82 C and clocks
down by 15%; TraceML: >= 85 C).
Differential: the software power cap at full load is how a card is run, an idle card clocks down by
itself, and set application clocks are somebody's wish: none of them counts.
Fix: airflow, neighbours, power. Probe: the same steps on a cool card.
Gain: at most f_target / f_now of the time it held, f_target the clock without it in this run.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.cards import LOADED, loaded
from gputop_train.diagnose.rules.base import (
    CRITICAL,
    INFO,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    ceiling,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, GpuSample

ID = "clock-throttling"
#: nvmlClocksEventReason bits (nvml.h).
SW_POWER_CAP = 0x04
REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
FAULTS = sum(REASONS)
THERMAL = 0x20 | 0x40
PART = 0.05
MIN_READINGS = 10
#: So many readings without a reason make the clock they show the target.
MIN_FREE = 5


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    told = [g for g in window.gpu if g.throttle_reasons is not None]
    if not told:
        return Abstention(ID, window.missing.get("nvml", "why the driver holds clocks down"))
    busy = [g for g in loaded(window) if g.throttle_reasons is not None]
    if not window.util:
        return Abstention(ID, window.missing.get("gpu_util", "driver utilisation"))
    if len(busy) < MIN_READINGS:
        return RuledOut(ID, f"the card was loaded in {len(busy)} readings: its clocks cost nothing")
    held = [g for g in busy if (g.throttle_reasons or 0) & FAULTS]
    part = len(held) / len(busy)
    if part <= PART:
        capped = sum(1 for g in busy if (g.throttle_reasons or 0) & SW_POWER_CAP) / len(busy)
        if capped > PART:
            return RuledOut(
                ID,
                f"only the power limit holds the clocks ({percent(capped)}): normal at full load",
            )
        return RuledOut(ID, f"clocks were held down in {percent(part)} of the loaded readings")
    return _finding(window, busy, held)


def _finding(window: Window, busy: list[GpuSample], held: list[GpuSample]) -> Finding:
    part = len(held) / len(busy)
    now = median([g.sm_clock_mhz for g in held if g.sm_clock_mhz])
    target, from_run = _target(busy)
    ratio = now / target if now and target and now < target else None
    share = account(window).busy_most
    lost = part * (1 - ratio) * share if ratio is not None and share is not None else 0.0
    bits = sorted({bit for g in held for bit in REASONS if (g.throttle_reasons or 0) & bit})
    names = ", ".join(REASONS[bit] for bit in bits)
    clocks = f": {now:.0f} MHz where it could run at {target:.0f}" if ratio and target else ""
    hottest = max((g.temperature_c for g in held if g.temperature_c is not None), default=None)
    heat = any(bit & THERMAL for bit in bits)
    return Finding(
        id=ID,
        summary=(
            f"The GPU's clocks were held down in {percent(part)} of the loaded time by {names}"
            f"{clocks}."
        ),
        severity=severity(max(lost, WARN), window.totals.steps),
        confidence="high" if ratio is not None and from_run else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                Evidence("reason", names),
                number("loaded readings with it", part, "of readings"),
                number("SM clock while held", now, "MHz"),
                number("SM clock without it" if from_run else "highest SM clock", target, "MHz"),
                number("hottest", hottest, "C"),
                number("power, mean while held", _power(held), "W"),
            )
            if row.value is not None
        ),
        where_missing="it is the card, not the script",
        advice=_advice(heat, hottest, names, now),
        gain=Gain(
            ceiling(lost) if lost else None,
            None,
            "f_target / f_now over the time it held, of the GPU's work alone",
        ),
    )


def _target(busy: list[GpuSample]) -> tuple[float | None, bool]:
    """The clock this card runs at under this load, and whether this run showed it."""
    free = [
        float(g.sm_clock_mhz)
        for g in busy
        if g.sm_clock_mhz and not (g.throttle_reasons or 0) & FAULTS
    ]
    if len(free) >= MIN_FREE:
        return median(free), True
    return max((float(g.sm_clock_max_mhz) for g in busy if g.sm_clock_max_mhz), default=None), False


def _power(held: list[GpuSample]) -> float | None:
    watts = [g.power_w for g in held if g.power_w is not None]
    return sum(watts) / len(watts) if watts else None


def _advice(heat: bool, hottest: int | None, names: str, now: float | None) -> tuple[Advice, ...]:
    clock = f" at the {now:.0f} MHz it has now" if now else ""
    if heat:
        at = f" at {hottest} C" if hottest is not None else ""
        return (
            Advice(
                f"Cool the card{at}, held back now by {names}: airflow, filters, room temperature, "
                "the load of the cards beside it. No line of the script changes this."
            ),
            Advice(
                "If that cannot be had, a lower power limit (nvidia-smi -pl, by an administrator) "
                f"keeps the clocks steady{clock or ', which they are not now'}; or another card."
            ),
        )
    return (
        Advice(
            f"The reason now is {names}: let whoever runs the machine look at its power supply, "
            "cables and the server's power cap. No line of the script changes this."
        ),
        Advice(f"Meanwhile another card or host: the same steps there run without {names}{clock}."),
    )


RULE = Rule(
    ID,
    120,
    judge,
    probe="the same steps on a cool card, or on another one",
    page=Page(
        number=40,
        title="Clocks held down",
        meaning=(
            "The card is loaded and runs below its clock, because it is too hot or the power "
            "supply tells it to. Everything takes longer by as much."
        ),
        looks_at=(
            "the driver's reasons for holding clocks down, once a second",
            "SM clock, temperature, power",
            "utilisation around each reading: only loaded ones count",
        ),
        thresholds=(
            Threshold(
                "thermal, hardware slowdown or power brake",
                f"> {percent(PART)} of the readings under load",
                "proposed; gpuprof: >= 82 C and clocks -15%, TraceML: >= 85 C",
            ),
            Threshold("under load", f"utilisation >= {LOADED:g}%", "proposed"),
            Threshold(
                "lost time",
                f"warn; {percent(CRITICAL)} critical; {percent(INFO)} is worth a gain",
                "TraceML's bands",
            ),
        ),
        mistaken_for=(
            "the software power cap, which is normal at full load",
            "an idle card, and clocks somebody set",
        ),
        mend=("airflow and neighbours", "the power supply", "another card"),
        test="the same steps on a cool card, or on another one",
        gain="f_target / f_now over the time it held, at most",
    ),
)
