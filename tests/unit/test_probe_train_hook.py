"""``Module.train`` is hooked between ``eval()`` and ``train()``, and in the end for good."""

from __future__ import annotations

from typing import Any

import pytest

from gputop_train.probe.hooks import evaluate
from gputop_train.probe.state import S, ident, log
from gputop_train.probe.words import EVAL


class Module:
    def train(self, mode: bool = True) -> Module:
        self.mode = mode
        return self


def test_a_loop_that_evaluates_in_every_step_does_not_change_the_class_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original: Any = Module.train
    monkeypatch.setattr(evaluate, "_changes", [0])
    monkeypatch.setattr(evaluate, "_open", [False])
    monkeypatch.setattr(S, "thread_id", ident())
    log.clear()
    module, classes = Module(), []
    for _ in range(3 * evaluate.MAX_CHANGES):
        evaluate._open[0] = True
        evaluate._watch_train(Module)
        assert module.train() is module and module.mode is True
        assert not evaluate._open[0]
        classes.append(Module.train)
    ends = [word for word in log if word & 63 == EVAL * 2 + 1]
    assert len(ends) == 3 * evaluate.MAX_CHANGES
    assert classes[0] is original
    assert len(set(classes[evaluate.MAX_CHANGES :])) == 1
    assert classes[-1].__wrapped__ is original  # one wrapper, not one around another
    module.train(False)
    assert module.mode is False
    log.clear()
    Module.train = original  # type: ignore[method-assign]
