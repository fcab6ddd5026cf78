"""``report --memory``: what memory held, how it grew, and the picture of an out-of-memory error.

A number is shown with what it is a number of: the caching allocator's on a GPU, the trainer's
private memory (RssAnon) on the CPU. What was not measured is said to be so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from gputop_train.diagnose.rules.memory_leak import Growth, growth
from gputop_train.diagnose.window import Window
from gputop_train.model import MemorySample
from gputop_train.report import format as fmt
from gputop_train.store.reader import RunReader

MAX_WIDTH, MIN_WIDTH = 110, 40
MAX_RANKS, MAX_LINES, MAX_STACK = 8, 8, 4
ON_GPU = "cuda-allocator"
Size = Callable[[float], str]
_KINDS = (
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer_state", "optimizer state"),
    ("other", "other"),
)
_OTHER = "other: activations, frozen weights, buffers, batches, caches"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What is known of one rank's memory.

    Attributes:
        samples: Readings by time, all of one basis.
        state: The probe's last snapshot.
        trend: Of the low-water marks; only for the rank that was judged.
        total: Bytes of the device, or of the machine within the cgroup's limit.
    """

    rank: int
    samples: tuple[MemorySample, ...]
    state: Mapping[str, Any]
    trend: Growth | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Everything ``lines`` shows."""

    ranks: tuple[RankMemory, ...]
    run_id: str = ""
    started_ns: int | None = None
    notes: tuple[str, ...] = ()


def gather(reader: RunReader, window: Window) -> MemoryFacts:
    """Collect the facts of a run.

    Raises:
        StoreError: If the store cannot be read.
    """
    states = window.probe_states
    ranks = sorted({*states, *reader.ranks()})
    span = reader.span()
    return MemoryFacts(
        ranks=tuple(_rank(rank, reader, window, states.get(rank, {})) for rank in ranks),
        run_id=str(window.run.get("id") or ""),
        started_ns=span[0] if span else None,
        notes=tuple(
            str(note.body.get("text")) for note in reader.notes() if note.kind == "host-oom"
        ),
    )


def _rank(rank: int, reader: RunReader, window: Window, state: Mapping[str, Any]) -> RankMemory:
    samples = reader.memory(None, None, rank)
    basis = samples[-1].basis if samples else ""
    judged = rank == window.rank
    return RankMemory(
        rank=rank,
        samples=tuple(m for m in samples if m.basis == basis),
        state=state,
        trend=growth(window) if judged and window.memory else None,
        total=_total(basis, state, window),
    )


def _total(basis: str, state: Mapping[str, Any], window: Window) -> int | None:
    if basis == ON_GPU:
        return _whole(_mapping(state.get("cuda")).get("total"))
    for sample in reversed(window.host):
        limits = [v for v in (sample.mem_limit, sample.mem_total) if v]
        if limits:
            return min(limits)
    return None


def last_words(states: Mapping[int, Mapping[str, Any]]) -> str | None:
    """One sentence for a run whose last step was followed by an out-of-memory error."""
    for rank, state in sorted(states.items()):
        oom = _mapping(state.get("oom"))
        if not oom or oom.get("steps_after") != 0:
            continue
        stack = [row for row in oom.get("stack") or () if isinstance(row, Mapping)]
        where = f" at {_place(stack[0])}" if stack else ""
        of_rank = f" on rank {rank}" if len(states) > 1 else ""
        return (
            f"CUDA ran out of memory{where}{of_rank} (asked for {_size(oom.get('requested'))}), "
            "and no step followed; report --memory has the picture"
        )
    return None


def lines(facts: MemoryFacts, width: int, *, ascii_only: bool = False) -> list[str]:
    """The text of ``report --memory``.

    Args:
        facts: What ``gather`` found.
        width: Columns of the terminal; lines never exceed it, nor ``MAX_WIDTH``.
        ascii_only: Use no character beyond ASCII.

    Returns:
        Lines without line ends.
    """
    room = max(MIN_WIDTH, min(width, MAX_WIDTH)) - 1
    found = [f"── gputop-train · {fmt.printable(facts.run_id)} · memory ".ljust(room, "─")[:room]]
    for note in facts.notes:
        found += fmt.row("killed", fmt.printable(note), room)
    several = len(facts.ranks) > 1
    for rank in facts.ranks[:MAX_RANKS]:
        found += _of_rank(rank, facts, room, several=several)
    if len(facts.ranks) > MAX_RANKS:
        found += fmt.row("", f"and {len(facts.ranks) - MAX_RANKS} more ranks", room)
    if not facts.ranks:
        found += fmt.row("basis", "nothing was measured: no training process was seen", room)
    return [fmt.to_ascii(line) for line in found] if ascii_only else found


def _of_rank(rank: RankMemory, facts: MemoryFacts, room: int, *, several: bool) -> list[str]:
    state = rank.state
    found = fmt.row("rank", str(rank.rank), room) if several else []
    on_gpu = bool(rank.samples) and rank.samples[-1].basis == ON_GPU
    if on_gpu:
        found += _allocator(rank, room)
    elif rank.samples:
        found += _private(rank, room)
    else:
        found += fmt.row("basis", "not measured: no reading of this process's memory", room)
    found += _growth(rank, room)
    found += _held(state.get("held"), room)
    if on_gpu or isinstance(state.get("oom"), Mapping):
        found += _counters(rank, room)
    found += oom_lines(state.get("oom"), facts.started_ns, room)
    return found


def _allocator(rank: RankMemory, room: int) -> list[str]:
    cuda = _mapping(rank.state.get("cuda"))
    name = cuda.get("name")
    device = f"cuda:{cuda['device']}" if isinstance(cuda.get("device"), int) else "one device"
    where = f"{name} ({device})" if isinstance(name, str) else device
    last = _newest(rank.samples)
    found = fmt.row("basis", f"torch's CUDA caching allocator on {fmt.printable(where)}", room)
    parts = [f"allocated {fmt.size(last.allocated)}"]
    if last.reserved is not None:
        parts.append(f"reserved {fmt.size(last.reserved)}")
        parts.append(f"{fmt.size(max(0, last.reserved - last.allocated))} of it free")
    found += fmt.row("now", " · ".join(parts), room)
    # Read, never reset: where the script resets its peaks, the largest ever seen counts.
    peaks = [
        f"{word} {fmt.size(value)}"
        for word, value in (
            ("allocated", _largest(m.peak_allocated for m in rank.samples)),
            ("reserved", _largest(m.peak_reserved for m in rank.samples)),
        )
        if value is not None
    ]
    of = f" of {fmt.size(rank.total)}" if rank.total is not None else ""
    return found + fmt.row("peak", (" · ".join(peaks) + of) if peaks else "not measured", room)


def _private(rank: RankMemory, room: int) -> list[str]:
    values = [m.allocated for m in rank.samples]
    of = f" of {fmt.size(rank.total)}" if rank.total is not None else ""
    found = fmt.row("basis", "the trainer's private memory (RssAnon), read once a second", room)
    found += fmt.row("now", fmt.size(values[-1]), room)
    return found + fmt.row("peak", f"{fmt.size(max(values))}{of}, as far as readings tell", room)


def _growth(rank: RankMemory, room: int) -> list[str]:
    trend = rank.trend
    if trend is None:
        return fmt.row("growth", "not judged: too few readings at step ends", room)
    a_step = f"{'+' if trend.per_step > 0 else '-'}{fmt.size(abs(trend.per_step))} a step"
    text = (
        f"lowest after a step {fmt.size(trend.start)} at first, "
        f"{fmt.size(trend.start + trend.total)} at last, over {trend.steps:,.0f} steps: {a_step}"
    )
    return fmt.row("growth", text, room)


def _held(held: Any, room: int) -> list[str]:
    held = _mapping(held)
    if not held:
        return fmt.row("held", "not counted: no optimizer stepped often enough", room)
    found = _kinds("held", held, held.get("allocated"), room)
    where = str(held.get("device") or "")
    when = f"counted at the end of step {_number(held.get('step'))} on {fmt.printable(where)}"
    partial = "; some tensors could not be sized" if held.get("partial") else ""
    if isinstance(held.get("other"), int):
        found += fmt.row("", _OTHER, room)
    return found + fmt.row("", when + partial, room)


def _kinds(
    key: str, held: Mapping[str, Any], whole: Any, room: int, size: Size = fmt.size
) -> list[str]:
    found: list[str] = []
    for name, words in _KINDS:
        value = held.get(name)
        if not isinstance(value, int):
            continue
        share = f"{fmt.percent(value / whole):>6}" if isinstance(whole, int) and whole > 0 else ""
        text = f"{words:<16}{size(value):>9}{share}"
        lead = key if not found else ""
        # One space of a row's text would be folded by wrapping: these are columns.
        found.append(f" {lead:<8}{text}"[: max(room, MIN_WIDTH)].rstrip())
    return found


def _counters(rank: RankMemory, room: int) -> list[str]:
    state = _mapping(rank.state.get("memory"))
    retries = _largest([state.get("retries"), *(m.retries for m in rank.samples)])
    oom = _mapping(rank.state.get("oom"))
    ooms = _largest([state.get("ooms"), oom.get("count"), *(m.ooms for m in rank.samples)])
    split = state.get("inactive_split")
    parts = []
    if retries is not None:
        parts.append(f"{_times(retries, 'retry', 'retries')} after a flush of the cache")
    if ooms is not None:
        parts.append(_times(ooms, "out-of-memory error", "out-of-memory errors"))
    if isinstance(split, int):
        parts.append(f"{fmt.size(split)} free but split")
    return fmt.row("counts", " · ".join(parts) if parts else "not measured", room)


def oom_lines(oom: Any, started_ns: int | None, room: int, *, size: Size = fmt.size) -> list[str]:
    """The picture of an out-of-memory error, from ``oom`` of the probe's snapshot.

    Args:
        oom: As in the snapshot; anything else gives no lines.
        started_ns: The run's first reading.
        room: Columns.
        size: Says a number of bytes.
    """
    oom = _mapping(oom)
    if not oom:
        return []
    found = fmt.row("oom", _when(oom, started_ns), room)
    free, limit = oom.get("free"), oom.get("limit")
    asked = f"asked for {_size(oom.get('requested'), size)}"
    if isinstance(free, int) and isinstance(limit, int):
        asked += f" with {size(free)} free on the device, {size(limit)} allowed in all"
    found += fmt.row("", asked, room)
    allocated, reserved = oom.get("allocated"), oom.get("reserved")
    if isinstance(allocated, int) and isinstance(reserved, int):
        text = (
            f"allocated {size(allocated)} · reserved {size(reserved)} · "
            f"{size(max(0, reserved - allocated))} reserved but free"
        )
        if isinstance(oom.get("inactive_split"), int):
            text += f", {size(oom['inactive_split'])} of it split"
        found += fmt.row("", text, room)
    found += _asked_by(oom, room)
    held = _mapping(oom.get("held"))
    kinds = _kinds("holding", held, allocated, room, size)
    found += kinds or fmt.row("holding", "not counted", room)
    if kinds and held.get("gradients") is None:
        found += fmt.row("", "gradients were not counted: another thread may write them", room)
    return found + _by_line(oom, room, size)


def _when(oom: Mapping[str, Any], started_ns: int | None) -> str:
    parts = [f"after step {_number(oom.get('step'))}"]
    if isinstance(oom.get("count"), int) and oom["count"] > 1:
        parts.insert(0, f"the last of {oom['count']:,}")
    t_ns = oom.get("t_ns")
    if isinstance(t_ns, int) and started_ns is not None and t_ns >= started_ns:
        parts.append(f"{fmt.duration((t_ns - started_ns) / 1e9)} after the first reading")
    after = oom.get("steps_after")
    if isinstance(after, int):
        parts.append("no step followed" if not after else f"{after:,} steps followed: caught")
    return ", ".join(parts)


def _asked_by(oom: Mapping[str, Any], room: int) -> list[str]:
    stack = [row for row in oom.get("stack") or () if isinstance(row, Mapping)]
    if not stack:
        return fmt.row("by", "no line of the script was on the stack", room)
    found = []
    for n, row in enumerate(stack[:MAX_STACK]):
        text = f"{_place(row)}  {fmt.printable(str(row.get('call') or ''))}"
        if n == 0 and oom.get("thread") == "autograd":
            text += "  (in backward)"
        found += fmt.row("by" if n == 0 else "", text, room)
    return found


def _by_line(oom: Mapping[str, Any], room: int, size: Size) -> list[str]:
    rows = oom.get("lines")
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        why = fmt.printable(str(oom.get("lines_missing") or "not recorded"))
        hint = ""
        if why == "allocation history is off":
            hint = "; torch.cuda.memory._record_memory_history() in the script turns it on"
        return fmt.row("lines", why + hint, room)
    found: list[str] = []
    for row in rows[:MAX_LINES]:
        row = _mapping(row)
        blocks = row.get("blocks")
        place = _place(row) if row.get("file") else "no line recorded"
        text = f"{_size(row.get('bytes'), size):>9}  {place}"
        if isinstance(blocks, int):
            text += f"  {_times(blocks, 'block', 'blocks')}"
        found.append(f" {'lines' if not found else '':<8}{text}"[:room])
    return found or fmt.row("lines", "no live block carries a line", room)


def _place(row: Mapping[str, Any]) -> str:
    return fmt.printable(f"{PurePath(str(row.get('file'))).name}:{row.get('line')}")


def _newest(samples: Sequence[MemorySample]) -> MemorySample:
    """The newest reading with what is reserved, else the newest."""
    return next((m for m in reversed(samples) if m.reserved is not None), samples[-1])


def _largest(values: Any) -> int | None:
    return max((v for v in values if isinstance(v, int)), default=None)


def _times(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _size(value: Any, size: Size = fmt.size) -> str:
    return size(value) if isinstance(value, (int, float)) else "an unknown size"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "an unknown number"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
