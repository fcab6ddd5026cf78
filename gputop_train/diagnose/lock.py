"""Whether other threads of the training process keep the interpreter lock from training. Pure.

Python code runs in one thread at a time: a thread that computes in Python hands the lock over
after 5 ms at the earliest (``sys.getswitchinterval``), so each call of torch's that lets go of it
may wait that long to get it back, wherever in the step it stands. No label of the step shows it: a
copy of a few kilobytes then seems to take 25 ms. The kernel's accounts do: the main thread neither
computes nor waits for anything that is known, and another thread computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gputop_train.diagnose.accounting import INTERRUPTIONS, account
from gputop_train.diagnose.loading_model import training_thread
from gputop_train.diagnose.rules.base import (
    ceiling,
    cores,
    ms,
    name,
    number,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.user_code import count_of, named
from gputop_train.diagnose.window import Window, once
from gputop_train.model import Advice, Finding, Gain, Site, Where

#: What the training thread waits in for something else than the lock. The backward of a GPU run is
#: launched by a thread of torch's own.
ELSEWHERE = ("data_wait", "gpu_wait", "sync", "backward", "comm", *INTERRUPTIONS)
#: From here on the wait is looked at, and so much of a core the others must compute (proposed: the
#: same share of a core that a trainer keeps who launches as fast as it can).
LEAST, OTHERS = 0.10, 0.5
#: Fewer readings, or fewer times that another thread was met at a line, tell nothing; and a thread
#: that computes is met in most looks at the others, one in so many samples of the training thread
#: (24 of 30 recorded on an H200).
MIN_READINGS, MIN_MET = 3, 5
SAMPLES_A_LOOK, MOST_LOOKS = 4, 0.5


@dataclass(frozen=True, slots=True)
class Held:
    """Time the training thread waits for the interpreter lock.

    Attributes:
        share: Wall share of it, at most what the GPU is idle.
        main: Cores the training thread keeps busy.
        others: Cores the other threads of the process keep busy.
        sites: Lines at which they were met, one at least, most often first.
        feeds: Whether what runs there fills a queue.
    """

    share: float
    main: float
    others: float
    sites: tuple[Site, ...]
    feeds: bool

    @property
    def places(self) -> tuple[Where, ...]:
        """The same as lines to look at."""
        return tuple(where(s) for s in self.sites)


@once
def held(window: Window) -> Held | None:
    """What other threads hold back, where both the kernel and the sampler saw them."""
    rows = [
        p
        for p in window.procs
        if p.role == "trainer" and p.main_cpu is not None and p.cpu is not None
    ]
    main = training_thread(window)
    acc = account(window)
    if main is None or len(rows) < MIN_READINGS or not acc.shares:
        return None
    others = sum((p.cpu or 0.0) - (p.main_cpu or 0.0) for p in rows) / len(rows)
    share = 1.0 - main - sum(acc.shares.get(label, 0.0) for label in ELSEWHERE)
    if window.on_gpu:
        share = min(share, acc.idle_share or 0.0)
        others -= acc.shares.get("backward", 0.0)
    seen = [s for s in window.sites if s.kind == "thread" and s.rank == window.rank and s.count]
    looks = count_of(s for s in window.sites if s.kind == "sample" and s.rank == window.rank)
    looks //= SAMPLES_A_LOOK
    if share < LEAST or others < OTHERS or count_of(seen) < max(MIN_MET, MOST_LOOKS * looks):
        return None
    feeds = 2 * count_of(s for s in seen if s.label == "feeds") >= count_of(seen)
    return Held(share, main, others, tuple(top_sites(seen, by_count=True)), feeds)


def lock_finding(window: Window, lock: Held, id_: str) -> Finding:
    """What the threads cost, under the diagnosis whose work they do."""
    acc = account(window)
    cost, step = ms(acc.ms(lock.share)), ms(acc.step_ms or 0.0)
    what = f"{named(lock.sites[0])} ({name(lock.places[0])})"
    rows = (
        number("waits for the interpreter lock, at least", lock.share, "of wall"),
        cores("training thread", lock.main),
        cores("other threads of the process", lock.others),
        number("GPU utilisation, mean", acc.util_mean, "%"),
        *(number(f"{name(where(s))} met", s.count, "times") for s in lock.sites),
    )
    return Finding(
        id=id_,
        summary=(
            f"Training waits {percent(lock.share)} of every step for Python's interpreter lock: "
            f"{cost} of {step}, while a thread of its own computes in {what}."
        ),
        severity=severity(lock.share, window.totals.steps),
        confidence="medium",
        lost_share=lock.share,
        evidence=tuple(row for row in rows if row.value is not None),
        where=lock.places,
        advice=_advice(window, lock, what),
        gain=Gain(ceiling(lock.share), None, "T / (T - E), E the wait for the lock"),
    )


def _advice(window: Window, lock: Held, what: str) -> tuple[Advice, ...]:
    acc = account(window)
    takes, left = acc.ms(lock.others), acc.ms(1.0 - lock.share)
    turns = (
        f"the thread computes {ms(takes)} of every {ms(acc.step_ms or 0.0)} in Python, and "
        "training takes turns with it"
    )
    if lock.feeds:
        workers = max(1, math.ceil(takes / left)) if left > 0 else 1
        first = (
            f"Give the work of {what} to processes: a Dataset with DataLoader(num_workers="
            f"{workers}), for {ms(takes)} a batch over {ms(left)} of training; {turns}."
        )
    else:
        first = (
            f"Give the work of {what} to a process of its own: "
            f"concurrent.futures.ProcessPoolExecutor(1).submit(...); {turns}."
        )
    second = (
        f"Or let go of the lock there: whole-array calls of numpy and torch in place of a Python "
        f"loop over items in {what}; {percent(lock.share)} of the time is what they can free."
    )
    return Advice(first), Advice(second)
