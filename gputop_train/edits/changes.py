"""The other local changes: copies, optimizers, modes, precision, a kept graph."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gputop_train.edits.errors import EditError
from gputop_train.edits.origins import at_its_origin
from gputop_train.edits.splice import Splice, add_keywords, set_value
from gputop_train.edits.syntax import Call, Source

#: The line a change is made at, and the change.
Change = tuple[int, list[Splice]]

#: Optimizers with ``fused`` and the torch release that brought it (torch's release notes).
FUSED = {"Adam": (2, 0), "AdamW": (2, 0), "SGD": (2, 3)}
#: Optimizers of torch with ``foreach`` (torch 2.1).
FOREACH = frozenset(
    {"Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop"}
    | {"Rprop", "SGD"}
)
_DTYPE = re.compile(r"(?:torch\.)?(?:b?float\d*|half|double|int\d*|uint8|long|bool|\w+\.dtype)")


def non_blocking(source: Source, line: int) -> list[Splice]:
    """``non_blocking=True`` for the copies to a device at a line.

    Raises:
        EditError: There is none, all say so already, or one takes it from elsewhere.
    """
    copies = [c for c in source.calls_at(line) if _copies_to_device(c)]
    if not copies:
        raise EditError(f"No .to(device) or .cuda() is written at line {line}.")
    splices: list[Splice] = []
    for call in copies:
        given = call.argument("non_blocking")
        if any(a.star for a in call.arguments):
            raise EditError(f"The copy at line {line} takes its arguments from elsewhere.")
        if given is None:
            splices += add_keywords(source, call, {"non_blocking": True})
        elif not given.literal:
            raise EditError(f"non_blocking is `{given.value}` at line {line}: make that True.")
        elif given.value != "True":
            splices.append(set_value(given, True))
    if not splices:
        raise EditError(f"Line {line} says non_blocking=True already.")
    return splices


def _copies_to_device(call: Call) -> bool:
    if call.name not in ("to", "cuda") or not call.receiver:
        return False
    values = [a.value for a in call.arguments if a.keyword in (None, "device")]
    # A copy to the host must not return before it is done; a cast is no copy to a device.
    if any(value.strip("\"'").startswith("cpu") or ".cpu" in value for value in values):
        return False
    positional = [a for a in call.arguments if a.keyword is None]
    if len(positional) > (1 if call.name == "cuda" else 2):
        return False  # non_blocking by its place: rare enough to be left to a person
    return call.name == "cuda" or any(not _DTYPE.fullmatch(value) for value in values)


def optimizer_flag(source: Source, flag: str, torch: str | None, line: int | None = None) -> Change:
    """``fused=True`` or ``foreach=True`` where the one optimizer of a file is built.

    Raises:
        EditError: There is no such place, or the optimizer has no such flag.
    """
    calls = [c for c in source.calls if _optimizer(source, c) is not None]
    if line is not None and any(c.line <= line <= c.end_line for c in calls):
        calls = [c for c in calls if c.line <= line <= c.end_line]
    if len(calls) != 1:
        count = f"{len(calls)} optimizers of torch.optim are" if calls else "No torch.optim one is"
        raise EditError(f"{count} built in this file: set {flag}=True where yours is.")
    call = calls[0]
    kind = _optimizer(source, call) or ""
    _supported(kind, flag, torch)
    if any(a.star for a in call.arguments):
        raise EditError(f"The optimizer at line {call.line} takes its arguments from elsewhere.")
    other = call.argument("foreach" if flag == "fused" else "fused")
    if other is not None and other.value == "True":
        # torch refuses both; the flag that is set gives way.
        begin = source.text.rindex(other.keyword or "", 0, other.start)
        return call.line, [Splice(begin, other.end, f"{flag}=True")]
    if call.argument("differentiable") is not None:
        raise EditError(f"The optimizer at line {call.line} is differentiable: {flag} is not.")
    given = call.argument(flag)
    if given is None:
        return call.line, add_keywords(source, call, {flag: True})
    if not given.literal:
        raise EditError(f"{flag} is `{given.value}` at line {call.line}: make that True.")
    if given.value == "True":
        raise EditError(f"Line {call.line} says {flag}=True already.")
    return call.line, [set_value(given, True)]


def _optimizer(source: Source, call: Call) -> str | None:
    full = source.full_name(call.func)
    return call.name if full.startswith("torch.optim.") and full.count(".") == 2 else None


def _supported(kind: str, flag: str, torch: str | None) -> None:
    if flag == "foreach":
        if kind not in FOREACH:
            raise EditError(f"torch.optim.{kind} has no foreach.")
        return
    needed = FUSED.get(kind)
    if needed is None:
        raise EditError(f"torch.optim.{kind} has no fused version for every device.")
    have = tuple(int(n) for n in re.findall(r"\d+", torch or "")[:2])
    if have and have < needed:
        raise EditError(f"torch.optim.{kind} is fused from torch {needed[0]}.{needed[1]} on.")


def without_anomaly(source: Source, line: int | None = None) -> Change:
    """Take autograd's anomaly detection out.

    Raises:
        EditError: It is not switched on in one place of this file, or by an expression.
    """
    calls = [c for c in source.calls if c.name in ("set_detect_anomaly", "detect_anomaly")]
    calls = [c for c in calls if source.full_name(c.func).startswith("torch.")]
    on = [c for c in calls if not (c.arguments and c.arguments[0].value == "False")]
    if line is not None and any(c.line == line for c in on):
        on = [c for c in on if c.line == line]
    if len(on) != 1:
        raise EditError(f"This file switches anomaly detection on in {len(on)} places.")
    call = on[0]
    first = call.arguments[0] if call.arguments else None
    if call.name == "set_detect_anomaly":
        if first is None or first.star or not first.literal:
            what = first.value if first is not None else "nothing"
            raise EditError(f"It is set to `{what}` at line {call.line}: make that False.")
        if call.statement is not None:
            return call.line, [_remove(source, call)]
        return call.line, [set_value(first, False)]
    if not call.manages:
        raise EditError(f"The use of detect_anomaly at line {call.line} is not understood.")
    # The block keeps its indentation: the same manager, told to do nothing.
    name = call.func.removesuffix("detect_anomaly") + "set_detect_anomaly"
    if not call.receiver:
        raise EditError(f"Take the detect_anomaly block at line {call.line} out by hand.")
    return call.line, [Splice(call.start, call.end, f"{name}(False)")]


def rarer(
    source: Source, line: int, now: int, then: int, command: Sequence[str] = ()
) -> list[Splice]:
    """Every ``then`` steps instead of every ``now``, where one ``if`` around a line counts them.

    Args:
        source: The file.
        line: Of what comes too often, in the loop or in a function that it calls.
        now: Steps from one to the next as measured; an ``if`` that says otherwise is left alone.
        then: Steps as they are to be.
        command: The run's command line.

    Raises:
        EditError: No ``if`` says it, or more than one.
    """
    around = [f for f in source.functions if f[1] <= line <= f[2]]
    name = max(around, key=lambda f: f[1])[0] if around else None
    calls = [c.line for c in source.calls if c.name == name]
    found: list[Splice] = []
    problem: EditError | None = None
    for guard in source.guards:
        reached = [n for n in (line, *calls) if guard.first <= n <= guard.last]
        if not reached:
            continue
        if guard.literal:
            splice = Splice(guard.start, guard.end, str(then))
        else:
            try:
                splice = at_its_origin(source, "How often it comes", guard.value, then, command)
            except EditError as failure:
                problem = failure
                continue
        if source.text[splice.start : splice.end].replace("_", "") == str(now):
            found.append(splice)
    if not found and problem is not None:
        raise problem
    if len(found) != 1:
        raise EditError(f"No single `if` around it says every {now:,} steps: change what does.")
    return found


def uncompressed(source: Source, line: int) -> list[Splice]:
    """``savez`` in place of ``savez_compressed`` at a line.

    Raises:
        EditError: It is not called there.
    """
    calls = [c for c in source.calls_at(line) if c.name == "savez_compressed" and c.receiver]
    if len(calls) != 1:
        raise EditError(f"No savez_compressed is called at line {line}.")
    at = source.text.index("savez_compressed", calls[0].start)
    return [Splice(at, at + len("savez_compressed"), "savez")]


def without(source: Source, line: int, full_name: str) -> list[Splice]:
    """Take a statement that only calls ``full_name`` out, such as ``torch.cuda.empty_cache``.

    Raises:
        EditError: It is not a statement there, or something may rely on it.
    """
    name = full_name.rpartition(".")[2]
    calls = [c for c in source.calls_at(line) if source.full_name(c.func) == full_name]
    if len(calls) != 1 or calls[0].statement is None:
        raise EditError(f"No statement {name}() of its own is written at line {line}.")
    if name == "synchronize":
        _nothing_waits(source)
    return [_remove(source, calls[0])]


def _nothing_waits(source: Source) -> None:
    """See to it that no event, stream or copy to the host needs a ``synchronize()`` to be done.

    Raises:
        EditError: One may.
    """
    found = re.search(r"\b(?:elapsed_time|Stream|graph|CUDAGraph)\(", source.text)
    copies = any(
        c.argument("non_blocking") is not None and (c.name == "copy_" or not _copies_to_device(c))
        for c in source.calls
    )
    if found is not None or copies:
        what = found.group()[:-1] if found is not None else "a copy to the host"
        raise EditError(f"This file uses {what}, which may rely on it: take it out by hand.")


def _remove(source: Source, call: Call) -> Splice:
    """A statement taken out: its lines, or ``pass`` where something must stand."""
    statement = call.statement
    if statement is None:
        raise EditError("It is part of an expression: take it out by hand.")
    if statement.needed or not statement.whole:
        return Splice(statement.start, statement.end, "pass")
    first = source.line_of(statement.start)
    last = source.line_of(statement.end - 1)
    return Splice(source.line_start(first), source.line_start(last + 1), "")


def dynamic(source: Source, line: int | None = None) -> Change:
    """``dynamic=True`` for the one ``torch.compile`` of a file.

    Raises:
        EditError: There is no such call, or it says otherwise by an expression.
    """
    calls = [c for c in source.calls if source.full_name(c.func) == "torch.compile"]
    if line is not None and any(c.line <= line <= c.end_line for c in calls):
        calls = [c for c in calls if c.line <= line <= c.end_line]
    if len(calls) != 1:
        raise EditError(f"This file calls torch.compile in {len(calls)} places.")
    call = calls[0]
    given = call.argument("dynamic")
    if any(a.star for a in call.arguments):
        raise EditError(f"torch.compile at line {call.line} takes its arguments from elsewhere.")
    if given is None:
        return call.line, add_keywords(source, call, {"dynamic": True})
    if not given.literal or given.value == "True":
        raise EditError(f"dynamic is `{given.value}` at line {call.line}.")
    return call.line, [set_value(given, True)]


def no_unused_parameters(source: Source) -> Change:
    """``find_unused_parameters=False`` for the one DistributedDataParallel of a file.

    Raises:
        EditError: It is not built in this file, or says so by an expression.
    """
    names = ("DistributedDataParallel", "DDP")
    calls = [c for c in source.calls if c.name in names and c.argument("find_unused_parameters")]
    given = calls[0].argument("find_unused_parameters") if len(calls) == 1 else None
    if given is None:
        raise EditError("No single DistributedDataParallel of this file says it.")
    if given.value != "True":
        raise EditError(f"find_unused_parameters is `{given.value}` at line {calls[0].line}.")
    return calls[0].line, [set_value(given, False)]


def matmul_precision(source: Source) -> Change:
    """``torch.set_float32_matmul_precision("high")`` behind the imports.

    Raises:
        EditError: The file does not import torch at its top, or sets the precision elsewhere.
    """
    calls = [c for c in source.calls if c.name == "set_float32_matmul_precision"]
    if calls:
        call = calls[0]
        given = call.arguments[0] if call.arguments else None
        if len(calls) > 1 or given is None or not given.literal:
            raise EditError(f"The precision is set at line {call.line}: make it high there.")
        if given.value.strip("\"'") == "high":
            raise EditError(f"Line {call.line} says so already.")
        return call.line, [set_value(given, "high")]
    torch = next((k for k, v in source.imports.items() if v == "torch"), None)
    if torch is None or torch not in source.import_lines:
        raise EditError("This file does not import torch at its top.")
    line = _last_of_imports(source, source.import_lines[torch][1])
    at, newline = source.line_start(line + 1), source.newline()
    before = "" if source.text[:at].endswith(("\n", "\r")) else newline
    text = f'{before}{newline}{torch}.set_float32_matmul_precision("high"){newline}'
    return line + 2, [Splice(at, at, text)]


def _last_of_imports(source: Source, line: int) -> int:
    """The last line of the imports that follow one without code between them."""
    for first, last in sorted(set(source.import_lines.values())):
        between = range(line + 1, first)
        if first > line and not any(source.line_text(n).strip() for n in between):
            line = last
    return line


def detached(source: Source) -> Change:
    """``.detach()`` for the one statistic that keeps the graph of a loss.

    Certain only where ``loss.backward()`` ran before in the same loop, the file retains no graph,
    and nothing calls ``backward`` on the sum: then its graph can serve nobody.

    Raises:
        EditError: No place of the file, or more than one, is certain.
    """
    if re.search(r"\b(?:retain_graph|create_graph)\b", source.text):
        raise EditError("This file retains graphs on purpose somewhere: detach what is only read.")
    found: list[tuple[int, int]] = []
    backwards = [c for c in source.calls if c.name == "backward" and c.loops]
    for call in backwards:
        loss = call.receiver
        if not loss.isidentifier():
            continue
        for increase in source.increases:
            same = (increase.loops, increase.function) == (call.loops, call.function)
            if same and increase.value == loss and increase.start > call.end:
                found += [(increase.line, increase.end)] * _never_derived(source, increase.name)
        for other in source.calls:
            same = (other.loops, other.function) == (call.loops, call.function)
            if not (same and other.name == "append" and other.start > call.end):
                continue
            if len(other.arguments) == 1 and other.arguments[0].value == loss:
                stop = other.arguments[0].end
                found += [(other.line, stop)] * _never_derived(source, other.receiver)
    if len(found) != 1:
        raise EditError(
            "No single place of this file is certain to keep a graph: look at what is stored "
            "across steps."
        )
    line, end = found[0]
    return line, [Splice(end, end, ".detach()")]


def _never_derived(source: Source, name: str) -> bool:
    return not any(c.name == "backward" and name in c.receiver for c in source.calls)
