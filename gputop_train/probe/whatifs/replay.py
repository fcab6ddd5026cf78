"""``replay_batch=K``: the first K batches that feed the training, again and again.

If the loader is to blame, its wait is gone with it. Workers are ended once K batches are kept; the
sampler goes on, so that passes stay as long as they are and its own state and random numbers are
what they were. Of a stream, whose data alone knows its end, a pass is as long as the first whole
one was, or endless.
"""

from __future__ import annotations

import os
from typing import Any

from ..state import S
from . import copies, outcomes
from .counting import steps_done
from .feeding import PROOFS

KEY = "replay_batch"
#: Of the memory that is free, what the kept batches may take.
MEMORY_SHARE = 0.25


class Cache:
    """The batches kept of one source.

    Attributes:
        why_not: Why this source cannot be replayed; ``None`` while nothing is known against it.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.recipes: list[copies.Recipe] = []
        self.whole = False
        self.why_not: str | None = None
        self._turn = 0
        self.told = False

    def keep(self, batch: Any, trial: Any) -> None:
        """Keep one batch, before the script has it."""
        if self.whole or self.why_not is not None:
            return
        try:
            recipe = copies.Recipe(batch)
            wanted = trial.asked[KEY]
            for room, size, where in (
                (_free_bytes(), recipe.bytes - recipe.device_bytes, ""),
                (_free_on_gpu(recipe), recipe.device_bytes, " of the GPU"),
            ):
                if room is not None and size * wanted > room * MEMORY_SHARE:
                    raise copies.CannotCopy(
                        "%d batches of %d MB would take more than a quarter of the free memory%s"
                        % (wanted, size >> 20, where)
                    )
            self.recipes.append(recipe)
            self.whole = len(self.recipes) >= wanted
        except copies.CannotCopy as error:
            self.why_not = str(error)
            self.recipes.clear()

    def pass_ended(self, batches: int) -> None:
        """A pass shorter than K: its batches are all there are."""
        if batches and len(self.recipes) >= batches:
            self.whole = True

    def give(self) -> Any:
        """The next batch of the cycle, as a batch of its own."""
        recipe = self.recipes[self._turn % len(self.recipes)]
        self._turn += 1
        batch = recipe.build()
        S.trial.outcomes.count(KEY, self.source.place)
        return batch


def is_iterable(loader: Any) -> bool:
    """Whether a loader's dataset is a stream."""
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def starts(one: Any, trial: Any, grad: bool) -> bool:
    """Whether this pass is replayed from here on."""
    if KEY not in trial.asked or not grad:
        return False
    source = one.source
    if source.proofs < PROOFS or trial.feeding.evaluating():
        return False
    cache = source.cache
    if cache.why_not is not None:
        trial.outcomes.tell(KEY, source.place, outcomes.REFUSED, cache.why_not)
        return False
    if source.iterable and source.length is None and steps_done() < trial.warmup - 1:
        return False  # its first pass may end before the measured steps do, and tell the length
    return bool(cache.whole)


def start(iterator: Any, one: Any, trial: Any) -> None:
    """In the middle of a pass: end the workers, and know how far the sampler was ahead of them."""
    source = one.source
    one.length = source.length if source.iterable else None
    if not source.iterable and iterator.__dict__.get("_workers"):
        one.left = len(iterator._task_info)
    end_workers(iterator)
    one.replaying = True
    tell_start(source, trial)


def end_workers(iterator: Any) -> None:
    """End an iterator's workers, as its own end would."""
    if iterator.__dict__.get("_workers"):
        iterator._shutdown_workers()


def tell_start(source: Any, trial: Any) -> None:
    """Tell, once, that a source is replayed from here on."""
    if source.cache.told:
        return
    source.cache.told = True
    kept = len(source.cache.recipes)
    done = steps_done()
    of, more = source.remark()
    why = "%d batches%s, replayed from step %d on%s" % (kept, of, done + 1, more)
    status = outcomes.APPLIED
    if source.iterable and source.length is None:
        why += "; the stream's length is not known, so this pass has no end"
    if done > trial.warmup:
        status = outcomes.INCONCLUSIVE
        why += ", after the warm-up of %d: steps with real batches were measured too" % trial.warmup
    trial.outcomes.tell(KEY, source.place, status, why)


def advance(iterator: Any, one: Any) -> None:
    """Go on by one batch without fetching it.

    Raises:
        StopIteration: The pass is over.
    """
    if one.source.iterable:
        if one.length is not None and one.yielded >= one.length:
            raise StopIteration
    elif one.left is None:
        iterator._next_index()
    else:
        if one.left <= 0:
            raise StopIteration
        try:
            iterator._next_index()
            one.left += 1
        except StopIteration:
            pass
        one.left -= 1
    one.yielded += 1
    iterator._num_yielded += 1


def before_pass(loader: Any, source: Any, trial: Any) -> Any:
    """Before a pass is begun that is replayed from its first batch on: without workers.

    Returns:
        What puts the loader's attributes back; ``None`` where the pass is to be a real one.
    """
    if not starts(_Beginning(source), trial, S.torch.is_grad_enabled()):
        return None
    values = loader.__dict__
    changes: dict[str, Any] = {"num_workers": 0, "timeout": 0}
    if source.iterable:
        changes["dataset"] = _no_data()
    kept = {name: values[name] for name in changes if name in values}
    if len(kept) != len(changes):
        return None  # a class that keeps them elsewhere: its pass begins as a real one
    iterator = values.get("_iterator")
    if iterator is not None and values.get("persistent_workers"):
        if values.get("_initial_iter_for_state_dict"):
            return None  # a stateful loader has made the pass's iterator already
        end_workers(iterator)  # none of them will be asked again
        values["_iterator"] = None
    values.update(changes)
    tell_start(source, trial)
    return lambda: values.update(kept)


class _Beginning:
    def __init__(self, source: Any) -> None:
        self.source = source


def _no_data() -> Any:
    from torch.utils.data import IterableDataset

    class NoData(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(())

    return NoData()


def _free_on_gpu(recipe: copies.Recipe) -> int | None:
    if not recipe.device_bytes:
        return None
    cuda = S.torch.cuda
    try:
        free = int(cuda.mem_get_info()[0])
        return free + int(cuda.memory_reserved()) - int(cuda.memory_allocated())
    except Exception:
        return None


def _free_bytes() -> int | None:
    try:
        with open("/proc/meminfo", "rb") as stream:
            for line in stream:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
