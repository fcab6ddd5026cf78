"""The comparison behind the harmlessness table can fail, and says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harmless_compare import Outcome, Row, compare, mask  # noqa: E402


def seen(**aspects: Any) -> dict[str, Any]:
    same = {
        "output": "out",
        "exit": 0,
        "files": {},
        "rng": [["main", {"torch": "a", "numpy": "b"}]],
    }
    same.update(parameters=[], dynamo=[], warnings=[], process=[])
    return {**same, **aspects}


def judged(plain: list[dict[str, Any]], watched: dict[str, Any]) -> Row:
    row = Row("script", outcomes=[Outcome("plain", 1.0, s) for s in plain])
    row.outcomes.append(Outcome("watched", 1.0, watched))
    compare(row)
    return row


def test_equal_runs_are_the_same() -> None:
    row = judged([seen()] * 3, seen())
    assert row.differs == [] and row.left_out is None
    assert row.cells["rng"] == "same" and row.cells["dynamo"] == "none"


@pytest.mark.parametrize(
    ("aspect", "value"),
    [
        ("output", "out!"),
        ("exit", 1),
        ("files", {"a.pt": "0"}),
        ("rng", [["main", {"torch": "a", "numpy": "c"}]]),
        ("rng", [["main", {"torch": "a"}]]),
        ("warnings", [["main", ["planted"]]]),
    ],
)
def test_one_difference_is_found(aspect: str, value: object) -> None:
    assert judged([seen()] * 3, seen(**{aspect: value})).differs == [aspect]


def test_only_what_plain_runs_agree_on_is_compared() -> None:
    plain = [seen(rng=[["main", {"torch": "a", "numpy": n}]]) for n in "bcd"]
    row = judged(plain, seen(rng=[["main", {"torch": "a", "numpy": "e"}]]))
    assert row.differs == [] and row.cells["rng"] == "same (2 of 3)"
    row = judged(plain, seen(rng=[["main", {"torch": "z", "numpy": "e"}]]))
    assert row.differs == ["rng"]
    row = judged([seen(output=n) for n in "bcd"], seen(output="e"))
    assert row.left_out == "plain runs differ in output"


def test_only_the_clock_is_masked() -> None:
    assert mask("loss 0.25 in 1.5 s") == "loss 0.25 in N s" != mask("loss 0.26 in 1.5 s")
    assert mask("step 3 (12.1 it/s)") == mask("step 3 (9 it/s)") != mask("step 4 (9 it/s)")
    bars = "  8%|x  | 1/12 [00:00<00:05, 1.9it/s]\r 16%|xx | 2/12 [00:01<00:05, 2.0it/s]loss 0.5\n"
    assert mask(bars) == "loss 0.5"
    assert mask("elapsed 3.2, lr 0.1") == "elapsed N, lr 0.1"


def test_a_script_that_knows_it_is_watched_is_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "planted.py"
    script.write_text("import sys\nprint('_gputop_probe' in sys.modules)\n")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "harmlessness.py"), str(script), "--only", "planted"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "| planted | DIFFERS | same |" in done.stdout
