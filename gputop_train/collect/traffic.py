"""What the whole machine moves: its disks (/proc/diskstats) and its network (/proc/net/dev).

Only hardware counts, so that nothing is counted twice: a partition, an LVM or RAID volume, a loop
device, a bridge or a tunnel moves what a disk or a card below it moves. RDMA (InfiniBand, RoCE)
passes the kernel by and is not in these numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from gputop_train.collect.procfs import read_text

#: Devices come and go seldom, and telling hardware from the rest reads a directory.
LIST_PERIOD_NS = 30_000_000_000
#: /proc/diskstats counts in sectors of 512 bytes, whatever the disk's own are (Linux iostats.rst).
_SECTOR = 512


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second of the machine; ``None`` = not told."""

    disk_read: float | None = None
    disk_write: float | None = None
    net_rx: float | None = None
    net_tx: float | None = None


Pair = tuple[int, int]


def parse_diskstats(text: str | None, disks: frozenset[str]) -> Pair | None:
    """Bytes read and written since boot, summed over ``disks``; ``None`` without any of them."""
    found: list[Pair] = []
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) >= 10 and fields[2] in disks and (fields[5] + fields[9]).isdigit():
            found.append((int(fields[5]) * _SECTOR, int(fields[9]) * _SECTOR))
    return _sums(found)


def parse_net_dev(text: str | None, cards: frozenset[str]) -> Pair | None:
    """Bytes received and sent since boot, summed over ``cards``.

    Where none of them is there (a container has one end of a virtual cable) all interfaces but the
    loopback count; ``None`` without any.
    """
    found: dict[str, Pair] = {}
    for line in (text or "").splitlines()[2:]:
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) >= 9 and (fields[0] + fields[8]).isdigit():
            found[name.strip()] = int(fields[0]), int(fields[8])
    found.pop("lo", None)
    return _sums([pair for name, pair in found.items() if name in cards] or list(found.values()))


def _sums(pairs: list[Pair]) -> Pair | None:
    return (sum(a for a, _ in pairs), sum(b for _, b in pairs)) if pairs else None


def hardware(directory: str) -> frozenset[str]:
    """Devices of a class directory (``/sys/block``, ``/sys/class/net``) that are hardware."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return frozenset()
    return frozenset(n for n in names if os.path.exists(f"{directory}/{n}/device"))  # noqa: PTH110


class TrafficReader:
    """Rates of the machine since the previous call.

    Args:
        read: Gives the text of a kernel file.
        devices: Gives the hardware of a class directory.
    """

    def __init__(
        self,
        read: Callable[[str], str | None] = read_text,
        devices: Callable[[str], frozenset[str]] = hardware,
    ) -> None:
        self._read = read
        self._devices = devices
        self._disks: frozenset[str] = frozenset()
        self._cards: frozenset[str] = frozenset()
        self._due_ns: int | None = None
        self._before: tuple[int, Pair | None, Pair | None] | None = None

    def sample(self, now_ns: int) -> Rates:
        """Bytes per second since the last call; nothing the first time and after a change."""
        if self._due_ns is None or now_ns >= self._due_ns:
            self._due_ns = now_ns + LIST_PERIOD_NS
            devices = self._devices("/sys/block"), self._devices("/sys/class/net")
            if devices != (self._disks, self._cards):
                self._disks, self._cards = devices
                self._before = None  # sums over other devices do not compare
        disk = parse_diskstats(self._read("/proc/diskstats"), self._disks)
        net = parse_net_dev(self._read("/proc/net/dev"), self._cards)
        before, self._before = self._before, (now_ns, disk, net)
        if before is None or now_ns <= before[0]:
            return Rates()
        elapsed_s = (now_ns - before[0]) / 1e9
        return Rates(*_rates(before[1], disk, elapsed_s), *_rates(before[2], net, elapsed_s))


def _rates(
    before: Pair | None, now: Pair | None, elapsed_s: float
) -> tuple[float | None, float | None]:
    if before is None or now is None or now[0] < before[0] or now[1] < before[1]:
        return None, None  # a device that went, or a counter that began anew
    return (now[0] - before[0]) / elapsed_s, (now[1] - before[1]) / elapsed_s
