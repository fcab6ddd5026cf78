"""The rank of a training process, by the process group or by what started it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from gputop_train.probe import ranks

STEP = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}
VARIABLES = {*STEP, "WORLD_SIZE", *(name for pair in ranks._NAMES for name in pair)}


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (None, None, None)),
        ({"RANK": "8", "LOCAL_RANK": "0", "WORLD_SIZE": "16"}, (8, 0, 16)),
        ({"RANK": "8", "LOCAL_RANK": "0", "WORLD_SIZE": "16", **STEP}, (8, 0, 16)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, (2, 0, None)),
        ({"PMI_RANK": "1", "MPI_LOCALRANKID": "1"}, (1, 1, None)),
        (STEP, (3, 1, None)),
        # A batch script has a SLURM_PROCID, and is no task of a step.
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}, (None, None, None)),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, (None, None, None)),
        ({"RANK": "first"}, (None, None, None)),
    ],
)
def test_a_launcher_says_it_in_the_environment(monkeypatch, environ, expected):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    assert ranks.known(SimpleNamespace(distributed=group)) == expected
    assert ranks.known(None) == expected  # a torch without it


def test_the_process_group_knows_better_than_the_environment(monkeypatch):
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    import torch
    from torch import distributed

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert ranks.known(torch) == (0, 1, 1)
    finally:
        distributed.destroy_process_group()
    assert os.environ["SLURM_PROCID"] == "3"
