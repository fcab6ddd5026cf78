"""Which cards a run uses: ``CUDA_VISIBLE_DEVICES`` in all its forms, and UUIDs in all of theirs.

NVML counts cards in PCI bus order. CUDA counts them fastest first unless
``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set; among identical cards that is PCI order too. An index is
therefore certain only where the order is set or all cards are alike (``index_is_certain``); the
UUID the script's own process reports settles it in every case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEADING_INT = re.compile(r"\s*([+-]?\d+)")


@dataclass(frozen=True, slots=True)
class Device:
    """One card, or one MIG instance of a card, as NVML names it.

    Attributes:
        index: Position in PCI bus order (that of the card, for a MIG instance).
        parent_uuid: The card a MIG instance is cut from; ``None`` for a whole card.
    """

    uuid: str
    index: int
    name: str | None = None
    memory_total: int | None = None
    parent_uuid: str | None = None

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG instance, whose share of the card is all the run can use."""
        return self.parent_uuid is not None or self.uuid.startswith("MIG-")


def visible_devices(env_value: str | None, pci_ordered_uuids: Sequence[str]) -> tuple[str, ...]:
    """The UUIDs CUDA would enumerate, in its order, for a value of ``CUDA_VISIBLE_DEVICES``.

    Follows the CUDA programming guide ("CUDA Environment Variables") and, for what that leaves
    open, ``torch.cuda._parse_visible_devices``: the list ends at its first invalid entry, a
    repeated entry empties it, an entry is a number as ``strtoul`` reads it, or a UUID, or a prefix
    of exactly one UUID. CUDA gives a process at most one MIG instance.

    Args:
        env_value: The variable's value; ``None`` when it is not set, which shows every card.
        pci_ordered_uuids: ``GPU-...`` UUIDs in PCI order, and ``MIG-...`` UUIDs if there are any.

    Returns:
        The visible UUIDs; empty for ``""``, ``"-1"``, ``"NoDevFiles"`` and the like.
    """
    cards = [u for u in pci_ordered_uuids if not u.startswith("MIG-")]
    if env_value is None:
        return tuple(cards)
    first = env_value.strip()
    by_uuid = first.startswith(("GPU-", "MIG-"))
    chosen: list[str] = []
    for entry in env_value.split(","):
        uuid = _by_uuid(entry.strip(), pci_ordered_uuids) if by_uuid else _by_index(entry, cards)
        if uuid is None:
            break
        if uuid in chosen:
            return ()
        chosen.append(uuid)
        if uuid.startswith("MIG-"):
            break
    return tuple(chosen)


def _by_index(entry: str, cards: Sequence[str]) -> str | None:
    match = _LEADING_INT.match(entry)
    if match is None:
        return None
    index = int(match.group(1))
    return cards[index] if 0 <= index < len(cards) else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> str | None:
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matches = [u for u in uuids if u.lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None


def match_uuid(reported: str, known: Sequence[str]) -> str | None:
    """The NVML UUID meant by what CUDA or torch reported, which may lack the ``GPU-`` in front.

    Args:
        reported: Such as ``GPU-5a4e...``, ``MIG-91c1...`` or the bare ``5a4e...``.
        known: UUIDs NVML listed.
    """
    wanted = reported.strip().lower()
    if not wanted:
        return None
    for uuid in known:
        lowered = uuid.lower()
        if wanted == lowered or lowered in (f"gpu-{wanted}", f"mig-{wanted}"):
            return uuid
    return None


def index_is_certain(env: Mapping[str, str], names: Sequence[str | None]) -> bool:
    """Whether an index in ``CUDA_VISIBLE_DEVICES`` surely means the card of that PCI position.

    Args:
        env: The environment of the training process.
        names: Model names of all cards; ``None`` for one that would not say.
    """
    if env.get("CUDA_VISIBLE_DEVICES", "").strip().startswith(("GPU-", "MIG-")):
        return True
    if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or "CUDA_VISIBLE_DEVICES" not in env:
        return True
    return len(names) <= 1 or (None not in names and len(set(names)) == 1)
