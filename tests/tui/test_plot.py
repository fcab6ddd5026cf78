"""Plots: what is measured is where the scale says, what is not measured is blank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gputop_train.tui.paint import ASCII, UNICODE, Glyphs
from gputop_train.tui.plot import Canvas, Curve, Plot, Values, letters, nice_top, scale_label
from gputop_train.tui.snapshot import Axis, Mark
from gputop_train.tui.widgets.timechart import GUTTER, plot_columns, plot_rows

S = 1_000_000_000
GIB = 1 << 30


def plot(*curves: Curve, columns: int = 80, seconds: int = 60) -> Plot:
    return Plot("what", Axis(0, seconds * S, columns), curves)


def text(made: Plot, width: int, height: int, glyphs: Glyphs = UNICODE) -> list[str]:
    return ["".join(t for t, _ in row) for row in plot_rows(made, width, height, glyphs)]


def columns_of(lines: list[str], width: int) -> list[str]:
    """The plot column by column, without title, scale and time axis."""
    body = [line[GUTTER : GUTTER + plot_columns(width)] for line in lines[1:-1]]
    return ["".join(column) for column in zip(*body, strict=True)]


@given(
    values=st.lists(st.none() | st.floats(-1e12, 1e12) | st.just(float("nan")), max_size=200),
    width=st.integers(1, 150),
    height=st.integers(1, 30),
    ascii=st.booleans(),
    now=st.none() | st.floats(0, 1e6),
)
def test_any_values_at_any_size_fill_exactly_the_room(
    values: list[float | None], width: int, height: int, ascii: bool, now: float | None
) -> None:
    kept = tuple(values)
    made = plot(Curve("area", kept, "gpu", "area", kept), Curve("line", kept, "info"))
    made = replace(made, now_s=now, marks=(Mark("eval", 3),), limit=50.0)
    for each in (made, replace(made, curves=made.curves[:1]), replace(made, curves=())):
        rows = text(each, width, height, ASCII if ascii else UNICODE)
        assert len(rows) <= height
        assert {cell_len(row) for row in rows} <= {width}
        assert not ascii or all(row.isascii() for row in rows)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("kind", ["area", "line"])
def test_what_was_not_measured_is_blank_and_zero_is_not(kind: str, glyphs: Glyphs) -> None:
    width = GUTTER + 1 + 30
    values: Values = (50.0,) * 10 + (None,) * 10 + (0.0,) * 10
    made = plot(Curve("c", values, "gpu", kind), columns=30)  # type: ignore[arg-type]
    columns = columns_of(text(made, width, 10, glyphs), width)
    assert all(column.strip() for column in columns[:10] + columns[20:])
    assert not any(column.strip() for column in columns[10:20])


def test_a_line_is_at_the_height_the_scale_says_whatever_the_other_values_are() -> None:
    width = GUTTER + 1 + 4
    for value, row in ((0.0, 7), (24.9, 6), (50.0, 3), (99.9, 0), (100.0, 0), (250.0, 0)):
        columns = columns_of(text(plot(Curve("c", (value,) * 4, "x")), width, 10, ASCII), width)
        assert columns == [" " * row + "*" + " " * (7 - row)] * 4


def test_a_jump_is_one_unbroken_line() -> None:
    width = GUTTER + 1 + 4
    columns = columns_of(text(plot(Curve("c", (5.0, 5.0, 95.0, 95.0), "x")), width, 12), width)
    assert all(cell != " " for cell in columns[2])


def test_two_values_a_bin_are_the_two_dot_columns_of_its_cell() -> None:
    canvas = Canvas(2, 1, 100.0, UNICODE)
    canvas.line(Curve("c", (0.0, 99.0, None, 0.0), "x"), 0)
    (cells,) = ["".join(cell for cell, _ in canvas.spans(0))]
    assert [ord(cell) - 0x2800 for cell in cells] == [0x40 | 0x08 | 0x10 | 0x20, 0x80]


def test_lines_differ_without_colour_and_their_letters_stand_in_title_and_margin() -> None:
    width = 100
    flat = [Curve(name, (value,) * 81, "text") for name, value in (("used", 80.0), ("ubiq", 20.0))]
    rows = text(plot(*flat, columns=81), width, 12)
    assert "u used" in rows[0]
    assert "b ubiq" in rows[0]
    ends = [row[-1] for row in rows]
    assert ends.index("u") < ends.index("b")
    upper, lower = (rows[ends.index(letter)][GUTTER:-1] for letter in "ub")
    assert len(set(upper)) == len(set(lower)) == 1
    assert upper != lower
    assert letters(["aa", "aa", "aa"]) == ["a", "1", "2"]


def test_a_dotted_line_moves_with_its_data() -> None:
    """A bin keeps its dots when the axis moves on by one, so a flat line is not sent again."""
    curves = [Curve("a", (20.0,) * 30, "x"), *(Curve(n, (80.0,) * 30, "x") for n in "bcd")]
    for first in range(6):
        axis = Axis(first * S, (first + 30) * S, 30)
        now = text(Plot("t", axis, tuple(curves)), GUTTER + 31, 8)
        axis = Axis((first + 1) * S, (first + 31) * S, 30)
        later = text(Plot("t", axis, tuple(curves)), GUTTER + 31, 8)
        for old, new in zip(now[1:-1], later[1:-1], strict=True):
            assert old[GUTTER + 1 : -1] == new[GUTTER:-2]


def test_the_time_axis_has_round_labels_that_do_not_touch_and_keeps_its_marks() -> None:
    for seconds in (15, 60, 300, 3600, 36_000):
        for width in (60, 80, 120, 200):
            columns = plot_columns(width)
            made = plot(Curve("c", (1.0,), "x"), columns=columns, seconds=seconds)
            live = text(replace(made, marks=(Mark("checkpoint", columns // 2),)), width, 5)[-1]
            assert live[GUTTER + columns // 2] == "▲"
            assert live.endswith("now ")
            assert "▲ save" in live
            labels = [
                label.strip() for label in live.replace("▲", "─").split("─") if "ago" in label
            ]
            assert all(label.count("ago") == 1 for label in labels)
    past = text(replace(plot(columns=101), now_s=95.0), 120, 5)[-1]
    assert past.split("└")[1].split()[0] == "35s"
    for label in ("45s", "1m00s", "1m15s", "1m35s"):
        assert label in past


def test_a_view_of_the_past_shows_no_time_before_the_start() -> None:
    row = text(replace(plot(columns=101), now_s=20.0), 120, 5)[-1]
    assert "-" not in row
    assert row.rstrip().endswith("20s")
    assert row.index("15s") > row.index("0s")


@given(st.floats(1e-6, 1e15))
def test_a_round_top_holds_the_value_and_is_not_far_above(value: float) -> None:
    assert value <= nice_top(value) * (1 + 1e-9) <= 2.5 * value * (1 + 1e-6)
    assert value <= nice_top(value, "bytes") <= 2 * value


def test_scales_speak_in_their_unit() -> None:
    assert scale_label(100, "%") == "100%"
    assert scale_label(64 * GIB, "bytes") == "64.0 GiB"
    assert scale_label(0, "bytes") == "0"
    assert scale_label(2.5, "ms") == "2.5 ms"
    assert nice_top(None) == nice_top(0.0) == 1.0


def test_the_limit_is_a_rule_that_what_is_measured_covers() -> None:
    width = GUTTER + 1 + 10
    values: Values = (None,) * 5 + (80.0,) * 5
    made = replace(plot(Curve("c", values, "x"), columns=10), limit=80.0)
    row = next(line for line in text(made, width, 12) if "─" in line[GUTTER:])
    assert row[GUTTER : GUTTER + 5] == "─" * 5
    assert "─" not in row[GUTTER + 5 :]
