"""Every card and MIG instance NVML shows, with the handles to read them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gputop_train.collect.devices import Device, index_is_certain, match_uuid, visible_devices
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


def choose_devices(
    found: Sequence[Found], wanted: Sequence[str] | None, env: Mapping[str, str]
) -> tuple[tuple[str, ...], str | None]:
    """Which of the found devices the run uses.

    Args:
        found: What the driver shows.
        wanted: UUIDs the training processes reported; ``None`` until they have.
        env: Environment of the training process.

    Returns:
        UUIDs in CUDA's order, and one sentence when the answer is not to be had.
    """
    known = [f.device.uuid for f in found]
    if wanted is not None:
        matches = (match_uuid(uuid, known) for uuid in wanted)
        chosen = tuple(dict.fromkeys(uuid for uuid in matches if uuid is not None))
        if wanted and not chosen:
            return (), (
                f"The card the script uses ({wanted[0]}) is not among those the driver shows us; "
                "run the monitor where nvidia-smi lists it."
            )
        return chosen, None
    if not found:
        return (), (
            "The NVIDIA driver shows no card here; check nvidia-smi and the container's GPU "
            "options."
        )
    if not index_is_certain(env, [f.device.name for f in found if f.device.parent_uuid is None]):
        return (), (
            "The cards differ and CUDA numbers them by speed, so CUDA_VISIBLE_DEVICES does not "
            "say which one is meant; it shows once the script uses it, or set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID."
        )
    # A card in MIG mode cannot be used whole: CUDA takes its first instance.
    first = {f.device.uuid: f.first_instance for f in found}
    shown = visible_devices(env.get("CUDA_VISIBLE_DEVICES"), known)
    return tuple(first[uuid] or uuid for uuid in shown), None


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
