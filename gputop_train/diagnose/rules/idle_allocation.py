"""``idle-allocation``: no step for a long time, memory of the GPU held, and nothing computes.

Looks for, live only: no step for >= 10 T and >= 60 s (catalogue 30, proposed), memory allocated,
utilisation flat 0 and the training process asleep. ICSE'24: interactive and unreleased jobs make
2.12% and 1.27% of issues.
Differential: a long evaluation, a save or a download keeps the process or the GPU busy; a hung
collective spins: utilisation reads 100%; a script that ended is not live.
Fix: exit, release, or look at the stack. Probe: none. Gain: the device.
"""

from __future__ import annotations

from gputop_train.diagnose.headroom import headroom
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    cores,
    name,
    number,
    plain,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "idle-allocation"
STEPS, SECONDS = 10.0, 60.0
#: A device that only drives a display reads a percent or two (``cpu-training``).
FLAT_ZERO = 2.0
#: A process that waits; the probe's own thread takes a percent.
ASLEEP = 0.10
#: What the training thread may be at for minutes.
AT_WORK = ("eval", "checkpoint", "data_wait", "forward", "backward", "compile", "logging")


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if window.final:
        return RuledOut(ID, "the run is over")
    if not window.on_gpu:
        return RuledOut(ID, "no GPU is held")
    after = window.since
    step_s = (window.median_ms or 0.0) / 1e3
    if after is None or after.seconds < max(SECONDS, STEPS * step_s):
        return RuledOut(ID, "steps go on")
    if after.util is None or after.trainer is None:
        return Abstention(ID, "utilisation and processor time since the last step")
    if after.util > FLAT_ZERO:
        return RuledOut(ID, f"the GPU is in use without steps ({after.util:.0f}%)")
    if after.trainer > ASLEEP or after.label in AT_WORK:
        at = f" at {name(after.place)}" if after.place else ""
        return RuledOut(ID, f"the training process is at work{at}, without steps")
    room = headroom(window)
    held = window.memory[-1].reserved or window.memory[-1].allocated if window.memory else None
    if not held:
        return Abstention(ID, "memory that the process holds")
    place = after.place
    at = f" at {name(place)}" if place else ""
    return Finding(
        id=ID,
        summary=(
            f"No step for {plain(after.seconds)} s while {held / 1e9:.3g} GB of GPU memory stay "
            f"held: the process sleeps{at}."
        ),
        severity="warn",
        confidence="high",
        lost_share=0.0,
        evidence=tuple(
            row
            for row in (
                number("since the last step", after.seconds, "s"),
                amount("memory held", held),
                number("GPU utilisation since, mean", after.util, "%"),
                cores("trainer process since", after.trainer),
                amount("memory of the device", room.total) if room is not None else None,
            )
            if row is not None
        ),
        where=(place,) if place is not None else (),
        where_missing=None if place else "the training thread runs no code of the script's",
        advice=(
            Advice(
                "If it waits for a person (a prompt, a debugger, a notebook cell), end it when not "
                f"in use: {held / 1e9:.3g} GB come back to others."
            ),
            Advice(
                f"If it should be training, look where it hangs{at}: py-spy dump --pid of the "
                f"trainer; it used {after.trainer:.2f} cores in {plain(after.seconds)} s."
            ),
        ),
    )


RULE = Rule(
    ID,
    153,
    judge,
    page=Page(
        number=30,
        title="Memory is held and nothing runs",
        meaning=(
            "The process makes no step any more, sleeps, and keeps its GPU memory: a notebook left "
            "open, a debugger, a hang. A person sees memory full and 0%."
        ),
        looks_at=(
            "time since the last step, live",
            "utilisation and processor time since then",
            "memory the process holds, and the line the training thread is at",
        ),
        thresholds=(
            Threshold("without a step", f">= {STEPS:.0f} T and >= {SECONDS:.0f} s", "proposed"),
            Threshold("GPU utilisation since", f"<= {FLAT_ZERO:.0f}%", "proposed"),
            Threshold("training process", f"<= {ASLEEP} of a core", "proposed"),
        ),
        mistaken_for=(
            "a long evaluation or save: the process or the GPU is busy",
            "a hung collective: its kernel spins, utilisation reads 100%",
        ),
        mend=("End the process when nobody uses it.", "Look at its stack."),
        test="None: it is a state, not a cause",
        gain="the device, for others",
    ),
)
