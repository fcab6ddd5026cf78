"""Judge the run every few seconds, and once for all at its end, from the store alone."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gputop_train.model import Diagnosis
from gputop_train.store.following import FollowingReader
from gputop_train.store.reader import RunReader

if TYPE_CHECKING:
    from gputop_train.diagnose.standing import Standing
    from gputop_train.diagnose.window import Window

_PERIOD_NS = 2_000_000_000
_LONGEST_NS = 15_000_000_000  # a verdict comes within max(15 s, 20 steps): design.md
#: A diagnosis that took t of CPU is repeated after 250 t: at most 0.4% of a core.
_REST = 250
#: While steps are too few for one, the next look is no further off: it must come in time.
_EARLY_NS = 4_000_000_000


class Judge:
    """Decides when a live diagnosis is due and makes it, within a CPU budget.

    It keeps the one that stands: a new cause is told once it was seen twice (`Standing`).
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._reader: RunReader | None = None
        self._due_ns = 0
        self._standing: Standing | None = None

    def judge(self, now_ns: int, *, stretch: float = 1.0) -> Diagnosis | None:
        """A diagnosis of the last window, or ``None`` when none is due.

        Args:
            now_ns: ``CLOCK_MONOTONIC`` nanoseconds.
            stretch: Factor on the time until the next one is due.

        Raises:
            StoreError: The store cannot be read.
        """
        if now_ns < self._due_ns:
            return None
        # Imported here: whatever is wrong with judging must not keep data from being recorded.
        from gputop_train.diagnose import engine, evidence
        from gputop_train.diagnose.rules import all_rules
        from gputop_train.diagnose.standing import Standing

        all_rules()  # loading them is paid once, and must not put off the next judgement
        began_ns, longest_ns = time.thread_time_ns(), _LONGEST_NS
        try:
            if self._reader is None:
                self._reader = FollowingReader(self._store)
            if self._standing is None:
                self._standing = Standing()
            found = engine.diagnose(evidence.build(self._reader, final=False))
            if found.status == "too-early":
                longest_ns = _EARLY_NS
            return self._standing.settle(found)
        finally:
            cost_ns = time.thread_time_ns() - began_ns
            rest_ns = stretch * max(_PERIOD_NS, _REST * cost_ns)
            self._due_ns = now_ns + min(int(rest_ns), longest_ns)

    def close(self) -> None:
        """Let go of the store."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Claims:
    """Tells what a diagnosis claims whenever that is another claim than before.

    Of old diagnoses the store keeps one a minute; when a verdict began and ended is kept for ever.
    """

    def __init__(self) -> None:
        self._last: tuple[str, ...] | None = None

    def news(self, diagnosis: Diagnosis) -> dict[str, Any] | None:
        """The body of a ``claim`` note, ``None`` for the same claim with other numbers."""
        from gputop_train.diagnose.standing import claim_of

        claim = claim_of(diagnosis)
        if claim == self._last:
            return None
        self._last = claim
        found = diagnosis.verdict
        named = ("id", "refined", "severity", "confidence")
        about = {name: getattr(found, name) for name in named} if found is not None else {}
        return {"status": diagnosis.status, **about}


def as_body(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as the store and the screen exchange it."""
    body: dict[str, Any] = msgspec.to_builtins(diagnosis)
    return body


def judge_run(store: Path, *, final: bool, unsaved: str | None = None) -> tuple[Window, Diagnosis]:
    """What the rules looked at, and what they say.

    Args:
        store: The run's store.
        final: Judge the whole run's steady part; else the last window.
        unsaved: Why part of the run is not in the store, if so: nothing is judged then.

    Raises:
        StoreError: The store cannot be read.
    """
    from gputop_train.diagnose import engine, evidence

    with RunReader(store) as reader:
        window = evidence.build(reader, final=final)
    if unsaved is not None:
        window = replace(window, missing={**window.missing, "probe": unsaved})
    return window, engine.diagnose(window)


def build_report(
    store: Path,
    run: Mapping[str, Any],
    exit_: Mapping[str, Any] | None,
    judged: tuple[Window, Diagnosis],
) -> dict[str, Any]:
    """The report of ``--json``.

    Args:
        store: The run's store.
        run: ``run.json``.
        exit_: ``exit.json``, ``None`` while the script runs.
        judged: From `judge_run`.

    Raises:
        StoreError: The store cannot be read.
    """
    from gputop_train.report import json as report_json

    window, diagnosis = judged
    with RunReader(store) as reader:
        exit_ = dict(exit_) if exit_ is not None else None
        report: dict[str, Any] = report_json.build(dict(run), exit_, reader, diagnosis, window)
    return report


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """Write a file of ours (0600) so that it is there whole or not at all.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(body, file, indent=1, allow_nan=False)
            file.write("\n")
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
