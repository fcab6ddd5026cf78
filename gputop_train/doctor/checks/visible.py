"""``CUDA_VISIBLE_DEVICES`` in all its forms, held against the cards that NVML shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gputop_train.collect.devices import index_is_certain, visible_devices
from gputop_train.doctor.facts import Card, Facts
from gputop_train.doctor.findings import Check, Level, plural
from gputop_train.doctor.words import shown

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NUMBER = re.compile(r"\s*[+-]?\d+")


def checks(facts: Facts) -> Iterator[Check]:
    """Judge the variable, if it is set."""
    value = facts.environ.get(VARIABLE)
    gpus = facts.gpus
    if value is None or (gpus.failure is None and not gpus.cards and not gpus.hung):
        return
    if gpus.on_pci == 0 and not gpus.cards:
        return
    if gpus.failure is not None or gpus.hung:
        found = f"{VARIABLE}={shown(value)} was not held against the cards: NVML shows none."
        yield Check("visible-devices", "visible GPUs", "unchecked", found, None, {"value": value})
        return
    known = [card.device.uuid for card in (*gpus.cards, *gpus.instances)]
    seen = visible_devices(value, known)
    level, found, remedy = judge(value, known, seen)
    names = [card.device.name for card in gpus.cards]
    if level == "ok" and not index_is_certain(facts.environ, names):
        level = "note"
        found = (
            f"{VARIABLE}={shown(value)} counts cards by speed, and they are not alike: which ones "
            "are meant shows only once the script uses them."
        )
        remedy = "Set CUDA_DEVICE_ORDER=PCI_BUS_ID to count as nvidia-smi does."
    values = {"value": value, "visible": list(seen)}
    yield Check("visible-devices", "visible GPUs", level, found, remedy, values)


def cards_in_use(facts: Facts) -> tuple[Card, ...]:
    """The cards a run would use; all of them where that is not certain."""
    value, gpus = facts.environ.get(VARIABLE), facts.gpus
    if value is None or not index_is_certain(facts.environ, [c.device.name for c in gpus.cards]):
        return gpus.cards
    seen = set(visible_devices(value, [c.device.uuid for c in (*gpus.cards, *gpus.instances)]))
    parents = {c.device.parent_uuid for c in gpus.instances if c.device.uuid in seen}
    return tuple(c for c in gpus.cards if c.device.uuid in seen | parents)


def judge(value: str, known: Sequence[str], seen: Sequence[str]) -> tuple[Level, str, str | None]:
    """What CUDA makes of a value.

    Args:
        value: Of the variable.
        known: UUIDs of cards and instances.
        seen: Those CUDA shows, by `visible_devices`.

    Returns:
        Level, sentence and remedy.
    """
    cards = [uuid for uuid in known if not uuid.startswith("MIG-")]
    entries = [entry.strip() for entry in value.split(",")]
    said = f"{VARIABLE}={shown(value)}"
    unset = f"Unset {VARIABLE}, or set it to"
    if not value.strip() or entries[0] in ("-1", "NoDevFiles"):
        return (
            "warn",
            f"{VARIABLE}={shown(value) or '(empty)'} hides every card: the CPU would train.",
            f"unset {VARIABLE} to train on {plural(len(cards), 'GPU')}, unless this is meant.",
        )
    if not seen and len(set(entries)) < len(entries):
        return (
            "fail",
            f"{said} names a card twice, and CUDA then shows none.",
            f"{unset} each once.",
        )
    wrong = entries[len(seen)] if len(seen) < len(entries) else None
    if not seen:
        there = f"0 to {len(cards) - 1}" if len(cards) > 1 else "0 only"
        what = f"there are {there}" if _NUMBER.match(entries[0]) else "nvidia-smi -L lists others"
        return (
            "fail",
            f"{said} names no card of this machine ({what}): torch sees no GPU.",
            f"{unset} {','.join(str(n) for n in range(len(cards)))}.",
        )
    if seen[-1].startswith("MIG-") and len(entries) > 1:
        return (
            "warn",
            f"{said} names {len(entries)} devices, and CUDA gives a process one MIG instance: the "
            f"first, {seen[-1]}.",
            "Give each process an instance of its own.",
        )
    if wrong is not None:
        return (
            "warn",
            f"{said}: the list ends for CUDA at {shown(wrong) or 'an empty entry'}, which is no "
            f"card here, so torch sees {len(seen)} of {len(entries)}.",
            "Take it out, or correct it by nvidia-smi -L.",
        )
    return "ok", f"{shown(value)}: {len(seen)} of {plural(len(cards), 'card')}", None
