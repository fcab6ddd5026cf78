"""The fault matrix names tests that are there, tests name rows that are there, and the docs both."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.faults.matrix import Fault, faults

TESTS = Path(__file__).resolve().parent.parent
PAGE = TESTS.parent / "docs" / "faults.md"


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if hasattr(node, "name")}


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_fault_is_shown_by_tests_that_are_there(fault: Fault) -> None:
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert (TESTS / file).is_file(), test
        assert not name or name.partition("[")[0] in functions(TESTS / file), test


def test_names_are_unique_and_rounds_are_told_of_faults_that_are_there() -> None:
    names = [fault.name for fault in faults()]
    assert len(set(names)) == len(names)
    told = {
        node.args[0].value
        for file in {TESTS / test.partition("::")[0] for fault in faults() for test in fault.tests}
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "told"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert told and told <= set(names)


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_the_documentation_has_a_row_of_it(fault: Fault) -> None:
    rows = re.findall(r"^\| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    assert fault.name in rows
