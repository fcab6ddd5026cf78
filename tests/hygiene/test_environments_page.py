"""Each row of docs/environments.md names a test that is there, or a table of results."""

from __future__ import annotations

import re

import pytest
from repository import ROOT

PAGE = ROOT / "docs" / "environments.md"
STATUS = {"supported", "degraded", "not supported"}


def rows() -> list[list[str]]:
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[1] in STATUS | {"status"}:
            found.append(cells)
    return [cells for cells in found if cells[1] != "status"]


def is_there(file: str, name: str) -> bool:
    pattern = re.compile(rf"^(?:async )?def {name}\(", re.MULTILINE)
    return any(pattern.search(path.read_text()) for path in (ROOT / "tests").glob(f"*/{file}.py"))


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: cells[0])
def test_a_row_is_shown_by_what_is_there(cells):
    assert len(cells) == 4
    named = re.findall(r"`(test_\w+)::(test_\w+)`", cells[3])
    assert named or "(../benchmarks/results/" in cells[3]
    assert [f"{file}::{name}" for file, name in named if not is_there(file, name)] == []


def test_the_page_has_a_row_for_each_kind_of_place():
    assert len(rows()) >= 30
    assert {cells[1] for cells in rows()} == {"supported", "degraded"}
