"""The tree as a stranger finds it: short modules, honest tests, nothing of one machine."""

from __future__ import annotations

import ast
import re

from repository import PACKAGE, ROOT, imported, modules, name, text_files, tree_of

MAX_LINES = 400
DEMOS = ROOT / "demos"


def test_no_module_has_more_than_400_lines():
    long = {
        name(file): count
        for file in modules(PACKAGE, DEMOS, ROOT / "benchmarks")
        if (count := len(file.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


def test_every_module_says_what_it_is_for():
    silent = [name(f) for f in modules(PACKAGE, DEMOS) if not ast.get_docstring(tree_of(f))]
    assert silent == []


def asserts_something(function: ast.AST, helpers: frozenset[str] = frozenset()) -> bool:
    """An assert, ``pytest.raises``, a snapshot, or a call of a helper that asserts."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Raise) and "AssertionError" in ast.unparse(node):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            words = ("assert", "raises", "snap_compare", "pytest.fail")
            if any(word in called for word in words) or called.split(".")[-1] in helpers:
                return True
    return False


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def asserting_helpers() -> frozenset[str]:
    """Functions of the tests, not tests themselves, that assert."""
    return frozenset(
        function.name
        for file in modules(ROOT / "tests")
        for function in functions_of(tree_of(file))
        if not function.name.startswith("test_") and asserts_something(function)
    )


def test_every_test_can_fail():
    files = [file for file in modules(ROOT / "tests") if file.name.startswith("test_")]
    assert len(files) > 20
    helpers = asserting_helpers()
    empty = [
        f"{name(file)}:{function.lineno} {function.name}"
        for file in files
        for function in functions_of(tree_of(file))
        if function.name.startswith("test_") and not asserts_something(function, helpers)
    ]
    assert empty == []


def test_the_check_for_empty_tests_sees_one():
    tree = ast.parse("def test_a():\n    print(1)\ndef test_b():\n    assert 1\n")
    assert [asserts_something(function) for function in functions_of(tree)] == [False, True]


def test_no_file_names_the_folder_of_this_checkout_or_a_package_index():
    # A checkout near the root (/tmp/x, /x) has no parent worth looking for.
    parent = str(ROOT.parent)
    words = [re.escape(parent) + r"/(?!\s)"] if parent.count("/") > 1 else []
    words += [
        r"--(?:extra-)?index-url\s*[= ]\s*\S",
        r"PIP_(?:EXTRA_)?INDEX_URL=",
        r"://[^\s)]*/simple\b",
    ]
    pattern = re.compile("|".join(words))
    found = [
        f"{name(file)}:{number}"
        for file in text_files()
        for number, line in enumerate(
            file.read_text(encoding="utf-8", errors="replace").splitlines(), 1
        )
        if pattern.search(line)
    ]
    assert found == []


def test_demos_are_ordinary_scripts():
    strangers = [
        f"{name(file)}:{line} {module}"
        for file in modules(DEMOS)
        if file.name != "busy_neighbour.py"  # starts the neighbour
        for line, module in imported(tree_of(file))
        if module not in {"torch", "numpy", "argparse", "tempfile", "time", "pathlib"}
    ]
    assert strangers == []
    sleeping = [name(file) for file in modules(DEMOS) if "sleep" in file.read_text()]
    assert sleeping == []


def test_no_work_is_left_for_later():
    marks = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
    found = [
        f"{name(file)}:{number}"
        for file in modules(PACKAGE, DEMOS)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []
