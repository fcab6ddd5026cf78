"""What was seen from outside in one attachment, added up: what the verdict stands on. Pure."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gputop_train.launch.outside.stacks import Place, Sight

#: Files of a person's own that are read to find where a loader is built.
_FILE_LIMIT_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Worker:
    """A process below the target, over the time it was watched.

    Attributes:
        cpu: Mean cores it used; ``None`` = seen once only.
        blocked: Share of the looks at which it waited for storage (state D).
    """

    pid: int
    cpu: float | None
    blocked: float | None
    read_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU over the time it was watched; of the whole card unless nobody else is on it."""

    uuid: str
    name: str | None
    util_mean: float | None
    memory_ours: int | None
    memory_total: int | None
    shared: bool | None


@dataclass(slots=True)
class Observed:
    """Everything one attachment saw.

    Attributes:
        pieces: Pieces of two seconds in which training was seen.
        errors: Samples in which the stack could not be read.
        labels: Samples of the training thread by label.
        pieces_with: In how many pieces each label was seen.
        places: Samples by label and line.
        loops: Of data wait, samples by the loop's line at the time.
        compiled_again: Pieces with compilation and steps in them, after one with steps.
        traced: Samples in which autograd wrote a stack down, ``traced_in`` so many pieces.
        by_loader: Samples of data wait in a DataLoader; ``in_process`` of them in its own dataset.
        on_gpu: The process holds a GPU's driver.
        root: What to put before its paths to read its files.
        trainer_cpu: Mean cores of the training process.
        trainer_denied: Cores its main thread was ready for and did not get, mean.
        cores: Cores it may use.
        cores_free: Mean idle cores of the machine.
    """

    on_gpu: bool
    root: str = ""
    pieces: int = 0
    errors: int = 0
    seconds: float = 0.0
    labels: Counter[str] = field(default_factory=Counter)
    pieces_with: Counter[str] = field(default_factory=Counter)
    places: Counter[tuple[str, Place]] = field(default_factory=Counter)
    loops: Counter[Place] = field(default_factory=Counter)
    compiled_again: int = 0
    traced: int = 0
    traced_in: int = 0
    by_loader: int = 0
    in_process: int = 0
    workers: tuple[Worker, ...] = ()
    cards: tuple[Card, ...] = ()
    trainer_cpu: float | None = None
    trainer_denied: float | None = None
    cores: int | None = None
    cores_free: float | None = None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Stacks of the training thread that were classed."""
        return sum(self.labels.values())

    @property
    def util(self) -> float | None:
        """Busy share of the cards the process is on, 0..1, by the driver; an upper bound."""
        used = [c for c in self.cards if c.memory_ours] or (
            list(self.cards) if len(self.cards) == 1 else []
        )
        known = [c.util_mean for c in used if c.util_mean is not None]
        return sum(known) / len(known) / 100 if known else None

    def add(self, sights: Iterable[Sight], errors: int) -> None:
        """Add a piece."""
        seen = set()
        traced = 0
        for sight in sights:
            traced += sight.count * sight.traced
            self.labels[sight.label] += sight.count
            seen.add(sight.label)
            if sight.place is not None:
                self.places[sight.label, sight.place] += sight.count
            if sight.label == "data_wait" and sight.loop is not None:
                self.loops[sight.loop] += sight.count
            self.by_loader += sight.count * sight.by_loader
            self.in_process += sight.count * sight.in_process
        self.errors += errors
        self.traced += traced
        self.traced_in += traced > 0
        stepped = any(self.pieces_with[label] for label in ("backward", "optimizer"))
        if stepped and "compile" in seen and not seen.isdisjoint(("backward", "optimizer")):
            self.compiled_again += 1
        if seen:
            self.pieces += 1
            self.pieces_with.update(seen)

    def shares(self) -> Mapping[str, float]:
        """Share of the host time of each label seen; they add up to 1."""
        total = self.samples
        return {label: n / total for label, n in self.labels.items()} if total else {}

    def lines(self, label: str | None = None) -> list[tuple[str, Place, int]]:
        """The lines with most samples, most first."""
        found = [
            (name, place, n)
            for (name, place), n in self.places.items()
            if label is None or name == label
        ]
        return sorted(found, key=lambda row: (-row[2], row[1].file, row[1].line))


def loader_built(loop: Place, root: str = "") -> Place | None:
    """Where the loader that a ``for`` line goes through is built, if its file says so plainly.

    Args:
        loop: The line of the ``for``.
        root: What to put before its path to read the file.

    Returns:
        The one assignment of a call to the name that is iterated; ``None`` where there are several
        or none.
    """
    try:
        path = Path(root + loop.file)
        if path.stat().st_size > _FILE_LIMIT_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    loops = [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.AsyncFor))]
    name = next((_iterated(n.iter) for n in loops if n.lineno == loop.line), None)
    if name is None:
        return None
    built = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(_name(target) == name for target in node.targets)
    ]
    if len(built) != 1:
        return None
    value = built[0].value
    assert isinstance(value, ast.Call)
    return Place(loop.file, value.lineno, loop.function, f"{ast.unparse(value.func)}(...)")


def _iterated(node: ast.expr) -> str | None:
    """``loader`` of ``loader``, ``enumerate(loader)``, ``tqdm(loader, ...)``."""
    while isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return _name(node)


def _name(node: ast.expr) -> str | None:
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
