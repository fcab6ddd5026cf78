"""output.log stays bounded while the script goes on appending to it."""

from __future__ import annotations

import os

from gputop_train.launch.outputlog import LogBound

MIB = 1024 * 1024


def append(path, size: int, byte: bytes) -> None:
    with path.open("ab") as file:
        file.write(byte * size)
        file.flush()
        os.fsync(file.fileno())


def test_the_oldest_text_is_given_back_to_the_disk_and_the_newest_stays(tmp_path):
    path = tmp_path / "output.log"
    append(path, 3 * MIB, b"a")
    bound = LogBound(path, limit_bytes=MIB, slack=0)
    append(path, MIB, b"b")
    blocks_before = path.stat().st_blocks
    assert bound.enforce() == 3 * MIB
    assert bound.dropped_bytes == 3 * MIB
    assert path.stat().st_size == 4 * MIB, "the child's offsets must not move"
    assert blocks_before - path.stat().st_blocks >= 2 * MIB // 512, "no disk space came back"
    assert path.read_bytes()[-MIB:] == b"b" * MIB
    append(path, 5, b"c")
    assert path.read_bytes()[-6:] == b"bccccc"


def test_a_log_within_its_bound_is_left_alone(tmp_path):
    path = tmp_path / "output.log"
    append(path, MIB, b"a")
    bound = LogBound(path, limit_bytes=MIB)
    assert bound.enforce() == 0
    assert path.read_bytes() == b"a" * MIB


def test_the_loss_is_counted_over_several_rounds_and_by_a_new_supervisor(tmp_path):
    path = tmp_path / "output.log"
    append(path, 2 * MIB, b"a")
    bound = LogBound(path, limit_bytes=MIB, slack=0)
    bound.enforce()
    append(path, MIB, b"b")
    assert bound.enforce() == MIB
    assert bound.dropped_bytes == 2 * MIB
    assert LogBound(path, limit_bytes=MIB, slack=0).dropped_bytes == 2 * MIB


def test_a_log_emptied_by_hand_starts_a_new_count(tmp_path):
    path = tmp_path / "output.log"
    append(path, 2 * MIB, b"a")
    bound = LogBound(path, limit_bytes=MIB, slack=0)
    bound.enforce()
    path.write_bytes(b"fresh\n")
    assert bound.enforce() == 0
    assert bound.dropped_bytes == 0
    assert path.read_bytes() == b"fresh\n"
