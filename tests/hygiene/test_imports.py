"""The core knows no screen and no torch: shown by importing it, not only by reading it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from repository import PACKAGE, ROOT, modules, name

#: Heavy packages that only some corners may load.
_CODE = """
import importlib, json, sys
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
print(json.dumps(sorted(set(sys.modules) & {"textual", "torch", "pynvml"})))
"""


def dotted(file):
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def importable(*outside):
    """Every module of the package but the probe (it runs elsewhere) and those outside."""
    left_out = {"probe", "_demos", *outside}
    return [
        dotted(file)
        for file in modules(PACKAGE)
        if file.name != "__main__.py" and not left_out & set(file.relative_to(PACKAGE).parts)
    ]


def loaded_by(names):
    result = subprocess.run(
        [sys.executable, "-c", _CODE, json.dumps(names)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(result.stdout.splitlines()[-1])


def test_the_core_imports_without_textual_and_without_torch():
    names = importable("tui")
    assert len(names) > 20
    assert loaded_by(names) == []


def test_the_screen_imports_without_torch():
    assert loaded_by(importable()) == ["textual"]


def test_the_screen_appears_before_what_reads_a_store_is_loaded():
    code = (
        "import json, sys, gputop_train.tui.app\n"
        "late = {'numpy', 'sqlite3', 'gputop_train.tui.source', 'gputop_train.tui.screens.steps'}\n"
        "print(json.dumps(sorted(late & set(sys.modules))))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert json.loads(result.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["runs", "--help"]])
def test_a_command_that_shows_no_screen_loads_neither(arguments):
    code = (
        "import sys\n"
        "from gputop_train.cli import main\n"
        "sys.argv = ['gputop-train', *sys.argv[1:]]\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print(sorted(set(sys.modules) & {'textual', 'torch'}))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]", name(PACKAGE)
