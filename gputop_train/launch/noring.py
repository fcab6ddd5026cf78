"""Why no probe answered: a run without a ring gets a sentence, not silence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gputop_train.collect.ring_reader import OUR_LIMITS
from gputop_train.launch.probe_dir import PACKAGE
from gputop_train.launch.processes import process_table, runs_code
from gputop_train.launch.sampling import environment_of

#: The probe arms at the first backward or optimizer step; imports and loading a model take time.
PATIENCE_NS = 30_000_000_000
#: Torch may be imported late, so the reason is looked at again before it is given a last time.
_AGAIN_NS = 300_000_000_000

_BLINDING = {"I": "-I", "E": "-E", "S": "-S"}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One Python process of the run, as far as it tells whether the probe could get in."""

    argv: tuple[str, ...]
    probe_on_path: bool | None  # None: its environment may not be read
    has_torch: bool | None


def explain(interpreters: Sequence[Interpreter]) -> str:
    """One sentence of why there is no data, one of what to do."""
    if not interpreters:
        return (
            "No Python process runs here, so nothing is measured. "
            "Start the script itself: gputop-train train.py."
        )
    flags = [flag for found in interpreters if (flag := blinding_flag(found.argv)) is not None]
    if flags:
        return (
            f"Python was started with {flags[0]} and so ignores what lets the probe in. "
            f"Leave {flags[0]} out for a diagnosis; training itself is not affected."
        )
    if all(found.probe_on_path is False for found in interpreters):
        return (
            "The script runs with an environment that lacks PYTHONPATH (env -i, sudo, a job "
            "manager), so the probe could not get in. Pass PYTHONPATH on for a diagnosis."
        )
    if not any(found.has_torch for found in interpreters):
        return (
            "No process of the run has loaded torch yet. "
            "If it never trains with PyTorch there is nothing to diagnose."
        )
    return (
        "Torch is loaded but no backward pass or optimizer step was made yet. "
        "The steps appear with the first one; a run that only evaluates has none."
    )


def blinding_flag(argv: Sequence[str]) -> str | None:
    """The interpreter option that keeps the probe's ``sitecustomize`` out, if any."""
    for word in argv[1:]:
        if not word.startswith("-") or word in ("-", "--") or word.startswith("--"):
            return None
        for letter in word[1:]:
            if letter in _BLINDING:
                return _BLINDING[letter]
            if letter in "cmWX":  # the rest of the word, or the next one, is its value
                return None if letter in "cm" else _skip(argv, word)
    return None


def _skip(argv: Sequence[str], word: str) -> str | None:
    rest = list(argv[list(argv).index(word) + 1 :])
    if len(word) == 2 and rest:  # the value stands by itself
        rest = rest[1:]
    return blinding_flag([argv[0], *rest])


def explain_afterwards(probe_dir: Path) -> tuple[str, bool]:
    """Why a run that is over never had a ring, by the marks the probe left behind.

    Returns:
        One sentence or two, and whether the probe was kept from measuring: a script that never
        trains leaves nothing to measure and nothing is wrong.
    """
    if not (probe_dir / "seen-started").exists():
        return (
            "The probe never started in this run: no Python read it (python -I, -E or -S, env -i, "
            "an environment without PYTHONPATH, or a Python before 3.9). "
            "Start the script so that PYTHONPATH reaches it.",
            True,
        )
    marks = probe_dir / PACKAGE
    if not (marks / "seen-torch").exists():
        return ("The script never loaded torch, so there was no training to watch.", False)
    if not (marks / "seen-training").exists():
        return ("Torch was loaded, but the probe told of no backward or optimizer step.", False)
    return _no_ring(marks), True


def _no_ring(marks: Path) -> str:
    numbers = [path.name.rpartition("-")[2] for path in sorted(marks.glob("seen-ring-*"))]
    codes = [int(number) for number in numbers if number.isdecimal() and int(number) < 4096]
    if not codes:
        return (
            "The script trained, but the probe could not open its ring (no room, or an unsafe "
            "runtime directory). Look at the ring directory named in run.json."
        )
    remedy = "Look at the ring directory named in run.json."
    if codes[0] in OUR_LIMITS:
        remedy = "The script itself was at its limit: raise it (ulimit -a)."
    why = os.strerror(codes[0])
    return f"The script trained, but the probe could not open its ring ({why}). {remedy}"


class Absence:
    """Watches for a run whose probe never appears."""

    def __init__(self, sid: int, due_ns: int) -> None:
        self._sid = sid
        self._due_ns = due_ns

    def explain(self, now_ns: int) -> str | None:
        """The reason, once patience has run out; ``None`` before and between looks."""
        if now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + _AGAIN_NS
        return explain(list(find_interpreters(self._sid)))


def find_interpreters(sid: int) -> Iterable[Interpreter]:
    """The Python processes of a session."""
    for process in process_table().values():
        if process.session != sid or not runs_code(process):
            continue
        try:
            raw = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        argv = tuple(word.decode("utf-8", "replace") for word in raw.split(b"\0")[:-1])
        maps = _maps(process.pid)
        if not argv or not ("python" in Path(argv[0]).name or "libpython" in (maps or "")):
            continue
        environment = environment_of(process.pid)
        yield Interpreter(argv, _on_path(environment), "libtorch" in maps if maps else None)


def _on_path(environment: Mapping[str, str]) -> bool | None:
    if not environment:
        return None
    places = environment.get("PYTHONPATH", "").split(":")
    return any((Path(place) / "_gputop_probe").is_dir() for place in places if place)


def _maps(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
    except OSError:
        return None
