"""The probe runs inside other people's interpreters: it must import and parse there."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize

import pytest
from repository import PROBE, modules, name, tree_of
from repository import imported as imports_of

BOOTSTRAP = PROBE / "bootstrap" / "sitecustomize.py"
#: The watched script's own torch is patched, never brought along; the probe's name once copied.
ALLOWED = {"torch", "_gputop_probe", "sitecustomize"}


def test_the_probe_has_modules_and_a_bootstrap():
    assert BOOTSTRAP.is_file()
    assert len(modules(PROBE)) > 5


def test_the_probe_imports_the_standard_library_only():
    strangers = [
        f"{name(file)}:{line} {module}"
        for file in modules(PROBE)
        for line, module in imports_of(tree_of(file))
        if module not in sys.stdlib_module_names | ALLOWED
    ]
    assert strangers == []


def test_the_probe_imports_torch_only_inside_functions():
    early = []
    for file in modules(PROBE):
        for node in tree_of(file).body:
            wanted = [m for _, m in imports_of(node)] if not _is_definition(node) else []
            early += [name(file)] if "torch" in wanted and not _for_types(node) else []
    assert early == []


def _is_definition(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef))


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@pytest.mark.parametrize("file", modules(PROBE), ids=name)
def test_every_module_of_the_probe_parses_as_python_3_9(file):
    source = file.read_text(encoding="utf-8")
    assert ast.parse(source, filename=name(file), feature_version=(3, 9))
    assert newer_than_3_9(ast.parse(source)) == []


def newer_than_3_9(tree: ast.Module) -> list[str]:
    """Constructs ``feature_version`` lets through that 3.9 would fail on when they run."""
    lazy = any(
        isinstance(n, ast.ImportFrom) and n.module == "__future__" and _names(n, "annotations")
        for n in tree.body
    )
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):
            found.append(f"line {node.lineno}: match")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and not lazy:
            if "None" in (ast.unparse(node.left), ast.unparse(node.right)):
                found.append(f"line {node.lineno}: a union with None")
        elif isinstance(node, ast.keyword) and node.arg in ("slots", "kw_only"):
            found.append(f"line {node.lineno}: dataclass({node.arg}=)")
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            found.append(f"line {node.value.lineno}: zip(strict=)")
    return found


def _names(node: ast.ImportFrom, wanted: str) -> bool:
    return any(alias.name == wanted for alias in node.names)


def test_the_check_for_newer_syntax_can_fail():
    source = "import dataclasses\nx: int | None = 1\nfor a in zip([], [], strict=True): pass\n"
    assert len(newer_than_3_9(ast.parse(source))) == 2


#: What Python 2.7 cannot read. Leaking into one must not print a SyntaxError at its every start.
_NOT_IN_2_7 = (
    ast.JoinedStr, ast.AnnAssign, ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith,
    ast.Nonlocal, ast.NamedExpr, ast.YieldFrom, ast.Starred, ast.Match,
)  # fmt: skip


def unreadable_in_2_7(source: str) -> list[str]:
    """Every construct of a file that Python 2.7's grammar does not have."""
    found = []
    if not source.isascii():
        found.append("characters beyond ASCII without a coding line")
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, _NOT_IN_2_7):
            found.append(f"line {line}: {type(node).__name__}")
        elif isinstance(node, ast.FunctionDef):
            arguments = node.args
            if node.returns or any(a.annotation for a in [*arguments.args, *arguments.kwonlyargs]):
                found.append(f"line {line}: an annotation")
            if arguments.kwonlyargs or arguments.posonlyargs:
                found.append(f"line {line}: keyword-only or positional-only arguments")
        elif isinstance(node, ast.ClassDef) and node.keywords:
            found.append(f"line {line}: a class with keywords")
        elif isinstance(node, ast.Raise) and node.cause is not None:
            found.append(f"line {line}: raise ... from")
        elif isinstance(node, ast.Name) and node.id == "print":
            found.append(f"line {line}: print, which is a statement there")
        elif isinstance(node, ast.Call) and ast.unparse(node) == "super()":
            found.append(f"line {line}: super() without arguments")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    numbers = [t for t in tokens if t.type == tokenize.NUMBER and "_" in t.string]
    return found + [f"line {t.start[0]}: a number with underscores" for t in numbers]


def test_the_bootstrap_can_be_read_by_python_2_7():
    assert unreadable_in_2_7(BOOTSTRAP.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    ["f'{1}'", "x: int = 1", "def f(a: int): pass", "def f(*, a): pass", "print(1)",
     "raise ValueError from None", "n = 1_000", "class A(metaclass=type): pass", "u = 'é'"],
)  # fmt: skip
def test_the_check_for_python_2_7_sees(line):
    assert unreadable_in_2_7(line) != []


def test_the_bootstrap_does_nothing_without_a_configuration_beside_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BOOTSTRAP.read_text(encoding="utf-8"))
    code = "import sys; print(sorted(m for m in sys.modules if 'gputop' in m or m == 'torch'))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
