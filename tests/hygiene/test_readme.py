"""What README promises is what CI runs, and what it points at is there."""

from __future__ import annotations

import re
import subprocess

import pytest
from repository import ROOT, name, readme_commands

CI = ROOT / ".ci" / "run"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_readme_gives_one_command_for_the_main_job_and_one_for_the_tests():
    commands = readme_commands()
    assert set(commands) == {"demo", "test"}
    assert all("\n" not in command for command in commands.values())


def test_ci_runs_the_very_command_readme_gives():
    line = next(x for x in CI.read_text().splitlines() if x.startswith("command="))
    printed = subprocess.run(
        ["bash", "-c", f'{line}\nprintf "%s" "$command"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == readme_commands()["test"]
    assert 'eval "$command"' in CI.read_text().splitlines()


@pytest.mark.parametrize("key", ["demo", "test"])
def test_a_command_makes_its_own_environment_and_pins_torch(key):
    command = readme_commands()[key]
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    # An open range would download gigabytes of another build.
    assert re.findall(r"'torch[^']*'", command) == ["'torch==2.13.0'"]


def test_the_main_job_is_shown_on_a_demo_that_is_there():
    script = readme_commands()["demo"].split()[-1]
    assert (ROOT / script).is_file()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_a_page_points_at_is_there(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    absent = [target for target in targets if not (page.parent / target).exists()]
    assert absent == []


def test_every_page_of_the_documentation_is_in_its_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages == {page for page in pages if f"]({page})" in index}


def test_the_version_is_written_in_one_place():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project
    assert not re.search(r'^version\s*=\s*"', project, re.MULTILINE)
