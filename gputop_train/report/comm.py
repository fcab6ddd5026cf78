"""What DistributedDataParallel timed of its own communication, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.comm import MIN_SAMPLES, exposed_per_step_ns, host_waits, modules
from gputop_train.report import format as fmt

MAX_BUCKETS = 6
_FLAGS = (
    ("find_unused_parameters", "find_unused_parameters"),
    ("gradient_as_bucket_view", "gradient_as_bucket_view"),
    ("static_graph", "static_graph"),
    ("join_uneven_inputs", "join() for uneven inputs"),
)


def notes(state: Mapping[str, Any], step_ns: float | None) -> list[str]:
    """Sentences about one rank's DDP modules; none where it has no DDP.

    Args:
        state: The probe's snapshot of the rank.
        step_ns: Mean wall time of an optimizer step, ``None`` when not known.
    """
    found: list[str] = []
    for module in modules(state):
        found += _of_module(module)
    exposed = exposed_per_step_ns(state)
    if exposed is None:
        return found
    part = f", {fmt.percent(min(1.0, exposed / step_ns))} of it" if step_ns else ""
    who = "the host waits at the end of backward" if host_waits(state) else "the GPU's stream waits"
    return [
        *found,
        f"{fmt.milliseconds(exposed / 1e6)} a step not hidden by backward{part}: {who}, "
        "for slower ranks too",
    ]


def _of_module(module: Mapping[str, Any]) -> list[str]:
    parts = [str(module.get("module") or "a module")]
    if isinstance(module.get("world_size"), int):
        parts.append(f"{module['world_size']} ranks over {module.get('backend')}")
    parts += [words for key, words in _FLAGS if module.get(key) is True]
    if module.get("comm_hook"):
        parts.append(f"hook {module['comm_hook']}")
    buckets = [b for b in module.get("bucket_bytes") or () if isinstance(b, int)]
    if buckets:
        shown = " ".join(fmt.size(b) for b in buckets[:MAX_BUCKETS])
        more = f" and {len(buckets) - MAX_BUCKETS} more" if len(buckets) > MAX_BUCKETS else ""
        parts.append(f"{len(buckets)} bucket{'s' * (len(buckets) != 1)} of {shown}{more}")
    return [" · ".join(parts), _times(module)]


def _times(module: Mapping[str, Any]) -> str:
    samples = module.get("samples")
    if not isinstance(samples, int) or samples < MIN_SAMPLES:
        return "too few iterations were timed yet"
    times = [
        f"{words} {fmt.milliseconds(module[key] / 1e6)}"
        for key, words in (
            ("forward_compute_ns", "forward"),
            ("backward_compute_ns", "backward compute"),
            ("backward_comm_ns", "communication"),
            ("backward_compute_comm_overlap_ns", "overlap"),
        )
        if isinstance(module.get(key), int)
    ]
    return " · ".join([*times, f"medians of {samples} timed iterations"])
