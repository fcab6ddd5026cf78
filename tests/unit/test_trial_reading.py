"""What is read of a leg that went wrong, and what a search is begun from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputop_train.launch.options import Setting, WhatIf
from gputop_train.trial import measure, seeking
from gputop_train.trial.leg import without_room
from gputop_train.trial.measure import FirstLook
from gputop_train.trial.predict import Forecast
from gputop_train.trial.record import Arm, Compared, LegResult
from gputop_train.trial.search import WorkerSearch
from gputop_train.trial.search_advice import AdviceSearch
from gputop_train.trial.search_batch import BatchSearch
from gputop_train.trial.standing import Candidate
from tests.unit import synthetic_windows as made

LEG = LegResult("baseline", "measured", step_ns=(10_000_000,) * 20, report={"memory": {}})


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("epoch 1\nTraceback (most recent call last):\n  x\nValueError: no\n", "ValueError: no"),
        # Interrupted workers complain after the error that ended the script.
        ("torch.OutOfMemoryError: CUDA\nKeyboardInterrupt\n", "torch.OutOfMemoryError: CUDA"),
        ("loading\r 50%\r100%\nSegmentation fault\n", "Segmentation fault"),
        ("\x1b[31mRuntimeError: red\x1b[0m\n", "RuntimeError: red"),
        ("", None),
    ],
)
def test_the_line_that_says_why_a_script_failed(tmp_path: Path, log: str, said: str | None) -> None:
    (tmp_path / "output.log").write_text(log)
    assert measure.last_error(tmp_path / "output.log") == said


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert measure.last_error(tmp_path / "none") is None


def test_what_the_guard_refused_is_read_out_of_its_reserved_room(tmp_path: Path) -> None:
    line = json.dumps({"call": "torch.save", "path": "/home/ann/model.pt"})
    (tmp_path / "refused.jsonl").write_text(line + "\n" + "\0" * 100)
    told = measure.read_refusal(tmp_path)
    assert told is not None and "torch.save could change /home/ann/model.pt" in told


def test_a_program_that_was_refused_is_no_file(tmp_path: Path) -> None:
    row = {"call": "subprocess.Popen", "path": "rsync -a out host:", "program": True}
    (tmp_path / "refused.jsonl").write_text(json.dumps(row) + "\n")
    told = measure.read_refusal(tmp_path)
    assert told is not None and "could start 'rsync -a out host:'" in told
    assert "existed before" not in told


@pytest.mark.parametrize("content", [b"", b"\0" * 8192, b"{", b"[1]\n", b"\xff\n"])
def test_no_refusal_is_read_out_of_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "refused.jsonl").write_bytes(content)
    assert measure.read_refusal(tmp_path) is None


def look(**loader: object) -> FirstLook:
    given = {"num_workers": 0, "prefetch_factor": None, "batch_size": 32}
    return FirstLook((10_000_000,) * 30, ({**given, **loader},), 1.0, False)


def test_a_search_begins_from_what_the_script_has() -> None:
    window = made.window(made.make_steps(20, {"forward": 10}), cores=6, loaders=(made.loader(),))
    forecast = Forecast(LEG, window)
    found, _ = seeking.begin("workers", LEG, look(num_workers=2), forecast)
    assert found == WorkerSearch(2, 6.0)
    found, _ = seeking.begin("batch", LEG, look(), forecast)
    assert found == BatchSearch(32, step_ms=10.0)
    found, _ = seeking.begin("suggestions", LEG, look(), forecast)
    assert found == AdviceSearch(())


def test_what_cannot_be_searched_says_why() -> None:
    nothing = FirstLook((10_000_000,) * 30, (), 1.0, False)
    forecast = Forecast(LEG, None)
    for kind, seen, said in (
        ("workers", nothing, "No DataLoader"),
        ("workers", look(), "cores"),
        ("batch", look(batch_size=None), "sampler"),
    ):
        found, why = seeking.begin(kind, LEG, seen, forecast)  # type: ignore[arg-type]
        assert found is None and said in why


def test_a_search_is_told_of_settings_that_ran() -> None:
    ran = Candidate(
        Arm("num_workers=4", (Setting("num_workers", 4),)),
        legs=[LEG],
        status="measured",
        compared=Compared(1.5, None, "inconclusive", 1),
    )
    waits = Candidate(Arm("num_workers=8", (Setting("num_workers", 8),)))
    asks = Candidate(Arm("no_eval", what_if=(WhatIf("no_eval", True),)), legs=[LEG])
    (tried,) = seeking.history([ran, waits, asks])
    assert (tried.arm, tried.speedup, tried.step_ms) == (ran.arm, 1.5, 10.0)


def test_a_script_that_found_no_room_for_what_was_diverted_has_not_failed() -> None:
    full = "The script ended with exit code 1: OSError: [Errno 28] No space left on device: 'x'"
    failed = LegResult("baseline", "failed", why=full)
    found = without_room(failed, "overlay")
    assert found.status == "inconclusive" and found.why.startswith(f"{full}. What a leg changes")
    assert without_room(failed, "refuse") is failed  # there it is the person's own disk
    other = LegResult("baseline", "failed", why="The script ended with exit code 1: ValueError: no")
    assert without_room(other, "overlay") is other
    assert without_room(LEG, "overlay") is LEG
