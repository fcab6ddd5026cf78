"""Where our command line ends and the script's begins, and what a wrong one is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gputop_train import cli
from gputop_train.launch.environment import ALLOCATOR_NAMES, script_environment
from gputop_train.launch.options import (
    Setting,
    Target,
    UsageProblem,
    changed_results,
    parse_setting,
    parse_settings,
    split_command_line,
)

VALUED = {"--json", "--steps", "--set", "--name"}


@pytest.mark.parametrize(
    ("given", "own", "target"),
    [
        (["train.py"], [], Target("script", ("train.py",))),
        (
            ["train.py", "--steps", "5", "--json", "x", "-h", "--"],
            [],
            Target("script", ("train.py", "--steps", "5", "--json", "x", "-h", "--")),
        ),
        (
            ["--json", "-", "train.py", "-m"],
            ["--json", "-"],
            Target("script", ("train.py", "-m")),
        ),
        (["--json=x", "a.py"], ["--json=x"], Target("script", ("a.py",))),
        (["--no-tui", "-"], ["--no-tui"], Target("script", ("-",))),
        (
            ["-m", "pkg.train", "--json", "x"],
            [],
            Target("module", ("pkg.train", "--json", "x")),
        ),
        (["-mpkg.train", "-h"], [], Target("module", ("pkg.train", "-h"))),
        (
            ["--name", "--", "--", "python", "-u", "--json"],
            ["--name", "--"],
            Target("command", ("python", "-u", "--json")),
        ),
        (["--no-tui"], ["--no-tui"], None),
        ([], [], None),
    ],
)
def test_all_from_the_scripts_name_on_is_the_scripts(
    given: list[str], own: list[str], target: Target | None
) -> None:
    assert split_command_line(given, VALUED) == (own, target)


@pytest.mark.parametrize("given", [["-m"], ["--"], ["--no-tui", "--"]])
def test_nothing_behind_the_separator_is_a_usage_error(given: list[str]) -> None:
    with pytest.raises(UsageProblem):
        split_command_line(given, VALUED)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("num_workers=4", Setting("num_workers", 4)),
        ("num_workers@train.py:41=4", Setting("num_workers", 4, "train.py:41")),
        ("num_workers@a=b/t.py:41=4", Setting("num_workers", 4, "a=b/t.py:41")),
        ("pin_memory=true", Setting("pin_memory", True)),
        ("persistent_workers=off", Setting("persistent_workers", False)),
        ("num_workers=0", Setting("num_workers", 0)),
        ("tf32=true", Setting("tf32", True)),
        ("fused=false", Setting("fused", False)),
        ("compile=yes", Setting("compile", True)),
        ("compile=reduce-overhead", Setting("compile", "reduce-overhead")),
        ("omp_threads=8", Setting("omp_threads", 8)),
    ],
)
def test_a_setting_has_a_typed_value_and_perhaps_a_place(text: str, setting: Setting) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize(
    "text",
    ["num_workers", "=4", "nonsense=4", "num_workers=four", "num_workers=-1", "batch_size=0",
     "pin_memory=maybe", "num_workers@train.py=4", "num_workers@:41=4", "num_workers=4000",
     "tf32@train.py:3=true", "omp_threads=0", "compile=fast", "compile=false", "bf16=off",
     "tf32=reduce-overhead", "prefetch_factor=0", "replay_batch=8"],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_setting(text)


def test_a_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageProblem, match="twice"):
        parse_settings(["num_workers=2", "pin_memory=1", "num_workers=4"])
    assert len(parse_settings(["num_workers=2", "num_workers@a.py:3=4"])) == 2


def test_a_what_if_is_no_setting_of_an_ordinary_run() -> None:
    with pytest.raises(UsageProblem, match="only a trial"):
        parse_setting("no_eval=true")


def allocator(environ: dict[str, str], *texts: str) -> set[str | None]:
    found = script_environment(
        environ, Path("/p"), lines=False, terminal=None, settings=parse_settings(texts)
    )
    return {found.get(name) for name in ALLOCATOR_NAMES}


def test_expandable_segments_join_the_allocator_options_that_are_there() -> None:
    given = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,"}
    asked = "expandable_segments=true"
    assert allocator({}, asked) == {"expandable_segments:True"}
    assert allocator(given, asked) == {"max_split_size_mb:128,expandable_segments:True"}
    assert allocator(given) == {"max_split_size_mb:128,", None}


@pytest.mark.parametrize("said", ["expandable_segments:False", "backend:cudaMallocAsync"])
def test_allocator_options_that_say_otherwise_are_left_alone(said: str) -> None:
    given = {"PYTORCH_ALLOC_CONF": said}
    assert allocator(given, "expandable_segments=true") == {said, None}


def test_threads_are_set_for_every_library_that_reads_them() -> None:
    found = script_environment(
        {}, Path("/p"), lines=False, terminal=None, settings=parse_settings(["omp_threads=3"])
    )
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"]) == ("3", "3")


def test_settings_that_change_what_is_computed_are_marked() -> None:
    settings = [parse_setting(t) for t in ("batch_size=8", "pin_memory=1", "num_workers@a.py:3=2")]
    assert changed_results(settings) == ["batch_size", "num_workers@a.py:3"]


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    code = left.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--stepz", "4", "train.py"),
        ("--steps", "0", "train.py"),
        ("--steps", "many", "train.py"),
        ("--overhead-budget", "0", "train.py"),
        ("--set", "nonsense=1", "train.py"),
        ("--no-tui",),
        ("--json",),
        ("--",),
        ("runs", "--nonsense"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, said = complaint(capsys, *arguments)
    assert code == 2
    assert said.startswith("gputop-train: ")
    assert said.count("\n") == 1


def test_the_version_needs_nothing_heavy() -> None:
    code = (
        "import sys\nfrom gputop_train import cli\n"
        "try:\n    cli.main(['--version'])\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "heavy = {'textual', 'numpy', 'torch', 'rich', 'sqlite3', 'msgspec'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "[]"
    assert "gputop-train" in told.stdout


def test_every_command_named_in_the_help_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    for name in cli.commands():
        assert f"\n  {name} " in said
