"""The probe's hooks out of single training steps, and in their neighbours.

``Toggle`` puts hooks in and out of classes, which empties the interpreter's caches for them: blocks
have to be long, and what a host does meanwhile is larger than what is looked for. Here no attribute
of a class changes. What the loop itself calls (``next()``, ``.to()``, ``.item()``) it calls as a
function, the wrapper or what is below it; what torch calls goes by names of modules, whose values
change; and objects that the probe gives another class get the one without hooks. A step's arm can
then change from step to step, and the host that it is compared on is the same.

That nothing of the probe runs in a plain step is checked, not assumed.
"""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from .toggle import PROBE, NothingToToggle, Toggle

CHECKED_STEPS = 24
#: The callbacks of gc, and the classes of objects that the probe gives another one.
GC, CLASSES = "gc", "classes"
#: Wrappers that the loop calls by itself, by their name.
CALLED = ("__next__", "to", "item")


class Switch:
    """One training loop whose steps have the hooks or not.

    Args:
        toggle: What it found of the probe in this process.
        torch: The module.
        built: Model, optimizer and loader.
        settings: ``device`` and ``item`` are read.
        only: Names of hooks that hooked steps get, of ``names``; all of them if None.

    Raises:
        NothingToToggle: Something of the probe runs in a step without hooks.
    """

    def __init__(
        self,
        toggle: Toggle,
        torch: Any,
        built: tuple[Any, Any, Any],
        settings: dict[str, Any],
        only: Sequence[str] | None = None,
    ) -> None:
        toggle.hooks(True)
        self._torch, (self._model, self._optimizer, self._loader) = torch, built
        self._device, self._item = settings["device"], settings.get("item", False)
        self._quiet = sys.modules[f"{PROBE}.quiet"]
        self._calls = _called(toggle, torch)
        self._values = list(_values(toggle, *self._calls["item"]))
        self._callbacks = [c for label, _, own in toggle._tables if label == "gc.callbacks"
                           for c in own.values()]  # fmt: skip
        named = {*self._calls, *(name for _, name, _ in self._values)}
        self.names = sorted(named | {GC, CLASSES})
        self._batches: Any = iter(())
        self._saved: list[Any] = []
        self._classes: list[tuple[Any, Any]] = []
        self._gc_saved: list[Any] = []
        self._only = set(self.names)
        self._check()
        if only is not None:
            unknown = set(only) - set(self.names)
            if unknown:
                raise NothingToToggle(f"no hook is called {', '.join(sorted(unknown))}")
            self._only = set(only)
            self._calls = {
                name: (pair if name in only else (pair[0], pair[0]))
                for name, pair in self._calls.items()
            }

    def turn(self) -> None:
        """What would happen between epochs: a new pass over the loader, outside any step."""
        self._batches = iter(self._loader)

    def out(self) -> None:
        """No hook in what torch calls."""
        self._saved = [table[name] for table, name, _ in self._values]
        for table, name, plain in self._values:
            table[name] = plain
        self._gc_saved = list(gc.callbacks)
        for callback in self._callbacks:
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)
        self._classes = []
        for reference, _, meanwhile in self._quiet._objects:
            one = reference()
            if one is not None and type(one) is not meanwhile:
                self._classes.append((one, type(one)))
                one.__class__ = meanwhile

    def back(self, chosen: bool = True) -> None:
        """What ``only`` names as it was, or all the rest."""
        for (table, name, _), value in zip(self._values, self._saved, strict=True):
            if (name in self._only) == chosen:
                table[name] = value
        if (GC in self._only) == chosen:
            gc.callbacks[:] = self._gc_saved
        if (CLASSES in self._only) == chosen:
            for one, hooked in self._classes:
                one.__class__ = hooked

    def step(
        self, hooked: bool, clock: Callable[[], float], before: Callable[[], object] = int
    ) -> float:
        """One step, in either arm after the same preparations; the time it took.

        A pass that ends is begun anew and the step is done again.

        Args:
            hooked: Which arm.
            clock: Seconds.
            before: Done last before the step begins, as emptying caches.
        """
        which = int(hooked)
        fetch, move, read = (self._calls[name][which] for name in CALLED)
        self.out()
        self.back()
        self.back(chosen=False)
        self.out()
        if hooked:
            self.back()
        before()
        try:
            return self._passes(fetch, move, read, clock)
        finally:
            if not hooked:
                self.back()
            self.back(chosen=False)

    def natural(self, clock: Callable[[], float]) -> float:
        """One step as the loop has it when it is left alone, hooks in their places."""
        fetch, move, read = (self._calls[name][1] for name in CALLED)
        return self._passes(fetch, move, read, clock)

    def _passes(self, fetch: Any, move: Any, read: Any, clock: Callable[[], float]) -> float:
        try:
            return self._timed(fetch, move, read, clock)
        except StopIteration:
            self.turn()
            return self._timed(fetch, move, read, clock)

    def _timed(self, fetch: Any, move: Any, read: Any, clock: Callable[[], float]) -> float:
        began = clock()
        batch = move(fetch(self._batches), self._device, non_blocking=True)
        loss = self._model(batch).square().mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        if self._item:
            read(loss)
        return clock() - began

    def _check(self) -> None:
        """Nothing of the probe may run in a plain step, and something must in a hooked one."""
        from time import perf_counter

        self.turn()
        hooks: Any = sys.modules[f"{PROBE}.hooks"]
        seen: dict[bool, set[str]] = {False: set(), True: set()}
        arm = [False]

        def look(frame: Any, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and (
                code.co_filename == hooks.WRAPPER_FILE or f"{PROBE}/" in code.co_filename
            ):
                seen[arm[0]].add(code.co_name)

        for number in range(CHECKED_STEPS):
            arm[0] = number % 2 == 1
            self.step(arm[0], perf_counter)  # a new pass has been begun, caches are warm
            sys.setprofile(look)
            try:
                self.step(arm[0], perf_counter)
            finally:
                sys.setprofile(None)
        if seen[False]:
            left = ", ".join(sorted(seen[False]))
            raise NothingToToggle(f"in a step without hooks the probe still ran {left}")
        if not seen[True]:
            raise NothingToToggle("in a step with hooks nothing of the probe ran")


def _called(toggle: Toggle, torch: Any) -> dict[str, tuple[Any, Any]]:
    """What the loop calls: (what is below the wrapper, the wrapper), by name."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    owners = {"__next__": base, "to": torch.Tensor, "item": torch.Tensor}
    found = {}
    for name, owner in owners.items():
        current = getattr(owner, name)
        below = current
        for held, known, wrapper, original, _ in toggle._wrappers:
            if held is owner and known == name and wrapper is current:
                below = original
        found[name] = (below, current)
    return found


def _values(toggle: Toggle, item: Any, wrapper: Any) -> Any:
    """(a module's names, the name, its value in a plain step) for whatever torch calls."""
    for owner, name, _, original, _ in toggle._wrappers:
        if isinstance(owner, ModuleType):
            reads = item is not wrapper and name == "_get_value"
            yield vars(owner), name, _reading(original, item) if reads else original
    for label, table, own in toggle._tables:
        module, _, name = label.rpartition(".")
        if label == "gc.callbacks":
            continue
        names = vars(sys.modules[module])
        kept = OrderedDict((k, v) for k, v in table.items() if k not in own)
        if isinstance(names.get(name), OrderedDict):
            yield names, name, kept


def _reading(function: Any, item: Any) -> Any:
    """torch's own function, with what is below the wrapper where it says ``x.item()``.

    The class keeps that under a name of its own, which is set once and before anything is timed.
    """
    import torch

    torch.Tensor._plain_item = item
    code = function.__code__
    names = tuple("_plain_item" if name == "item" else name for name in code.co_names)
    return FunctionType(code.replace(co_names=names), function.__globals__, function.__name__)
