"""torch.compile: its compilations as a phase, and why it compiled again.

Everything is read from what dynamo keeps anyway (torch 2.1 on): a count of compilations by frame,
the guards that failed, the breaks. Reading adds no key and switches no log on.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from .. import optimizer_hooks, selfcheck
from .. import words as W
from ..state import S, append, ident, now
from . import WRAPPER_FILE

MAX_REASONS = 10
MAX_TEXT = 200
#: "0/1: " in front of a failed guard: frame and compilation.
_COMPILE_ID = re.compile(r"^\[?\d+/\d+(?:_\d+)?\]?:\s*")
_CONTEXT = re.compile(r"Developer debug context: *(.+)")


def watch(dynamo: Any) -> None:
    """When dynamo is imported: keep it away from our frames, and hear of its compilations."""
    for name in ("torch._dynamo.trace_rules", "torch._dynamo.skipfiles"):
        rules: Any = sys.modules.get(name)
        skipped = getattr(rules, "SKIP_DIRS", None)
        if skipped is not None:
            package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            skipped.append(WRAPPER_FILE)
            for part in ("hooks", "arming.py", "sites.py", "gpu_events.py", "helper.py"):
                skipped.append(os.path.join(package, part))
            rules._recompile_re()
            break
    # After the above, which is not to be left out: without it dynamo would trace our frames.
    if selfcheck.abstain("compile"):
        optimizer_hooks.guard()
    else:
        handler: Any = sys.modules["torch._dynamo.callback"].callback_handler
        handler.register_start_callback(lambda *_: optimizer_hooks.guard())
        begin, end = W.COMPILE * 2, W.COMPILE * 2 + 1
        handler.register_start_callback(lambda *_: _edge(begin))
        handler.register_end_callback(lambda *_: _edge(end))
        S.hooks["compile"] = True


def _edge(code: int) -> None:
    try:
        if ident() == S.thread_id:
            append(now() << 6 | code)
    except Exception as error:
        S.failed("compile", error)


def report() -> dict[str, Any] | None:
    """For the snapshot; ``None`` while dynamo is not in use. Called by the helper thread."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    counters = utils.counters

    def total(name: str) -> int | None:
        # .get: the counters are a defaultdict, and reading must not add keys to it.
        found = counters.get(name)
        if found is None:  # a counter appears with its first event
            return 0 if "frames" in counters else None
        return int(sum(list(found.values())))

    return {
        "frames": total("frames"),
        "graph_breaks": total("graph_break"),
        "breaks": _breaks(counters.get("graph_break")),
        "recompiles": _recompiles(),
        "reasons": _reasons(getattr(utils, "guard_failures", None)),
        "unique_graphs": (counters.get("stats") or {}).get("unique_graphs"),
    }


def _recompiles() -> int | None:
    """Compilations of a frame beyond its first."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    counts = getattr(frames, "FRAME_COMPILE_COUNTER", None)
    if counts is None:
        return None
    return sum(max(0, int(count) - 1) for count in list(counts.values()))


def _reasons(failures: Any) -> list[list[Any]]:
    """``[function, file, line, guard that failed last, failures]`` of up to ten functions."""
    found = []
    for code, reasons in list((failures or {}).items())[-MAX_REASONS:]:
        if not reasons:
            continue
        last = reasons[-1]
        text = _COMPILE_ID.sub("", " ".join(str(getattr(last, "reason", last)).split()))
        place = [str(code.co_name), str(code.co_filename), int(code.co_firstlineno)]
        found.append([*place, text[:MAX_TEXT], len(reasons)])
    return found


def _breaks(counted: Any) -> list[list[Any]]:
    """``[reason, count]`` of up to ten graph breaks, the most frequent first."""
    rows = sorted(list((counted or {}).items()), key=lambda item: -item[1])[:MAX_REASONS]
    return [[_in_short(str(reason)), int(count)] for reason, count in rows]


def _in_short(reason: str) -> str:
    head = reason.strip().split("\n", 1)[0]
    context = _CONTEXT.search(reason)
    return (head + (" (%s)" % context.group(1).strip() if context else ""))[:MAX_TEXT]
