"""What a trial shows: sentences, the table at any width, and ``trial.json``."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from gputop_train.launch.options import Setting, WhatIf
from gputop_train.trial import store, words
from gputop_train.trial.record import Arm, Compared, LegResult
from gputop_train.trial.standing import Candidate, Prediction, Standing
from gputop_train.trial.table import table

MS = 1_000_000
GB = 1_000_000_000
WORKERS = Arm("num_workers=4", (Setting("num_workers", 4),))
REPLAY = Arm("replay_batch=8", what_if=(WhatIf("replay_batch", 8),))


def leg(arm: str, step_ms: float, **more: Any) -> LegResult:
    given: dict[str, Any] = {
        "step_ns": (int(step_ms * MS),) * 20,
        "samples_per_step": 32.0,
        "phases_ms": {"data_wait": step_ms / 2},
    }
    return LegResult(arm, "measured", **(given | more))


def proven(arm: Arm, step_ms: float, compared: Compared, **more: Any) -> Candidate:
    found = leg(arm.name, step_ms)
    return Candidate(
        arm, legs=[found], pairs=[(leg("baseline", 90), found)], status="measured",
        compared=compared, **more,
    )  # fmt: skip


def standing(*candidates: Candidate, **more: Any) -> Standing:
    made = Standing({"schema": 1, "id": "t1"}, Arm("baseline"), list(candidates), **more)
    made.legs = [(1, leg("baseline", 90)), *((1, c.legs[0]) for c in candidates if c.legs)]
    return made


FASTER = Compared(2.6, (2.41, 2.83), "faster", 3)


def test_predicted_stands_beside_achieved() -> None:
    one = proven(WORKERS, 34.6, FASTER, prediction=Prediction.between(2.1, 2.9, "model"))
    told = words.outcome(one, None)
    assert "2.60x as fast (2.41 to 2.83)" in told
    assert "predicted 2.10 to 2.90x, achieved 2.60x" in told
    assert "changes results" in told


@pytest.mark.parametrize(
    ("compared", "said"),
    [
        (FASTER, "guilt is confirmed: with its batches replayed a step takes 34.6 ms"),
        (Compared(1.002, (0.99, 1.02), "no difference", 3), "acquitted"),
        (Compared(1.02, (1.01, 1.03), "faster", 3), "acquitted"),
        (Compared(1.1, (0.9, 1.3), "inconclusive", 3, "Too few."), None),
        (Compared(2.0, None, "inconclusive", 1, "One pair."), None),
    ],
)
def test_replayed_batches_speak_for_or_against_the_loader(
    compared: Compared, said: str | None
) -> None:
    told = words.outcome(proven(REPLAY, 34.6, compared), {"step_mean_ms": 90.0})
    assert "what-if" in told
    if said is None:
        assert "guilt" not in told and "acquitted" not in told
    else:
        assert said in told


def test_a_refusal_is_told_once() -> None:
    why = "prefetch_factor=4 was refused at train.py:9: it needs num_workers of at least 1."
    arm = Arm("prefetch_factor=4", (Setting("prefetch_factor", 4),))
    one = Candidate(arm, status="refused", why=why, refused=why)
    assert words.outcome(one, None) == why


def test_what_met_nothing_is_not_called_refused() -> None:
    why = "sync_every=10 had no effect: no GPU was used, so there was no read to leave out."
    arm = Arm("sync_every=10", what_if=(WhatIf("sync_every", 10),))
    one = Candidate(arm, status="refused", why=why, refused=why)
    leg = LegResult(arm.name, "refused", why)
    assert words.leg_line(2, leg, one) == f"[2] sync_every=10: no effect. {why}"
    row = standing(one).body()["table"][1]
    assert row["verdict"] == "no effect"
    both = f"{why} num_workers=4 was refused: it is a stream."
    assert words.leg_line(2, LegResult("a", "refused", both), one).startswith("[2] a: refused.")


def test_the_json_has_the_keys_that_were_promised() -> None:
    made = standing(proven(WORKERS, 34.6, FASTER, prediction=Prediction(3.1, None, "T / (T - E)")))
    body = json.loads(store.encode(made.body()))
    assert set(body["baseline"]) >= {
        "time_per_sample_us", "step_median_ms", "peak_allocated", "peak_reserved", "gpu_busy",
        "steps", "legs_run",
    }  # fmt: skip
    (one,) = body["candidates"]
    assert one["settings"] == {"num_workers": 4} and one["what_if"] == []
    assert (one["applied"], one["refused"]) == (True, None)
    assert (one["speedup"], one["interval"], one["predicted"]) == (2.6, [2.41, 2.83], 3.1)
    assert one["verdict"] == "faster" and one["leg"]["legs_run"] == 1
    assert body["baseline"]["time_per_sample_us"] == pytest.approx(90_000 / 32)
    assert body["stop_hint"] is None and body["schema"] == 1


def test_nothing_measured_is_null_and_no_number() -> None:
    body = Standing({"schema": 1}, Arm("baseline"), [Candidate(WORKERS)]).body()
    assert body["baseline"] is None
    assert body["candidates"][0]["leg"] is None and body["candidates"][0]["applied"] is None
    assert body["table"][0]["step_ms"] is None
    made = standing(proven(WORKERS, 1, Compared(float("nan"), None, "inconclusive", 1)))
    assert json.loads(store.encode(made.body()))["candidates"][0]["speedup"] is None


def test_a_price_becomes_the_cost_of_a_million_samples() -> None:
    body = standing(price_per_hour=3.6).body()
    # 90 ms for 32 samples is 2812.5 s for a million, of an hour that costs 3.6.
    assert body["table"][0]["cost_per_million"] == pytest.approx(2812.5 / 3600 * 3.6)


def drawn(rows: list[dict[str, Any]], width: int, *, ascii_only: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    console.print(table(rows, width=width, ascii_only=ascii_only))
    return stream.getvalue()


def everything() -> list[dict[str, Any]]:
    """Rows with every column measured."""
    card = {"peak_allocated": 41 * GB, "peak_reserved": 58 * GB, "gpu_busy": 0.34}
    prediction = Prediction.between(2.1, 2.9, "")
    one = proven(WORKERS, 34.6, FASTER, prediction=prediction)
    one.legs = [leg(WORKERS.name, 34.6, **card)]
    long = Arm("num_workers@a_rather_long_name.py:141=16, pin_memory=true", WORKERS.settings)
    two = proven(long, 1234, Compared(0.073, (0.06, 0.09), "inconclusive", 3))
    made = standing(one, two, price_per_hour=3.6)
    made.legs[0] = (1, leg("baseline", 90, **card))
    rows: list[dict[str, Any]] = made.body()["table"]
    return rows


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_table_keeps_every_number_at_any_width(width: int, ascii_only: bool) -> None:
    text = drawn(everything(), width, ascii_only=ascii_only)
    assert all(len(line) <= width for line in text.splitlines())
    for shown in ("90.0 ms", "2.60x", "2.41 to 2.83", "2.10 to 2.90", "58.0 GB", "34%", "faster"):
        assert shown in text, f"{shown} is missing at {width}"
    assert text.isascii() or not ascii_only


def test_columns_of_what_nobody_measured_are_left_out() -> None:
    text = drawn(standing(proven(WORKERS, 34.6, FASTER)).body()["table"], 120)
    assert "GPU" not in text and "memory" not in text and "predicted" not in text
    assert "cost" not in text


@pytest.mark.parametrize(
    ("candidates", "rounds", "said"),
    [
        (0, (3, 6), "at most 10 min in all"),
        (1, (3, 6), "About 60 s to 2 min: 1 candidate"),
        (2, (2, 2), "About 60 s: 2 candidates"),
        (9, (3, 6), "to 10 min"),
    ],
)
def test_the_time_it_takes_is_said_first(
    candidates: int, rounds: tuple[int, int], said: str
) -> None:
    assert said in words.estimate(10.0, candidates, rounds, 10.0)
