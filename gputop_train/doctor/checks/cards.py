"""The cards themselves: in health, free, and telling all they can."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_train.diagnose.rules.clock_throttling import REASONS
from gputop_train.doctor.checks.visible import cards_in_use
from gputop_train.doctor.facts import Card, Facts
from gputop_train.doctor.findings import Check, gib, plural

#: Of a card's memory held by others before we start; what a desktop or a display holds is less.
HELD_BY_OTHERS = 0.10
_PROHIBITED, _EXCLUSIVE_PROCESS = 2, 3  # nvmlComputeMode_t


def checks(facts: Facts) -> Iterator[Check]:
    """Judge the cards a run would use; each subject names the cards it is about."""
    cards = cards_in_use(facts)
    if not cards:
        return
    yield _mig(facts, cards)
    yield _health(cards)
    yield _throttled(cards)
    yield _mode(cards)
    yield _others(cards)
    yield _persistence(cards)
    yield _counters(cards)


def _where(cards: list[Card]) -> str:
    return "GPU " + ", ".join(str(card.device.index) for card in cards)


def _mig(facts: Facts, used: tuple[Card, ...]) -> Check:
    cards = [card for card in used if card.mig]
    parents = {card.device.uuid for card in cards}
    count = sum(each.device.parent_uuid in parents for each in facts.gpus.instances)
    values = {"cards": [c.device.index for c in cards], "instances": count}
    if not cards:
        return Check("mig", "MIG", "ok", "off", None, values)
    if not count:
        return Check(
            "mig",
            "MIG",
            "fail",
            f"{_where(cards)} is in MIG mode without an instance: CUDA sees no device.",
            "Make one (nvidia-smi mig -cgi ... -C), or switch MIG off (nvidia-smi -mig 0).",
            values,
        )
    return Check(
        "mig",
        "MIG",
        "note",
        f"{_where(cards)} is cut into {plural(count, 'MIG instance')}: of an instance the driver "
        "tells no power, PCIe traffic, utilisation or neighbours; the screen shows n/a, not 0.",
        "Name the instance: CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L).",
        values,
    )


def _health(cards: tuple[Card, ...]) -> Check:
    pending = [card for card in cards if card.repair_pending]
    errors = [card for card in cards if card.ecc_errors]
    values = {
        "repair_pending": [card.repair_pending for card in cards],
        "ecc_errors": [card.ecc_errors for card in cards],
    }
    if pending:
        found = f"{_where(pending)} has bad memory that a reset would map out."
        remedy = "Drain it and reset it (nvidia-smi --gpu-reset), before a long run."
        return Check("gpu-health", "memory errors", "warn", found, remedy, values)
    if errors:
        count = sum(card.ecc_errors or 0 for card in errors)
        found = f"{_where(errors)} had {plural(count, 'uncorrected memory error')}."
        remedy = "Look at nvidia-smi -q -d ECC and dmesg (Xid), and tell who runs the machine."
        return Check("gpu-health", "memory errors", "warn", found, remedy, values)
    if all(card.repair_pending is None and card.ecc_errors is None for card in cards):
        found = "Memory errors are not measured: the card does not count them."
        return Check("gpu-health", "memory errors", "unchecked", found, None, values)
    return Check("gpu-health", "memory errors", "ok", "none", None, values)


def _throttled(cards: tuple[Card, ...]) -> Check:
    values = {"clocks_event_reasons": [card.throttle for card in cards]}
    slowed = [
        (c, [name for bit, name in REASONS.items() if (c.throttle or 0) & bit]) for c in cards
    ]
    slowed = [(card, names) for card, names in slowed if names]
    if slowed:
        names = ", ".join(dict.fromkeys(name for _, each in slowed for name in each))
        found = f"{_where([card for card, _ in slowed])} is throttled now: {names}."
        remedy = "Look at its cooling and power (nvidia-smi -q -d PERFORMANCE,TEMPERATURE)."
        return Check("gpu-clocks", "GPU clocks", "warn", found, remedy, values)
    if all(card.throttle is None for card in cards):
        found = "Throttling is not measured: the driver does not tell."
        return Check("gpu-clocks", "GPU clocks", "unchecked", found, None, values)
    return Check("gpu-clocks", "GPU clocks", "ok", "not throttled now", None, values)


def _mode(cards: tuple[Card, ...]) -> Check:
    values = {"compute_mode": [card.compute_mode for card in cards]}
    shut = [card for card in cards if card.compute_mode == _PROHIBITED]
    taken = [c for c in cards if c.compute_mode == _EXCLUSIVE_PROCESS and c.processes]
    if shut:
        found = f"{_where(shut)} is in prohibited compute mode: no CUDA program may use it."
        return Check("gpu-mode", "compute mode", "fail", found, "nvidia-smi -c DEFAULT.", values)
    if taken:
        found = f"{_where(taken)} is for one process at a time, and one has it."
        remedy = "Wait for it, take another card, or have the mode changed (nvidia-smi -c DEFAULT)."
        return Check("gpu-mode", "compute mode", "fail", found, remedy, values)
    if all(card.compute_mode is None for card in cards):
        found = "The compute mode is not measured: the driver does not tell."
        return Check("gpu-mode", "compute mode", "unchecked", found, None, values)
    return Check("gpu-mode", "compute mode", "ok", "cards may be used", None, values)


def _others(cards: tuple[Card, ...]) -> Check:
    """Memory in use is of everybody; a process one may not see still holds some."""
    values = {
        "memory_used": [card.memory_used for card in cards],
        "processes": [None if c.processes is None else len(c.processes) for c in cards],
    }
    title = "GPU in use"
    held = [c for c in cards if c.memory_used and c.memory_total and not c.mig]
    busy = [c for c in held if (c.memory_used or 0) >= HELD_BY_OTHERS * (c.memory_total or 1)]
    if busy:
        used, total = sum(c.memory_used or 0 for c in busy), sum(c.memory_total or 0 for c in busy)
        seen = sum(len(c.processes or ()) for c in busy)
        who = f"by {plural(seen, 'process')}"
        found = (
            f"{_where(busy)}: {gib(used)} of {gib(total)} in use already "
            f"{who if seen else 'by processes we may not see'}."
        )
        remedy = "Choose a free card (nvidia-smi, CUDA_VISIBLE_DEVICES), or expect to share it."
        return Check("gpu-in-use", title, "warn", found, remedy, values)
    if not held:
        found = "Whether somebody holds memory on a card is not measured."
        return Check("gpu-in-use", title, "unchecked", found, None, values)
    return Check("gpu-in-use", title, "ok", "hardly any memory held", None, values)


def _persistence(cards: tuple[Card, ...]) -> Check:
    values = {"persistence": [card.persistence for card in cards]}
    title = "persistence"
    off = [card for card in cards if card.persistence is False]
    if off:
        found = f"It is off on {_where(off)}: with nobody on the card, the first CUDA call is slow."
        remedy = "nvidia-smi -pm 1, or start nvidia-persistenced (both need root)."
        return Check("gpu-persistence", title, "note", found, remedy, values)
    if all(card.persistence is None for card in cards):
        found = "It is not measured: the driver does not tell."
        return Check("gpu-persistence", title, "unchecked", found, None, values)
    return Check("gpu-persistence", title, "ok", "on", None, values)


def _counters(cards: tuple[Card, ...]) -> Check:
    values = {"gpm": [card.gpm for card in cards]}
    without = [card for card in cards if not card.gpm]
    if without:
        found = (
            f"{_where(without)} has no GPM counters (they come with Hopper): how busy SMs, tensor "
            "cores and memory are stays not measured; utilisation is."
        )
        return Check("gpm", "GPM counters", "note", found, None, values)
    return Check("gpm", "GPM counters", "ok", "read", None, values)
