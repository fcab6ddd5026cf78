"""Facts about the NVIDIA driver and its cards, asked in a thread that may be held up for ever."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from gputop_train.collect.gpu_readings import CardReader
from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure
from gputop_train.collect.nvml_devices import Found, find_devices
from gputop_train.collect.procfs import read_text
from gputop_train.doctor.facts import Card, Gpus

#: A driver that has to load its firmware first takes a few seconds a card.
LIMIT_S = 30.0
_NVIDIA_VENDOR = "0x10de"
#: PCI base classes of cards that compute (pci.ids): display controller, processing accelerator.
_GPU_CLASSES = ("0x03", "0x12")
_UNCORRECTED, _VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t


def gather(module: Any = None, limit_s: float = LIMIT_S, system: str = "/") -> Gpus:
    """Ask NVML, and the kernel where NVML does not work.

    Args:
        module: What to call in place of ``pynvml``, for tests.
        limit_s: Seconds the driver has to answer.
        system: Where ``/dev`` and ``/sys`` are.
    """
    answers: list[Gpus] = []
    asking = threading.Thread(
        target=lambda: answers.append(_ask(NvmlApi(module))), name="nvml", daemon=True
    )
    asking.start()
    asking.join(limit_s)
    found = answers[0] if answers else Gpus(hung=True)
    return replace(found, on_pci=_on_pci(Path(system)), refused=_refused(Path(system)))


def _ask(api: NvmlApi) -> Gpus:
    try:
        api.start()
    except NvmlFailure as failure:
        return Gpus(failure=(_code(failure), failure.why))
    try:
        found = find_devices(api)
        by_card = [_card(api, each, found) for each in found]
        return Gpus(
            driver=_text(api.maybe("nvmlSystemGetDriverVersion")),
            cuda=_cuda(api),
            cards=tuple(c for c in by_card if not c.device.is_mig),
            instances=tuple(c for c in by_card if c.device.is_mig),
        )
    except NvmlFailure as failure:
        return Gpus(failure=(_code(failure), f"NVML stopped answering ({failure.why})."))
    finally:
        api.stop()


def _code(failure: NvmlFailure) -> int | None:
    """``nvmlReturn_t`` behind a failure to start."""
    code = getattr(failure.__cause__, "value", None)
    return code if isinstance(code, int) else None


def _cuda(api: NvmlApi) -> tuple[int, int] | None:
    """CUDA's version number is 1000 major + 10 minor (cuda.h, ``cuDriverGetVersion``)."""
    number = api.maybe(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
    return None if not number else (int(number) // 1000, int(number) % 1000 // 10)


def _card(api: NvmlApi, each: Found, found: tuple[Found, ...]) -> Card:
    handle, card, device = each.handle, each.card, each.device
    reader = CardReader(api, device.uuid, handle, card)
    try:
        listed = reader.processes()
        reading = reader.read(0, (None, None))
        capability = api.maybe("nvmlDeviceGetCudaComputeCapability", card)
        remapped = api.maybe("nvmlDeviceGetRemappedRows", card)
        retired = api.maybe("nvmlDeviceGetRetiredPagesPendingStatus", card)
        gpm = api.maybe("nvmlGpmQueryDeviceSupport", card)
        persistence = api.maybe("nvmlDeviceGetPersistenceMode", card)
        errors = api.maybe("nvmlDeviceGetTotalEccErrors", card, _UNCORRECTED, _VOLATILE)
        mode = api.maybe("nvmlDeviceGetComputeMode", card)
    except NvmlFailure as failure:
        if failure.kind == "down":
            raise
        return Card(device)
    pending = [bool(told) for told in (remapped and remapped[2], retired) if told is not None]
    return Card(
        device=device,
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        mig=any(other.device.parent_uuid == device.uuid for other in found)
        or bool((api.maybe("nvmlDeviceGetMigMode", card) or (0,))[0]),
        persistence=None if persistence is None else bool(persistence),
        memory_used=reading.memory_used,
        memory_total=reading.memory_total,
        processes=None if listed is None else tuple(listed),
        throttle=reading.throttle_reasons,
        repair_pending=any(pending) if pending else None,
        ecc_errors=None if errors is None else int(errors),
        gpm=None if gpm is None else bool(gpm.isSupportedDevice),
        compute_mode=None if mode is None else int(mode),
    )


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _on_pci(system: Path) -> int | None:
    """NVIDIA cards the machine has, whatever the driver says; ``None`` without a PCI bus."""
    try:
        slots = list((system / "sys/bus/pci/devices").iterdir())
    except OSError:
        return None
    return sum(
        (read_text(str(slot / "vendor")) or "").strip() == _NVIDIA_VENDOR
        and (read_text(str(slot / "class")) or "").startswith(_GPU_CLASSES)
        for slot in slots
    )


def _refused(system: Path) -> tuple[str, ...]:
    places = [*sorted((system / "dev").glob("nvidia[0-9]*")), system / "dev" / "nvidiactl"]
    return tuple(str(p) for p in places if p.exists() and not os.access(p, os.R_OK | os.W_OK))
