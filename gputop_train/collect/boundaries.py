"""Where one optimizer step ends and the next begins.

A step ends with the last optimizer call before an optimizer that was already seen in it begins
again: so several parameter-group optimizers, or a GAN's two, make one step, and every critic
repeat of a WGAN makes one. Positions are indices into the open stretch's word list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gputop_train.collect.words import (
    BACKWARD,
    CODE_BITS,
    CODE_MASK,
    DATA,
    DATA_NOGRAD,
    EVAL,
    FIRST_NON_EDGE,
    ITER,
    OPTIMIZER,
    SAVE,
    site_argument,
)

Cut = tuple[int, int]  # (time, position of the first word that comes after it)

#: So many equal cycles of optimizers in a row, and a step is closed at once at its last one.
SETTLED_CYCLES: Final = 3
MAX_SETTLED_CYCLES: Final = 1024
#: A loop without an optimizer is believed after this many backward calls ...
BARE_BACKWARDS: Final = 5
#: ... but only once accumulation of so many, or of so long, has become unlikely. A loop that never
#: reaches either is believed at its end.
BARE_CERTAIN_BACKWARDS: Final = 64
BARE_CERTAIN_NS: Final = 60_000_000_000
MAX_IDS: Final = 64
MAX_OPEN: Final = 16

_NESTING: Final = (BACKWARD, OPTIMIZER)


class Boundaries:
    """Decides the cuts of one training thread's stream.

    Attributes:
        optimizer_seen: An optimizer (or GradScaler) has shown itself: steps are optimizer steps.
        candidate_ns: End of the last optimizer call, where no cut was made yet.
        last_ns: Time of the last edge seen here.
        bad: Edges that did not nest.
    """

    def __init__(self) -> None:
        self.optimizer_seen = False
        self.bad = 0
        self._cycle: tuple[int, ...] = ()
        self._repeats = 0
        self._needed = SETTLED_CYCLES
        self._bare_believed = False
        self._bare_by_batch = False
        self._last_optimizer_id = -2
        self.restart()

    def restart(self) -> None:
        """Forget the open step; what was learned about the loop stays."""
        self.last_ns = 0
        self.candidate_ns: int | None = None
        self._candidate_at = 0
        self._open: list[int] = []
        self._open_ids: list[int] = []
        self._last_ended_id = -1
        self._ids: list[int] = []
        self._stepped_inside = False
        self._stepped_since_update = False
        self._backward_since = False
        self._eval_open = False
        self._bare_backwards = 0
        self._bare_first_ns = 0
        self._bare_batches: list[Cut] = []
        self._bare_ends: list[Cut] = []
        self._last_backward: Cut | None = None
        self._batch_has_backward = False

    def rebase(self, position: int) -> None:
        """The first ``position`` words were taken away."""
        if self.candidate_ns is not None:
            self._candidate_at -= position
            if self._candidate_at <= 0:
                self.candidate_ns = None
        if self._last_backward is not None:
            t, at = self._last_backward
            self._last_backward = (t, at - position) if at > position else None
        for cuts in (self._bare_batches, self._bare_ends):
            if cuts:
                cuts[:] = [(t, at - position) for t, at in cuts if at > position]

    # -- optimizer steps -------------------------------------------------------------------------

    def edge(self, code: int, t: int, after: int) -> list[Cut]:
        """A BACKWARD, OPTIMIZER or EVAL edge; ``after`` is the position behind its word."""
        phase = code >> 1
        if phase not in _NESTING:
            if phase == EVAL:
                self._eval_open = not code & 1
            return []
        self.last_ns = max(self.last_ns, t)
        if code & 1:
            return self._ends(phase, t, after)
        if len(self._open) >= MAX_OPEN:
            self.bad += 1
            self._open.clear()
            self._open_ids.clear()
        self._open.append(phase)
        self._open_ids.append(-1)
        if phase == BACKWARD:
            self._backward_since = True
            self._eval_open = False
        return []

    def _ends(self, phase: int, t: int, after: int) -> list[Cut]:
        if phase not in self._open:
            self.bad += 1
            return []
        while self._open[-1] != phase:
            self._open.pop()
            self._open_ids.pop()
            self.bad += 1
        self._open.pop()
        self._last_ended_id = self._open_ids.pop()
        if phase == OPTIMIZER:
            self._stepped_inside = True
            self._stepped_since_update = True
            self._last_optimizer_id = self._last_ended_id
        if self._open:
            return []
        if not self._stepped_inside:
            return self._bare_backward_ends(t, after)
        self._stepped_inside = False
        self._backward_since = False
        self.optimizer_seen = True
        self._bare_batches.clear()
        self._bare_ends.clear()
        self.candidate_ns, self._candidate_at = t, after
        if self._repeats >= self._needed and tuple(self._ids) == self._cycle:
            return [self.take_candidate()]
        return []

    def optimizer_id(self, optimizer_id: int, words: Sequence[int]) -> Cut | None:
        """The id of the optimizer that has just begun; the cut it reveals, if any."""
        if optimizer_id in self._open_ids and _loads_inside(words, optimizer_id):
            # Its last call raised (out of memory, say) and never ended. An optimizer that is still
            # open for another reason is one whose step() calls that of its base class.
            self.bad += 1
            self._open = [OPTIMIZER]
            self._open_ids = [-1]
        if self._open_ids:
            self._open_ids[-1] = optimizer_id
        ids = self._ids
        cut = None
        if self.candidate_ns is not None and optimizer_id in ids:
            cut = self.take_candidate()
        if optimizer_id in ids or len(ids) >= MAX_IDS:
            return cut
        if not ids and self._repeats >= self._needed and optimizer_id not in self._cycle:
            # It steps less often than the cycle thought to be settled: look longer next time.
            self._repeats = 0
            self._needed = min(self._needed * 2, MAX_SETTLED_CYCLES)
        ids.append(optimizer_id)
        return cut

    def tick_begins(self, optimizer_id: int | None, words: Sequence[int]) -> Cut | None:
        """An optimizer call of which only the end was recorded; the cut that its id reveals.

        Args:
            optimizer_id: ``None`` where it is the one that ended last.
            words: Those of the open stretch.
        """
        self._open = [OPTIMIZER]
        self._open_ids = [-1]
        return self.optimizer_id(
            self._last_optimizer_id if optimizer_id is None else optimizer_id, words
        )

    def tick_ends(self, t: int, after: int) -> list[Cut]:
        """The end of that call."""
        self.last_ns = max(self.last_ns, t)
        cuts = self._ends(OPTIMIZER, t, after)
        # What scaler updates there are in unrecorded steps, the probe itself has made sense of.
        self._stepped_since_update = False
        return cuts

    def step_skipped(self, t: int, after: int) -> list[Cut]:
        """A step that a GradScaler skipped, as the probe found where nothing was recorded."""
        self._stepped_since_update = False
        self._backward_since = True
        return self.scaler_update(t, after)

    def ends_cycle(self) -> bool:
        """Whether the optimizer that ended last is the last one of a step."""
        return not self._open and (not self._cycle or self._cycle[-1] == self._last_ended_id)

    def scaler_update(self, t: int, after: int) -> list[Cut]:
        """``GradScaler.update``: a step even where the optimizer was skipped."""
        self.optimizer_seen = True
        skipped = not self._stepped_since_update and self._backward_since and not self._open
        self._stepped_since_update = False
        if not skipped:
            return []
        self.last_ns = max(self.last_ns, t)
        cuts = []
        if self.candidate_ns is not None:
            cuts.append(self.take_candidate())
        self._backward_since = False
        self._ids.clear()
        cuts.append((t, after))
        return cuts

    def take_candidate(self) -> Cut:
        """The cut at the end of the last optimizer call."""
        assert self.candidate_ns is not None
        done = tuple(self._ids)
        self._repeats = self._repeats + 1 if done == self._cycle else 1
        self._cycle = done
        self._ids.clear()
        cut = (self.candidate_ns, self._candidate_at)
        self.candidate_ns = None
        return cut

    # -- loops without an optimizer --------------------------------------------------------------

    def batch_begins(self, t: int, at: int) -> Cut | None:
        """A training batch is asked for, while no optimizer has been seen."""
        if self.optimizer_seen or self._open or self._eval_open or not self._batch_has_backward:
            return None
        self._batch_has_backward = False
        if self._bare_believed:
            return (t, at) if self._bare_by_batch else None
        self._bare_batches.append((t, at))
        return None

    def _bare_backward_ends(self, t: int, after: int) -> list[Cut]:
        """A backward outside of any optimizer."""
        if self.optimizer_seen:
            return []
        self._batch_has_backward = True
        self._last_backward = (t, after)
        if self._bare_believed:
            return [] if self._bare_by_batch else [(t, after)]
        self._bare_backwards += 1
        self._bare_first_ns = self._bare_first_ns or t
        self._bare_ends.append((t, after))
        long_ago = t - self._bare_first_ns >= BARE_CERTAIN_NS
        if self._bare_backwards >= BARE_CERTAIN_BACKWARDS or (
            long_ago and self._bare_backwards >= BARE_BACKWARDS
        ):
            return self._believe_bare()
        return []

    def _believe_bare(self) -> list[Cut]:
        """From now on a step is one batch or, where nothing loads batches, one backward."""
        self._bare_believed = True
        self._bare_by_batch = bool(self._bare_batches)
        cuts = list(self._bare_batches or self._bare_ends)
        self._bare_batches.clear()
        self._bare_ends.clear()
        return cuts

    def finish(self) -> list[Cut]:
        """Cuts that only the end of the stream makes certain."""
        if self.optimizer_seen:
            return [self.take_candidate()] if self.candidate_ns is not None else []
        cuts = []
        if not self._bare_believed and self._bare_backwards >= BARE_BACKWARDS:
            cuts = self._believe_bare()
        if self._bare_by_batch and self._batch_has_backward and self._last_backward is not None:
            cuts.append(self._last_backward)
        return cuts


def body_start(words: Sequence[int], t: int) -> Cut:
    """Where the first step began, seen from its first backward or optimizer call at ``t``.

    It is the first batch of the loop that led here. What came before it is start-up: passes over a
    loader that nothing learned from, a sanity evaluation, a first save.
    """
    start: Cut | None = None
    for position, word in enumerate(words):
        code = word & CODE_MASK
        phase = code >> 1
        if code == DATA << 1:
            if start is None:
                start = (word >> CODE_BITS, position)
        elif phase in (ITER, DATA_NOGRAD, SAVE, EVAL):
            start = None
    return start if start is not None and start[0] <= t else (t, len(words))


def _loads_inside(words: Sequence[int], optimizer_id: int) -> bool:
    """Whether a batch was loaded since the outer one of two nested calls of an optimizer began."""
    argument = site_argument(optimizer_id, 0)
    begun = 0
    for position in range(len(words) - 1, 0, -1):
        word = words[position]
        if word & CODE_MASK == DATA << 1:
            return True
        if word == argument and words[position - 1] & CODE_MASK == OPTIMIZER << 1:
            begun += 1
            if begun == 2:
                return False
    return False


def fold_point(words: Sequence[int], now_ns: int) -> Cut | None:
    """Where a stretch can be cut without tearing an edge pair: before the last batch if possible.

    Returns:
        ``None`` when an edge has been open all along.
    """
    open_phases: list[int] = []
    best: Cut | None = None
    for position, word in enumerate(words):
        code = word & CODE_MASK
        phase = code >> 1
        if code >= FIRST_NON_EDGE or phase == EVAL:
            continue
        if not code & 1:
            if not open_phases and phase in (DATA, DATA_NOGRAD, ITER):
                best = (word >> CODE_BITS, position)
            open_phases.append(phase)
        elif phase in open_phases:
            while open_phases.pop() != phase:
                pass
    if best is None or best[1] < len(words) // 2:
        return (now_ns, len(words)) if not open_phases else None
    return best
