"""An older version of the code beside the newer one, read out of real repositories."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.launch.options import Target
from gputop_train.trial.versions import Older, VersionProblem, older

NAMES = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
SCRIPT = Target("script", ("train.py", "--fast"))


def git(place: Path, *arguments: str) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | NAMES
    subprocess.run(["git", *arguments], cwd=place, check=True, capture_output=True, env=environ)


def put(place: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Path]:
    """``main`` holds the older code; the working tree changed, added and removed files."""
    place = tmp_path / "repo"
    place.mkdir()
    put(
        place,
        {
            "train.py": "old",
            "pkg/a.py": "old a",
            "pkg/gone.py": "gone",
            "conf/x.yaml": "1",
            ".gitignore": "data/\n__pycache__/\n",
            ".gitattributes": "pkg/a.py export-ignore\n",
        },
    )
    git(place, "init", "-q", "-b", "main")
    git(place, "add", ".")
    git(place, "commit", "-qm", "old")
    git(place, "checkout", "-qb", "work")
    put(place, {"train.py": "new", "pkg/a.py": "new a", "fresh/__init__.py": "", "fresh/m.py": ""})
    put(place, {"pkg/added.py": "added"})
    (place / "pkg" / "gone.py").unlink()
    git(place, "add", "-A")
    git(place, "commit", "-qm", "new")
    put(place, {"data/train.bin": "data", "conf/local.yaml": "untracked", "pkg/__pycache__/a": ""})
    before = Path.cwd()
    os.chdir(place)
    yield place
    os.chdir(before)


def made(
    named: str, tmp_path: Path, target: Target = SCRIPT, *, overlay: bool = True, **environ: str
) -> Older:
    own = tmp_path / f"own-{len(list(tmp_path.iterdir()))}"
    own.mkdir()
    return older(named, target, own, environ, overlay=overlay)


def seen(tree: Path) -> dict[str, str]:
    """Files of a layer; what hides one is ``HIDDEN``."""
    found = {}
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        info = path.lstat()
        if stat.S_ISCHR(info.st_mode):
            assert info.st_rdev == 0
            found[name] = "HIDDEN"
        elif stat.S_ISREG(info.st_mode):
            found[name] = path.read_text()
        elif stat.S_ISLNK(info.st_mode):
            found[name] = f"-> {os.readlink(path)}"
    return found


def test_a_layer_holds_what_differs_and_hides_what_is_newer(repo: Path, tmp_path: Path) -> None:
    found = made("main", tmp_path)
    ((place, tree),) = found.arm.over
    assert place == str(repo)
    assert seen(Path(tree)) == {
        "train.py": "old",
        "pkg/a.py": "old a",
        "pkg/gone.py": "gone",
        "pkg/added.py": "HIDDEN",
        "fresh": "HIDDEN",
    }
    assert found.title.startswith("main (") and found.arm.name == found.title
    assert (found.arm.cwd, found.arm.target, found.arm.environ, found.notes) == (None, None, (), ())


def test_a_new_directory_that_holds_data_too_keeps_the_data(repo: Path, tmp_path: Path) -> None:
    put(repo, {"fresh/data.bin": "untracked"})
    ((_, tree),) = made("main", tmp_path).arm.over
    hidden = {name for name, what in seen(Path(tree)).items() if what == "HIDDEN"}
    assert hidden == {"pkg/added.py", "fresh/__init__.py", "fresh/m.py"}


def test_changes_that_are_not_committed_are_the_newer_sides(repo: Path, tmp_path: Path) -> None:
    put(repo, {"conf/x.yaml": "2"})
    found = made("HEAD", tmp_path)
    ((_, tree),) = found.arm.over
    assert seen(Path(tree)) == {"conf/x.yaml": "1"}
    assert found.notes == ("Changes that are not committed are part of the newer side.",)
    assert made("work", tmp_path).arm.over


def test_says_where_nothing_differs(repo: Path, tmp_path: Path) -> None:
    assert made("work", tmp_path).notes == (
        "No tracked file differs from work: both sides run the same code.",
    )


def test_elsewhere_the_whole_tree_is_written_and_untracked_files_linked(
    repo: Path, tmp_path: Path
) -> None:
    found = made("main", tmp_path, overlay=False)
    assert found.arm.cwd is not None and found.arm.over == ()
    tree = Path(found.arm.cwd)
    assert seen(tree) == {
        ".gitattributes": "pkg/a.py export-ignore\n",
        ".gitignore": "data/\n__pycache__/\n",
        "train.py": "old",
        "pkg/a.py": "old a",
        "pkg/gone.py": "gone",
        "conf/x.yaml": "1",
        "conf/local.yaml": f"-> {repo}/conf/local.yaml",
        "data": f"-> {repo}/data",
    }
    assert (tree / "data" / "train.bin").read_text() == "data"
    assert found.foreign(str(repo / "pkg" / "a.py"))
    assert not found.foreign(str(tree / "pkg" / "a.py"))
    assert not found.foreign(str(repo / "data" / "train.bin"))
    assert not found.foreign("/usr/lib/python3/x.py")


def test_elsewhere_absolute_paths_into_the_tree_lead_to_the_older_one(
    repo: Path, tmp_path: Path
) -> None:
    words = (str(repo / "train.py"), f"--config={repo}/conf/x.yaml", f"{repo}/absent", "/etc")
    found = made(
        "main",
        tmp_path,
        Target("script", words),
        overlay=False,
        PYTHONPATH=f"{repo}/pkg:/elsewhere",
    )
    tree = found.arm.cwd
    assert found.arm.target is not None
    assert found.arm.target.arguments == (
        f"{tree}/train.py",
        f"--config={tree}/conf/x.yaml",
        f"{repo}/absent",
        "/etc",
    )
    assert found.arm.environ == (("PYTHONPATH", f"{tree}/pkg:/elsewhere"),)


def test_a_subdirectory_maps_to_the_same_one(repo: Path, tmp_path: Path) -> None:
    os.chdir(repo / "pkg")
    target = Target("script", ("../train.py",))
    assert made("main", tmp_path, target).arm.over[0][0] == str(repo)
    cwd = made("main", tmp_path, target, overlay=False).arm.cwd
    assert cwd is not None and cwd.endswith("/tree/pkg")
    os.chdir(repo / "fresh")
    with pytest.raises(VersionProblem, match="fresh is not in main"):
        made("main", tmp_path, target)


def test_reading_a_ref_changes_nothing_in_the_repository(repo: Path, tmp_path: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {
            str(p): (p.lstat().st_mtime_ns, p.lstat().st_size)
            for p in repo.rglob("*")
            if p.is_file()
        }

    os.utime(repo / "conf" / "x.yaml")  # its entry in the index is stale now
    before = state()
    for overlay in (True, False):
        made("main", tmp_path, overlay=overlay)
    assert state() == before


def test_a_ref_nobody_knows_is_said_with_what_to_do(repo: Path, tmp_path: Path) -> None:
    for ref in ("nowhere", "-x", "main:train.py", "HEAD~9"):
        with pytest.raises(VersionProblem, match="fetch-depth: 0"):
            made(ref, tmp_path)


def test_a_script_that_the_ref_lacks_is_no_comparison(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(VersionProblem, match=r"pkg/added\.py is not in main"):
        made("main", tmp_path, Target("script", ("pkg/added.py",)))


def test_a_script_that_is_not_tracked_is_the_same_on_both_sides(repo: Path, tmp_path: Path) -> None:
    put(repo, {"bench.py": "x"})
    found = made("main", tmp_path, Target("script", ("bench.py",)))
    assert "git does not track bench.py: both sides run the same one." in found.notes
    put(tmp_path, {"outside.py": "x"})
    found = made("main", tmp_path, Target("script", (str(tmp_path / "outside.py"),)))
    assert "is not in the repository" in found.notes[0]


def test_without_git_a_directory_is_asked_for(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VersionProblem, match="no git here"):
        made("main", tmp_path)


def test_outside_a_repository_a_directory_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    put(tmp_path, {"train.py": "x"})
    with pytest.raises(VersionProblem, match="no git repository"):
        made("main", tmp_path)


def test_a_submodule_that_moved_is_told(repo: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    put(library, {"lib.py": "1"})
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "one")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
    git(repo, "commit", "-qm", "with a submodule")
    put(repo / "lib", {"lib.py": "2"})
    git(repo / "lib", "commit", "-qam", "two")
    found = made("HEAD", tmp_path)
    assert any("Submodules differ from HEAD (lib)" in note for note in found.notes)
    tree = made("HEAD", tmp_path, overlay=False).arm.cwd
    assert tree is not None and os.readlink(f"{tree}/lib") == str(repo / "lib")


def test_paths_of_any_name_are_read(repo: Path, tmp_path: Path) -> None:
    name = 'a "b"\n\udcff é.py'
    put(repo, {name: "first"})
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "odd")
    put(repo, {name: "second"})
    ((_, tree),) = made("HEAD", tmp_path).arm.over
    assert seen(Path(tree)) == {name: "first"}


def test_a_file_that_became_a_directory_and_back(repo: Path, tmp_path: Path) -> None:
    put(repo, {"one": "file", "two/x.py": "in a directory"})
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "kinds")
    (repo / "one").unlink()
    put(repo, {"one/y.py": "new"})
    (repo / "two" / "x.py").unlink()
    (repo / "two").rmdir()
    put(repo, {"two": "file now"})
    git(repo, "add", "-A")
    ((_, tree),) = made("HEAD", tmp_path).arm.over
    assert seen(Path(tree)) == {"one": "file", "two/x.py": "in a directory"}


# -- a directory, a file -----------------------------------------------------------------------------


def test_another_directory_runs_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"new/train.py": "x", "new/sub/s.py": "x", "old/train.py": "y"})
    put(tmp_path, {"old/sub/s.py": "y"})
    monkeypatch.chdir(tmp_path / "new")
    found = made("../old", tmp_path)
    assert (found.arm.cwd, found.arm.target, found.arm.over) == (str(tmp_path / "old"), None, ())
    assert found.title == "../old"
    assert found.foreign(str(tmp_path / "new" / "train.py"))
    monkeypatch.chdir(tmp_path / "new" / "sub")
    below = made("../../old", tmp_path, Target("script", ("s.py",)))
    assert below.arm.cwd == str(tmp_path / "old" / "sub")


def test_a_directory_without_the_script_is_no_older_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"new/train.py": "x", "old/other.py": "y"})
    monkeypatch.chdir(tmp_path / "new")
    with pytest.raises(VersionProblem, match=r"no train\.py in \.\./old"):
        made("../old", tmp_path)
    with pytest.raises(VersionProblem, match="is the code itself"):
        made(".", tmp_path)


def test_another_script_runs_in_its_place_with_the_same_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"train.py": "x", "old.py": "y"})
    monkeypatch.chdir(tmp_path)
    found = made("./old.py", tmp_path)
    assert found.arm.target == Target("script", ("old.py", "--fast"))
    with pytest.raises(VersionProblem, match="is the script itself"):
        made("./train.py", tmp_path)
    with pytest.raises(VersionProblem, match="Name a directory or a ref"):
        made("./old.py", tmp_path, Target("module", ("pkg.train",)))


def test_a_name_that_is_a_path_and_a_branch_has_to_be_made_clear(
    repo: Path, tmp_path: Path
) -> None:
    git(repo, "branch", "conf")
    with pytest.raises(VersionProblem, match="refs/heads/conf"):
        made("conf", tmp_path)
    assert made("refs/heads/conf", tmp_path).arm.over
