"""How many samples a batch is told to have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gputop_train.probe.hooks import loader
from gputop_train.probe.state import S


class Shape:
    """All that is looked at of a tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = type("quiet", (), {"__enter__": lambda self: None, "__exit__": lambda *a: None})
    monkeypatch.setattr(S, "torch", SimpleNamespace(_C=SimpleNamespace(DisableTorchFunction=quiet)))


def size(batch: Any, **given: Any) -> int:
    row = {"batches": 0, "_next": 0, "_size": 0, "_looked": 0, "_shapes": set()}
    row |= {"batch_size": None, "dataset_length": None} | given
    return loader._size(row, batch)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 7_000),  # a stream of batches: what its tensor tells
        ({"batch_size": 96}, 96),  # nodes of graphs are no samples
        ({"batch_size": 96, "dataset_length": 10_000}, 96),
        ({"batch_size": 10_000, "dataset_length": 7_000}, 7_000),  # never a whole batch
        ({"batch_size": "many"}, 7_000),  # a loader of somebody's own
    ],
)
def test_a_loaders_own_number_goes_before_a_tensors_shape(
    given: dict[str, Any], expected: int
) -> None:
    assert size([Shape(7_000, 3), Shape(2, 9_000)], **given) == expected


def test_shapes_are_looked_at_all_the_same() -> None:
    row: dict[str, Any] = {"batches": 0, "_next": 0, "_size": 0, "_looked": 0, "_shapes": set()}
    row |= {"batch_size": 96, "dataset_length": None}
    loader._size(row, Shape(7, 3))
    assert row["_shapes"] == {(7, 3)}
    assert row["_looked"] == 1
