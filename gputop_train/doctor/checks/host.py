"""What the kernel allows: shared memory, open files, threads, cores, memory, tracing, the clock."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gputop_train.diagnose.rules.cpu_affinity import FEW_CPUS
from gputop_train.diagnose.rules.shm_too_small import FULL
from gputop_train.doctor.facts import Facts, Host
from gputop_train.doctor.findings import Check, Level, gib, plural
from gputop_train.doctor.words import shown

#: What containers give unless told otherwise (docker run --shm-size, default 64 MB).
SMALL_SHM = 64 << 20
#: The usual soft limit of Linux distributions; tensors handed over by workers take a descriptor
#: each (docs.pytorch.org/docs/stable/multiprocessing.html, "File descriptor").
FEW_FILES = 1024
#: Less than torch and its libraries open for themselves together with a few workers (proposed).
HARDLY_ANY_FILES = 256
#: Room for threads of torch, OpenMP and workers (proposed).
FEW_THREADS = 256
#: RDMA pins its buffers within this limit; NCCL's documentation asks for none.
LITTLE_LOCKED = 1 << 30
#: Near a control group's limit the kernel begins to take back pages, then to kill (proposed).
NEAR_LIMIT = 0.90
#: Clock sources that are read from a device instead of the processor.
_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "pit"}
#: A clock before this was never set; certificates and file times depend on it.
_EARLIEST_YEAR = 2024


def checks(facts: Facts) -> Iterator[Check]:
    """Judge the host."""
    host = facts.host
    yield _shm(host)
    yield _files(host)
    yield _threads(host)
    yield from _locked(host)
    yield _cores(host)
    yield from _omp(facts)
    yield _memory(host)
    yield _tracing(host)
    yield _sampler(host)
    yield _clock(host)


def _shm(host: Host) -> Check:
    values = {"total": host.shm_total, "free": host.shm_free}

    def check(level: Level, found: str, remedy: str | None = None) -> Check:
        return Check("shm", "/dev/shm", level, found, remedy, values)

    larger = "docker run --shm-size=8g (or --ipc=host), or a memory-backed emptyDir on Kubernetes."
    if host.shm_total is None:
        return check("fail", "There is no /dev/shm: a loader with workers cannot start.", larger)
    if not host.shm_writable:
        return check(
            "fail",
            "/dev/shm is not ours to write: a loader with workers cannot start.",
            "Its mode should be 1777 (as root: chmod 1777 /dev/shm).",
        )
    if not host.shm_total:
        return check("ok", "bounded by memory only")
    free = host.shm_free or 0
    size = f"{gib(free)} of {gib(host.shm_total)} free"
    if host.shm_total <= SMALL_SHM:
        return check(
            "warn",
            f"/dev/shm is small ({size}): workers hand batches over through it, and die of a bus "
            "error when it is full.",
            larger,
        )
    if free <= (1 - FULL) * host.shm_total:
        return check(
            "warn",
            f"/dev/shm is nearly full ({size}): workers that hand over batches die of a bus error.",
            "See what lies there (ls -l /dev/shm): files of dead programs may be removed.",
        )
    return check("ok", size)


def _files(host: Host) -> Check:
    soft, hard = host.nofile or (None, None)
    values = {"soft": soft, "hard": hard}
    if soft is None:
        return Check(
            "open-files", "open files", "unchecked", "The limit is not known.", None, values
        )
    if soft == -1 or soft >= FEW_FILES:
        text = "no limit" if soft == -1 else f"{soft:,} allowed"
        return Check("open-files", "open files", "ok", text, None, values)
    more = hard == -1 or (hard or 0) > soft
    wanted = 65536 if hard == -1 else min(hard or 0, 65536)
    return Check(
        "open-files",
        "open files",
        "fail" if soft < HARDLY_ANY_FILES else "warn",
        f"A process may open {soft:,} files: loader workers that hand over tensors use one each, "
        'and fail with "Too many open files".',
        f"ulimit -n {wanted}" + ("" if more else " needs a higher hard limit (limits.conf)"),
        values,
    )


def _threads(host: Host) -> Check:
    by_user = None
    if host.nproc is not None and host.nproc != -1 and host.threads is not None:
        by_user = max(0, host.nproc - host.threads)
    rooms = [room for room in (by_user, host.pids_left) if room is not None]
    values = {"nproc": host.nproc, "threads": host.threads, "pids_left": host.pids_left}
    if not rooms:
        text = "no limit" if host.nproc == -1 else "The limit is not known."
        return Check(
            "threads", "threads", "ok" if host.nproc == -1 else "unchecked", text, None, values
        )
    room = min(rooms)
    if room >= FEW_THREADS:
        return Check("threads", "threads", "ok", f"room for {room:,}", None, values)
    group = host.pids_left == room
    return Check(
        "threads",
        "threads",
        "warn",
        f"There is room for {plural(room, 'more thread')}: torch, its workers and libraries start "
        "several for each core.",
        "Raise the container's pids limit (docker run --pids-limit)."
        if group
        else "Raise ulimit -u, or end what else of yours runs.",
        values,
    )


def _locked(host: Host) -> Iterator[Check]:
    values = {"memlock": host.memlock, "address_space": host.address_space}
    if host.address_space not in (None, -1):
        yield Check(
            "address-space",
            "address space",
            "warn",
            f"A process may map {gib(host.address_space or 0)} (ulimit -v): CUDA maps far more "
            'than it uses, and fails with "out of memory".',
            "ulimit -v unlimited, and limit memory by a control group instead.",
            values,
        )
    if host.infiniband and host.memlock is not None and 0 <= host.memlock < LITTLE_LOCKED:
        yield Check(
            "locked-memory",
            "locked memory",
            "warn",
            f"There is InfiniBand and {gib(host.memlock)} may be locked: NCCL registers its "
            "buffers within that limit, and fails beyond it.",
            "ulimit -l unlimited (limits.conf, or docker run --ulimit memlock=-1).",
            values,
        )


def _cores(host: Host) -> Check:
    values = {"online": host.online, "affinity": host.affinity, "quota": host.quota}
    if host.affinity is None or host.online is None:
        return Check("cores", "cores", "unchecked", "Cores could not be counted.", None, values)
    usable = usable_cores(host)
    assert usable is not None
    if usable < FEW_CPUS and usable <= host.online / 2:
        bound = host.quota is not None and host.quota < host.affinity
        why = "a CPU quota" if bound else "the affinity mask"
        return Check(
            "cores",
            "cores",
            "warn",
            f"{usable:g} of {host.online} cores may be used ({why}): trainer and loader workers "
            "share them.",
            "Raise the container's CPU limit (docker run --cpus)."
            if bound
            else "Start it with more (taskset -c, or --cpus-per-task of the scheduler).",
            values,
        )
    if usable < host.online:
        return Check(
            "cores", "cores", "ok", f"{usable:g} of {host.online} may be used", None, values
        )
    return Check("cores", "cores", "ok", f"{host.online}, all of them", None, values)


def usable_cores(host: Host) -> float | None:
    """Cores a process gets: of its mask, or of its group's quota where that is less."""
    if host.affinity is None:
        return None
    return min(host.affinity, host.affinity if host.quota is None else host.quota)


def _omp(facts: Facts) -> Iterator[Check]:
    """How many threads torch starts was measured; what it does with too many is not."""
    threads, usable = facts.interpreter.torch_facts.get("threads"), usable_cores(facts.host)
    asked = facts.environ.get("OMP_NUM_THREADS")
    values = {"threads": threads, "OMP_NUM_THREADS": asked, "usable": usable}
    if not isinstance(threads, int) or usable is None:
        return
    title = "CPU threads"
    if threads > math.ceil(usable):
        set_by = f" (OMP_NUM_THREADS={shown(asked)})" if asked else ""
        yield Check(
            "omp",
            title,
            "warn",
            f"torch starts {threads} threads for its work on the CPU{set_by} where {usable:g} "
            "cores may be used: they hold each other up.",
            f"export OMP_NUM_THREADS={max(1, math.floor(usable))}",
            values,
        )
    elif threads == 1 and usable >= FEW_CPUS and not facts.gpus.cards:
        yield Check(
            "omp",
            title,
            "note",
            f"torch computes on one thread where {usable:g} cores may be used.",
            f"OMP_NUM_THREADS={math.floor(usable)} for training on the CPU in one process.",
            values,
        )
    else:
        yield Check("omp", title, "ok", f"torch starts {threads}", None, values)


def _memory(host: Host) -> Check:
    values = {"machine": host.memory, "limit": host.memory_limit, "used": host.memory_used}
    if host.memory_limit is None:
        if host.memory is None:
            found = "The machine's memory is not known."
            return Check("memory", "memory", "unchecked", found, None, values)
        return Check("memory", "memory", "ok", f"{gib(host.memory)}, no limit", None, values)
    limit = gib(host.memory_limit)
    if host.memory_used is None:
        return Check("memory", "memory", "ok", f"limit {limit}", None, values)
    if host.memory_used >= NEAR_LIMIT * host.memory_limit:
        return Check(
            "memory",
            "memory",
            "warn",
            f"{gib(host.memory_used)} of the {limit} that the control group allows are in use: "
            "beyond it the kernel kills a process.",
            "Raise the container's memory limit, or end what else runs in it.",
            values,
        )
    text = f"{gib(host.memory_used)} of {limit} (control group) in use"
    return Check("memory", "memory", "ok", text, None, values)


def _tracing(host: Host) -> Check:
    """kernel.yama.ptrace_scope: kernel.org/doc/html/latest/admin-guide/LSM/Yama.html."""
    values = {"ptrace_scope": host.yama, "cap_sys_ptrace": host.traces_all}
    title = "tracing"
    only = "Runs started by gputop-train are seen all the same; others cannot be looked into"
    if host.yama is not None and host.yama >= 3:
        return Check(
            "tracing",
            title,
            "warn",
            f"Nobody may trace a process on this machine (ptrace_scope {host.yama}). {only}.",
            "It can only be lowered by a reboot with another kernel.yama.ptrace_scope.",
            values,
        )
    if host.traces_all or not host.yama:
        who = "any process" if host.traces_all else "your own processes"
        return Check("tracing", title, "ok", f"{who} may be looked into", None, values)
    if host.yama == 2:
        return Check(
            "tracing",
            title,
            "warn",
            f"Tracing needs CAP_SYS_PTRACE here (ptrace_scope 2). {only} from outside.",
            "Use sudo for that, or docker run --cap-add=SYS_PTRACE.",
            values,
        )
    return Check(
        "tracing",
        title,
        "note",
        f"A process may only trace what it started (ptrace_scope {host.yama}). {only} "
        "from outside.",
        "sudo, docker run --cap-add=SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0 for that.",
        values,
    )


def _sampler(host: Host) -> Check:
    values = {"path": host.py_spy}
    if host.py_spy:
        return Check("py-spy", "py-spy", "ok", host.py_spy, None, values)
    return Check(
        "py-spy",
        "py-spy",
        "note",
        "py-spy is not installed: attach PID to a process that was started without us then sees "
        "none of its stacks.",
        "pip install py-spy, into our environment or any on PATH, if you want that.",
        values,
    )


def _clock(host: Host) -> Check:
    values = {"clocksource": host.clocksource, "year": host.year}
    if host.year is not None and host.year < _EARLIEST_YEAR:
        return Check(
            "clock",
            "clock",
            "warn",
            f"The wall clock says {host.year}: certificates will not be valid, and runs are dated "
            "wrongly.",
            "Set it (timedatectl set-ntp true).",
            values,
        )
    if host.clocksource in _SLOW_CLOCKS:
        return Check(
            "clock",
            "clock",
            "note",
            f"The kernel's clock source is {host.clocksource}, which takes a system call to read: "
            "watching costs more, within its budget.",
            "tsc is the usual one; the hypervisor or the BIOS may offer it (dmesg, clocksource).",
            values,
        )
    return Check("clock", "clock", "ok", host.clocksource or "set", None, values)
