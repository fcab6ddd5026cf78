"""The linters, the type checker and the import contracts are green."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from repository import ROOT


def run(*command):
    """Run a checker of this environment in the checkout; return (exit code, output)."""
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return result.returncode, result.stdout + result.stderr


def test_ruff_finds_nothing():
    code, output = run("ruff", "check", ".")
    assert code == 0, output


def test_every_file_is_formatted():
    code, output = run("ruff", "format", "--check", ".")
    assert code == 0, output


def test_mypy_strict_finds_nothing():
    code, output = run("mypy")
    assert code == 0, output


def test_the_import_contracts_hold():
    checker = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([checker], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout
