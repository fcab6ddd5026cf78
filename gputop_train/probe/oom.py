"""The picture of the last CUDA out-of-memory error, taken inside the allocator that raises it.

torch calls an observer just before it raises, with the device's lock released (every release from
2.1 on says so at that place, so that observers may take the interpreter lock). The observer reads
the allocator's own counters and Python objects: it allocates nothing on the device, makes no CUDA
call, waits for nothing and never raises, so the error is the one a bare run gets.
"""

from __future__ import annotations

import linecache
import sys
from typing import Any

from . import memory, sites
from .hooks import hide_from_dynamo
from .state import S, ident, note_error, now

MAX_STACK = 6  # user frames kept
#: The same state is counted once: cuDNN may try many algorithms whose workspace does not fit.
COUNT_AGAIN_NS = 1_000_000_000
#: Reading the person's own allocation history: so often, and only while it is short enough. One
#: entry becomes Python dicts in about 10 us [D], and the thread that ran out waits for it.
MAX_HISTORY_READS, MAX_BLOCKS, MAX_EVENTS = 3, 20_000, 100_000
MAX_LINES = 8

count = 0
last: dict[str, Any] | None = None
#: A picture the reader does not have yet: the helper publishes without waiting for its turn.
urgent = False
_history_reads = 0
_counted_ns = 0
_attached = False


def watch(torch: Any) -> None:
    """When torch is imported: attach as soon as there is an allocator, which may be never."""
    if getattr(torch._C, "_cuda_attach_out_of_memory_observer", None) is None:
        return  # a build without CUDA
    if torch.cuda.is_initialized():
        attach()
        return
    calls = getattr(torch.cuda, "_queued_calls", None)
    if isinstance(calls, list):
        # What torch itself runs on the thread that initialises CUDA; its second part is only shown
        # where a call raises, and this one never does.
        calls.append((attach, []))
    else:
        S.hooks["oom"] = False


def attach() -> None:
    """Attach the observer, once. Never raises; where it cannot be, ``hooks`` says why."""
    global _attached
    if _attached:
        return
    _attached = True
    try:
        S.torch._C._cuda_attach_out_of_memory_observer(hide_from_dynamo(observe))
        S.hooks["oom"] = True
    except Exception as error:
        # cudaMallocAsync and pluggable allocators have no observers.
        S.hooks["oom"] = False
        note_error("hook oom", error)


def observe(device: int, requested: int, limit: int, free: int) -> None:
    """Called by the allocator: bytes asked for, bytes allowed (or there are), bytes free."""
    evaluator = S.set_eval_frame(None)
    try:
        _note(device, requested, limit, free)
    except Exception as error:
        note_error("oom", error)
    finally:
        S.set_eval_frame(evaluator)


def _note(device: int, requested: int, limit: int, free: int) -> None:
    global count, last, urgent, _counted_ns
    t_ns = now()
    before = last
    count += 1
    own = ident() == S.thread_id
    caller = sys._getframe(1).f_back
    thread = "training" if own else _thread_of(caller)
    stack = _user_frames(caller)
    if not stack and not own:
        stack = _user_frames(sys._current_frames().get(S.thread_id))
    stats = S.torch._C._cuda_memoryStats(device)
    picture: dict[str, Any] = {
        "t_ns": t_ns,
        "count": count,
        "step": S.steps,
        "device": device,
        "requested": requested,
        "limit": limit,
        "free": free,
        "allocated": _current(stats, "allocated_bytes"),
        "reserved": _current(stats, "reserved_bytes"),
        "inactive_split": _current(stats, "inactive_split_bytes"),
        "retries": stats.get("num_alloc_retries"),
        "grad_enabled": bool(S.torch.is_grad_enabled()),
        "thread": thread,
        "stack": stack,
    }
    if before is not None and t_ns - _counted_ns < COUNT_AGAIN_NS:
        for key in ("held", "lines", "lines_missing"):
            picture[key] = before.get(key)
    else:
        _counted_ns = t_ns
        # Kept at once: what follows reads much more, and a picture without it is better than none.
        last = picture
        picture["held"] = _held(device, picture, safe=thread != "other")
        picture["lines"], picture["lines_missing"] = _lines(device, stats)
    last = picture
    urgent = True


def _current(stats: Any, name: str) -> int | None:
    try:
        return int(stats[name]["all"]["current"])
    except (KeyError, TypeError):
        return None


def _held(device: int, picture: dict[str, Any], *, safe: bool) -> dict[str, Any] | None:
    try:
        # Gradients of this device are written by the engine's thread for it: that one is here, or
        # idle. From a thread of the person's own, it may be writing.
        held = memory.count_all(device, gradients=safe)
    except Exception as error:  # state that changes under a foreign thread
        note_error("oom held", error)
        return None
    held["other"] = memory.rest(picture["allocated"], held)
    return held


def _thread_of(frame: Any) -> str:
    """Whose thread this is: Python starts its own in threading.py, the engine does not."""
    while frame is not None:
        if frame.f_code.co_name == "_bootstrap":
            return "other"
        frame = frame.f_back
    return "autograd"


def _user_frames(frame: Any) -> list[list[Any]]:
    """The person's frames from the leaf on: file, line, function, first and last column."""
    found: list[list[Any]] = []
    for _ in range(200):
        if frame is None or len(found) >= MAX_STACK:
            break
        code = frame.f_code
        if not sites.is_library(code):
            found.append([code.co_filename, frame.f_lineno, code.co_name, *_columns(frame)])
        frame = frame.f_back
    return found


def _columns(frame: Any) -> tuple[int | None, int | None]:
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return None, None
    wanted = frame.f_lasti // 2
    for at, (first, end, start, stop) in enumerate(positions()):
        if at == wanted:
            return (start, stop) if first == end == frame.f_lineno else (None, None)
    return None, None


def _lines(device: int, stats: Any) -> tuple[list[dict[str, Any]] | None, str | None]:
    """Live allocations by the line that made them, where the person records their history."""
    global _history_reads
    enabled = getattr(S.torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is None:
        return None, "this torch does not say whether allocation history is on"
    if not enabled():
        return None, "allocation history is off"
    if _history_reads >= MAX_HISTORY_READS:
        return None, "allocation history was read often enough"
    blocks = _current(stats, "active") or 0
    made = (stats.get("allocation") or {}).get("all", {}).get("allocated") or 0
    if blocks > MAX_BLOCKS or made > MAX_EVENTS:
        return None, "allocation history is too long to be read while the script waits"
    _history_reads += 1
    try:
        snapshot = S.torch.cuda.memory._snapshot()
    except Exception as error:
        return None, "allocation history could not be read (%s)" % type(error).__name__
    return by_line(snapshot, device), None


def by_line(snapshot: Any, device: int) -> list[dict[str, Any]]:
    """The biggest places of a snapshot's live blocks: file, line, function, bytes, blocks."""
    places: dict[tuple[str, int, str], list[int]] = {}
    for segment in snapshot.get("segments") or ():
        if segment.get("device", device) != device:
            continue
        for block in segment.get("blocks") or ():
            if block.get("state") != "active_allocated":
                continue
            row = places.setdefault(_first_user_line(block), [0, 0])
            row[0] += int(block.get("size") or 0)
            row[1] += 1
    biggest = sorted(places.items(), key=lambda item: -item[1][0])[:MAX_LINES]
    return [
        {"file": file, "line": line, "func": func, "bytes": size, "blocks": blocks}
        for (file, line, func), (size, blocks) in biggest
    ]


def _first_user_line(block: Any) -> tuple[str, int, str]:
    """The nearest frame of the person's; no place for what was made before history was on."""
    frames = block.get("frames")
    if frames is None:  # torch 2.1 to 2.2 keep it with the block's history
        history = block.get("history") or [{}]
        frames = history[0].get("frames")
    for frame in frames or ():
        name = str(frame.get("filename") or "")
        if name.endswith(".py") and not sites.is_library_name(name):
            return name, int(frame.get("line") or 0), str(frame.get("name") or "")
    return "", 0, ""


def report() -> dict[str, Any] | None:
    """The picture for the snapshot, source text added; on the helper thread or at exit."""
    global urgent
    urgent = False
    picture = last
    if picture is None:
        return None
    told = dict(picture)
    told["count"] = count
    told["stack"] = [_with_text(*row) for row in picture["stack"]]
    told["steps_after"] = S.steps - picture["step"]
    return told


def leave_last() -> None:
    """At exit: a first forward that did not fit ends a run before the probe had reason to wake.

    Gradients must have been enabled: an inference process that runs out is no trainer.
    """
    if last is None or S.helper is not None or S.dead or not last["grad_enabled"]:
        return
    from . import helper

    try:
        writer = helper.Helper()
        if writer.has_ring:
            writer.publish_once()
    except Exception as error:
        note_error("oom at exit", error)


def forget() -> None:
    """In a forked child: the error was its parent's."""
    global count, last, urgent
    count, last, urgent = 0, None, False


def _with_text(
    file: str, line: int, func: str, start: int | None, stop: int | None
) -> dict[str, Any]:
    raw = linecache.getline(file, line)
    text = raw.strip()
    if start is not None and stop is not None:
        text = raw.encode()[start:stop].decode("utf-8", "replace")
    return {"file": file, "line": line, "func": func, "call": text[:160]}
