"""Which rank this process is: by torch where it knows, else by what started it."""

from __future__ import annotations

import os
from typing import Any

#: Rank, and rank on this host: of torchrun, Open MPI, the PMI of MPICH and Intel MPI, and SLURM.
_NAMES = (
    ("RANK", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_LOCALID"),
)


def of_environment() -> tuple[int | None, int | None]:
    """Rank and local rank as the launcher says; None where it says nothing."""
    for rank, local in _NAMES:
        if rank == "SLURM_PROCID" and not (number("SLURM_STEP_NUM_TASKS") or 0) > 1:
            break  # a batch script's, which is no task of a step
        if number(rank) is not None:
            return number(rank), number(local)
    return None, None


def known(torch: Any) -> tuple[int | None, int | None, int | None]:
    """Rank, local rank and world size.

    A script may number its processes by itself: the process group is right then. The world's size
    is only believed of the process group and of torchrun: tasks of a step may train alone.
    """
    rank, local = of_environment()
    world = number("WORLD_SIZE")
    try:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            rank, world = int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:
        return rank, local, world  # a version that asks otherwise
    return rank, local, world


def number(name: str) -> int | None:
    """A number of the environment; None where there is none."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
