"""Which reads of a GPU value may be left out, judged by the source: those that steer nothing."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from gputop_train.probe import sites
from gputop_train.probe.whatifs.callees import Callees
from gputop_train.probe.whatifs.source import Source, called
from gputop_train.probe.whatifs.steering import Judge, Lookup, Steered, needs_no_grad

TOLD = {
    "printed": "print(loss.item())",
    "formatted": "print(f'{step}: {loss.item():.3f}')",
    "summed": "total += loss.item()\nprint(total / 10)",
    "kept": "losses.append(loss.item())\nprint(sum(losses), len(losses) > 3)\n"
    "if len(losses) >= 100: losses.clear()",
    "in a bar": "for x in bar:\n    bar.set_postfix(loss=loss.item())",
    "in a dict": "row = {'loss': loss.item()}\nrow['step'] = step\nlog.write(row)",
    "asked for": "last = loss.item()\nif last is not None: print(last)",
    "in a branch that others decide": "if step % 10 == 0:\n    print(loss.item())",
    "one of two": "print(loss.item() if step else 0.0)",
    "each of several": "print([one.item() for one in losses])",
    "unpacked": "a, b = loss.cpu(), loss.item()\nprint(a, b)",
    "iterated": "for value in loss.item(): print(value)",
    "as an attribute": "self.last = loss.item()\nprint(self.last)",
    "returned to who prints": "def read(): return loss.item()\nprint(read())",
    "handed to who prints": "def tell(a, b): print(a, b)\ntell(1, loss.item())",
    "handed to a class": "class Row:\n    def __init__(self, a): print(a)\nRow(loss.item())",
    "assert's words": "assert step, loss.item()",
    "a name that another function tests": "value = loss.item()\n"
    "def other():\n    value = 3\n    if value: print()",
    "a test in a function without it": "def a():\n    x = loss.item()\n    print(x)\n"
    "def b(x):\n    while x: pass",
}
STEERS = {
    "if": "if loss.item() > 3: pass",
    "bare if": "if loss.item(): pass",
    "while": "while loss.item() > 3: pass",
    "not": "print(not loss.item())",
    "ternary": "x = 1 if loss.item() else 2",
    "assert": "assert loss.item()",
    "comparison": "good = loss.item() < 3",
    "and": "print(step and loss.item())",
    "comprehension's test": "print([x for x in xs if loss.item()])",
    "index": "print(xs[loss.item()])",
    "slice": "print(xs[: loss.item()])",
    "range": "for i in range(loss.item()): pass",
    "range of a sum": "for i in range(3 + int(loss.item())): pass",
    "key": "row = {loss.item(): 1}",
    "shape": "x = torch.zeros(loss.item())",
    "scheduler": "scheduler.step(loss.item())",
    "a later test": "value = loss.item()\nif value < best: pass",
    "an earlier test": "while value < best:\n    value = loss.item()",
    "a test of the sum": "total += loss.item()\nmean = total / 3\nif mean < best: pass",
    "a test of what was kept": "losses.append(loss.item())\nif min(losses[-3:]) < 1: pass",
    "a test of what was kept in a dict": "row['loss'] = loss.item()\nif row['loss'] < 1: pass",
    "a test of what was made of it": "bad = math.isnan(loss.item())\nif bad: pass",
    "a test of an attribute": "self.last = loss.item()\nif self.last > 3: pass",
    "a meter that is asked": "meter.update(loss.item())\nif meter.avg < best: pass",
    "walrus": "print(x := loss.item())\nif x: pass",
    "tuple": "a, b = 1, loss.item()\nif b > 1: pass",
    "iterated and tested": "for value in loss.item():\n    if value: pass",
    "returned to who tests": "def read(): return loss.item()\nif read() > 3: pass",
    "returned to nobody here": "def read(): return loss.item()",
    "handed on": "def read(): return loss.item()\noptimizer.step(read)",
    "a property": "class A:\n    @property\n    def last(self): return loss.item()\n"
    "if a.last > 3: pass",
    "handed to who tests": "def tell(a, b):\n    if b: print(a)\ntell(1, loss.item())",
    "handed by name": "def tell(a, b):\n    if b: print(a)\ntell(1, b=loss.item())",
    "handed to a method": "class A:\n    def tell(self, a):\n        self.a = a\n"
    "    def late(self):\n        return 1 if self.a > 3 else 2\nA().tell(loss.item())",
    "a global": "def read():\n    global value\n    value = loss.item()\n"
    "def other():\n    if value: pass",
    "a closure": "def read():\n    value = loss.item()\n    def inner():\n        if value: pass",
    "lambda": "f = lambda: loss.item()",
    "yield": "def f():\n    yield loss.item()",
}


def verdict(source: Source, call: ast.Call, lookup: Lookup = lambda node: None) -> str | None:
    try:
        Judge(source, lookup).judge(call)
    except Steered as why:
        return str(why)
    return None


def judged(text: str, tmp_path: Path) -> str | None:
    path = tmp_path / "train.py"
    path.write_text(text)
    source = Source(str(path))
    return verdict(source, next(c for c in source.calls if called(c) == "item"))


@pytest.mark.parametrize("text", TOLD.values(), ids=TOLD)
def test_a_value_that_is_only_told_may_be_left_out(text: str, tmp_path: Path) -> None:
    assert judged(text, tmp_path) is None


@pytest.mark.parametrize("text", STEERS.values(), ids=STEERS)
def test_a_value_that_steers_is_refused_with_its_reason(text: str, tmp_path: Path) -> None:
    assert judged(text, tmp_path)


def test_the_reason_names_the_line_that_decides(tmp_path: Path) -> None:
    why = judged("value = loss.item()\nprint(value)\nif value < 3: pass", tmp_path)
    assert why == "its value decides a test in line 3"


@pytest.mark.skipif(sys.version_info < (3, 10), reason="match came with 3.10")
def test_a_match_is_a_test(tmp_path: Path) -> None:
    text = "match loss.item():\n    case 1: pass"
    assert judged(text, tmp_path) == "its value decides a test in line 1"


HELPER = """
class Stopper:
    def __call__(self, value):
        if value > 3: raise SystemExit
    def note(self, value):
        self.value = value
def note(value): print(value)
"""
CALLS = {
    "a global object": (
        "made(loss.item())",
        "its value decides a test in steering_helper.py, line 4",
    ),
    "a function of a module": ("steering_helper.note(loss.item())", None),
    "its class, called": ("steering_helper.Stopper(loss.item())", None),
    "a network": ("net(loss.item())", "its value goes into a module in line 1"),
    "a local object": (
        "def main():\n    stop = steering_helper.Stopper()\n    stop(loss.item())",
        "its value decides a test in steering_helper.py, line 4",
    ),
    "a method of a local object": (
        "def main():\n    stop: object = steering_helper.Stopper()\n    stop.note(loss.item())",
        None,
    ),
    "an attribute of self": (
        "class Loop:\n    def __init__(self):\n        self.stop = steering_helper.Stopper()\n"
        "    def run(self):\n        self.stop(loss.item())",
        "its value decides a test in steering_helper.py, line 4",
    ),
    "a local network": (
        "def main():\n    model = Net()\n    model(loss.item())",
        "its value goes into a module in line 3",
    ),
    "nobody knows what": ("def main(stop):\n    stop(loss.item())", None),
}


@pytest.mark.parametrize(("text", "why"), CALLS.values(), ids=CALLS)
def test_what_another_file_of_the_script_does_with_it_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str | None
) -> None:
    (tmp_path / "steering_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "steering_helper", raising=False)
    module = importlib.import_module("steering_helper")
    (tmp_path / "train.py").write_text(text)
    source = Source(str(tmp_path / "train.py"))
    # A complex number stands for a network.
    names = {"steering_helper": module, "made": module.Stopper(), "net": 0j, "Net": complex}
    callees = Callees(source, names, sites.is_library, complex)
    call = next(c for c in source.calls if called(c) == "item")
    assert verdict(source, call, callees) == why
    monkeypatch.delitem(sys.modules, "steering_helper")


def test_calls_are_found_by_their_instruction_else_by_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("seen = [(a\n  .item()), b.item()]\n")
    source = Source(str(path))
    code = compile(path.read_text(), str(path), "exec")
    by_line = source.calls_at(object(), 0, 2, "item")
    assert len(by_line) == 2
    if not hasattr(code, "co_positions"):
        pytest.skip("instructions have no columns before Python 3.11")
    places = [p for p in enumerate(code.co_positions()) if p[1][1] is not None]
    ends = {call.end_col_offset: call for call in by_line}
    for column, call in ends.items():
        last = next(i * 2 for i, p in places if (p[1], p[3]) == (2, column))
        assert source.calls_at(code, last, 2, "item") == [call]


def test_a_copy_that_is_read_at_once_needs_no_gradient(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("loss.cpu().item()\nloss.cpu()")
    source = Source(str(path))
    told = {c.lineno: needs_no_grad(source, c) for c in source.calls if called(c) == "cpu"}
    assert told == {1: True, 2: False}


def test_a_source_that_cannot_be_read_or_parsed_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.py cannot be read"):
        Source(str(tmp_path / "none.py"))
    (tmp_path / "broken.py").write_text("def")
    with pytest.raises(ValueError, match=r"broken\.py cannot be parsed"):
        Source(str(tmp_path / "broken.py"))
