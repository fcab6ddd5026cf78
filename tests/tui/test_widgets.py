"""What each panel says, read as text; every size from tiny to huge is drawn without a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len

from gputop_train.model import Abstention, Diagnosis, Evidence, Gain, Where
from gputop_train.tui.layout import TINY_ROWS, plan
from gputop_train.tui.paint import ASCII, UNICODE, Glyphs, Row, fit
from gputop_train.tui.snapshot import Lane, LoaderView, Mark, Snapshot, StepView, View
from gputop_train.tui.text import rate
from gputop_train.tui.widgets.header import header_row
from gputop_train.tui.widgets.keys import keys_row
from gputop_train.tui.widgets.logpane import log_rows
from gputop_train.tui.widgets.memory import memory_rows, memory_wants
from gputop_train.tui.widgets.notice import notice_rows
from gputop_train.tui.widgets.ribbon import ribbon_rows
from gputop_train.tui.widgets.stepbar import step_rows
from gputop_train.tui.widgets.timechart import GUTTER, chart_rows, plot_columns
from gputop_train.tui.widgets.verdict import advice_block, card_rows
from gputop_train.tui.widgets.workers import workers_rows

from .fakes import EVALUATION, GIB, STARVED, STATES, starved

Painter = Callable[[Snapshot, int, int, Glyphs], list[Row]]
PAINTERS: dict[str, Painter] = {
    "header": lambda s, w, h, g: [header_row(s, w, g)],
    "card": card_rows,
    "chart": chart_rows,
    "ribbon": ribbon_rows,
    "step": step_rows,
    "memory": memory_rows,
    "workers": workers_rows,
    "log": log_rows,
    "notice": lambda s, w, h, g: notice_rows(s, w, g),
    "keys": lambda s, w, h, g: [keys_row(w, g, replay=s.replay is not None)],
}


def view(width: int = 120) -> View:
    return View(columns=plot_columns(width))


def read(rows: list[Row]) -> str:
    return "\n".join("".join(text for text, _ in row) for row in rows)


@pytest.mark.parametrize("painter", PAINTERS)
@pytest.mark.parametrize("state", STATES)
def test_every_panel_draws_every_state_at_every_size(painter: str, state: str) -> None:
    for width in (1, 12, 20, 40, 61, 80, 120, 200):
        for height in (1, 2, 3, 5, 9, 16):
            for glyphs in (UNICODE, ASCII):
                snap = STATES[state](view(width))
                rows = [
                    fit(row, width, glyphs)
                    for row in PAINTERS[painter](snap, width, height, glyphs)[:height]
                ]
                for row in rows:
                    assert sum(cell_len(text) for text, _ in row) == width
                if glyphs is ASCII:
                    assert read(rows).isascii()


@pytest.mark.parametrize("height", range(1, 80))
def test_the_rows_of_the_terminal_are_shared_out_to_the_last_one(height: int) -> None:
    for wants in (3, 5, 9, 14):
        for lanes in (0, 1, 5, 15):
            rows = plan(height, card_wants=wants, lanes=lanes, memory_wants=1 + lanes % 2)
            assert all(getattr(rows, name) >= 0 for name in rows.__slots__)
            assert rows.header == 1
            assert rows.total == max(height, 1)
            if height >= TINY_ROWS:
                assert rows.chart >= 4
                assert rows.card >= 4
                assert rows.keys == 1


def test_the_card_names_cause_place_change_and_gain() -> None:
    text = read(card_rows(starved(view()), 120, 10, UNICODE))
    assert "STARVED" in text
    assert "expect 2.1 to 2.7x faster (500 to 640 samples/s)" in text
    assert "The GPU waits for data in 64% of every step" in text
    assert "confidence high" in text
    assert "proj/train.py:41" in text
    assert "queue empty at 97% of steps" in text
    assert "[--set num_workers=7]" in text
    assert "at most 2.8x" in text
    assert "eval-stall (6% of time)" in text


def test_where_rows_are_short_the_advice_is_kept_in_full_before_lesser_lines() -> None:
    text = read(card_rows(starved(view(80)), 80, 7, UNICODE))
    assert "[--set" in text
    assert "num_workers=7]" in text
    assert "where" in text
    assert "also" not in text


def test_a_gain_without_a_ceiling_promises_nothing() -> None:
    snap = starved(view())
    finding = replace(STARVED, gain=Gain(None, None, "not predictable"))
    text = read(
        card_rows(replace(snap, diagnosis=Diagnosis("verdict", False, finding)), 120, 10, UNICODE)
    )
    assert "faster" not in text
    assert "not predictable" in text


def test_a_ceiling_alone_is_called_a_ceiling() -> None:
    snap = starved(view())
    finding = replace(STARVED, gain=Gain(1.4, None, "T/(T-E)"))
    text = read(
        card_rows(replace(snap, diagnosis=Diagnosis("verdict", False, finding)), 120, 10, UNICODE)
    )
    assert "up to 1.4x faster" in text
    assert "expect" not in text


def test_a_finding_without_a_line_says_why_there_is_none() -> None:
    finding = replace(STARVED, where=(), where_missing="no allocation site was recorded")
    snap = replace(starved(view()), diagnosis=Diagnosis("verdict", False, finding))
    assert "no allocation site was recorded" in read(card_rows(snap, 120, 10, UNICODE))


def test_abstaining_is_never_shown_as_healthy_and_names_the_signal() -> None:
    diagnosis = Diagnosis(
        "abstained", None, abstained=(Abstention("launch-bound", "no event pairs"),)
    )
    text = read(card_rows(replace(starved(view()), diagnosis=diagnosis), 120, 8, UNICODE))
    assert "NO VERDICT" in text
    assert "no event pairs (launch-bound)" in text
    assert "HEALTHY" not in text


def test_the_chart_has_a_fixed_axis_and_tells_zero_from_unmeasured() -> None:
    snap = starved(view(60))
    n = plot_columns(60)
    assert snap.chart is not None
    values = (None,) * (n - 3) + (0.0, 50.0, 100.0)
    chart = replace(snap.chart, area=replace(snap.chart.area, mean=values, peak=()), line=None)
    rows = read(chart_rows(replace(snap, chart=chart), 60, 6, UNICODE)).split("\n")
    assert [row[GUTTER - 5 : GUTTER - 1].strip() for row in rows[1:5]] == ["100%", "", "", "0%"]
    assert [row[-4:-1] for row in rows[1:5]] == ["  █", "  █", " ██", "▁██"]


def test_lanes_and_chart_share_their_columns() -> None:
    snap = starved(view(80))
    at = plot_columns(80) // 4
    chart = read(chart_rows(snap, 80, 8, UNICODE)).split("\n")
    lane = next(
        row
        for row in read(ribbon_rows(snap, 80, 7, UNICODE)).split("\n")
        if row.startswith(" checkpoint")
    )
    assert chart[-1][GUTTER + at] == "▲"
    assert lane[GUTTER + at] != " "
    assert lane[GUTTER + at + 1] == " "


def test_the_largest_lanes_are_kept_in_the_order_of_a_step() -> None:
    lanes = tuple(
        Lane(label, share, (share,))
        for label, share in (
            ("data_wait", 0.2),
            ("forward", 0.1),
            ("backward", 0.4),
            ("optimizer", 0.05),
            ("eval", 0.25),
        )
    )
    rows = read(ribbon_rows(replace(starved(view()), lanes=lanes), 80, 3, UNICODE)).split("\n")
    assert [row.split()[0] for row in rows] == ["data", "backward", "evaluation"]


def test_the_bar_of_a_step_is_cut_in_proportion_and_named_in_order() -> None:
    step = StepView(9, None, 9, 100.0, None, (("data_wait", 50.0), ("backward", 50.0)))
    bar, names = read(step_rows(replace(starved(view()), step=step), 120, 2, UNICODE)).split("\n")
    first, second = bar[GUTTER:].split()
    assert abs(len(first) - len(second)) <= 1
    assert names.index("data wait 50.0 ms") < names.index("backward 50.0 ms")
    assert abs(names.index("backward") - bar.rindex(" █") - 1) <= 1


def test_device_memory_is_shown_against_the_end_of_the_device() -> None:
    text = read(memory_rows(starved(view()), 120, 1, UNICODE))
    assert "allocated 41.2  reserved 58.0  peak 61.3 of 139.8 GiB (44%)" in text
    bar = text[text.index("│") + 1 : text.rindex("│")]
    assert bar.count("█") / len(bar) == pytest.approx(41.2 / 139.8, abs=0.05)


def test_a_leak_shows_its_pace_its_end_and_its_course_on_the_charts_axis() -> None:
    snap = STATES["leaking"](view())
    assert memory_wants(snap) == 2
    assert memory_wants(starved(view())) == 1
    now, held = read(memory_rows(snap, 120, 2, UNICODE)).split("\n")
    assert "+44 MB a step, full in 48s" in now
    cells = held[GUTTER:].rstrip()
    assert not held[GUTTER : GUTTER + plot_columns(120) // 5].strip()
    assert list(cells.strip()) == sorted(cells.strip())
    assert "42%" in held
    narrow = read(memory_rows(STATES["leaking"](view(80)), 80, 2, UNICODE)).split("\n")[0]
    assert "full in 48s" in narrow
    assert "of 139.8 GiB" in narrow


@pytest.mark.parametrize(("value", "unit", "said"), [(25.0, "min", "25m00s"), (3.5, "h", "3h30m")])
def test_the_time_until_memory_runs_out_keeps_its_unit(value: float, unit: str, said: str) -> None:
    snap = STATES["leaking"](view())
    assert snap.diagnosis is not None and snap.diagnosis.verdict is not None
    left = Evidence("time until memory runs out", value, unit)
    grown = snap.diagnosis.verdict.evidence[0]
    leak = replace(snap.diagnosis.verdict, evidence=(grown, left))
    snap = replace(snap, diagnosis=replace(snap.diagnosis, verdict=leak))
    assert f"full in {said}" in read(memory_rows(snap, 160, 1, UNICODE))


def test_waits_the_gpu_never_felt_are_explained_on_a_healthy_card() -> None:
    busy = replace(EVALUATION, id="gpu-bound", lost_share=0.0)
    snap = replace(starved(view()), diagnosis=Diagnosis("healthy", True, also=(busy,)))
    assert "the GPU had work queued" in read(card_rows(snap, 120, 8, UNICODE))
    calm = replace(snap, lanes=tuple(lane for lane in snap.lanes if lane.label != "data_wait"))
    assert "the GPU had work queued" not in read(card_rows(calm, 120, 8, UNICODE))


def test_the_trainers_private_memory_is_called_that() -> None:
    snap = STATES["no_gpu"](view())
    text = read(memory_rows(snap, 120, 1, UNICODE))
    assert "trainer 0.4 private of 7.8 GiB" in text
    assert "GPU" not in text


def test_many_workers_share_a_line_and_unmeasured_ones_are_blank() -> None:
    loader = LoaderView(16, "train.py:41", (1.0,) * 8 + (None,) * 8)
    text = read(workers_rows(replace(starved(view()), loader=loader), 120, 1, UNICODE))
    assert "16 workers ████████        " in text
    assert "mean 100%" in text


def test_no_workers_are_explained() -> None:
    text = read(workers_rows(STATES["no_gpu"](view()), 120, 1, UNICODE))
    assert "num_workers=0: the training process itself makes the batches" in text


def test_the_header_drops_the_least_important_first() -> None:
    snap = starved(view())
    wide, middle, narrow = (read([header_row(snap, w, UNICODE)]) for w in (120, 60, 30))
    assert "run 3f2a" in wide
    assert "run 3f2a" not in middle
    assert "step 1,284/5,000" in middle
    assert narrow.strip().startswith("train.py")
    assert narrow.rstrip().endswith("● live")


def test_the_end_of_a_run_is_told_with_its_exit_code() -> None:
    text = read(notice_rows(STATES["failed"](view()), 120, UNICODE))
    assert text.strip() == (
        "The script ended after 4m12s: killed by SIGSEGV (139). q closes this screen."
    )


def test_the_log_keeps_its_newest_line_at_the_bottom() -> None:
    rows = read(log_rows(starved(view()), 80, 3, UNICODE)).split("\n")
    assert "epoch 2" in rows[-1]
    assert "loading" not in "\n".join(rows)
    back = read(log_rows(starved(view()), 80, 3, UNICODE, back=1)).split("\n")
    assert "epoch 1" in back[-1]


def test_marks_are_told_apart_without_colour() -> None:
    snap = replace(starved(view(80)), marks=(Mark("checkpoint", 30), Mark("eval", 40)))
    for glyphs, save, evaluation in ((UNICODE, "▲", "◆"), (ASCII, "^", "*")):
        axis = read(chart_rows(snap, 80, 8, glyphs)).split("\n")[-1]
        assert axis[GUTTER + 30] == save
        assert axis[GUTTER + 40] == evaluation
        assert f"{save} save {evaluation} eval" in axis


def test_the_copied_advice_can_be_pasted_as_it_is() -> None:
    text = advice_block(starved(view()))
    assert text.splitlines()[0] == STARVED.summary
    assert "train.py:41" in text
    assert "--set num_workers=7" in text
    assert advice_block(STATES["healthy"](view())) == ""


def test_two_places_are_both_named() -> None:
    finding = replace(STARVED, where=(Where("train.py", 41, "a()"), Where("train.py", 88, "b()")))
    snap = replace(starved(view()), diagnosis=Diagnosis("verdict", False, finding))
    text = read(card_rows(snap, 120, 10, UNICODE))
    assert "train.py:41" in text
    assert "train.py:88" in text


def test_a_nearly_full_device_is_drawn_in_the_warning_ink() -> None:
    snap = starved(view())
    assert snap.memory is not None
    full = replace(snap, memory=replace(snap.memory, peak=int(136 * GIB)))
    inks = {ink for row in memory_rows(full, 120, 1, UNICODE) for _, ink in row}
    assert "warn" in inks
    assert "warn" not in {ink for row in memory_rows(snap, 120, 1, UNICODE) for _, ink in row}


def test_rates_have_the_digits_worth_reading() -> None:
    known = {3.714: "3.71", 9.996: "10.0", 41.24: "41.2", 99.96: "100", 412.4: "412"}
    known |= {999.6: "1,000", 1150.2: "1,150", 9999.4: "9,999", 9_999.6: "10.0k", 62_763: "62.8k"}
    known |= {759_143: "759k", 999_600: "1.00M", 1_193_357: "1.19M", 2.5e9: "2.50G", 0.0: "0.00"}
    assert {value: rate(value) for value in known} == known


def test_a_run_with_steps_is_not_said_to_wait_for_its_first() -> None:
    none = STATES["starting"](view())
    assert "Waiting for the first" in read(card_rows(none, 80, 6, UNICODE))
    some = read(card_rows(replace(none, step=StepView(2)), 80, 6, UNICODE))
    assert "TOO EARLY" in some
    assert "Waiting for the first" not in some
    over = card_rows(replace(none, state="ended"), 80, 6, UNICODE)
    assert "No optimizer step was seen." in read(over)
