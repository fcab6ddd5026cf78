"""A run without a ring gets the right reason."""

from __future__ import annotations

import pytest

from gputop_train.launch.noring import Absence, Interpreter, blinding_flag, explain


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["python", "train.py"], None),
        (["python", "-I", "train.py"], "-I"),
        (["python", "-uE", "train.py"], "-E"),
        (["python", "-S", "-m", "train"], "-S"),
        (["python", "train.py", "-I"], None),
        (["python", "-m", "train", "-E"], None),
        (["python", "-c", "print()", "-S"], None),
        (["python", "-W", "ignore", "-I", "train.py"], "-I"),
        (["python", "-Wignore", "-I", "train.py"], "-I"),
        (["python", "-X", "dev", "train.py", "-I"], None),
        (["python"], None),
    ],
)
def test_only_the_interpreters_own_options_count(argv, flag):
    assert blinding_flag(argv) == flag


def python(*argv: str, path: bool | None = True, torch: bool | None = True) -> Interpreter:
    return Interpreter(("python", *argv), path, torch)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "No Python process"),
        ([python("-I", "train.py")], "-I"),
        ([python("train.py", path=False)], "PYTHONPATH"),
        ([python("train.py", torch=False)], "has loaded torch"),
        ([python("train.py")], "no backward pass or optimizer step"),
        ([python("a.py", path=False), python("b.py")], "no backward pass"),
        ([python("train.py", path=None, torch=None)], "has loaded torch"),
    ],
)
def test_the_reason_is_named(found, words):
    assert words in explain(found)


def test_nothing_is_said_before_patience_runs_out_and_then_once():
    absence = Absence(sid=2**22, due_ns=1000)
    assert absence.explain(999) is None
    assert absence.explain(1000) is not None
    assert absence.explain(1001) is None, "it is said again and again"
