"""What the machine moves is counted once: hardware, not what lies upon it."""

from __future__ import annotations

import time

from gputop_train.collect.host import CpuTimes, each_core_between, parse_cpu_times
from gputop_train.collect.traffic import (
    Rates,
    TrafficReader,
    hardware,
    parse_diskstats,
    parse_net_dev,
)

S = 1_000_000_000
#: A server with two NVMe disks in a RAID 0, as its kernel tells it.
DISKS = """\
 259       0 nvme0n1 1000 5 8000 120 2000 9 16000 300 0 400 420 0 0 0 0 9 2
 259       1 nvme0n1p1 900 5 7000 110 2000 9 16000 300 0 400 410 0 0 0 0 0 0
 259       2 nvme1n1 10 0 80 12 20 0 160 30 0 40 42 0 0 0 0 0 0
   9       0 md0 1010 0 8080 0 2020 0 16160 0 0 0 0 0 0 0 0 0 0
   7       0 loop0 50 0 400 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 99999 10 0 0 0 0 0 0 99999 10 0 0 0 0 0 0
  eth0: 5000 10 0 0 0 0 0 0 700 10 0 0 0 0 0 0
  eth1:1000 10 0 0 0 0 0 0 30 10 0 0 0 0 0 0
docker0: 6000 10 0 0 0 0 0 0 730 10 0 0 0 0 0 0
"""


def test_disks_count_once_and_in_bytes():
    disks = frozenset({"nvme0n1", "nvme1n1"})
    assert parse_diskstats(DISKS, disks) == (8080 * 512, 16160 * 512)


def test_cards_count_and_bridges_do_not():
    assert parse_net_dev(NET, frozenset({"eth0", "eth1"})) == (6000, 730)


def test_in_a_container_the_end_of_the_cable_counts():
    one = "\n".join([*NET.splitlines()[:3], "  eth0: 5000 1 0 0 0 0 0 0 700 1 0 0 0 0 0 0"])
    assert parse_net_dev(one, frozenset()) == (5000, 700)


def test_what_is_not_told_is_none_and_not_zero():
    assert parse_diskstats(None, frozenset({"sda"})) is None
    assert parse_diskstats(DISKS, frozenset()) is None
    assert parse_net_dev("", frozenset()) is None
    assert parse_net_dev("\n\n  lo: 1 0 0 0 0 0 0 0 1 0\n", frozenset()) is None
    assert (
        parse_diskstats("8 0 sda x\n\x00\n8 0 sda 1 1 a 1 1 1 b 1 1\n", frozenset({"sda"})) is None
    )


class Machine:
    def __init__(self) -> None:
        self.read_sectors, self.received = 0, 0
        self.disks = frozenset({"sda"})

    def text(self, path: str) -> str:
        if "disk" in path:
            return f"8 0 sda 1 0 {self.read_sectors} 0 1 0 0 0 0 0 0\n"
        return f"\n\n  eth0: {self.received} 0 0 0 0 0 0 0 0 0\n"

    def devices(self, directory: str) -> frozenset[str]:
        return self.disks if "block" in directory else frozenset({"eth0"})


def test_rates_are_over_the_time_between_two_readings():
    machine = Machine()
    reader = TrafficReader(machine.text, machine.devices)
    assert reader.sample(0) == Rates()
    machine.read_sectors, machine.received = 4000, 1_000_000
    assert reader.sample(2 * S) == Rates(4000 * 512 / 2, 0.0, 500_000.0, 0.0)


def test_a_disk_that_comes_or_a_counter_that_begins_anew_makes_no_rate():
    machine = Machine()
    reader = TrafficReader(machine.text, machine.devices)
    machine.read_sectors = machine.received = 5000
    reader.sample(0)
    machine.received = 10
    assert reader.sample(S).net_rx is None
    machine.disks = frozenset({"sda", "sdb"})
    assert reader.sample(100 * S).disk_read is None
    assert reader.sample(101 * S).disk_read == 0.0


def test_this_machine_is_read_without_trouble():
    reader = TrafficReader()
    reader.sample(time.monotonic_ns())
    found = reader.sample(time.monotonic_ns() + S)
    assert all(rate is None or rate >= 0 for rate in (found.disk_read, found.net_rx))
    assert hardware("/nowhere") == frozenset()


def times(*each: tuple[int, int]) -> CpuTimes:
    return CpuTimes(0, 0, 0, len(each), each)


def test_each_core_has_its_own_share():
    before, now = times((10, 100), (0, 100), (5, 100)), times((60, 200), (100, 200), (5, 100))
    assert each_core_between(before, now) == (50, 100, None)
    assert each_core_between(before, times((60, 200))) is None
    assert each_core_between(before, before) is None
    assert each_core_between(None, now) is None


def test_cores_are_read_one_by_one():
    text = "cpu  30 0 10 50 10 0 0 0 0 0\ncpu0 20 0 5 15 5 0 0 0\ncpu1 10 0 5 35 5 0 0 0\nintr 1\n"
    found = parse_cpu_times(text)
    assert found is not None and found.each == ((25, 45), (15, 55))
