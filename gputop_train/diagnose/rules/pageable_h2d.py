"""``pageable-h2d``: copies to the GPU from memory that is not pinned hold both host and GPU.

Looks for: >= half of the copied bytes from pageable memory and E_h2d / T >= 5% (catalogue 13,
proposed; XProf 30%, TraceML 10/20 on the GPU's clock). The cost is the device time between the GPU
events around each copy, which NVML does not count as busy.
Differential: un-pinned is the commonest finding of all and rarely worth much (1.02 to 1.15 times,
ICSE'24): without the cost it stays silent and says so. Calls that take longer than copies of these
bytes can wait for something else, such as the interpreter lock. Pinned ones are
``unoverlapped-h2d``.
Fix: pin where the memory is made, and ``non_blocking=True`` where it is moved; both or neither.
Probe: feed a batch that is pinned already. Gain: T / (T - E); at least T / (T - E + bytes / link).
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.copies import (
    CALL_S,
    MOSTLY,
    REACHED,
    SLOWEST,
    CopyCost,
    best_link,
    copy_cost,
    copy_sites,
    costly,
    longest_share,
    pinned_share,
)
from gputop_train.diagnose.lock import held
from gputop_train.diagnose.rules.base import (
    CRITICAL,
    INFO,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    ceiling,
    hook_missing,
    ms,
    name,
    number,
    percent,
    plain,
    severity,
    span,
    where,
)
from gputop_train.diagnose.rules.device_roundtrip import returned_share
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Loader, Where

ID = "pageable-h2d"
#: A step that copies less pays for calls rather than bytes: below the warn band it is left alone.
MIN_BYTES = 1_000_000
#: So many copies a step of so few bytes each are to become one; CUDA stages up to 64 kB by itself.
MANY, SMALL = 8, 64 * 1024


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes: nothing is copied to a GPU")
    missing = hook_missing(window, "h2d")
    if missing:
        return Abstention(ID, missing)
    cost = copy_cost(window)
    if cost is None:
        return Abstention(ID, window.missing.get("gpu_events", "GPU events around copies"))
    lost = cost.lost - returned_share(window)
    if lost < INFO:
        if cost.pageable is not None and cost.pageable >= MOSTLY:
            most = ceiling(max(0.0, lost)) or 1.0
            return RuledOut(
                ID,
                f"copies come from pageable memory, but pinning it could bring at most {most:.2f}x",
            )
        return RuledOut(ID, f"copies to the GPU cost {percent(max(0.0, lost))} of the time")
    if cost.pageable is None:
        return Abstention(ID, "no line was seen copying, so whether its memory is pinned")
    if cost.pageable < MOSTLY:
        return RuledOut(ID, f"{percent(1 - cost.pageable)} of the bytes come from pinned memory")
    size = cost.bytes_per_step or 0.0
    if lost < WARN and size < MIN_BYTES:
        return RuledOut(ID, f"{size / 1e3:.3g} kB a step cost calls rather than bytes")
    longest = longest_share(window, cost)
    if longest is not None and lost > longest:
        return _too_long(window, lost, longest, size)
    return _finding(window, cost, lost)


def _too_long(window: Window, lost: float, most: float, size: float) -> Abstention | RuledOut:
    """The calls take longer than such copies can: what holds the host in them is something else."""
    acc = account(window)
    if held(window) is not None:
        return RuledOut(ID, "the copies wait for the interpreter lock, which another thread keeps")
    return Abstention(
        ID,
        f"what holds the host for {ms(acc.ms(lost))} a step in copies of {size / 1e3:.3g} kB, "
        f"which take {ms(acc.ms(most))} at most: a mapped file that is read, or other threads",
    )


def _finding(window: Window, cost: CopyCost, lost: float) -> Finding:
    acc = account(window)
    sites = costly([s for s in copy_sites(window) if s.unpinned_bytes])
    places = tuple(where(s) for s in sites)
    size = amount("", cost.bytes_per_step or 0.0)
    rate = f" at {cost.rate / 1e9:.3g} GB/s" if cost.rate else ""
    return Finding(
        id=ID,
        summary=(
            f"Copies to the GPU from pageable memory cost {percent(lost)} of every step: "
            f"{size.value} {size.unit} a step{rate}, {ms(acc.ms(lost))} of "
            f"{ms(acc.step_ms or 0.0)} in which it does not compute."
        ),
        severity=severity(lost, window.totals.steps),
        confidence="high" if cost.measured else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                number(f"GPU kept from computing by copies ({cost.basis})", lost, "of wall"),
                number("host blocked in copies (context)", cost.host, "of wall"),
                amount("copied", cost.bytes_per_step or 0.0, " a step"),
                number("from pageable memory", cost.pageable, "of bytes"),
                number("copies", cost.calls_per_step, "a step"),
                number("rate of a copy", cost.rate / 1e9 if cost.rate else None, "GB/s"),
                number("PCIe link, one direction", _giga(best_link(window)), "GB/s"),
                _pinned(window, cost),
            )
            if row is not None and row.value is not None
        ),
        where=places,
        where_missing=None if places else "the copies were made where the probe takes no line",
        advice=(*_fewer(cost, places), *_advice(window, places))[:3],
        gain=_gain(window, cost, lost),
    )


def _pinned(window: Window, cost: CopyCost) -> Evidence | None:
    left = pinned_share(window, cost)
    if left is None:
        return None
    what = f"E': the same bytes from pinned memory, at {percent(REACHED)} of the link"
    return span(what, account(window).ms(left))


def _giga(rate: float | None) -> float | None:
    return None if rate is None else rate / 1e9


def _gain(window: Window, cost: CopyCost, lost: float) -> Gain:
    most = ceiling(lost)
    left = pinned_share(window, cost)
    if left is None or most is None:
        return Gain(most, None, f"T / (T - E), E from {cost.basis}", at_least=not cost.measured)
    acc = account(window)
    basis = (
        f"T / (T - E + E'): T {ms(acc.step_ms or 0.0)}, E {ms(acc.ms(lost))}, E' 0 to "
        f"{ms(acc.ms(min(left, lost)))}"
    )
    low = 1.0 / (1.0 - lost + min(left, lost))
    return Gain(most, (low, most), basis, at_least=not cost.measured)


def _fewer(cost: CopyCost, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    calls, size = cost.calls_per_step or 0.0, cost.bytes_per_step or 0.0
    if calls < MANY or size / calls > SMALL:
        return ()
    line = f" ({name(places[0])})" if places else ""
    return (
        Advice(
            f"Move one tensor in place of {plain(calls)} small ones a step{line}: join them on the "
            f"host, copy {size / 1e3:.3g} kB at once, split on the GPU."
        ),
    )


def _advice(window: Window, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    line = f" ({name(places[0])})" if places else ""
    feeding = window.feeding_loaders
    move = Advice(
        f"Move with non_blocking=True{line}: x.to(device, non_blocking=True). From pageable memory "
        "it changes nothing, so only together with the first step."
    )
    if not feeding:
        return (
            Advice(
                f"Pin the tensor that is copied once, before the loop{line}: data = "
                "data.pin_memory(); slices of it are pinned too. There is no DataLoader here whose "
                "pin_memory could do it."
            ),
            move,
            Advice(
                "If x.is_pinned() is still False there (indexing by a tensor allocates anew), "
                "gather into a pinned buffer: torch.index_select(data, 0, rows, out=buffer)."
            ),
        )
    return (*_loader_advice(feeding[0]), move, _if_no_help(feeding[0], line))


def _loader_advice(loader: Loader) -> tuple[Advice, ...]:
    at = name(Where(loader.file, loader.line, loader.call))
    if loader.pin_memory:
        return (
            Advice(
                f"pin_memory=True is set ({at}), yet the copied memory is not pinned: give the "
                "batch class a pin_memory() method, or move the tensors inside it, not copies."
            ),
        )
    if loader.num_workers == 0:
        return (
            Advice(
                f"num_workers 0 -> 1 and pin_memory False -> True ({at}): with 0 workers the "
                "training thread would do the pinning itself, which can cost what it saves.",
                # --set gives no workers to an IterableDataset: several would repeat its data.
                None if loader.iterable else {"num_workers": 1, "pin_memory": True},
            ),
        )
    return (
        Advice(
            f"pin_memory False -> True ({at}): a thread of the loader then copies each batch to "
            "pinned memory while the step before it runs.",
            {"pin_memory": True},
        ),
    )


def _if_no_help(loader: Loader, line: str) -> Advice:
    return Advice(
        f"If x.is_pinned() stays False{line}, what is copied there is not the loader's batch: pin "
        f"it where it is made. The batch of {loader.dataset} must be tensors, or lists and dicts "
        "of them."
    )


RULE = Rule(
    ID,
    40,
    judge,
    probe="feed one batch that is pinned already for 50 steps",
    page=Page(
        number=13,
        title="Copies from pageable memory",
        meaning=(
            "Each copy to the GPU is staged through a small driver buffer: the training thread is "
            "held until it is done and the GPU does not compute meanwhile. Utilisation reads low, "
            "because the driver does not count copies."
        ),
        looks_at=(
            "device time between the GPU events around each copy",
            "is_pinned() of what a line copies, its bytes and its rate",
            "PCIe generation and width",
        ),
        thresholds=(
            Threshold(
                "exposed copy time",
                f">= {percent(INFO)} info, {percent(WARN)} warn, {percent(CRITICAL)} critical",
                "proposed for the 5%; bands of TraceML and TensorFlow's profiler",
            ),
            Threshold("bytes from pageable memory", f">= {percent(MOSTLY)}", "proposed"),
            Threshold(
                "bytes a step, below the warn band", f">= {MIN_BYTES / 1e6:.0f} MB", "proposed"
            ),
            Threshold(
                "what such copies can take at most, else not judged",
                f"bytes at {SLOWEST / 1e9:g} GB/s, {CALL_S * 1e3:g} ms a call",
                "proposed; 3 to 10 GB/s on an H200's host",
            ),
            Threshold("part of the link a pinned copy reaches", percent(REACHED), "proposed"),
        ),
        mistaken_for=(
            "an un-pinned copy that costs nothing (ICSE'24: 1.02 to 1.15 times): ruled out, with "
            "what pinning could bring at most",
            "unoverlapped-h2d: the memory is pinned already",
            "a copy that waits for the GPU's earlier work: the events around it measure the copy "
            "alone",
            "device-roundtrip: what is copied up came down in the same step",
            "a wait for the interpreter lock, or for a mapped file that is read there",
            "a few small copies, whose cost is the calls and not their memory",
        ),
        mend=(
            "pin the memory where it is made (pin_memory=True in a loader with workers, or "
            "tensor.pin_memory() once outside the loop)",
            "non_blocking=True where it is moved; both or neither",
            "a batch class of one's own needs a pin_memory() method",
        ),
        test="feed one batch that is pinned already for 50 steps",
        gain="T / (T - E); at least T / (T - E + bytes / link)",
    ),
)
