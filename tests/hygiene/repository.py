"""The checkout as data for the tests of its hygiene."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gputop_train"
PROBE = PACKAGE / "probe"

#: Binary files and pictures are not read as text.
_BINARY = {".png", ".svg", ".zip", ".sqlite", ".pdf"}


def modules(*folders: Path) -> list[Path]:
    """Python files below these folders."""
    return sorted(
        file
        for folder in folders
        for file in folder.rglob("*.py")
        if "__pycache__" not in file.parts
    )


def text_files() -> list[Path]:
    """Every text file git knows; every file of the project where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0 and listed.stdout:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        files = [f for f in ROOT.rglob("*") if not any(p.startswith(".") for p in f.parts)]
    return [f for f in files if f.is_file() and f.suffix not in _BINARY]


def name(file: Path) -> str:
    """How a failing test names a file."""
    return str(file.relative_to(ROOT))


def tree_of(file: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(file.read_text(encoding="utf-8"), filename=name(file))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, top-level module) of every absolute import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]


def readme_commands() -> dict[str, str]:
    """The commands README promises, by the name in the comment before each block of code."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- command: (\w+) -->\s*```(?:bash|sh)\n(.*?)\n```", text, re.DOTALL)
    return {key: block.strip() for key, block in blocks}
