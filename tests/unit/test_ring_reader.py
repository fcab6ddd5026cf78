"""Reading a ring that lags, tears, vanishes or lies."""

from __future__ import annotations

import json
import multiprocessing
import os
import struct
import subprocess
import sys
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop_train.collect.ring_reader import (
    GUARD_WORDS,
    MAX_FILE_BYTES,
    Ring,
    RingError,
    rings,
)
from gputop_train.probe.ring import RingWriter

SNAPSHOT = 4096


def make(path, *, words=1 << 14, rank=-1, local_rank=-1):
    return RingWriter(
        str(path), pid=4321, start_ticks=99, rank=rank, local_rank=local_rank,
        wall_ns=10, mono_ns=20, words=words, snapshot_bytes=SNAPSHOT,
    )  # fmt: skip


@pytest.fixture
def writer(tmp_path):
    writer = make(tmp_path / "4321-99.ring")
    yield writer
    writer.close()


def test_the_header_says_who_trains(tmp_path):
    make(tmp_path / "a.ring", rank=3, local_rank=1)
    with Ring.open(tmp_path / "a.ring") as ring:
        header = ring.header
    assert (header.pid, header.start_ticks, header.rank, header.local_rank) == (4321, 99, 3, 1)
    assert (header.armed_wall_ns, header.armed_mono_ns, header.cap_words) == (10, 20, 1 << 14)


def test_a_single_process_has_no_rank(writer):
    with Ring.open(writer.path) as ring:
        assert ring.header.rank is None
        assert ring.header.local_rank is None


def test_each_word_is_delivered_once_in_order(writer):
    with Ring.open(writer.path) as ring:
        writer.write([1, 2, 3])
        assert list(ring.poll()) == [1, 2, 3]
        assert list(ring.poll()) == []
        writer.write([4])
        assert list(ring.poll()) == [4]
        assert ring.lost == 0


def test_words_survive_the_wrap_around(writer):
    with Ring.open(writer.path) as ring:
        got = []
        for start in range(0, 50_000, 3_000):
            writer.write(list(range(start, start + 3_000)))
            got += ring.poll()
    assert got == list(range(51_000))


def test_a_late_reader_recovers_the_backlog(writer):
    writer.write(list(range(1000)))
    with Ring.open(writer.path) as ring:
        assert list(ring.poll()) == list(range(1000))


def test_a_reader_may_ask_for_new_words_only(writer):
    writer.write([1, 2])
    with Ring.open(writer.path, from_oldest=False) as ring:
        writer.write([3])
        assert list(ring.poll()) == [3]


def test_an_overrun_is_counted_exactly(writer):
    with Ring.open(writer.path) as ring:
        writer.write(list(range(10)))
        first = list(ring.poll())
        for start in range(10, 40_010, 1000):
            writer.write(list(range(start, start + 1000)))
        rest = list(ring.poll())
        assert rest == list(range(40_010 - len(rest), 40_010))
        assert len(first) + len(rest) + ring.lost == 40_010


def test_slots_the_writer_may_be_writing_are_left_alone_until_it_has_finished(writer):
    for start in range(0, 40_000, 1000):
        writer.write(list(range(start, start + 1000)))
    with Ring.open(writer.path) as ring:
        assert len(ring.poll()) == (1 << 14) - GUARD_WORDS
    writer.set_state(1)
    with Ring.open(writer.path) as ring:
        assert len(ring.poll()) == 1 << 14
        assert ring.finished


def test_a_poll_does_bounded_work(writer):
    writer.write(list(range(5000)))
    with Ring.open(writer.path) as ring:
        assert len(ring.poll(limit=2000)) == 2000
        assert ring.behind == 3000
        assert list(ring.poll(limit=4000)) == list(range(2000, 5000))


def test_words_overwritten_while_they_were_copied_are_dropped_and_counted(writer):
    class Overtaken(Ring):
        def _copy(self, first, count):
            for start in range(20_000, 34_000, 1000):
                writer.write(list(range(start, start + 1000)))
            return super()._copy(first, count)

    for start in range(0, 20_000, 1000):
        writer.write(list(range(start, start + 1000)))
    with Overtaken.open(writer.path) as ring:
        words = list(ring.poll())
        assert words == list(range(20_000 - len(words), 20_000))
        assert ring.lost == 20_000 - len(words)


def _write_forever(path, ready, stop):
    writer = make(path, words=1 << 14)
    ready.set()
    at = 0
    while not stop.is_set():
        writer.write(list(range(at, at + 700)))
        at += 700
    writer.set_state(1)
    writer.close()


def test_a_writer_in_full_flight_never_yields_a_torn_or_repeated_word(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    path = tmp_path / "fast.ring"
    process = context.Process(target=_write_forever, args=(path, ready, stop))
    process.start()
    try:
        assert ready.wait(60)
        got, last = 0, -1
        with Ring.open(path) as ring:
            while got < 400_000:
                words = list(ring.poll())
                if not words:
                    continue
                assert words[0] > last
                assert words == list(range(words[0], words[0] + len(words)))
                got += len(words)
                last = words[-1]
                assert got + ring.lost == last + 1
    finally:
        stop.set()
        process.join(30)


def test_heartbeat_and_losses_of_the_probe_are_told(writer):
    with Ring.open(writer.path) as ring:
        writer.beat(123456, 7)
        assert (ring.heartbeat_ns, ring.probe_lost, ring.finished, ring.failed) == (
            123456, 7, False, False,
        )  # fmt: skip
        writer.set_state(2)
        assert ring.failed


# -- snapshot ----------------------------------------------------------------------------------


def test_the_newest_snapshot_is_read(writer):
    with Ring.open(writer.path) as ring:
        assert ring.snapshot() is None
        writer.snapshot(b'{"v": 1}')
        assert ring.snapshot() == {"v": 1}
        writer.snapshot(b'{"v": 2}')
        assert ring.snapshot() == {"v": 2}


def test_a_snapshot_being_written_is_not_read(writer):
    writer.snapshot(b'{"v": 1}')
    with open(writer.path, "r+b") as stream:
        stream.seek(4096)
        stream.write(struct.pack("<I", 5))  # odd: a write is under way
    with Ring.open(writer.path) as ring:
        assert ring.snapshot() is None


@pytest.mark.parametrize(
    "body",
    [
        b"[1, 2]",
        b'"text"',
        b"{",
        b"\xff\xfe{}",
        b"{" + b'"a":{' * 20 + b"}" * 21,
        b"[" * 3000,
        b'{"a": [[[[[[[[[[1]]]]]]]]]]}',
    ],
    ids=["list", "text", "cut", "bytes", "deep", "brackets", "deep list"],
)
def test_a_snapshot_that_is_not_what_it_should_be_is_none(writer, body):
    writer.snapshot(body)
    with Ring.open(writer.path) as ring:
        assert ring.snapshot() is None


def test_numbers_that_are_no_numbers_are_not_measured(writer):
    writer.snapshot(b'{"a": NaN, "b": 1e999, "c": ' + b"9" * 3000 + b', "d": 1.5}')
    with Ring.open(writer.path) as ring:
        assert ring.snapshot() == {"a": None, "b": None, "c": None, "d": 1.5}


def test_a_length_beyond_the_area_is_not_believed(writer):
    writer.snapshot(b'{"v": 1}')
    with open(writer.path, "r+b") as stream:
        stream.seek(4100)
        stream.write(struct.pack("<I", 0xFFFFFFFF))
    with Ring.open(writer.path) as ring:
        assert ring.snapshot() is None


# -- mailbox -----------------------------------------------------------------------------------


def test_the_control_word_reaches_the_probe(writer):
    with Ring.open(writer.path) as ring:
        assert ring.set_control(3)
        assert writer.control() == 3


def test_the_control_word_reaches_the_probe_after_the_path_was_removed(writer):
    with Ring.open(writer.path) as ring:
        os.unlink(writer.path)
        assert ring.set_control(1)
    assert writer.control() == 1


def test_a_truncated_ring_is_not_brought_back_to_life(writer):
    with Ring.open(writer.path) as ring:
        os.truncate(writer.path, 0)
        assert not ring.set_control(1)
    assert os.path.getsize(writer.path) == 0


# -- files that are not what they seem -----------------------------------------------------------


def test_a_removed_ring_can_still_be_read(writer):
    with Ring.open(writer.path) as ring:
        os.unlink(writer.path)
        writer.write([1, 2])
        assert list(ring.poll()) == [1, 2]


@pytest.mark.parametrize("size", [0, 50, 4096, 4096 + SNAPSHOT, 4096 + SNAPSHOT + 12])
def test_a_ring_truncated_under_the_reader_ends_quietly(writer, size):
    writer.write(list(range(100)))
    writer.snapshot(b'{"v": 1}')
    with Ring.open(writer.path) as ring:
        os.truncate(writer.path, size)
        words = list(ring.poll())
        assert words == list(range(len(words)))
        assert len(words) <= 1
        ring.snapshot()
        assert ring.gone == (size < 92)
        assert ring.heartbeat_ns == 0


def test_links_pipes_and_foreign_files_are_refused_in_a_sentence(tmp_path, writer):
    link = tmp_path / "link.ring"
    link.symlink_to(writer.path)
    fifo = tmp_path / "fifo.ring"
    os.mkfifo(fifo, 0o600)
    text = tmp_path / "text.ring"
    text.write_text("hello " * 2000)
    text.chmod(0o600)
    for path in (link, fifo, text, tmp_path / "absent.ring", tmp_path):
        with pytest.raises(RingError) as error:
            Ring.open(path)
        assert str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_ring_others_can_reach_is_refused(writer, mode):
    os.chmod(writer.path, mode)
    with pytest.raises(RingError, match="other users"):
        Ring.open(writer.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a file of another user")
def test_a_ring_of_another_user_is_refused(tmp_path):
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents[:3]:
        if str(parent).startswith("/tmp/"):
            os.chmod(parent, 0o755)
    writer = make(tmp_path / "a.ring")
    os.chown(writer.path, 12345, 12345)
    script = textwrap.dedent(
        """
        import os, sys
        from gputop_train.collect import ring_reader
        # A reader with the right to open any file, that is not root: the owner check must refuse.
        ring_reader.os.geteuid = lambda: 54321
        try:
            ring_reader.Ring.open(sys.argv[1])
        except ring_reader.RingError as error:
            print(error)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, writer.path], capture_output=True, text=True, timeout=60
    )
    assert "belongs to user 12345" in done.stdout, done.stderr


def patched(path, offset, raw):
    with open(path, "r+b") as stream:
        stream.seek(offset)
        stream.write(raw)


@pytest.mark.parametrize(
    ("offset", "raw"),
    [
        (0, b"GPUTOPR2"),
        (8, struct.pack("<I", 2)),
        (12, struct.pack("<I", 64)),
        (24, struct.pack("<Q", 0)),
        (24, struct.pack("<Q", 1 << 60)),
        (60, struct.pack("<I", 1 << 30)),
        (60, struct.pack("<I", 13)),
    ],
    ids=["magic", "version", "header", "no words", "huge", "snapshot", "unaligned"],
)
def test_a_header_that_does_not_fit_the_file_is_refused(writer, offset, raw):
    patched(writer.path, offset, raw)
    with pytest.raises(RingError):
        Ring.open(writer.path)


def test_a_file_far_larger_than_a_ring_is_refused(writer):
    os.truncate(writer.path, MAX_FILE_BYTES + 1)
    with pytest.raises(RingError):
        Ring.open(writer.path)


@pytest.mark.parametrize("head", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_head_that_lies_is_bounded_by_the_ring(writer, head):
    writer.write([5])
    with Ring.open(writer.path) as ring:
        patched(writer.path, 64, struct.pack("<Q", head))
        total = 0
        for _ in range(10):
            total += len(ring.poll())
        assert total <= 1 << 14


def test_a_head_that_moves_back_yields_nothing(writer):
    writer.write(list(range(100)))
    with Ring.open(writer.path) as ring:
        ring.poll()
        patched(writer.path, 64, struct.pack("<Q", 3))
        assert list(ring.poll()) == []


def test_a_position_that_was_overwritten_for_a_while_costs_nothing(writer):
    with Ring.open(writer.path) as ring:
        writer.write(list(range(1, 101)))
        assert len(ring.poll()) == 100
        for lie in (1 << 63, 3):
            patched(writer.path, 64, struct.pack("<Q", lie))
            assert list(ring.poll()) == []
            writer.write([7, 8])
            assert list(ring.poll()) == [7, 8]
        assert (ring.lost, ring.spoiled) == (0, 0)


def test_a_position_that_was_believed_and_is_taken_back_costs_no_later_word(writer):
    with Ring.open(writer.path) as ring:
        writer.write([1, 2])
        patched(writer.path, 64, struct.pack("<Q", 900))
        ring.poll()
        for _ in range(2):
            writer.write([3])
            assert list(ring.poll()) == []
        writer.write([4, 5])
        assert list(ring.poll()) == [4, 5]
        assert ring.spoiled == 1


@given(noise=st.binary(min_size=0, max_size=9000), seed=st.integers(0, 3))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_of_noise_never_does_more_than_be_refused(tmp_path, noise, seed):
    path = tmp_path / "noise.ring"
    head = struct.pack("<8sIIIiQQQQiI", b"GPUTOPR1", 1, 4096, 1, 0, 100, 0, 0, 0, 0, 64)
    body = [noise, head + noise, head + noise[:40] + noise * 3, head + b"\0" * 4000 + noise][seed]
    path.write_bytes(body)
    path.chmod(0o600)
    try:
        ring = Ring.open(path)
    except RingError:
        return
    with ring:
        for _ in range(3):
            assert len(ring.poll()) <= ring.header.cap_words
        snapshot = ring.snapshot()
        assert snapshot is None or isinstance(snapshot, dict)
        assert isinstance(ring.finished, bool)


def test_closing_twice_is_fine_and_a_closed_ring_is_gone(writer):
    ring = Ring.open(writer.path)
    ring.close()
    ring.close()
    assert ring.gone
    assert list(ring.poll()) == []
    assert not ring.set_control(1)


def test_rings_are_found_and_other_files_are_not(tmp_path, writer):
    (tmp_path / "control.sock").write_text("")
    (tmp_path / "x.ring.tmp1").write_text("")
    (tmp_path / "link.ring").symlink_to(writer.path)
    assert [path.name for path in rings(tmp_path)] == ["4321-99.ring"]
    assert rings(tmp_path / "absent") == []


def test_a_reader_that_polls_once_keeps_the_snapshot_it_parsed(writer):
    """Two polls a second over hundreds of sites: parse again only what changed."""
    writer.snapshot(json.dumps({"sites": [[1, "sync"]]}).encode())
    with Ring.open(writer.path) as ring:
        assert ring.snapshot() is ring.snapshot()
