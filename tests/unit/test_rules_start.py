"""Before and at the first steps: a long start, a scan of the data, warm-up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import make_steps, probe, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.evidence import totals_of
from gputop_train.diagnose.rules import long_initialization, startup_scan, warm_up
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding

S = 1_000_000_000
USUAL = {"forward": 400, "backward": 500, "optimizer": 100}
LINES = [["/home/ann/data.py", 31, "count_lengths", 2600], ["/home/ann/train.py", 9, "main", 100]]


def started(torch=5, loader=0, first=0, *, looks=0, lines=(), steps=100, **more):
    """A process that imported torch after so many seconds, built a loader and got a batch."""
    begin = 100 * S
    marks = {"torch_ns": begin + torch * S, "loader_ns": begin + (torch + loader) * S}
    startup = {
        "process_ns": begin,
        **marks,
        "iter_ns": begin + (torch + loader + first) * S,
        "armed_ns": begin + (torch + loader + first + 40) * S,  # the first compilation
        "looks": looks,
        "look_ns": 50_000_000,
        "lines": list(lines),
    }
    return window(make_steps(steps, USUAL), probe=probe(False, startup=startup), **more)


def test_a_short_start_is_silent_however_short_the_run():
    assert isinstance(long_initialization.judge(started(5, 20)), RuledOut)


def test_a_start_of_minutes_is_information_with_its_longest_part():
    found = long_initialization.judge(started(8, 190, 2, steps=2000))
    assert isinstance(found, Finding)
    assert (found.severity, found.lost_share) == ("info", 0.0)
    assert "200 s" in found.summary and "190 s of them until a loader was built" in found.summary
    assert "keep what it makes" in found.advice[0].text


def test_twenty_minutes_are_a_warning():
    assert long_initialization.judge(started(8, 1300, steps=9000)).severity == "warn"


def test_a_third_of_a_finished_run_is_a_warning_unless_the_run_is_a_demonstration():
    assert long_initialization.judge(started(10, 400, steps=600)).severity == "warn"
    assert long_initialization.judge(started(10, 400, steps=600, final=False)).severity == "info"
    assert long_initialization.judge(started(10, 100, steps=100)).severity == "info"


def test_the_first_compilation_is_not_part_of_the_start():
    found = long_initialization.judge(started(8, 190))
    assert sum(e.value for e in found.evidence[1:4]) == pytest.approx(198)


def test_information_about_the_start_leaves_a_run_healthy():
    told = diagnose(started(8, 190, steps=2000))
    assert (told.status, [f.id for f in told.also]) == ("healthy", ["long-initialization"])


def test_without_its_times_it_is_not_judged():
    assert isinstance(long_initialization.judge(window(make_steps(50, USUAL))), Abstention)


def test_a_scan_of_the_data_is_named_with_its_line():
    told = diagnose(started(8, 1300, looks=2800, lines=LINES, steps=9000))
    # 140 s of looks in 1,300 s: most of the start was something else.
    assert told.verdict.refined is None
    told = diagnose(started(8, 1300, looks=26_000, lines=[[*LINES[0][:3], 25_000]], steps=9000))
    assert (told.verdict.id, told.verdict.refined) == ("long-initialization", "startup-scan")
    assert "not stuck" in told.verdict.summary
    assert [w.line for w in told.verdict.where] == [31]
    assert "count_lengths (data.py:31)" in told.verdict.advice[0].text


def test_few_looks_say_nothing():
    made = started(8, 190, looks=12, lines=[["/home/ann/data.py", 31, "count_lengths", 12]])
    assert isinstance(startup_scan.refine(made, long_initialization.judge(made)), Abstention)


def test_imports_of_many_modules_are_no_scan():
    lines = [[f"/home/ann/m{n}.py", 1, "<module>", 500] for n in range(5)]
    made = started(8, 190, looks=2600, lines=lines)
    assert startup_scan.refine(made, long_initialization.judge(made)).covers < 0.8


def warming(slow_ms, *, steps=300):
    steady = make_steps(steps, USUAL)
    slow = make_steps(10, {"forward": slow_ms, "compile": slow_ms})
    return window(steady, whole=totals_of(slow + steady), warmup_why="until it settled")


def test_warm_up_is_never_more_than_information():
    assert isinstance(warm_up.judge(warming(500)), RuledOut)
    long = warming(10_000)
    found = warm_up.judge(long)
    assert isinstance(found, Finding)
    assert (found.severity, found.lost_share) == ("info", 0.0)
    assert "TORCHINDUCTOR_CACHE_DIR" in found.advice[0].text
    assert diagnose(long).status == "healthy"


def test_warm_up_of_a_long_run_and_of_a_window_amid_it_is_silent():
    assert isinstance(warm_up.judge(warming(10_000, steps=3000)), RuledOut)
    assert isinstance(warm_up.judge(replace(warming(10_000), final=False)), RuledOut)
    assert isinstance(warm_up.judge(replace(warming(10_000), warmup_excluded=0)), RuledOut)
