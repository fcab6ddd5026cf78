"""The NVIDIA driver: does NVML answer, and do we see every card."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_train.doctor.facts import Facts
from gputop_train.doctor.findings import Check, Level, plural

#: nvmlReturn_t (nvml.h): no kernel module; no library. On a machine without a GPU: no fault.
_NOT_LOADED, _NO_LIBRARY = 9, 12


def checks(facts: Facts) -> Iterator[Check]:
    """Judge the driver."""
    yield _nvml(facts)
    if facts.gpus.cards:
        yield _pids(facts)


def _nvml(facts: Facts) -> Check:
    gpus = facts.gpus
    values = {
        "driver": gpus.driver,
        "driver_cuda": gpus.cuda,
        "cards": [card.device.name for card in gpus.cards],
        "on_pci": gpus.on_pci,
        "nvml_code": gpus.failure[0] if gpus.failure else None,
    }

    def check(level: Level, found: str, remedy: str | None = None) -> Check:
        return Check("nvml", "NVIDIA driver", level, found, remedy, values)

    if gpus.hung:
        return check(
            "fail",
            "The NVIDIA driver did not answer in time.",
            "Look at dmesg for Xid errors; a hung driver wants a reset of the GPU or a reboot.",
        )
    if gpus.refused and not gpus.cards:
        return check(
            "fail",
            f"{gpus.refused[0]} is there and closed to us.",
            "Ask for access to /dev/nvidia* (the group that owns them: ls -l /dev/nvidia*).",
        )
    if gpus.failure is not None:
        return check(*_failure(facts, *gpus.failure))
    if not gpus.cards:
        return check(
            "warn",
            "The NVIDIA driver works and shows no card.",
            "Give the container its GPUs (docker run --gpus all, or the scheduler's option), or "
            "look at nvidia-smi on the host.",
        )
    text = f"{gpus.driver or 'of unknown version'}, {gpus.names}"
    if gpus.on_pci is not None and gpus.on_pci > len(gpus.cards):
        return check(
            "note",
            f"Driver {text}; the PCI bus has {plural(gpus.on_pci, 'NVIDIA card')}.",
            "Nothing if you were given a part of them; else look for one that fell off the bus "
            "(dmesg, Xid 79).",
        )
    return check("ok", text)


def _failure(facts: Facts, code: int | None, why: str) -> tuple[Level, str, str | None]:
    found, remedy = _split(why)
    gpus = facts.gpus
    if code not in (_NOT_LOADED, _NO_LIBRARY):
        return "fail", found, remedy
    if gpus.on_pci is None:
        return "unchecked", f"{found[:-1]}, and no PCI bus to see a card on.", None
    if not gpus.on_pci:
        return "ok", "none; there is no NVIDIA card", None
    there = f"The PCI bus has {plural(gpus.on_pci, 'NVIDIA card')} and no driver answers here."
    wants = facts.interpreter.torch_facts.get("cuda") is not None
    if facts.host.container:
        remedy = (
            f"Give the {facts.host.container} container its GPUs, as with docker run --gpus all."
        )
    return "fail" if wants else "warn", there, remedy


def _split(why: str) -> tuple[str, str | None]:
    """NVML's sentences are "what; what to do."."""
    found, _, remedy = why.rstrip(".").partition("; ")
    return f"{found}.", f"{remedy[:1].upper()}{remedy[1:]}." if remedy else None


def _pids(facts: Facts) -> Check:
    title = "GPU processes"
    values = {"initial_pid_namespace": facts.host.initial_pids, "container": facts.host.container}
    if facts.host.initial_pids is False:
        return Check(
            "gpu-processes",
            title,
            "note",
            "We are in a PID namespace of our own while NVML counts in the host's PIDs: the run's "
            "own memory on a card, and who else is on it, may stay not measured.",
            "Share the host's PIDs (docker run --pid=host) to have them.",
            values,
        )
    refused = [card for card in facts.gpus.cards if card.processes is None]
    if refused:
        found = "Who computes on the card is not measured: the driver does not tell us."
        remedy = "Ask the administrator whether processes are hidden on purpose."
        return Check("gpu-processes", title, "unchecked", found, remedy, values)
    return Check("gpu-processes", title, "ok", "told by the driver, in our own PIDs", None, values)
