"""Rows are exactly as wide as asked for and can do a terminal no harm."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from rich.cells import cell_len

from gputop_train.tui.paint import ASCII, UNICODE, clip, fit, level, meter, plain, spread, wrap

TEXT = st.text(max_size=60)
SPANS = st.lists(st.tuples(TEXT, st.sampled_from(["text", "muted", "good"])), max_size=6)
GLYPHS = st.sampled_from([UNICODE, ASCII])


@given(spans=SPANS, width=st.integers(0, 80), glyphs=GLYPHS)
@settings(max_examples=150, deadline=None)
def test_a_row_is_exactly_as_wide_as_asked_for(spans, width, glyphs) -> None:
    row = fit(spans, width, glyphs)
    assert sum(cell_len(text) for text, _ in row) == width


@given(text=st.text(max_size=80))
@settings(max_examples=150, deadline=None)
def test_no_text_can_carry_a_control_character_to_the_terminal(text: str) -> None:
    assert all(char.isprintable() for char in plain(text, UNICODE))
    assert plain(text, ASCII).isascii()


def test_an_escape_sequence_in_a_file_name_is_disarmed() -> None:
    row = fit([("train\x1b[2J\x1b]0;owned\x07.py", "text")], 40, UNICODE)
    assert "\x1b" not in "".join(text for text, _ in row)


def test_a_progress_bar_keeps_its_shape_in_ascii() -> None:
    assert plain("26%|██▌  | 3.7it/s", ASCII) == "26%|##=  | 3.7it/s"


def test_what_is_cut_shows_that_it_was_cut() -> None:
    assert clip("a long sentence", 8, UNICODE) == "a long …"
    assert clip("a long sentence", 8, ASCII) == "a long ~"
    assert clip("short", 8, UNICODE) == "short"


def test_the_right_part_of_a_row_stays_when_the_left_must_give_way() -> None:
    row = spread([("a very long left part", "text")], [("right", "good")], 14, UNICODE)
    assert "".join(text for text, _ in row) == "a very l…right"


def test_wrapping_breaks_at_blanks_and_never_loses_a_word_silently() -> None:
    assert wrap("one two three four", 9, 5, UNICODE) == ["one two", "three", "four"]
    assert wrap("one two three four", 9, 2, UNICODE) == ["one two", "three fo…"]


def test_a_share_that_is_not_zero_is_visible() -> None:
    assert level(0.0, UNICODE.lane) == " "
    assert level(0.01, UNICODE.lane) == "▁"
    assert level(1.0, UNICODE.lane) == "█"
    assert meter(0.01, 6, UNICODE) == "█     "


def test_the_two_alphabets_have_as_many_levels_and_ascii_is_ascii() -> None:
    assert len(UNICODE.levels) == len(ASCII.levels) == len(UNICODE.lane) == len(ASCII.lane)
    values = [getattr(ASCII, name) for name in ASCII.__slots__]
    assert all(value.isascii() for value in values if isinstance(value, str))
