"""Torch's optimizers go round our wrappers, compute the same, and are given back untouched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils

from gputop_train.probe import bypass


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """``Tensor.item`` and ``no_grad`` with wrappers that count, and their originals."""
    calls: dict[str, Any] = {"item": 0, "enter": 0}
    item, no_grad = torch.Tensor.item, torch.no_grad
    enter, leave = no_grad.__enter__, no_grad.__exit__

    def counted_item(self: Any, *args: Any) -> Any:
        calls["item"] += 1
        return item(self, *args)

    def counted_enter(self: Any) -> Any:
        calls["enter"] += 1
        return enter(self)

    monkeypatch.setattr(torch.Tensor, "item", counted_item)
    monkeypatch.setattr(no_grad, "__enter__", counted_enter)
    monkeypatch.setattr(bypass, "_over", [False])
    calls["originals"] = (item, enter, leave)
    yield calls
    bypass.drop()


def place(calls: dict[str, Any]) -> None:
    item, enter, leave = calls["originals"]
    bypass.reads(torch, item)
    bypass.contexts(torch.no_grad, enter, leave)


def train(calls: dict[str, Any]) -> tuple[list[float], int, int]:
    """Parameters after three steps of Adam over many tensors, and what was counted meanwhile."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    adam = torch.optim.Adam(model.parameters(), foreach=True)
    calls["item"] = calls["enter"] = 0
    for _ in range(3):
        adam.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        adam.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return weights, calls["item"], calls["enter"]


def test_steps_meet_no_wrapper_and_compute_the_same(wrapped: dict[str, Any]) -> None:
    before, reads, entered = train(wrapped)
    assert reads and entered
    place(wrapped)
    assert train(wrapped) == (before, 0, 0)
    bypass.drop()
    assert train(wrapped) == (before, reads, entered)


def test_everything_is_as_it_was_once_dropped_and_stays_so(wrapped: dict[str, Any]) -> None:
    def state() -> list[Any]:
        cells = [
            type(getattr(cell.cell_contents, "__self__", None))
            for function in vars(_foreach_utils).values()
            for cell in getattr(function, "__closure__", None) or ()
        ]
        return [optimizer._get_value, sys.modules["torch.optim.adam"]._get_value, *cells]

    before = state()
    place(wrapped)
    assert all(then is not now for then, now in zip(before[:2], state()[:2], strict=True))
    assert len(set(state()) - set(before)) > 1
    bypass.drop()
    assert state() == before
    place(wrapped)
    assert state() == before


def test_a_read_it_does_not_know_goes_the_old_way(wrapped: dict[str, Any]) -> None:
    class Own(torch.Tensor):
        pass

    place(wrapped)
    assert optimizer._get_value(torch.tensor(2.5)) == 2.5 and wrapped["item"] == 0
    assert optimizer._get_value(torch.tensor(2.5).as_subclass(Own)) == 2.5
    assert wrapped["item"] > 0
    assert optimizer._get_value(7) == 7
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements"):
        optimizer._get_value(torch.ones(2))


def test_a_method_that_the_script_put_there_is_called(
    wrapped: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place(wrapped)
    monkeypatch.setattr(torch.Tensor, "item", lambda self: "theirs")
    assert optimizer._get_value(torch.tensor(1.0)) == "theirs"


def test_grouping_still_runs_without_gradients(wrapped: dict[str, Any]) -> None:
    place(wrapped)
    seen: list[bool] = []

    class Looks(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(torch.is_grad_enabled())
            return func(*args, **(kwargs or {}))

    with Looks():
        _foreach_utils._group_tensors_by_device_and_dtype([[torch.ones(1)]])
    assert torch.is_grad_enabled() and seen[-1] is False
