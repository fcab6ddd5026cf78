"""Every card and MIG instance NVML shows, with the handles to read them by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gputop_train.collect.devices import Device
from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure


@dataclass(frozen=True, slots=True)
class Found:
    """A card or MIG instance.

    Attributes:
        handle: What to read memory, processes and utilisation by.
        card: Handle of the whole card, the same object as ``handle`` unless this is an instance.
        gpu_instance: GPU instance id of a MIG device.
        first_instance: UUID of the first MIG instance of a card in MIG mode.
    """

    device: Device
    handle: Any
    card: Any
    gpu_instance: int | None = None
    first_instance: str | None = None


def find_devices(api: NvmlApi) -> tuple[Found, ...]:
    """List cards in PCI order, the instances of each after it. Lost cards are left out.

    Raises:
        NvmlFailure: NVML as a whole does not work.
    """
    found: list[Found] = []
    for index in range(int(api.call("nvmlDeviceGetCount"))):
        card = _unless_lost(api, "nvmlDeviceGetHandleByIndex", index)
        uuid = _unless_lost(api, "nvmlDeviceGetUUID", card) if card is not None else None
        if uuid is None:
            continue
        device = _describe(api, card, _text(uuid), index, None)
        instances = _instances(api, card, device)
        first = instances[0].device.uuid if instances else None
        found.append(Found(device, card, card, first_instance=first))
        found += instances
    return tuple(found)


def _instances(api: NvmlApi, card: Any, parent: Device) -> list[Found]:
    mode = _unless_lost(api, "nvmlDeviceGetMigMode", card)
    if not mode or mode[0] != 1:  # current, pending
        return []
    found: list[Found] = []
    for slot in range(int(_unless_lost(api, "nvmlDeviceGetMaxMigDeviceCount", card) or 0)):
        handle = _unless_lost(api, "nvmlDeviceGetMigDeviceHandleByIndex", card, slot)
        uuid = _unless_lost(api, "nvmlDeviceGetUUID", handle) if handle is not None else None
        if uuid is not None:
            device = _describe(api, handle, _text(uuid), parent.index, parent.uuid)
            instance = _unless_lost(api, "nvmlDeviceGetGpuInstanceId", handle)
            found.append(Found(device, handle, card, gpu_instance=instance))
    return found


def _describe(api: NvmlApi, handle: Any, uuid: str, index: int, parent: str | None) -> Device:
    name = _unless_lost(api, "nvmlDeviceGetName", handle)
    memory = _unless_lost(api, "nvmlDeviceGetMemoryInfo", handle)
    return Device(
        uuid=uuid,
        index=index,
        name=None if name is None else _text(name),
        memory_total=None if memory is None else int(memory.total),
        parent_uuid=parent,
    )


def _unless_lost(api: NvmlApi, name: str, *args: Any) -> Any | None:
    try:
        return api.maybe(name, *args)
    except NvmlFailure as failure:
        if failure.kind == "down":
            raise
        return None


def _text(value: str | bytes) -> str:
    """Older releases of nvidia-ml-py hand out bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
