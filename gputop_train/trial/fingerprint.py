"""Which machine and which software a time was measured with: a time means nothing on another one.

Names are hashed with a word of ours, as machine-id(5) asks for: a baseline file may be committed
where everybody can read it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WORD = b"gputop-train check baseline"
#: Keys, and what they are called.
WORDS: Mapping[str, str] = {
    "host": "host name",
    "machine": "machine id",
    "cpu": "CPU model",
    "cores": "usable cores",
    "gpus": "GPUs",
    "driver": "GPU driver",
    "torch": "torch version",
    "python": "Python version",
}


def fingerprint(report: Mapping[str, Any], *, root: Path = Path("/")) -> dict[str, Any]:
    """Return the fingerprint of this machine as a run on it saw it; ``None`` = not known.

    Args:
        report: The report of a run that has just ended here.
        root: Where ``/etc``, ``/proc`` and ``/sys`` are.
    """
    run = report.get("run")
    run = run if isinstance(run, Mapping) else {}
    gpus = run.get("gpus")
    return {
        "host": _hashed(os.uname().nodename),
        "machine": _machine(root),
        "cpu": _cpu(root),
        "cores": _cores(root),
        "gpus": sorted(_gpu(g) for g in (gpus if isinstance(gpus, list) else []) if _is_gpu(g)),
        "driver": _driver(root),
        "torch": run.get("torch"),
        "python": run.get("python"),
    }


def differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Say in what two fingerprints differ; a key that either lacks tells nothing is the same."""
    if before is None:
        return ["the baseline does not say on which machine it was measured"]
    found = []
    for key, words in WORDS.items():
        was, is_ = before.get(key), now.get(key)
        if was == is_ and (was is not None or key in ("driver", "machine")):
            continue
        if key in ("host", "machine") and was is not None and is_ is not None:
            found.append(f"another {words}")
            continue
        found.append(f"{words} {_shown(was)} then, {_shown(is_)} now")
    return found


def _hashed(text: str) -> str:
    return hmac.new(_WORD, text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:16]


def _gpu(gpu: Mapping[str, Any]) -> str:
    return f"{gpu.get('name') or 'a GPU'} {_hashed(str(gpu.get('uuid')))}"


def _is_gpu(gpu: object) -> bool:
    return isinstance(gpu, Mapping) and isinstance(gpu.get("uuid"), str)


def _shown(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, list):
        return ", ".join(str(v) for v in value) or "none"
    return "".join(c if c.isprintable() else "?" for c in str(value))[:80]


def _machine(root: Path) -> str | None:
    text = _text(root / "etc/machine-id").strip()
    if len(text) != 32:
        return None  # empty in many images, "uninitialized" at a first boot
    return _hashed(text)


def _cpu(root: Path) -> str | None:
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model", "CPU part"):
            return value.strip() or None
    return None


def _cores(root: Path) -> float | None:
    """Cores that may be used: affinity, capped by the quota of a version 2 control group."""
    usable = float(len(os.sched_getaffinity(0)))
    words = _text(root / "sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        usable = min(usable, int(words[0]) / int(words[1]))
    return usable


def _driver(root: Path) -> str | None:
    return _text(root / "sys/module/nvidia/version").strip() or None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
