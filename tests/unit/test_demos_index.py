"""One name runs any demo, in a checkout and from a wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gputop_train import demos_index

ROOT = Path(__file__).resolve().parents[2]


def test_every_script_of_the_demos_folder_is_listed_once():
    names = [demo.name for demo in demos_index.DEMOS]
    assert sorted(names) == sorted(file.stem for file in (ROOT / "demos").glob("*.py"))


@pytest.mark.parametrize("demo", demos_index.DEMOS, ids=lambda demo: demo.name)
def test_a_demo_says_in_its_own_words_what_is_wrong_and_how_to_mend_it(demo):
    docstring = demos_index.path(demo.name).read_text().split('"""')[1]
    assert "What a tool should say" in docstring
    assert ("How to mend it" in docstring) == (demo.name != "healthy")
    if demo.on_gpu is not None:
        assert demo.on_gpu in docstring


@pytest.mark.parametrize("name", ["launch_bound", "launch-bound", "launch_bound.py"])
def test_a_name_is_understood_as_people_write_it(name):
    assert demos_index.find(name).file == "launch_bound.py"
    assert demos_index.path(name).is_file()


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(demos_index.DemoError, match=r"no demo named nope.*starved"):
        demos_index.path("nope")


def test_a_script_that_is_not_installed_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(demos_index, "_FOLDERS", (tmp_path,))
    with pytest.raises(demos_index.DemoError, match="Install gputop-train again"):
        demos_index.path("starved")


def test_a_recording_is_found_where_there_is_one(monkeypatch, tmp_path):
    monkeypatch.setattr(demos_index, "_FOLDERS", (tmp_path,))
    assert demos_index.recording("starved") is None
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / "starved.zip").write_bytes(b"")
    assert demos_index.recording("starved") == tmp_path / "recordings" / "starved.zip"


def test_what_belongs_in_a_wheel_is_named_for_the_wheel():
    project = (ROOT / "pyproject.toml").read_text()
    assert '"demos" = "gputop_train/_demos"' in project


@pytest.mark.slow
def test_a_demo_is_found_in_an_installed_wheel(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "from gputop_train import demos_index; print(demos_index.path('starved'))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "site",
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == str(tmp_path / "site/gputop_train/_demos/starved.py")
