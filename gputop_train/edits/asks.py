"""Which changes a piece of advice asks for: by its setting, and by the code it spells out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gputop_train.edits import changes, loaders
from gputop_train.edits.desk import Change, Desk, at_line, change_loader, search
from gputop_train.edits.splice import Splice
from gputop_train.edits.syntax import Source

Edit = Callable[[], Change]
#: The release from which ``in_order=False`` is right (torch's own issue tracker).
IN_ORDER = (2, 7)
#: Settings that change what is computed, not only how fast.
CHANGING = frozenset({"batch_size"})


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
    if "empty_cache" in text:
        for place in places:
            if "empty_cache" in (place["what"] or ""):
                yield partial(at_line, desk, place, changes.without_empty_cache)
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


def changes_results(advice: Mapping[str, Any]) -> bool:
    """Whether following it changes what is computed, not only how fast."""
    keys = {key.partition("@")[0] for key in advice["setting"] or {}}
    words = ("set_float32_matmul_precision", "in_order=False")
    return bool(keys & CHANGING) or any(word in advice["text"] for word in words)


def _loader_settings(
    setting: Mapping[str, Any], text: str, release: str | None
) -> dict[str, dict[str, Any]]:
    """Loader keywords by the place they name (``num_workers@train.py:41``); empty = none."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in setting.items():
        name, _, at = key.partition("@")
        if name in loaders.KEYS:
            found.setdefault(at, {})[name] = value
    have = tuple(int(n) for n in re.findall(r"\d+", release or "")[:2])
    if "in_order=False" in text and have >= IN_ORDER:
        found.setdefault("", {})["in_order"] = False
    return found
