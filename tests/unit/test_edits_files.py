"""Files of the user's: which are changed, how, and which are left alone."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from gputop_train.edits import diff, files
from gputop_train.edits.errors import EditError

TEXT = "a = 1\nb = 2\n"


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(TEXT)
    return file


def refused(file):
    with pytest.raises(EditError) as problem:
        files.read(file)
    said = str(problem.value)
    assert said.endswith(".") and "Traceback" not in said
    return said


def test_a_file_that_is_absent_a_folder_a_pipe_or_unreadable_is_refused(tmp_path, script):
    assert "is not on this machine" in refused(tmp_path / "absent.py")
    assert "is not a regular file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    assert "is not a regular file" in refused(tmp_path / "pipe.py")
    if os.geteuid() != 0:
        script.chmod(0)
        assert "cannot be read" in refused(script)


def test_links_are_not_followed_and_not_split(tmp_path, script):
    (tmp_path / "soft.py").symlink_to(script)
    assert "is a symbolic link" in refused(tmp_path / "soft.py")
    os.link(script, tmp_path / "hard.py")
    assert "2 hard links" in refused(script)


def test_a_link_among_the_folders_is_fine(tmp_path, script):
    (tmp_path / "home").symlink_to(tmp_path)
    assert files.read(tmp_path / "home" / "train.py").text == TEXT


@pytest.mark.parametrize(
    "content",
    [
        b"# -*- coding: latin-1 -*-\na = '\xe9'\n",
        b"a = '\xe9'\n",
        b"# coding: klingon\n",
        "a".encode("utf-16"),
    ],
)
def test_what_is_not_utf8_is_refused(script, content):
    script.write_bytes(content)
    assert "not in UTF-8" in refused(script)


def test_a_huge_file_is_refused(script):
    script.write_bytes(b"#" * (files.MAX_BYTES + 1))
    assert "larger than 1 MB" in refused(script)


@pytest.mark.parametrize(
    "path",
    [
        "/opt/venv/lib/python3.12/site-packages/pkg/data.py",
        "/usr/lib/python3/dist-packages/pkg/data.py",
        "/usr/lib/python3.12/random.py",
    ],
)
def test_installed_code_is_nobodys_to_change(path):
    assert "belongs to an installed package" in refused(files.locate(path, None))


@pytest.mark.parametrize("name", ["", "<stdin>", "<ipython-input-1>", "a\nb.py", 'a"b.py'])
def test_what_names_no_file_is_refused(name):
    with pytest.raises(EditError):
        files.locate(name, "/home/ann")


def test_a_relative_name_is_of_the_runs_directory():
    assert str(files.locate("src/../train.py", "/home/ann")) == "/home/ann/train.py"
    with pytest.raises(EditError, match="without its directory"):
        files.locate("train.py", None)


def test_writing_keeps_mode_and_mark_and_a_backup_that_undoes_it(script):
    old = b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode()
    script.write_bytes(old)
    script.chmod(0o754)
    if os.geteuid() == 0:  # whoever may give files away leaves them to whom they belong
        os.chown(script, 65534, 65534)
    before = script.stat()
    original = files.read(script)
    after = original.text.replace("2", "3")
    backup = files.write(original, after)
    assert script.read_bytes() == old.replace(b"2", b"3")
    assert files.read(script).digest == original.digest_of(after)
    for file in (script, backup):
        assert (file.stat().st_uid, file.stat().st_gid) == (before.st_uid, before.st_gid)
    assert script.stat().st_mode == before.st_mode
    assert backup.name == "train.py.gputop-train.bak" and backup.read_bytes() == old
    backup.rename(script)
    after = script.stat()
    assert (script.read_bytes(), after.st_mode, after.st_mtime_ns) == (
        old,
        before.st_mode,
        before.st_mtime_ns,
    )
    assert os.listdir(script.parent) == ["train.py"]


def test_a_backup_is_never_overwritten(script):
    names = []
    for value in (3, 4, 5):
        original = files.read(script)
        names.append(files.write(original, f"a = {value}\n").name)
    assert names == [f"train.py.gputop-train.bak{n}" for n in ("", ".1", ".2")]
    assert script.with_name(names[0]).read_text() == TEXT
    assert script.with_name(names[1]).read_text() == "a = 3\n"


def test_a_backup_that_is_a_link_is_stepped_over(script, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    script.with_name("train.py.gputop-train.bak").symlink_to(victim)
    backup = files.write(files.read(script), "a = 3\n")
    assert victim.read_text() == "mine" and backup.name.endswith(".bak.1")


def test_a_file_that_changed_meanwhile_is_left_as_it_is(script):
    original = files.read(script)
    script.write_text("c = 3\n")
    with pytest.raises(EditError, match="changed just now"):
        files.write(original, "a = 3\n")
    assert script.read_text() == "c = 3\n" and os.listdir(script.parent) == ["train.py"]


def test_a_file_that_became_a_link_is_left_as_it_is(script, tmp_path):
    original = files.read(script)
    elsewhere = tmp_path / "elsewhere.py"
    script.rename(elsewhere)
    script.symlink_to(elsewhere)
    with pytest.raises(EditError):
        files.write(original, "a = 3\n")
    assert elsewhere.read_text() == TEXT and script.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["elsewhere.py", "train.py"]


def test_where_nothing_can_be_written_all_stays_as_it_is(tmp_path):
    # The backup's name is longer than any file system takes.
    script = tmp_path / f"{'t' * 240}.py"
    script.write_text(TEXT)
    with pytest.raises(EditError, match=r"could not be written .* it is as it was"):
        files.write(files.read(script), "a = 3\n")
    assert script.read_text() == TEXT and os.listdir(tmp_path) == [script.name]


def test_who_breaks_it_off_is_left_with_the_file_or_the_change_and_no_litter(script, monkeypatch):
    def broken_off(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", broken_off)
    with pytest.raises(KeyboardInterrupt):
        files.write(files.read(script), "a = 3\n")
    assert script.read_text() == TEXT
    assert sorted(os.listdir(script.parent)) == ["train.py", "train.py.gputop-train.bak"]


CASES = {
    "plain": (TEXT, "a = 1\nb = 3\nc = 4\n"),
    "carriage returns": ("a = 1\r\nb = 2\r\n", "a = 1\r\nb = 3\r\n"),
    "mixed ends": ("a = 1\r\nb = 2\nc = 3\r\n", "a = 1\r\nb = 2, 3\nc = 4\r\n"),
    "no end": ("a = 1\nb = 2", "a = 1\nb = 3"),
    "an end more": ("a = 1\nb = 2", "a = 1\nb = 2\n"),
    "an end less": (TEXT, TEXT[:-1]),
    "odd spaces": ("a = 1\x0c\nb = '\u2028'\n", "a = 2\x0c\nb = '\u2028'\n"),
    "words": ("a = 'Grüße'\n", "a = 'Grüße, 你'\n"),
    "empty": ("", "a = 1\n"),
}


TOOLS = [["git", "apply"]]
if shutil.which("patch"):
    TOOLS.append(["patch", "-p1", "--no-backup-if-mismatch"])


@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["train.py", "my code/trâin.py"])
def test_a_diff_applies(tmp_path, tool, case, name):
    before, after = CASES[case]
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(before.encode())
    text = "# 1. say: --- this\n" + diff.unified(before, after, name)
    done = subprocess.run(tool, input=text.encode(), cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert file.read_bytes() == after.encode()


def test_no_difference_is_no_diff():
    assert diff.unified(TEXT, TEXT, "train.py") == ""
