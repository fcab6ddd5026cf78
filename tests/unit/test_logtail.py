"""The log pane's lines: what a terminal would show, bounded, from whatever a script prints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputop_train.launch.logtail import BACKLOG_BYTES, LineFolder, LogTail


def folded(*chunks: str, **options: int) -> list[str]:
    folder = LineFolder(**options)
    for chunk in chunks:
        folder.feed(chunk)
    return folder.lines()


def test_a_progress_bar_is_one_line_with_its_newest_frame():
    assert folded("\r 10%|#   ", "\r 20%|##  ", "\r100%|####\ndone\n") == ["100%|####", "done"]


def test_a_shorter_frame_overwrites_only_what_it_covers_as_a_terminal_does():
    assert folded("loss 0.123456\rloss 0.5") == ["loss 0.523456"]


def test_erase_line_clears_the_rest_of_a_longer_frame():
    assert folded("loss 0.123456\r\x1b[Kloss 0.5") == ["loss 0.5"]


def test_nested_bars_move_the_cursor_up_and_back_down():
    assert folded("epoch 1\nstep 1\x1b[A\repoch 2\nstep 9") == ["epoch 2", "step 9"]


def test_colours_titles_and_links_are_dropped():
    text = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\"
    assert folded(text) == ["red link"]


def test_a_sequence_may_be_split_at_any_byte():
    text = "a\x1b[1;31mb\x1b[0m\rc\x1b]2;t\x1b\\d\n"
    for cut in range(len(text)):
        assert folded(text[:cut], text[cut:]) == folded(text)


def test_tabs_backspaces_and_crlf_are_understood():
    assert folded("a\tb\r\nxy\bz\r\n") == ["a       b", "xz"]


def test_only_the_newest_lines_are_kept():
    assert folded("".join(f"{n}\n" for n in range(1000)), max_lines=3) == ["997", "998", "999"]


def test_an_endless_line_is_cut():
    assert folded("x" * 10_000, max_width=50) == ["x" * 50]


def test_an_unterminated_title_does_not_swallow_the_log_for_ever():
    lines = folded("\x1b]0;" + "t" * 10_000, "\nalive\n")
    assert lines[-1] == "alive"


@given(st.lists(st.text(max_size=60), max_size=20))
def test_whatever_comes_the_lines_hold_no_control_character_and_stay_bounded(chunks):
    lines = folded(*chunks, max_lines=5, max_width=20)
    assert len(lines) <= 5
    assert all(len(line) <= 20 for line in lines)
    assert not any(ord(char) < 32 or 0x7F <= ord(char) <= 0x9F for line in lines for char in line)


@given(st.binary(max_size=400))
def test_any_bytes_can_be_tailed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log") / "output.log"
    path.write_bytes(data + b"\nend\n")
    tail = LogTail(path)
    tail.poll()
    assert tail.lines()[-1].endswith("end")
    tail.close()


def test_a_growing_file_is_followed_and_a_character_split_between_polls_is_kept(tmp_path):
    path = tmp_path / "output.log"
    tail = LogTail(path)
    assert tail.poll() is False  # not there yet
    path.write_bytes("größe".encode()[:3])
    assert tail.poll() is True
    with path.open("ab") as file:
        file.write("größe\n".encode()[3:])
    tail.poll()
    assert tail.lines() == ["größe"]
    assert tail.poll() is False


def test_a_log_that_outruns_us_loses_its_middle_and_says_how_much(tmp_path):
    path = tmp_path / "output.log"
    path.write_bytes(b"first\n")
    tail = LogTail(path)
    tail.poll()
    with path.open("ab") as file:
        file.write(b"0123456789\n" * (BACKLOG_BYTES // 5) + b"last\n")
    size = path.stat().st_size
    tail.poll()
    assert tail.lines()[-2:] == ["0123456789", "last"]
    assert tail.skipped_bytes == size - len(b"first\n") - BACKLOG_BYTES


def test_an_emptied_log_starts_over(tmp_path):
    path = tmp_path / "output.log"
    path.write_bytes(b"old old old\n")
    tail = LogTail(path)
    tail.poll()
    path.write_bytes(b"new\n")
    tail.poll()
    assert tail.lines() == ["new"]


def test_a_link_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    link = tmp_path / "output.log"
    link.symlink_to(secret)
    tail = LogTail(link)
    assert tail.poll() is False
    assert tail.lines() == []
