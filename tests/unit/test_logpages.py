r"""The whole log by ranges: pages follow each other, and search finds what a page would show."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_train.launch.logpages import FOLD_BYTES, LINE_BYTES, LogFile
from gputop_train.launch.logtail import LineFolder

pieces = st.lists(
    st.sampled_from(
        [
            "a",
            "Loss",
            "loss ",
            "\n",
            "\n",
            "\r\n",
            "\rit 1",
            "\x1b[31m",
            "\x1b[0m",
            "\t",
            "é",
            "\n\n",
        ]
    ),
    max_size=60,
)


def folded(text: str) -> list[str]:
    folder = LineFolder(max_lines=10_000)
    folder.feed(text)
    return folder.lines()


def written(tmp_path: Path, data: str | bytes) -> LogFile:
    path = tmp_path / "output.log"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return LogFile(path)


def texts(log: LogFile, start: int, rows: int) -> list[str]:
    return [line.text for line in log.page(start, rows).lines]


@settings(max_examples=200)
@given(parts=pieces, rows=st.integers(1, 7))
def test_pages_in_a_row_are_the_log_as_a_terminal_shows_it(
    parts: list[str], rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = "".join(parts)
    log = written(tmp_path_factory.mktemp("log"), text)
    seen, at = [], 0
    while True:
        page = log.page(at, rows)
        assert len(page.lines) <= rows
        seen += [line.text for line in page.lines]
        if page.at_end:
            break
        assert page.end > at
        at = page.end
    assert seen == folded(text)
    log.close()


@settings(max_examples=200)
@given(parts=pieces, rows=st.integers(0, 7))
def test_going_back_and_forth_meets_the_same_lines(
    parts: list[str], rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = "".join(parts)
    log = written(tmp_path_factory.mktemp("log"), text)
    whole = log.page(0, 1000).lines
    newest = [line.text for line in whole][max(0, len(whole) - rows) :]
    assert texts(log, log.last(rows), 1000) == newest
    for position, line in enumerate(whole):
        assert log.before(line.start, rows) == whole[max(0, position - rows)].start
    log.close()


@settings(max_examples=300)
@given(parts=pieces, pattern=st.sampled_from(["loss", "Loss", "it", "aa", "é"]), data=st.data())
def test_search_finds_the_nearest_line_that_shows_the_words(
    parts: list[str], pattern: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = written(tmp_path_factory.mktemp("log"), "".join(parts))
    whole = log.page(0, 1000).lines
    starts = [line.start for line in whole] or [0]
    at = data.draw(st.sampled_from(starts))
    lower = pattern == pattern.lower()
    hits = [line.start for line in whole if pattern in (line.text.lower() if lower else line.text)]
    after, before = log.find(pattern, at), log.find(pattern, at, back=True)
    assert (after and after[0]) == next((hit for hit in hits if hit >= at), None)
    assert (before and before[0]) == next((hit for hit in reversed(hits) if hit < at), None)
    log.close()


def test_an_epoch_of_a_progress_bar_is_one_line_however_long(tmp_path: Path) -> None:
    frames = b"".join(b"\repoch 1: %6d/100000 loss=0.5" % i for i in range(60_000))
    log = written(tmp_path, b"begin\n" + frames + b"\nepoch 2 begins\n")
    assert len(frames) > 10 * LINE_BYTES
    assert texts(log, 0, 10) == ["begin", "epoch 1:  59999/100000 loss=0.5", "epoch 2 begins"]
    assert log.last(2) == 6
    assert log.find("59998", 0) is None  # it has been drawn over
    assert log.find("59999", 0) == (6, 6 + len(frames) + 1)
    assert log.find("59999", log.size(), back=True) == (6, 6 + len(frames) + 1)


def test_a_printed_tensor_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = written(tmp_path, b"one\ntensor(" + b"0.5, " * 1_000_000 + b")\ntwo\n")
    shown = texts(log, 0, 10)
    assert shown[0] == "one"
    assert shown[1].startswith("tensor(0.5, 0.5")
    assert shown[2] == "two"
    assert texts(log, log.last(1), 5) == ["two"]
    assert log.before(log.last(1), 1) == 4


def test_bars_that_redraw_several_lines_are_as_many_lines(tmp_path: Path) -> None:
    frames = "".join(f"\router {i}\n\rinner {i}\x1b[A" for i in range(200))
    log = written(tmp_path, f"start\n{frames}\n\nend\n")
    assert texts(log, 0, 10) == ["start", "outer 199", "inner 199", "end"]
    assert texts(log, log.last(3), 10)[-3:] == ["outer 199", "inner 199", "end"]


def test_bars_without_an_end_take_a_bounded_read_and_can_be_passed(tmp_path: Path) -> None:
    frame = "\r" + "x" * 500 + "\n\r" + "y" * 500 + "\x1b[A"
    log = written(tmp_path, frame * (3 * FOLD_BYTES // 1000) + "\n\nend\n")
    at, turns = 0, 0
    while not (page := log.page(at, 10)).at_end:
        assert page.end - at <= FOLD_BYTES + 2 * LINE_BYTES
        at = page.end
        turns += 1
    assert turns >= 2
    assert page.lines[-1].text == "end"


def test_what_was_given_up_at_the_front_is_left_out_from_the_next_line_on(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"".join(b"line %05d\n" % i for i in range(20_000)))
    log = LogFile(path)
    assert log.first() == 0
    with path.open("r+b") as stream:
        libc = ctypes.CDLL(None, use_errno=True)
        punch = libc.fallocate
        punch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        assert punch(stream.fileno(), 3, 0, 16 * 4096) == 0, os.strerror(ctypes.get_errno())
    first = log.page(0, 3)
    assert 16 * 4096 <= first.first < 16 * 4096 + 11
    assert [line.text for line in first.lines] == [f"line {5958 + i:05d}" for i in range(3)]
    assert log.before(first.first, 5) == first.first
    assert log.find("line 00010", 0) is None
    assert log.find("line 00010", log.size(), back=True) is None


def test_a_log_that_grows_is_seen_to_its_new_end(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    log = LogFile(path)
    assert log.page(0, 5).lines == ()
    path.write_text("one\ntw")
    assert texts(log, 0, 5) == ["one", "tw"]
    with path.open("a") as stream:
        stream.write("o\nthree")
    assert texts(log, log.last(2), 5) == ["two", "three"]


def test_a_search_is_called_off(tmp_path: Path) -> None:
    log = written(tmp_path, b"x\n" * 2_000_000)
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(len(asked) == 2)
        return asked[-1]

    assert log.find("nowhere", 0, cancelled=cancelled) is None
    assert len(asked) == 3


def test_links_and_missing_files_are_empty(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    for name in ("link", "nothing"):
        log = LogFile(tmp_path / name)
        assert log.page(0, 5).lines == ()
        assert log.find("secret", 0) is None
        assert log.last(5) == 0
