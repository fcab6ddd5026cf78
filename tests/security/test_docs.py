"""The threat notes name a test for each claim: it must be there."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_every_test_the_threat_notes_name_exists_and_every_one_here_is_named() -> None:
    named = set(re.findall(r"`(?:tests/)?([\w/]*test_\w+\.py)`", notes()))
    assert len(named) > 25
    missing = {name for name in named if not list((REPOSITORY / "tests").rglob(Path(name).name))}
    assert not missing
    here = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).name}
    assert here <= {Path(name).name for name in named}


def notes() -> str:
    return (REPOSITORY / "docs" / "threats.md").read_text()
