"""Stores of machines with other cards than one H200, written by the real writer."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from gputop_train.model import (
    GpmSample,
    GpuProcess,
    GpuSample,
    HostSample,
    UtilSample,
)
from gputop_train.store.writer import RunWriter

from .made_run import GIB, START, S, cuda, run_json, steps

SECONDS = 60
END = START + SECONDS * S


def uuid_of(number: int, *, mig: bool = False) -> str:
    return f"{'MIG' if mig else 'GPU'}-{number:08d}-2222-3333-4444-555555555555"


def device(number: int, *, mig: bool = False) -> dict[str, Any]:
    return {
        "uuid": uuid_of(number, mig=mig),
        "index": 0 if mig else number,
        "name": "NVIDIA H200" + (" MIG 1g.18gb" if mig else ""),
        "memory_total": (18 if mig else 140) * GIB,
        "parent_uuid": uuid_of(99) if mig else None,
    }


def host_at(t: int, cores: int = 128) -> HostSample:
    busy = tuple((37 * core + t // S) % 101 for core in range(cores))
    return HostSample(
        t,
        cpu_busy=sum(busy) / 100,
        iowait=0.4,
        cpus_total=cores,
        cpus_allowed=cores,
        mem_available=900 * GIB,
        mem_total=1008 * GIB,
        shm_used=3 * GIB,
        shm_total=504 * GIB,
        psi_cpu=0.4,
        psi_io=12.5,
        psi_memory=0.0,
        cores=busy,
        disk_read_bytes_per_s=412e6,
        disk_write_bytes_per_s=9e6,
        net_rx_bytes_per_s=2.4e9,
        net_tx_bytes_per_s=2.1e9,
    )


def readings(number: int, t: int, **more: Any) -> GpuSample:
    values: dict[str, Any] = {
        "memory_used": (96 + number) * GIB,
        "memory_ours": (90 + number) * GIB,
        "memory_total": 140 * GIB,
        "foreign_processes": 0,
        "power_w": 580.0 + 11 * number,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1755 + 15 * number,
        "sm_clock_max_mhz": 1980,
        "temperature_c": 51 + number,
        "throttle_reasons": 0,
        "pcie_gen": 5,
        "pcie_gen_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_rx_bytes_per_s": 260e6,
        "pcie_tx_bytes_per_s": 31e6,
    }
    return GpuSample(t, uuid_of(number), **(values | more))


def eight(path: Path, *, lost: int | None = None, lost_after_s: int = 26) -> int:
    """Eight cards: the third slowed down by heat, the sixth shared, one lost if asked."""
    path.mkdir(parents=True, exist_ok=True)
    run_json(path, pid=os.getpid())
    with RunWriter(path / "run.sqlite") as writer:
        writer.add_steps(steps(SECONDS * 10))
        writer.set_meta("devices", [device(number) for number in range(8)])
        for number in range(8):
            writer.put_probe_state(
                number,
                {"cuda": cuda(True) | {"device": number, "uuid": uuid_of(number)}},
                END,
            )
            end = START + lost_after_s * S if number == lost else END
            times = range(START, end, S // 5)
            writer.add_util(
                UtilSample(t, uuid_of(number), 70.0 + 25 * math.sin(i / 9 + number))
                for i, t in enumerate(times)
            )
            more: dict[str, Any] = {}
            if number == 2:
                more = {"throttle_reasons": 0x20 | 0x04, "temperature_c": 88, "sm_clock_mhz": 1290}
            if number == 5:
                more = {
                    "foreign_processes": 2,
                    "foreign_util": 38.0,
                    "foreign": (
                        GpuProcess(4711, "python3", 21 * GIB),
                        GpuProcess(4712, "vllm", 9 * GIB),
                    ),
                }
            writer.add_gpu(readings(number, t, **more) for t in range(START, end, S))
            writer.add_gpm(
                GpmSample(t, uuid_of(number), sm=52.0 + 5 * number, tensor=31.0, dram=44.0)
                for t in range(START, end, S // 2)
            )
        if lost is not None:
            told = f"The driver lost GPU {lost} (NVIDIA H200) (GPU is lost); look for Xid in dmesg."
            writer.set_meta("missing", {"nvml": told})
        writer.add_host(host_at(t) for t in range(START, END, S))
        writer.commit()
    (path / "output.log").write_text("")
    return END


def mig(path: Path) -> int:
    """Two instances of one card: no utilisation, no power, no link."""
    path.mkdir(parents=True, exist_ok=True)
    run_json(path, pid=os.getpid())
    with RunWriter(path / "run.sqlite") as writer:
        writer.add_steps(steps(SECONDS * 10))
        writer.set_meta("devices", [device(number, mig=True) for number in range(2)])
        writer.set_meta("missing", {"util": "The driver measures no utilisation of a MIG instance"})
        for number in range(2):
            uuid = uuid_of(number, mig=True)
            writer.add_gpu(
                GpuSample(
                    t,
                    uuid,
                    memory_used=11 * GIB,
                    memory_total=18 * GIB,
                    foreign_processes=0,
                    sm_clock_mhz=1980,
                    sm_clock_max_mhz=1980,
                    temperature_c=41,
                    throttle_reasons=0,
                    pcie_gen=5,
                    pcie_width=16,
                )
                for t in range(START, END, S)
            )
            writer.add_gpm(
                GpmSample(t, uuid, sm=61.0 + 7 * number) for t in range(START, END, S // 2)
            )
        writer.add_host(host_at(t, 32) for t in range(START, END, S))
        writer.commit()
    (path / "output.log").write_text("")
    return END


def no_gpu(path: Path, cores: int = 2) -> int:
    """A machine without a driver."""
    path.mkdir(parents=True, exist_ok=True)
    run_json(path, pid=os.getpid())
    with RunWriter(path / "run.sqlite") as writer:
        writer.add_steps(steps(SECONDS * 10))
        writer.set_meta(
            "missing",
            {
                "nvml": "There is no NVIDIA driver on this machine; "
                "install one to see a GPU, if there is one."
            },
        )
        writer.add_host(host_at(t, cores) for t in range(START, END, S))
        writer.commit()
    (path / "output.log").write_text("")
    return END
