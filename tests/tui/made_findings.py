"""Made views of the findings page: a run that changed its mind, and ones with little to say."""

from __future__ import annotations

from dataclasses import replace

from gputop_train.model import Abstention, Diagnosis
from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.views.findings import Claim, FindingsView, Idle, Whole

from .fakes import EVALUATION, STARVED, FakeSource

RULED_OUT = (
    Abstention("checkpoint-stall", "saving takes 0.4% of the time"),
    Abstention("gc-pause", "garbage collection takes 0% of the time"),
    Abstention("launch-bound", "the queue was empty at only 2.3% of the phase edges"),
    Abstention("gpu-bound", "the GPU is busy 34% of the time"),
    Abstention("straggler-rank", "a single process waits for nobody"),
    Abstention("slow-worker", "both workers take the same time for a batch"),
    Abstention("memory-leak", "not judged before 200 steady steps"),
    Abstention("oom-risk", "memory does not grow"),
    Abstention("fragmentation", "memory does not grow"),
    Abstention("worker-memory-growth", "memory does not grow"),
)
MISSING = (Abstention("host-sync-stall", "no GPU event pairs were recorded"),)
NOW = Diagnosis("verdict", False, STARVED, (EVALUATION,), MISSING, RULED_OUT, note=STARVED.summary)
EARLY = Diagnosis("too-early", None, note="12 of 20 steps seen")
FINE = Diagnosis("healthy", True, note="No cause of lost time above 5% in 410 steps.")
NO_STEPS = Diagnosis("no-steps", None, note="No training step was seen.")
IDLE = (
    Idle("data_wait", 0.61, 0.58),
    Idle("h2d", 0.012, 0.011),
    Idle("sync", 0.0, 0.001),
    Idle("checkpoint", None, 0.021),
    Idle("unattributed", None, 0.034),
)
STARVED_WHOLE = Whole(
    "so far",
    "verdict",
    "input-bound",
    "prep-stall",
    "critical",
    "high",
    0.58,
    "The GPU waits for data in 58% of every step: 155 of 268 ms.",
)
CHANGING = FindingsView(
    claims=(
        Claim(0.4, 9.0, False, "no-steps", diagnosis=NO_STEPS),
        Claim(9.0, 15.2, False, "too-early", diagnosis=EARLY),
        Claim(15.2, 61.0, False, "healthy", diagnosis=FINE),
        Claim(
            61.0, None, False, "verdict", "input-bound", "prep-stall", "critical", "high",
            (0.44, 0.64), NOW,
        ),
    ),
    whole=STARVED_WHOLE,
    idle=IDLE,
    window_s=60.0,
    now_s=252.0,
)  # fmt: skip
LONG = replace(
    CHANGING,
    claims=(
        Claim(4.0, 7_260.0, True, "verdict", "checkpoint-stall", "", "warn", "medium"),
        Claim(7_260.0, 32_000.0, True, "healthy", diagnosis=FINE),
        *(
            Claim(32_000.0 + 40 * n, 32_040.0 + 40 * n, n < 8, *which)
            for n in range(12)
            for which in (
                [("healthy", "", "", "", "", None, FINE)]
                if n % 2
                else [("verdict", "input-bound", "", "warn", "low", (0.1, 0.12), NOW)]
            )
        ),
        Claim(
            32_480.0, None, False, "verdict", "input-bound", "prep-stall", "critical", "high",
            (0.44, 0.64), NOW,
        ),
    ),
    earlier=3,
    whole=replace(STARVED_WHOLE, id="checkpoint-stall", refined="", severity="warn", lost=0.11,
                  confidence="medium", summary="Saving checkpoints takes 11% of the time."),
    now_s=33_000.0,
)  # fmt: skip
VIEWS = {
    "changing": CHANGING,
    "long": LONG,
    "ended": replace(CHANGING, over=True, whole=replace(STARVED_WHOLE, basis="at the run's end")),
    "healthy": FindingsView(
        claims=(Claim(12.0, None, False, "healthy", diagnosis=FINE),),
        whole=Whole("so far", "healthy", summary=FINE.note),
        idle=(Idle("data_wait", 0.03, 0.03),),
        now_s=600.0,
    ),
    "no_gpu": replace(CHANGING, idle=(), on_gpu=False, whole=None),
    "abstained": FindingsView(
        claims=(
            Claim(
                30.0,
                None,
                False,
                "abstained",
                diagnosis=Diagnosis(
                    "abstained",
                    None,
                    abstained=MISSING,
                    ruled_out=RULED_OUT[:3],
                    note="No verdict: no GPU event pairs were recorded.",
                ),
            ),
        ),
        now_s=90.0,
    ),
    "nothing": FindingsView(),
}


class FindingsSource(FakeSource):
    """A state of the run with a made view of its findings."""

    def __init__(self, state: str, view: str) -> None:
        super().__init__(state)
        self.findings = VIEWS[view]

    def read(self, view: View) -> Snapshot:
        found = super().read(view)
        return replace(found, findings=self.findings if view.page == "findings" else None)
