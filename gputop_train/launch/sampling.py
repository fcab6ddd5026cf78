"""What is measured from outside the training: GPU, host, the run's processes and their memory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gputop_train.collect.host import HostCollector
from gputop_train.collect.nvml import NvmlCollector
from gputop_train.collect.procfs import read_text
from gputop_train.collect.procs import assign_roles, children_of_session, parse_kib, parse_stat
from gputop_train.launch.feeds import Feeds
from gputop_train.launch.guard import Guard
from gputop_train.model import MemorySample
from gputop_train.store.writer import RunWriter

#: Roles are told anew this often: who trains and who loads comes from the probe.
_ROLES_NS = 2_000_000_000
#: Walking all of /proc costs about 20 us for each process of the machine, of which a GPU server
#: has thousands: a walk that took t of CPU is repeated after 500 t, 0.2% of a core, or this long.
_WALK_REST, _LONGEST_WALK_NS = 500, 20_000_000_000
#: Reading one small file per trainer; often enough that low-water marks between steps are caught.
_MEMORY_NS = 500_000_000
_ROCM = (
    "This torch is built for ROCm, whose cards are not read; look at them with rocm-smi beside us."
)
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


class Sampling:
    """Drives the collectors and hands what they give to the store.

    Args:
        sid: Session of the run, whose processes are looked at.
        feeds: The training processes known so far.
        since_ns: Driver samples older than this are left out.
    """

    def __init__(
        self, sid: int, feeds: Feeds, writer: RunWriter, guard: Guard, *, since_ns: int
    ) -> None:
        self._sid = sid
        self._feeds = feeds
        self._writer = writer
        self._guard = guard
        self._roles: dict[int, str] = {}
        self._roles_due_ns = 0
        self._members: set[int] = set()
        self._walk_due_ns = 0
        self._memory_due_ns = 0
        self._uuids: frozenset[str] | None = None
        self._rocm = False
        self._told_missing: dict[str, str] | None = None
        self._told_devices: list[dict[str, Any]] = []
        self._host = guard.run("host", self._make_host)
        self._nvml = guard.run("nvml", lambda: self._make_nvml(since_ns))

    def tick(self, now_ns: int, *, stretch: float = 1.0) -> None:
        """Gather what is due.

        Args:
            now_ns: ``CLOCK_MONOTONIC`` nanoseconds.
            stretch: Factor on the periods of what may come later.
        """
        if now_ns >= self._roles_due_ns:
            self._roles_due_ns = now_ns + int(_ROLES_NS * stretch)
            roles = self._guard.run("processes", lambda: self._find_roles(now_ns))
            self._roles = roles if roles is not None else self._roles
        self._guard.run("nvml", lambda: self._sample_nvml(now_ns, stretch))
        self._guard.run("host", lambda: self._sample_host(now_ns, stretch))
        if now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + _MEMORY_NS
            self._guard.run("memory", lambda: self._sample_memory(now_ns))
        self._guard.run("missing", self._tell_missing)

    def close(self) -> None:
        """End the collectors' threads."""
        if self._nvml is not None:
            self._guard.run("nvml", self._nvml.close)
        if self._host is not None:
            self._guard.run("host", self._host.close)

    def _make_host(self) -> HostCollector:
        return HostCollector(lambda: self._roles, ranks=self._feeds.ranks)

    def _make_nvml(self, since_ns: int) -> NvmlCollector:
        # Until the probe tells which cards the script uses, those its environment lets it see.
        env = {
            key: value for key, value in environment_of(self._sid).items() if key in _GPU_VARIABLES
        }
        return NvmlCollector(None, lambda: set(self._roles), env=env, since_ns=since_ns)

    def _find_roles(self, now_ns: int) -> dict[int, str]:
        trainers = self._feeds.pids()
        workers = {
            pid
            for feed in self._feeds.active
            for loader in _dicts(feed.snapshot, "loaders")
            for pid in loader.get("worker_pids") or ()
            if isinstance(pid, int)
        }
        if now_ns >= self._walk_due_ns:
            began_ns = time.thread_time_ns()
            self._members = children_of_session(self._sid)
            rest_ns = _WALK_REST * (time.thread_time_ns() - began_ns)
            self._walk_due_ns = now_ns + min(rest_ns, _LONGEST_WALK_NS)
        members = self._members | trainers
        # A snapshot's process ids are only believed for processes that are part of the run.
        members |= {pid for pid in workers - members if self._belongs(pid, members)}
        return assign_roles(members, trainers, workers & members)

    def _belongs(self, pid: int, members: Collection[int]) -> bool:
        """Whether a process that began since the last walk is of the run."""
        stat = parse_stat(read_text(f"/proc/{pid}/stat"))
        return stat is not None and (stat.session == self._sid or stat.ppid in members)

    def _sample_nvml(self, now_ns: int, stretch: float) -> None:
        if self._nvml is None:
            return
        self._nvml.stretch(stretch)
        uuids = self._known_uuids()
        if uuids and uuids != self._uuids:
            self._uuids = uuids
            self._nvml.set_uuids(sorted(uuids))
        batch = self._nvml.sample(now_ns)
        self._writer.add_util(batch.util)
        self._writer.add_gpu(batch.gpu)
        self._writer.add_gpm(batch.gpm)
        devices = [dataclasses.asdict(device) for device in self._nvml.devices]
        if devices and devices != self._told_devices:
            self._told_devices = devices
            self._writer.set_meta("devices", devices)

    def _known_uuids(self) -> frozenset[str]:
        found = set(self._uuids or ())
        for feed in self._feeds.active:
            cuda = (feed.snapshot or {}).get("cuda")
            uuid = cuda.get("uuid") if isinstance(cuda, dict) else None
            if isinstance(uuid, str) and uuid:
                found.add(uuid)
        return frozenset(found)

    def _sample_host(self, now_ns: int, stretch: float) -> None:
        if self._host is None:
            return
        batch = self._host.sample(now_ns, stretch=stretch)
        self._writer.add_host(batch.host)
        self._writer.add_procs(batch.procs)

    def _sample_memory(self, now_ns: int) -> None:
        samples = []
        for feed in self._feeds.active:
            if feed.snapshot is None or uses_cuda(feed.snapshot):
                continue
            held = parse_kib(read_text(f"/proc/{feed.pid}/status"), "RssAnon")
            if held is not None and feed.alive():
                step = self._feeds.steps(feed.rank)
                samples.append(
                    MemorySample(feed.rank, now_ns, step - 1 if step else None, "rss-anon", held)
                )
        self._writer.add_memory(samples)

    def _tell_missing(self) -> None:
        missing: dict[str, str] = {}
        for collector in (self._nvml, self._host):
            if collector is not None:
                missing.update(collector.missing)
        self._rocm |= any(_on_rocm(feed.snapshot) for feed in self._feeds.active)
        if self._rocm:
            # No driver of NVIDIA's is missing there.
            missing["nvml"] = _ROCM
        if missing != self._told_missing:
            gone = missing.get("nvml")
            if self._told_devices and gone and gone != (self._told_missing or {}).get("nvml"):
                self._writer.add_note(time.monotonic_ns(), "gpu-lost", {"text": gone})
            self._told_missing = missing
            self._writer.set_meta("missing", missing)


def uses_cuda(snapshot: Mapping[str, Any]) -> bool:
    """Whether a training process computes on a GPU: then the allocator says what it holds."""
    cuda, memory = snapshot.get("cuda"), snapshot.get("memory")
    if not (isinstance(cuda, dict) and cuda.get("initialized")):
        return False
    # Pinned batches alone initialise CUDA too: parameters on the CPU and nothing ever allocated.
    unused = isinstance(memory, dict) and memory.get("peak_allocated") == 0
    return not (unused and snapshot.get("param_device") == "cpu")


def _on_rocm(snapshot: Mapping[str, Any] | None) -> bool:
    cuda = (snapshot or {}).get("cuda")
    return isinstance(cuda, dict) and bool(cuda.get("hip"))


def environment_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it may not be read.

    Only looked at, never stored: it may hold secrets.
    """
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs
    }


def _dicts(snapshot: Mapping[str, Any] | None, key: str) -> list[dict[str, Any]]:
    value = (snapshot or {}).get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
