"""What a person reads: the summary at the end, and the line of a new verdict."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import RUN, Recorded, ended, feeding_loader, steps_of

from gputop_train.model import Abstention, Advice, Diagnosis, Evidence, Finding, Gain, Where
from gputop_train.report import format as fmt
from gputop_train.report import text

TRAIN = {"forward": 40, "backward": 50, "optimizer": 10}
STARVED = {"data_wait": 60, "forward": 20, "backward": 20}
VERDICT = Finding(
    id="input-bound",
    refined="main-process-loading",
    summary="The GPU waits for data in 64% of every step: 171 of 268 ms.",
    severity="critical",
    confidence="high",
    lost_share=0.64,
    evidence=(Evidence("lost", 0.64, "of wall"), Evidence("workers", 0), Evidence("rate", None)),
    where=(Where("/proj/src/train.py", 41, "loader = DataLoader("),),
    advice=(Advice("num_workers 0 → 7", {"num_workers": 7}), Advice("Decode less.")),
    gain=Gain(3.1, (1.9, 2.6), "a model"),
)


def said(tmp_path, diagnosis=None, *, exit_=None, width=100, run=None, **more):
    """The summary of a run of 100 starved steps."""
    recorded = Recorded(tmp_path)
    recorded.writer.put_loaders([feeding_loader()], 0)
    recorded.train(steps_of(100, STARVED))
    arguments = {} if run is None else {"run": run}
    report = recorded.report(exit_ or ended(), diagnosis=diagnosis, **arguments)
    return text.summary(report, width, **more)


def row(lines, key):
    """The text of a labelled row, joined over the lines it was wrapped to."""
    start = next(i for i, line in enumerate(lines) if line.startswith(f" {key:<8}"))
    words = [lines[start][9:]]
    for line in lines[start + 1 :]:
        if not line.startswith(" " * 9):
            break
        words.append(line[9:])
    return " ".join(words)


def test_the_summary_answers_what_where_why_and_what_to_do(tmp_path):
    lines = said(tmp_path, Diagnosis("verdict", False, verdict=VERDICT))
    assert row(lines, "verdict") == (
        "input-bound (main-process-loading) · critical · confidence high "
        "The GPU waits for data in 64% of every step: 171 of 268 ms."
    )
    assert row(lines, "where") == "train.py:41  loader = DataLoader(...)"
    assert row(lines, "why") == "lost 64% of wall · workers 0"
    assert row(lines, "do") == "num_workers 0 → 7 (--set num_workers=7) Decode less."
    assert row(lines, "gain") == "1.9x to 2.6x expected, at most 3.1x once it is gone: a model"


def test_the_summary_says_how_the_run_ended_and_where_its_output_is(tmp_path):
    lines = said(tmp_path, log_path="/runs/3f2a91/output.log")
    assert row(lines, "run") == "3f2a91 · exit code 0 after 35s"
    assert row(lines, "log") == "/runs/3f2a91/output.log"
    assert row(lines, "more") == "gputop-train report 3f2a91"


@pytest.mark.parametrize(
    ("exit_", "stopped_by", "words"),
    [
        (ended(7), None, "exit code 7 after 35s"),
        (ended(None, signal=11), None, "exit code 139 after 35s"),
        (ended(None, signal=2), "steps", "stopped after 35s, as asked by --steps"),
        (ended(None, signal=2), "user", "exit code 130 after 35s (stopped on request)"),
        (ended(None, reason="The shim died."), None, "exit code unknown after 35s: The shim died."),
    ],
)
def test_every_way_to_end_has_its_words(tmp_path, exit_, stopped_by, words):
    recorded = Recorded(tmp_path)
    recorded.writer.set_meta("stopped_by", stopped_by)
    report = recorded.train(steps_of(30, TRAIN)).report(exit_)
    assert row(text.summary(report, 100), "run") == f"3f2a91 · {words}"


def test_time_is_told_by_label_largest_first_and_trifles_left_out(tmp_path):
    recorded = Recorded(tmp_path).train(steps_of(60, STARVED | {"h2d": 0.5, "eval": 10}))
    lines = text.summary(recorded.report(ended()), 100)
    assert row(lines, "time") == "data wait 54% · forward 18% · backward 18% · evaluation 9.0%"


def test_a_second_finding_is_one_row_with_its_line_and_its_mend(tmp_path):
    found = Diagnosis("verdict", False, verdict=VERDICT, also=(VERDICT,))
    assert row(said(tmp_path, found), "also") == (
        "input-bound (main-process-loading): The GPU waits for data in 64% of every step: "
        "171 of 268 ms. · train.py:41 · num_workers 0 → 7 (--set num_workers=7)"
    )


def test_a_line_that_is_not_known_has_its_reason(tmp_path):
    lost = Finding("memory-leak", "It grows.", "warn", "high", 0.1, where_missing="not recorded")
    lines = said(tmp_path, Diagnosis("verdict", False, verdict=lost))
    assert row(lines, "where") == "no line: not recorded"
    assert not any(line.startswith((" gain", " do", " why")) for line in lines)


def test_a_gain_that_is_a_lower_bound_says_so(tmp_path):
    bound = Finding("x", "y", "warn", "low", 0.1, gain=Gain(1.5, None, "", at_least=True))
    lines = said(tmp_path, Diagnosis("verdict", False, verdict=bound))
    assert row(lines, "gain") == "at least 1.5x once it is gone"


def test_a_gain_that_is_not_known_says_why(tmp_path):
    unknown = Finding("x", "y", "warn", "low", 0.1, gain=Gain(None, None, "not measured in a run"))
    lines = said(tmp_path, Diagnosis("verdict", False, verdict=unknown))
    assert row(lines, "gain") == "not known: not measured in a run"


@pytest.mark.parametrize(
    ("diagnosis", "words"),
    [
        (Diagnosis("healthy", True, note="Nothing lost."), "healthy Nothing lost."),
        (Diagnosis("too-early", None, note="12 of 20 steps seen"),
         "too early to say 12 of 20 steps seen"),
        (Diagnosis("no-steps", None, note="No step."), "no training step seen No step."),
        (Diagnosis("abstained", None, note="No verdict: gone.",
                   abstained=(Abstention("probe", "gone"),)), "no verdict"),
    ],
)  # fmt: skip
def test_every_status_has_its_words(tmp_path, diagnosis, words):
    assert row(said(tmp_path, diagnosis), "verdict") == words


def test_a_larger_part_that_no_rule_could_name_stands_beside_the_verdict(tmp_path):
    less, more = Abstention("eval-stall", "a block", 0.7), Abstention("host-compute", "code", 0.8)
    found = Diagnosis("verdict", False, verdict=VERDICT, abstained=(less, more))
    assert row(said(tmp_path, found), "unnamed") == "host-compute: code"


@pytest.mark.parametrize(
    ("lost", "gap"),
    [
        (0.64, Abstention("host-compute", "code", 0.25)),
        (0.64, Abstention("launch-bound", "GPU events")),
        (0.0, Abstention("host-compute", "code", 0.25)),
    ],
)
def test_a_smaller_part_or_one_of_unknown_size_is_not_told_beside_it(tmp_path, lost, gap):
    verdict = dataclasses.replace(VERDICT, lost_share=lost)
    lines = said(tmp_path, Diagnosis("verdict", False, verdict=verdict, abstained=(gap,)))
    assert not any(line.startswith(" unnamed") for line in lines)


def test_a_missing_signal_is_named_once(tmp_path):
    gaps = (Abstention("probe", "it is gone"),)
    found = Diagnosis("abstained", None, abstained=gaps, note="No verdict: it is gone.")
    lines = said(tmp_path, found)
    assert row(lines, "missing") == "probe: it is gone"
    assert "\n".join(lines).count("it is gone") == 1


def test_what_several_diagnoses_lack_is_told_once(tmp_path):
    gaps = tuple(Abstention(id_, "it is gone") for id_ in ("host-compute", "launch-bound"))
    found = Diagnosis("abstained", None, abstained=gaps, note="No verdict: it is gone.")
    assert row(said(tmp_path, found), "missing") == "host-compute, launch-bound: it is gone"


def test_settings_that_change_results_are_marked(tmp_path):
    run = RUN | {"overrides": {"num_workers": 4, "bf16": True}, "changes_results": ["bf16"]}
    shown = row(said(tmp_path, run=run, width=200), "set")
    asked, changing = shown.split(" · ")
    assert asked.startswith("num_workers=4 (not confirmed")
    assert "changes results" not in asked
    assert changing.startswith("bf16=True (not confirmed")
    assert changing.endswith("changes results)")


def test_an_older_report_is_told_from_what_it_has(long_report):
    old = {**long_report, "run": {**long_report["run"], "overrides": {"num_workers": 4}}}
    del old["run"]["settings"]
    assert row(text.summary(old, 100), "set").startswith("num_workers=4 (not confirmed")


@pytest.fixture(scope="module")
def long_report(tmp_path_factory):
    """A report with every row a summary can have."""
    recorded = Recorded(tmp_path_factory.mktemp("run")).train(steps_of(60, STARVED))
    found = Diagnosis("verdict", False, verdict=VERDICT, also=(VERDICT,))
    return recorded.report(ended(), diagnosis=found)


@given(width=st.integers(1, 300), ascii_only=st.booleans())
def test_no_line_is_wider_than_the_terminal(long_report, width, ascii_only):
    lines = text.summary(long_report, width, log_path="/runs/" + "x" * 20, ascii_only=ascii_only)
    assert max(map(len, lines)) < max(text.MIN_WIDTH, min(width, text.MAX_WIDTH))


def test_ascii_only_is_ascii_and_loses_no_number(tmp_path):
    found = Diagnosis("verdict", False, verdict=VERDICT)
    lines = said(tmp_path, found, ascii_only=True)
    assert all(line.isascii() for line in lines)
    assert row(lines, "do") == "num_workers 0 -> 7 (--set num_workers=7) Decode less."


def test_a_path_cannot_write_to_the_terminal(tmp_path):
    evil = Finding(
        "x", "y", "warn", "low", 0.1, where=(Where("a.py", 1, "\x1b]0;title\x07\x1b[2Jf(\r\n)"),)
    )
    lines = said(tmp_path, Diagnosis("verdict", False, verdict=evil))
    assert "\x1b" not in "".join(lines)
    assert all(line.isprintable() for line in lines)


def test_a_new_verdict_is_one_line_with_its_cause_place_and_mend():
    line = text.live_line(Diagnosis("verdict", False, verdict=VERDICT))
    assert line == (
        "input-bound (main-process-loading): The GPU waits for data in 64% of every step: "
        "171 of 268 ms. · at train.py:41 · do: num_workers 0 → 7"
    )


@pytest.mark.parametrize("status", ["too-early", "no-steps"])
def test_there_is_no_line_before_there_is_something_to_say(status):
    assert text.live_line(Diagnosis(status, None, note="12 of 20 steps seen")) == ""


def test_healthy_and_abstained_are_said_in_one_line():
    healthy = Diagnosis("healthy", True, note="No cause\nof lost time.")
    assert text.live_line(healthy) == "healthy: No cause of lost time."


def test_wavering_numbers_are_no_new_verdict_but_another_line_or_cause_is():
    def key(**more):
        changed = dataclasses.replace(VERDICT, **more)
        return text.live_key(Diagnosis("verdict", False, verdict=changed))

    same = key()
    assert key(summary="65%", lost_share=0.65, severity="warn") == same
    assert key(where=(Where("/proj/src/train.py", 60, ""),)) != same
    assert key(refined=None) != same
    assert key(id="checkpoint-stall") != same
    gap = (Abstention("probe", "gone"),)
    assert text.live_key(Diagnosis("abstained", None, abstained=gap)) != text.live_key(
        Diagnosis("abstained", None)
    )


@pytest.mark.parametrize(
    ("function", "value", "words"),
    [
        (fmt.percent, 0.0345, "3.5%"), (fmt.percent, 0.644, "64%"), (fmt.percent, 0.0996, "10%"),
        (fmt.duration, 4.2, "4.2s"), (fmt.duration, 59.4, "59s"), (fmt.duration, 252, "4m12s"),
        (fmt.duration, 11_100, "3h05m"), (fmt.duration, 187_200, "2d04h"),
        (fmt.milliseconds, 0.42, "0.42 ms"), (fmt.milliseconds, 8.31, "8.3 ms"),
        (fmt.milliseconds, 267.8, "268 ms"), (fmt.milliseconds, 1320, "1.32 s"),
        (fmt.size, 812, "812 B"), (fmt.size, 735_000_000, "735 MB"),
        (fmt.size, 2.34e9, "2.3 GB"), (fmt.size, 139.8e9, "140 GB"),
        (fmt.factor, 1.94, "1.9x"), (fmt.factor, 12.3, "12x"),
        (fmt.number, 1284, "1,284"), (fmt.number, 0.52771, "0.5277"), (fmt.number, True, "True"),
        (fmt.label, "data_wait", "data wait"), (fmt.label, "h2d", "H2D copy"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_people_read_them(function, value, words):
    assert function(value) == words
