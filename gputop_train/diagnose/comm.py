"""Waiting for other ranks inside backward, as DistributedDataParallel timed it. Pure.

On the CPU the host itself waits at the end of backward until the gradients of every rank are in;
no frame shows it, for it is C++ inside the autograd engine. DDP measures it in its first ten
iterations and every hundredth one (``probe/hooks/distributed.py``), and the median of these stands
for the rest: an iteration in which one rank saves is not multiplied by a hundred. On a GPU the host
does not wait there, and what the device waits is no share of host time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.window import RankView, Totals, Window

#: Fewer timed iterations than this are no measure (DDP times iterations 3 to 10 of any run).
MIN_SAMPLES = 5


def exposed_per_step_ns(state: Mapping[str, Any]) -> float | None:
    """Communication that no backward compute hid, per optimizer step of one rank.

    Args:
        state: The probe's snapshot of the rank.

    Returns:
        Nanoseconds of every DDP module together; ``None`` where one of them did not say.
    """
    told = modules(state)
    if not told:
        return None
    total = 0.0
    for module in told:
        exposed, per_step = module.get("exposed_ns"), module.get("per_step")
        if not isinstance(exposed, int) or not isinstance(per_step, (int, float)):
            return None
        samples = module.get("samples")
        if not isinstance(samples, int) or samples < MIN_SAMPLES:
            return None
        total += exposed * per_step
    return total


def host_waits(state: Mapping[str, Any]) -> bool:
    """Whether the host is what waits: every DDP module's parameters are on the CPU."""
    return all(module.get("device") == "cpu" for module in modules(state))


def with_comm(
    shares: Mapping[str, float], state: Mapping[str, Any], totals: Totals, seen: int
) -> dict[str, float]:
    """The shares of host time with the wait for other ranks taken out of backward.

    Args:
        shares: Label -> share, summing to 1.
        state: The probe's snapshot of the rank.
        totals: What the shares are of.
        seen: Steps of the whole run, to compare with the optimizer's calls that the probe counted.
    """
    found = dict(shares)
    cost = state.get("cost")
    calls = cost.get("steps") if isinstance(cost, Mapping) else None
    exposed = exposed_per_step_ns(state)
    if exposed is None or not host_waits(state) or not isinstance(calls, int) or seen <= 0:
        return found
    # Two optimizers make one step of two calls.
    waited_ns = exposed * totals.steps * max(1, round(calls / seen))
    waited = min(found.get("backward", 0.0), waited_ns / max(1, totals.wall_ns))
    found["backward"] = found.get("backward", 0.0) - waited
    found["comm"] = found.get("comm", 0.0) + waited
    return found


def modules(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What each DDP module said; what a ring holds is not trusted to be of that form."""
    told = state.get("ddp")
    return [m if isinstance(m, Mapping) else {} for m in told] if isinstance(told, list) else []


def wait_shares(window: Window) -> dict[int, float]:
    """Part of a step that each rank waits in communication, for slower ranks too.

    DDP's own timing of what no backward compute hid, and blocking collectives of the script's.

    Returns:
        Rank -> share (0..1); without the ranks of which it is not known.
    """
    seen = window.ranks or {window.rank: RankView(window.totals)}
    found = {}
    for rank, view in seen.items():
        state = window.probe_states.get(rank, window.probe if rank == window.rank else {})
        totals = view.totals
        if not totals.steps or not totals.wall_ns:
            continue
        step_ns = totals.wall_ns / totals.steps
        blocking = totals.labels.get("comm", 0) / totals.wall_ns
        exposed = exposed_per_step_ns(state)
        if exposed is not None:
            calls, known = _calls(state), window.steps_seen
            factor = max(1, round(calls / known)) if calls and known else 1
            found[rank] = min(1.0, exposed * factor / step_ns + blocking)
        elif not modules(state) and blocking > 0:
            found[rank] = min(1.0, blocking)
    return found


def world_size(window: Window) -> int:
    """Ranks of this run, as far as one of them said; 1 where none did."""
    told = [state.get("world_size") for state in (window.probe, *window.probe_states.values())]
    told += [module.get("world_size") for module in modules(window.probe)]
    return max([n for n in told if isinstance(n, int)] + [len(window.ranks), 1])


def _calls(state: Mapping[str, Any]) -> int | None:
    cost = state.get("cost")
    calls = cost.get("steps") if isinstance(cost, Mapping) else None
    return calls if isinstance(calls, int) else None
