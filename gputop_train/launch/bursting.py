"""Ask a live run for a profiler burst, wait for it, and put what it told into words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputop_train.launch import runfile
from gputop_train.launch.attach import ensure_supervised
from gputop_train.launch.control import ControlError, client_of
from gputop_train.launch.runs import read_run, store_path
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader

#: A burst waits for a few whole steps and for the next snapshot; slow steps take longer.
PATIENCE_S = 60.0


class BurstError(Exception):
    """No burst was had; the message says why and what to do."""


def take(run_dir: Path, *, patience_s: float = PATIENCE_S) -> list[str]:
    """Have every training process of a run trace three steps; one paragraph a rank.

    Raises:
        BurstError: The run is not alive, nobody watches it, or nothing came in time.
    """
    info = read_run(run_dir)
    if info is None or info.state not in ("live", "orphaned"):
        raise BurstError(f"The run {run_dir.name} is not alive on this machine: nothing to trace.")
    ensure_supervised(run_dir)
    before = _told(run_dir)
    try:
        asked = client_of(run_dir).burst().get("asked", 0)
    except ControlError as error:
        raise BurstError(str(error)) from error
    if not asked:
        raise BurstError("No process of this run trains yet; ask again once steps are counted.")
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        fresh = {rank: told for rank, told in _told(run_dir).items() if told != before.get(rank)}
        if len(fresh) >= asked or runfile.read_exit(run_dir) is not None:
            break
        time.sleep(0.25)
    if not fresh:
        raise BurstError(
            f"No burst came within {patience_s:.0f} s: the steps are too long, or training stands "
            "still. What does come is kept with the run."
        )
    several = len(fresh) > 1
    return [
        (f"rank {rank}: " if several else "") + words(told) for rank, told in sorted(fresh.items())
    ]


def words(told: Mapping[str, Any]) -> str:
    """One burst as a sentence or two."""
    if told.get("state") != "done":
        return f"no burst: {told.get('reason') or 'it was refused'}"
    head = f"{told.get('steps')} steps of {_ms(told.get('step_ms'))}"
    kernels = told.get("kernels_per_step")
    if not kernels:
        operators = told.get("cpu_ops_per_step")
        seen = f", {operators:,.0f} operators each" if operators else ""
        return f"{head}{seen}, no kernel on a GPU; cost {_ms(told.get('cost_ms'))}"
    parts = [f"{head}: {kernels:,.0f} kernels each, {told.get('kernel_us'):.1f} us on average"]
    for key, text in (("busy_share", "GPU busy"), ("copy_share", "copying")):
        share = told.get(key)
        if isinstance(share, (int, float)):
            parts.append(f"{text} {share:.0%}")
    return ", ".join(parts) + f"; cost {_ms(told.get('cost_ms'))}"


def _ms(value: object) -> str:
    return f"{value:.1f} ms" if isinstance(value, (int, float)) else "unknown length"


def _told(run_dir: Path) -> dict[int, Mapping[str, Any]]:
    """What every rank last told of a burst."""
    try:
        with RunReader(store_path(run_dir, runfile.read_json(run_dir / "run.json") or {})) as store:
            states = store.probe_states()
    except StoreError:
        return {}
    told = {rank: state.get("burst") for rank, state in states.items()}
    return {rank: burst for rank, burst in told.items() if isinstance(burst, Mapping)}
