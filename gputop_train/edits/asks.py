"""Which changes a piece of advice asks for: by its setting, and by the code it spells out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gputop_train.edits import changes, loaders
from gputop_train.edits.desk import Change, Desk, at_line, change_loader, search
from gputop_train.edits.errors import EditError
from gputop_train.edits.splice import Splice
from gputop_train.edits.syntax import Source

Edit = Callable[[], Change]
#: The release from which ``in_order=False`` is right (torch's own issue tracker).
IN_ORDER = (2, 7)
#: Calls that advice takes out, and the words in which it does.
WITHOUT: Mapping[str, str] = {
    "torch.cuda.empty_cache": r"empty_cache\(\)",
    "torch.cuda.synchronize": r"^Remove \S*synchronize\(",
    "gc.collect": r"^Take gc\.collect\(\) out",
}
#: Settings that change what is computed, not only how fast.
CHANGING = frozenset({"batch_size"})
#: Those after which a seeded run draws or rounds numbers otherwise (what ``--set`` marks, too).
RESEEDING = frozenset({"num_workers", "persistent_workers", "fused"})


def edits(
    desk: Desk, report: Mapping[str, Any], finding: Mapping[str, Any], advice: Mapping[str, Any]
) -> Iterator[Edit]:
    """The changes a piece of advice asks for, none of them made yet."""
    text, places = advice["text"], finding["where"] or ()
    named = {finding["id"], finding["refined"]}
    release = report["run"].get("torch")
    for at, settings in _loader_settings(advice["setting"] or {}, text, release).items():
        yield partial(change_loader, desk, places, at, settings)
    if "non_blocking=True" in text and named & {"pageable-h2d", "unoverlapped-h2d"}:
        for place in places:
            if re.search(r"\.(?:to|cuda)\(", place["what"] or ""):
                yield partial(at_line, desk, place, changes.non_blocking)
    if "np.savez in place of np.savez_compressed" in text:
        for place in places:
            if "savez_compressed" in (place["what"] or ""):
                yield partial(at_line, desk, place, changes.uncompressed)
    often = re.search(r"\bevery ([\d,]+) steps instead of every ([\d,]+)\b", text)
    if often is not None and places:
        then, now = (int(n.replace(",", "")) for n in often.groups())
        rarer = partial(changes.rarer, now=now, then=then, command=desk.run.command)
        yield partial(at_line, desk, places[0], rarer)
    for call, words in WITHOUT.items():
        if not re.search(words, text):
            continue
        name = call.rpartition(".")[2] + "("
        meant = [p for p in places if name in (p["what"] or "") and _told(p, text)]
        for place in meant:
            yield partial(at_line, desk, place, partial(changes.without, full_name=call))
        if not meant:
            yield partial(search, desk, places, partial(_only, call))
    for change in _searched(text, named, release):
        yield partial(search, desk, places, change)


def _searched(
    text: str, named: set[str | None], release: str | None
) -> Iterator[Callable[[Source, int | None], tuple[int, list[Splice]]]]:
    """Changes whose place is looked for in the files of the run."""
    for flag in ("fused", "foreach"):
        if re.search(rf"\b{flag}=(?:False -> )?True", text):
            yield lambda source, line, flag=flag: changes.optimizer_flag(  # type: ignore[misc]
                source, flag, release, line
            )
            break
    if "set_float32_matmul_precision" in text:
        yield lambda source, line: changes.matmul_precision(source)
    if "dynamic=True" in text:
        yield changes.dynamic
    if "find_unused_parameters=True -> False" in text:
        yield lambda source, line: changes.no_unused_parameters(source)
    if "anomaly-mode" in named and "anomaly" in text:
        yield changes.without_anomaly
    # On a CPU detached tensors still scatter the heap: there the advice asks for plain numbers.
    if "memory-leak" in named and ".detach().cpu()" in text:
        yield lambda source, line: changes.detached(source)


def _told(place: Mapping[str, Any], text: str) -> bool:
    """Whether a text is about this place, or about none in particular."""
    return f"{Path(place['file']).name}:{place['line']}" in text or ".py:" not in text


def _only(call: str, source: Source, line: int | None) -> changes.Change:
    """The one statement of a file that makes this call, wherever it stands."""
    lines = [c.line for c in source.calls if source.full_name(c.func) == call]
    if len(lines) != 1:
        raise EditError(f"This file calls {call}() in {len(lines)} places.")
    return lines[0], changes.without(source, lines[0], call)


def changed_results(advice: Mapping[str, Any]) -> str | None:
    """How following it changes the results; ``None`` where it only changes how fast they come."""
    text = advice["text"]
    keys = {key.partition("@")[0] for key in advice["setting"] or {}}
    words = ("set_float32_matmul_precision", "in_order=False")
    if keys & CHANGING or any(word in text for word in words):
        return "It changes what is computed, not only how fast."
    if keys & RESEEDING or re.search(r"\bfused=(?:False -> )?True", text):
        return "It changes the results of a seeded run."
    return None


def _loader_settings(
    setting: Mapping[str, Any], text: str, release: str | None
) -> dict[str, dict[str, Any]]:
    """Loader keywords by the place they name (``num_workers@train.py:41``); empty = none."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in setting.items():
        name, _, at = key.partition("@")
        if name in loaders.KEYS:
            found.setdefault(at, {})[name] = value
    # A loader that feeds no training is none that --set flips: its advice has no setting.
    other = re.search(
        r"\((\S+\.py:\d+)\): num_workers \d+ -> (\d+)(, persistent_workers=True)?", text
    )
    if other is not None and not setting:
        found[other[1]] = {"num_workers": int(other[2])}
        if other[3]:
            found[other[1]]["persistent_workers"] = True
    have = tuple(int(n) for n in re.findall(r"\d+", release or "")[:2])
    if "in_order=False" in text and have >= IN_ORDER:
        found.setdefault("", {})["in_order"] = False
    return found
