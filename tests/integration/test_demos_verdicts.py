"""Each demo, watched through the real command line on a CPU, gets the verdict it was built for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputop_train import demos_index
from tests import watching

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    watching.undisturbed_at_least_once,
]


def watch(folder, name, *arguments, options=()):
    """Run a demo under gputop-train; return its report."""
    script = demos_index.path(name)
    report, said = watching.watch(folder, script, *arguments, options=options)
    assert "final loss" in said
    return report


def line_of(name, text):
    """The line of a demo's script that holds this text, which must be there once."""
    lines = demos_index.path(name).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if text in line]
    return number


def places(finding):
    """Lines of the demo a finding points at."""
    return [(Path(place["file"]).name, place["line"]) for place in finding["where"] or ()]


def test_starved_waits_for_a_loader_in_its_own_process_and_workers_mend_it(tmp_path):
    report = watch(tmp_path, "starved", "--steps", "60")
    verdict = report["verdict"]
    assert (verdict["id"], verdict["refined"]) == ("input-bound", "main-process-loading")
    assert places(verdict)[0] == ("starved.py", line_of("starved", "loader = DataLoader("))
    assert report["time"]["shares"]["data_wait"] > 0.4
    settings = [a["setting"] for a in verdict["advice"] if a["setting"]]
    if not settings:  # other tests have the cores: a worker would have none, and that is said
        assert any("other programs keep" in a["text"] for a in verdict["advice"])
        return
    low, high = verdict["gain"]["expected"]
    assert 1 < low <= high <= verdict["gain"]["ceiling"]

    (setting,) = settings
    workers = setting["num_workers"]
    mended = watch(
        tmp_path, "starved", "--steps", "60", options=("--set", f"num_workers={workers}")
    )
    assert mended["run"]["overrides"] == {"num_workers": workers}
    assert (mended["verdict"] or {}).get("refined") != "main-process-loading"
    assert mended["time"]["shares"]["data_wait"] < report["time"]["shares"]["data_wait"]


def test_checkpointing_stalls_at_the_line_that_saves(tmp_path):
    report = watch(tmp_path, "checkpointing", "--steps", "50")
    verdict = report["verdict"]
    assert verdict["id"] == "checkpoint-stall"
    assert places(verdict) == [("checkpointing.py", line_of("checkpointing", "torch.save(state"))]
    assert "instead of every 5 (" in verdict["advice"][0]["text"]
    assert any("async_save" in advice["text"] for advice in verdict["advice"])


@pytest.mark.long
def test_leaking_is_told_by_private_memory_and_promises_no_speed(tmp_path):
    report = watch(
        tmp_path, "leaking", *("--steps", "320", "--width", "512", "--batch-size", "512")
    )
    verdict = report["verdict"]
    assert verdict["id"] == "memory-leak"
    assert report["memory"]["basis"] == "rss-anon"
    assert report["memory"]["growth_bytes_per_step"] > 512 * 512 * 4 / 2
    assert verdict["gain"] is None
    assert verdict["where"] or verdict["where_missing"]


@pytest.mark.long
def test_leaking_that_keeps_numbers_is_no_leak(tmp_path):
    report = watch(
        tmp_path,
        "leaking",
        *("--steps", "320", "--width", "512", "--batch-size", "512", "--numbers"),
    )
    assert (report["verdict"] or {}).get("id") != "memory-leak"


def test_erratic_has_both_its_causes_named_the_larger_first(tmp_path):
    report = watch(tmp_path, "erratic", "--steps", "75")
    verdict = report["verdict"]
    assert verdict["id"] == "eval-stall"
    evaluation = [
        ("erratic.py", line_of("erratic", "accuracy = evaluate(")),
        ("erratic.py", line_of("erratic", "model.eval()")),
    ]
    assert set(places(verdict)) & set(evaluation)
    (second,) = [f for f in report["also"] if f["id"] == "checkpoint-stall"]
    assert places(second) == [("erratic.py", line_of("erratic", "torch.save(state"))]
    assert second["lost_share"] < verdict["lost_share"]


def test_healthy_is_healthy(tmp_path):
    report = watch(tmp_path, "healthy", "--steps", "50")
    assert watching.causes(report) == []
    if not watching.crowded(report):
        assert (report["status"], report["healthy"], report["verdict"]) == ("healthy", True, None)


@pytest.mark.parametrize(
    ("name", "steps"),
    [("syncing", "50"), pytest.param("launch_bound", "150", marks=pytest.mark.long)],
)
def test_what_is_wrong_on_a_gpu_alone_is_no_fault_on_a_cpu(tmp_path, name, steps):
    report = watch(tmp_path, name, "--steps", steps)
    if not watching.crowded(report):
        assert report["status"] in ("healthy", "abstained")
        assert report["verdict"] is None


def test_a_few_steps_are_too_early(tmp_path):
    report = watch(tmp_path, "healthy", "--steps", "15")
    assert (report["status"], report["healthy"]) == ("too-early", None)
