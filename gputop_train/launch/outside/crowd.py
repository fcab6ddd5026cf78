"""Workers that take the cores which training wants, seen from outside, where the CPU trains. Pure.

As ``diagnose.crowding``, but how many threads training has is not known from outside: it is taken
to use no more cores than those it was seen to be ready for and did not get.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.crowding import DENIED, FULL, INFO
from gputop_train.diagnose.rules.base import percent
from gputop_train.launch.outside.observed import Observed
from gputop_train.model import Evidence


@dataclass(frozen=True, slots=True)
class Crowd:
    """Cores in use by training and by its workers, what it was denied, and the share lost."""

    trainer: float
    workers: float
    denied: float
    cores: int
    count: int
    lost: float

    def summary(self) -> str:
        """One sentence."""
        return (
            f"Making batches takes {self.workers:.2g} of the {self.cores} cores that training "
            f"wants: {percent(self.lost)} of the time."
        )

    def mend(self, at: str) -> str:
        """What to change."""
        return (
            f"Make preparation cheaper{at}: vectorise it, pack small files, or do the fixed part "
            f"offline. More than {self.count} workers would take turns on the same cores."
        )

    def evidence(self) -> list[Evidence]:
        """Its numbers."""
        return [
            Evidence("workers, together", self.workers, "cores"),
            Evidence("trainer process", self.trainer, "cores"),
            Evidence("trainer ready to run without a core", self.denied, "cores"),
        ]


def crowd_of(seen: Observed) -> Crowd | None:
    """Who has the cores; ``None`` with cores to spare, or where it was not measured."""
    used = [worker.cpu for worker in seen.workers]
    workers = sum(cpu for cpu in used if cpu is not None)
    trainer, denied, cores = seen.trainer_cpu, seen.trainer_denied, seen.cores
    if seen.on_gpu or not used or None in used or not trainer or denied is None or not cores:
        return None
    # Others that fill the cores are not told from workers that do.
    if denied < DENIED or trainer + workers < FULL * cores:
        return None
    lost = 1 - trainer / (trainer + min(workers, denied))
    return Crowd(trainer, workers, denied, cores, len(used), lost) if lost >= INFO else None
