"""Which label's time a diagnosis claims, so that none is claimed twice and each can be tested."""

from __future__ import annotations

from gputop_train.model import Finding

#: Diagnosis -> label of the host's time, or of the GPU's idle time, that it claims.
CLAIMS: dict[str, str] = {
    "checkpoint-stall": "checkpoint",
    "eval-stall": "eval",
    "logging-stall": "logging",
    "gc-pause": "gc",
    "recompilation": "compile",
    "input-bound": "data_wait",
    "pageable-h2d": "h2d",
    "unoverlapped-h2d": "h2d",
    "device-roundtrip": "h2d",
    "host-sync-stall": "sync",
    "comm-bound": "comm",
    "host-compute": "other",
    "launch-bound": "launch",
    "small-batch": "launch",
}
#: What a mode of torch slows by itself: while it is on, these say nothing new.
CAUSED_BY: dict[str, tuple[str, ...]] = {
    "anomaly-mode": ("launch-bound", "small-batch", "host-compute", "host-sync-stall"),
}


def label_of(finding: Finding) -> str | None:
    """The label a finding claims; ``None`` where it claims no time of its own."""
    return CLAIMS.get(finding.id)
