"""A function whose calls are asked for first: it does what it did, and is afterwards what it was."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import pytest

from gputop_train.probe.whatifs import trampoline


class Base:
    def go(self) -> int:
        return 1


class Derived(Base):
    def go(self, x: int = 2, *, y: int = 3) -> int:
        return super().go() + x + y


def closure() -> Any:
    zeta, alpha = 5, 7

    def inside(a: int, /, b: int = 1, *c: int, d: int = 2, **e: int) -> Any:
        return alpha, zeta, a, b, c, d, e

    return inside


def fails(x: int) -> int:
    if x:
        raise KeyError(x)
    return x


def asked_first(function: Any, asked: list[Any]) -> Any:
    def ask(*args: Any, **kwargs: Any) -> Any:
        asked.append((args, kwargs))
        return original(*args, **kwargs)

    original = trampoline.turn_to(function, ask)
    return original


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (Derived.go, lambda function: function(Derived(), 1)),
        (Derived.go, lambda function: Derived().go(y=9)),
        (closure(), lambda function: function(1, 2, 3, d=4, f=5)),
        (closure(), lambda function: function(1)),
    ],
)
def test_it_does_what_it_did_and_is_afterwards_what_it_was(function: Any, call: Any) -> None:
    code, wanted, asked = function.__code__, call(function), []
    original = asked_first(function, asked)
    assert call(function) == wanted and len(asked) == 1
    assert trampoline.as_it_was(function) is original
    trampoline.turn_back(function, original)
    assert call(function) == wanted and len(asked) == 1
    assert function.__code__ is code and trampoline.as_it_was(function) is function


def test_it_is_the_same_object_to_pickle_and_fails_in_its_own_frames() -> None:
    original = asked_first(fails, [])
    try:
        assert pickle.loads(pickle.dumps(fails)) is fails
        with pytest.raises(KeyError) as raised:
            fails(3)
    finally:
        trampoline.turn_back(fails, original)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names == ["test_it_is_the_same_object_to_pickle_and_fails_in_its_own_frames", "fails"]
