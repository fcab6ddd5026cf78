"""Reading on from where one was gives what reading anew gives, and reads the new rows alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.model import GpmSample, GpuSample, Step, UtilSample
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter
from gputop_train.tui.recent import Recent

S = 1_000_000_000
BEGIN = 1_000 * S
CARDS = ("GPU-a", "GPU-b")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    with RunWriter(tmp_path / "run.sqlite") as made:
        yield made


def second_of(writer: RunWriter, number: int) -> None:
    """A second of a run, committed: the second card answers from the tenth second on."""
    t0 = BEGIN + number * S
    cards = CARDS if number >= 10 else CARDS[:1]
    for part in range(5):
        t1 = t0 + part * S // 5
        writer.add_steps([Step(0, number * 5 + part, t1 - S // 5, t1, {"forward": S // 5})])
        writer.add_util([UtilSample(t1 + n, card, 10.0 * part) for n, card in enumerate(cards)])
    writer.add_gpm([GpmSample(t0 + n, card, sm=50.0) for n, card in enumerate(cards)])
    writer.add_gpm([GpmSample(t0 + 7, CARDS[0])])  # a reading without SM activity
    writer.add_gpu([GpuSample(t0 + n, card, power_w=200.0) for n, card in enumerate(cards)])
    writer.commit()


def looked(recent: Recent, reader: RunReader, t0: int, t1: int) -> list[object]:
    """All that is kept, as plain values."""
    ends = [step.t1_ns for step in reader.steps(t0, t1, rank=0)][::3]
    arrays = [recent.util(reader, t0, t1), recent.gpm(reader, t0, t1)]
    return [
        recent.steps(reader, 0, t0, t1),
        sorted(recent.ending(reader, 0, ends).items()),
        recent.gpu(reader, t0, t1),
        *({card: (s.times.tolist(), s.values.tolist()) for card, s in a.items()} for a in arrays),
    ]


def test_time_goes_on_back_and_elsewhere(writer: RunWriter, tmp_path: Path) -> None:
    recent, pick = Recent(), random.Random(1)
    with RunReader(tmp_path / "run.sqlite") as reader:
        for number in range(40):
            second_of(writer, number)
            ahead = BEGIN + number * S + S  # later than what is stored: there is more to come
            t0 = max(BEGIN - S, ahead - 12 * S)
            assert looked(recent, reader, t0, ahead) == looked(Recent(), reader, t0, ahead)
            if number % 7 == 6:
                a, b = sorted(BEGIN + pick.randrange(number + 2) * S for _ in range(2))
                assert looked(recent, reader, a, b) == looked(Recent(), reader, a, b)


def test_only_what_is_new_is_read(
    writer: RunWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recent = Recent()
    read: list[int] = []
    steps = RunReader.steps

    def counted(self: RunReader, *args: int, **kwargs: int) -> list[Step]:
        found = steps(self, *args, **kwargs)
        read.append(len(found))
        return found

    with RunReader(tmp_path / "run.sqlite") as reader:
        for number in range(30):
            second_of(writer, number)
        recent.steps(reader, 0, BEGIN, BEGIN + 30 * S)
        second_of(writer, 30)
        monkeypatch.setattr(RunReader, "steps", counted)
        assert len(recent.steps(reader, 0, BEGIN + S, BEGIN + 31 * S)) == 150
        assert read == [15]  # the newest two seconds again, and the one that is new


def test_what_several_cards_say_may_be_stored_out_of_order(
    writer: RunWriter, tmp_path: Path
) -> None:
    recent = Recent()
    with RunReader(tmp_path / "run.sqlite") as reader:
        writer.add_gpu([GpuSample(BEGIN + 2 * S, CARDS[0], power_w=1.0)])
        writer.commit()
        assert len(recent.gpu(reader, BEGIN, BEGIN + 9 * S)) == 1
        writer.add_gpu([GpuSample(BEGIN + S, CARDS[1], power_w=2.0)])
        writer.commit()
        found = recent.gpu(reader, BEGIN, BEGIN + 9 * S)
        assert [sample.power_w for sample in found] == [2.0, 1.0]
