"""What a stack is part of: data wait, forward, backward, a save, ... and whose line it is.

The answer is the probe's own: its `Sampler` walks frames, and what py-spy read is handed to it as
frames. Two things it learns inside the process are found here instead: the training loop's frame,
as the deepest that backward and the optimizer have in common, and evaluation, by its names.
"""

from __future__ import annotations

import linecache
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train.diagnose.rules.eval_stall import NAMED
from gputop_train.launch.outside.spying import Frame, Thread
from gputop_train.launch.secrets import mask_code
from gputop_train.probe import arming, sampler, sites
from gputop_train.probe import words as W
from gputop_train.probe.state import S

#: Any interpreter's standard library: the sampler knows that of its own interpreter only.
_STDLIB = re.compile(r".*/lib(?:64)?/(?:python|pypy)\d\.\d+t?/(?!site-packages|dist-packages)")
_OWN_STDLIB = f"{Path(os.__file__).parent}{os.sep}"
#: Parts of frameworks that evaluate.
_EVALUATION = (
    ("lightning/", re.compile(r"evaluation_loop|_run_sanity_check")),
    ("transformers/trainer", re.compile(r"evaluate|evaluation_loop|prediction_loop")),
)
_TRAINING = ("forward", "backward", "optimizer")
#: Labels that stay what they are within an evaluation (precedence of the report's shares).
_ABOVE_EVAL = ("compile", "checkpoint", "eval")
_SINGLE = re.compile(r"torch/utils/data/_utils/fetch\.py\Z")
_LOADER_FILE = "torch/utils/data/dataloader.py"
#: Called by autograd for each node under anomaly detection, and by the compiler when it traces.
_TRACES, _COMPILER = "torch/fx/traceback.py", "torch/_dynamo/"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the person's own code."""

    file: str
    line: int
    function: str
    text: str


@dataclass(frozen=True, slots=True)
class Sight:
    """One stack of the training thread, classed.

    Attributes:
        label: One of the report's labels.
        place: The person's line it is in; ``None`` where no frame is theirs.
        loop: The loop's own line at that time.
        by_loader: A DataLoader was asked for a batch.
        in_process: The training process prepared the batch itself.
        traced: The stack is being written down for an error in backward that may come: only with
            anomaly detection does autograd do so.
    """

    label: str
    count: int
    place: Place | None
    loop: Place | None
    by_loader: bool
    in_process: bool
    traced: bool = False


class _Code:
    """What the sampler reads of a code object; one for each function, known by identity."""

    def __init__(self, file: str, function: str) -> None:
        self.co_filename = file
        self.co_name = function


class _Frame:
    """What the sampler reads of a frame."""

    def __init__(self, code: _Code, line: int, back: _Frame | None) -> None:
        self.f_code = code
        self.f_lineno = line
        # The sampler keeps texts by instruction; without one, its line stands for it.
        self.f_lasti = -1 - line
        self.f_back = back


class _Sampler(sampler.Sampler):
    """The probe's sampler, that tells the frame in place of a number for its line."""

    def _site(self, place: Any, name: str) -> Any:
        return place


class Classifier:
    """Classes the stacks of one process.

    Only one can be at work in a process: the sampler's knowledge of the loop is the module's.

    Args:
        on_gpu: Whether reads of tensors may wait for a GPU.
        root: What to put before the process's paths to read its files.
    """

    def __init__(self, *, on_gpu: bool, root: str = "") -> None:
        self._root = root
        self._codes: dict[tuple[str, str], _Code] = {}
        self._sampler = _Sampler()
        self._thread: Thread | None = None
        S.gpu = object() if on_gpu else None
        S.loop_known = True
        arming.loop_codes.clear()
        arming.outer_codes.clear()

    def look(self, stacks: Mapping[tuple[Thread, tuple[Frame, ...]], int]) -> list[Sight]:
        """Class what the training thread was seen at; empty while no thread is seen to train."""
        thread = training_thread(stacks)
        if thread is None:
            return []
        self._thread = thread
        self.learn(stack for (seen, stack) in stacks if seen == thread)
        return [self._sight(stack, n) for (seen, stack), n in stacks.items() if seen == thread]

    def rest(self, stacks: Mapping[tuple[Thread, tuple[Frame, ...]], int]) -> list[Sight]:
        """Class the thread that trained before, in two seconds in which it did not: a long save."""
        thread = self._thread
        return [self._sight(stack, n) for (seen, stack), n in stacks.items() if seen == thread]

    def learn(self, stacks: Iterable[Sequence[Frame]]) -> None:
        """Find the frame that drives the loop, where these stacks show it."""
        seen: dict[str | None, list[Sequence[Frame]]] = {}
        for stack in stacks:
            seen.setdefault(phase_of(stack), []).append(stack)
        # A forward may be an evaluation's: it serves where the optimizer was never met.
        others = seen.get("optimizer") or ([] if arming.loop_codes else seen.get("forward", []))
        for one in seen.get("backward", ()):
            for other in others:
                self._note_loop(_shared(one, other))

    def _note_loop(self, shared: Sequence[Frame]) -> None:
        codes = [self._code(frame) for frame in shared]
        if codes:
            arming.loop_codes.add(codes[-1])
        for code in codes[:-1]:
            if not sites.is_library(code):
                arming.outer_codes[id(code)] = code

    def _sight(self, stack: Sequence[Frame], count: int) -> Sight:
        leaf = loop = own = None
        for frame in stack:
            leaf = _Frame(self._code(frame), frame.line, leaf)
            if leaf.f_code in arming.loop_codes:
                loop = leaf
            elif frame.file.endswith(_LOADER_FILE):
                loop = loop or own  # who asks, while no backward has shown the loop
            if not sites.is_library(leaf.f_code):
                own = leaf
        place: Any
        number, place = self._sampler._classify(leaf)
        label = W.LABEL_NAMES[number]
        if label not in _REPORTED or (label == "optimizer" and _builds(stack)):
            label = "other"
        if label not in _ABOVE_EVAL and (call := self._evaluation(stack)) is not None:
            label, place = "eval", _at(leaf, len(stack) - call)
        files = [frame.file for frame in stack]
        return Sight(
            label,
            count,
            self._place(place),
            self._place(loop),
            label == "data_wait" and any(file.endswith(_LOADER_FILE) for file in files),
            label == "data_wait" and any(_SINGLE.search(file) for file in files),
            any(file.endswith(_TRACES) for file in files)
            and not any(_COMPILER in file for file in files),
        )

    def _evaluation(self, stack: Sequence[Frame]) -> int | None:
        """Which frame calls a function of the person's that is called so, or a framework's."""
        for call, frame in enumerate(stack[1:]):
            code = self._code(frame)
            if code in arming.loop_codes or id(code) in arming.outer_codes:
                continue
            if not sites.is_library(code):
                if NAMED.search(frame.function):
                    return call
            elif any(p in frame.file and n.search(frame.function) for p, n in _EVALUATION):
                return call
        return None

    def _place(self, frame: Any) -> Place | None:
        if not isinstance(frame, _Frame):
            return None
        code = frame.f_code
        text = mask_code(sites.source(code, frame.f_lasti, frame.f_lineno))
        return Place(code.co_filename.removeprefix(self._root), frame.f_lineno, code.co_name, text)

    def _code(self, frame: Frame) -> _Code:
        key = (frame.file, frame.function)
        code = self._codes.get(key)
        if code is None:
            file = _STDLIB.sub(_OWN_STDLIB, frame.file)
            if file == frame.file and file[:1] == "/":
                file = self._root + file
            _never_read_odd(file)
            code = self._codes[key] = _Code(file, frame.function)
        return code


def _never_read_odd(file: str) -> None:
    """Keep linecache from a file that no source is: the process says what its files are called.

    Opening a named pipe would wait for ever, and a device or a hole of a terabyte has no end.
    """
    try:
        found = os.stat(file)  # noqa: PTH116  thousands of names, most of them no paths
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_SOURCE:
        linecache.cache[file] = (0, None, [], file)


#: Larger sources are generated; linecache keeps whole files.
_LARGEST_SOURCE = 4 << 20
_REPORTED = (
    "data_wait",
    "h2d",
    "forward",
    "backward",
    "optimizer",
    "sync",
    "comm",
    "checkpoint",
    "eval",
    "logging",
    "compile",
)


def training_thread(stacks: Mapping[tuple[Thread, tuple[Frame, ...]], int]) -> Thread | None:
    """The thread seen most often in a phase of training, or waiting for a DataLoader's batch.

    Returns:
        ``None`` where none was.
    """
    seen: Counter[Thread] = Counter()
    for (thread, stack), count in stacks.items():
        if phase_of(stack) is not None or _asks_loader(stack):
            seen[thread] += count
    return max(seen, key=lambda thread: (seen[thread], thread.main), default=None)


def phase_of(stack: Sequence[Frame]) -> str | None:
    """The training phase of a stack by the innermost call of torch that tells one."""
    for frame in reversed(stack):
        label = sampler._match(frame.file.replace("\\", "/"), frame.function)
        if label in (W.L_BACKWARD, W.L_OPTIMIZER, W.L_FORWARD):
            built = label == W.L_OPTIMIZER and _builds(stack)
            return None if built else W.LABEL_NAMES[label]
    return None


def _at(leaf: _Frame | None, back: int) -> _Frame | None:
    """The innermost frame of the person's from ``back - 1`` calls above the leaf on."""
    for _ in range(back - 1):
        leaf = leaf.f_back if leaf is not None else None
    while leaf is not None and sites.is_library(leaf.f_code):
        leaf = leaf.f_back
    return leaf


def _asks_loader(stack: Sequence[Frame]) -> bool:
    """Not its threads, which never come through ``__next__``."""
    return any(f.function == "__next__" and f.file.endswith(_LOADER_FILE) for f in stack)


def starts_up(stack: Sequence[Frame]) -> bool:
    """Whether a module is being imported."""
    return any(f.file.startswith("<frozen importlib") for f in stack)


def _builds(stack: Sequence[Frame]) -> bool:
    """An optimizer that is made is no step."""
    return any(f.function == "__init__" and "torch/optim/" in f.file for f in stack)


def _shared(one: Sequence[Frame], other: Sequence[Frame]) -> list[Frame]:
    """The frames two stacks begin with, by function, up to where torch itself calls on."""
    shared: list[Frame] = []
    for left, right in zip(one, other, strict=False):
        same = (left.file, left.function) == (right.file, right.function)
        if not same or left.file.endswith(arming._NO_LOOP):
            break
        shared.append(left)
        if left.line != right.line:
            break  # two calls of the same function: what is below are calls of theirs
    return shared
