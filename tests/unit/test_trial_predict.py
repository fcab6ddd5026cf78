"""What is said before a change is tried: from the advice, from rates, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gputop_train.launch.options import Setting, WhatIf
from gputop_train.model import Fetch
from gputop_train.trial import words
from gputop_train.trial.predict import Forecast
from gputop_train.trial.record import Arm, LegResult
from tests.unit import synthetic_windows as made

MS = 1_000_000


def leg(report: dict[str, Any] | None = None, **phases_ms: float) -> LegResult:
    """A baseline leg of steps of 100 ms."""
    return LegResult(
        "baseline", "measured", step_ns=(100 * MS,) * 20, phases_ms=phases_ms, report=report
    )


def workers(count: int, **beside: Any) -> Arm:
    settings = [Setting("num_workers", count), *(Setting(k, v) for k, v in beside.items())]
    return Arm("workers", tuple(settings))


def what_if(key: str, value: int | bool = True) -> Arm:
    return Arm(key, what_if=(WhatIf(key, value),))


def starved(num_workers: int = 0, **loader: Any) -> Any:
    """80 of 100 ms are the wait for a batch that the loader makes."""
    steps = made.make_steps(50, {"data_wait": 80, "forward": 10, "backward": 10})
    return made.window(steps, loaders=(made.loader(num_workers=num_workers, **loader),), cores=8)


ADVICE = {
    "verdict": {
        "id": "input-bound",
        "advice": [
            {"text": "", "setting": {"num_workers": 4}},
            {"text": "", "setting": {"pin_memory": True}},
        ],
        "gain": {"ceiling": 5.0, "expected": [2.0, 4.5], "basis": "rates"},
    },
    "also": [],
}


def test_what_was_advised_carries_the_gain_of_its_finding() -> None:
    found = Forecast(leg(ADVICE), None).of(workers(4))
    assert found is not None and found.interval == (2.0, 4.5) and found.basis == "rates"
    assert found.value == pytest.approx(3.0)


def test_a_second_advice_has_the_ceiling_alone() -> None:
    found = Forecast(leg(ADVICE), None).of(Arm("pin", (Setting("pin_memory", True),)))
    assert found is not None and (found.value, found.interval) == (5.0, None)


def test_a_ceiling_that_is_a_lower_bound_says_so() -> None:
    gain = {"ceiling": 4.26, "expected": None, "basis": "", "at_least": True}
    advice = [{"text": "", "setting": {"compile": "reduce-overhead"}}]
    report = {"verdict": {"id": "launch-bound", "advice": advice, "gain": gain}}
    asked = Arm("compile", (Setting("compile", "reduce-overhead"),))
    found = Forecast(leg(report), None).of(asked)
    assert found is not None
    assert words.predicted(found) == "up to 4.26x or more"
    gain["at_least"] = False
    found = Forecast(leg(report), None).of(asked)
    assert found is not None
    assert words.predicted(found) == "up to 4.26x"


def test_what_nobody_advised_is_not_predicted_without_a_model() -> None:
    forecast = Forecast(leg(ADVICE), None)
    assert forecast.of(workers(3)) is None
    assert forecast.of(Arm("compile", (Setting("compile", True),))) is None
    assert forecast.of(Arm("baseline")) is None


def test_other_numbers_of_workers_come_from_the_rate_model() -> None:
    forecast = Forecast(leg(ADVICE), starved())
    by_count = [forecast.of(workers(n)) for n in (1, 2, 8)]
    ceiling = 100 / 20
    for found in by_count:
        assert found is not None and found.interval is not None
        low, high = found.interval
        assert 0 < low <= found.value <= high <= ceiling + 1e-9
    one, two, eight = [found.value for found in by_count if found is not None]
    assert one < two < eight
    # One worker makes a batch in 80 ms beside 20 ms of training: 1.25x at best, by a model that
    # may be wrong by a tenth.
    assert by_count[0] is not None and by_count[0].interval[1] == pytest.approx(1.25 * 1.1)  # type: ignore[index]


def test_a_setting_beside_the_workers_changes_nothing_about_their_rate() -> None:
    forecast = Forecast(leg(), starved())
    assert forecast.of(workers(2, persistent_workers=True)) == forecast.of(workers(2))
    assert forecast.of(workers(2, pin_memory=True)) is None


def test_an_iterable_data_set_is_not_predicted() -> None:
    assert Forecast(leg(), starved(iterable=True)).of(workers(2)) is None


def test_workers_there_are_some_of_share_the_fetch_time() -> None:
    fetch = tuple(_fetches(2, 160))
    forecast = Forecast(leg(), starved(2, fetch=fetch, prefetch_factor=2, batches=60))
    more, fewer = forecast.of(workers(4)), forecast.of(workers(1))
    assert more is not None and more.interval is not None
    assert more.interval[1] == pytest.approx(100 / 40, rel=0.15)
    assert 1.0 <= more.interval[0] <= more.interval[1]
    assert fewer is not None and fewer.interval is not None and fewer.interval[1] <= 1.0


def _fetches(workers_: int, batch_ms: float) -> list[Any]:
    return [
        Fetch(worker, 20 + worker, 30, int(30 * batch_ms * MS), 0, int(batch_ms * MS), 30 * 64)
        for worker in range(workers_)
    ]


def test_what_ifs_take_away_what_was_measured() -> None:
    forecast = Forecast(leg(checkpoint=50.0, eval=20.0), starved())
    saves, evals = forecast.of(what_if("skip_checkpoint")), forecast.of(what_if("no_eval"))
    assert saves is not None and saves.value == pytest.approx(2.0) and saves.interval is None
    assert evals is not None and evals.value == pytest.approx(1.25)
    replay = forecast.of(what_if("replay_batch", 8))
    assert replay is not None and replay.value == pytest.approx(5.0)


def test_reads_are_predicted_where_a_gpu_idled_for_them() -> None:
    steps = made.make_steps(
        50, {"sync": 50, "forward": 50}, exposed={"sync": 40.0}, syncs=1, dry=0.5
    )
    on_gpu = Forecast(leg(), made.window(steps, on_gpu=True))
    found = on_gpu.of(what_if("sync_every", 10))
    assert found is not None and found.value == pytest.approx(1 / (1 - 0.4 * 0.9))
    assert Forecast(leg(), starved()).of(what_if("sync_every", 10)) is None


def test_a_mix_is_not_predicted() -> None:
    both = Arm("both", (Setting("num_workers", 4),), (WhatIf("no_eval", True),))
    assert Forecast(leg(ADVICE, eval=50.0), starved()).of(both) is None
