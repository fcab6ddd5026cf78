"""Where files go, and which places are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gputop_train import paths


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_runs_live_in_the_state_directory_of_the_xdg_specification(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert paths.run_root() == tmp_path / "gputop-train" / "runs"


def test_a_relative_state_home_is_ignored_as_the_specification_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.run_root() == tmp_path / ".local" / "state" / "gputop-train" / "runs"


def test_a_named_run_root_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.run_root("runs") == tmp_path / "runs"


def test_a_run_directory_is_closed_to_others_even_below_an_open_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert mode(paths.make_run_dir(tmp_path, "abc123")) == 0o700


def test_two_runs_never_share_a_directory(tmp_path: Path) -> None:
    paths.make_run_dir(tmp_path, "abc123")
    with pytest.raises(FileExistsError):
        paths.make_run_dir(tmp_path, "abc123")


def test_a_root_that_is_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(paths.PathError, match="not a directory"):
        paths.make_run_dir(tmp_path / "file", "abc123")


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(paths.PathError, match="open to other users"):
        paths.make_private_dir(open_to_all)


def test_a_symbolic_link_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(paths.PathError, match="not a directory"):
        paths.make_private_dir(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 12345, 12345)
    with pytest.raises(paths.PathError, match="another user"):
        paths.make_private_dir(foreign)


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    for name in ("victim", "link"):
        with pytest.raises(FileExistsError):
            paths.open_private_file(tmp_path / name)
    assert victim.read_text() == "precious"


def test_a_new_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    os.close(paths.open_private_file(tmp_path / "new"))
    assert mode(tmp_path / "new") == 0o600


def test_the_ring_directory_is_private_local_and_short_enough_for_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    made = paths.make_runtime_dir("unit-test-run", fallback=tmp_path)
    try:
        assert mode(made) == 0o700
        assert mode(made.parent) == 0o700
        assert not paths.is_network_fs(made)
        assert len(os.fsencode(paths.socket_path(made))) < 100
    finally:
        made.rmdir()


def test_a_runtime_directory_that_is_not_tmpfs_or_too_small_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    assert Path("/proc/gputop-train") not in list(paths.runtime_candidates(tmp_path))
    monkeypatch.setattr(paths, "TMPFS_MIN_FREE_BYTES", 1 << 60)
    assert Path("/dev/shm") not in [place.parent for place in paths.runtime_candidates(tmp_path)]


def test_a_squatted_place_makes_way_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    squatted, free = tmp_path / "squatted", tmp_path / "free"
    squatted.mkdir()
    squatted.chmod(0o777)
    monkeypatch.setattr(paths, "runtime_candidates", lambda fallback=None: iter([squatted, free]))
    assert paths.make_runtime_dir("abc123") == free / "abc123"


def test_a_place_whose_socket_path_would_be_too_long_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    monkeypatch.setattr(paths, "runtime_candidates", lambda fallback=None: iter([deep]))
    with pytest.raises(paths.PathError, match="TMPDIR"):
        paths.make_runtime_dir("abc123")
    assert not deep.exists()


@pytest.mark.parametrize("magic", [0x6969, 0xFE534D42, 0x0BD00BD0, 0x47504653, 0x01021997])
def test_network_and_cluster_file_systems_are_known_by_their_magic(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, magic: int
) -> None:
    assert not paths.is_network_fs(tmp_path)
    monkeypatch.setattr(paths, "_fs_magic", lambda path: magic)
    assert paths.is_network_fs(tmp_path / "not" / "yet" / "there")


def test_the_store_leaves_a_remote_run_directory_for_local_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = tmp_path / "remote" / "abc123"
    run_dir.mkdir(parents=True)
    assert paths.choose_store(run_dir) == run_dir / "run.sqlite"
    monkeypatch.setattr(paths, "is_network_fs", lambda path: "remote" in str(path))
    store = paths.choose_store(run_dir)
    try:
        assert store.name == "run.sqlite"
        assert run_dir not in store.parents
        assert mode(store.parent) == 0o700
    finally:
        store.parent.rmdir()


def test_the_way_back_to_a_run_names_a_root_that_is_not_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    usual = paths.run_root()
    assert paths.come_back("attach", usual / "3f2a91") == "gputop-train attach 3f2a91"
    assert paths.come_back("runs", root=usual) == "gputop-train runs"
    other = tmp_path / "my runs"
    assert (
        paths.come_back("report", other / "3f2a91")
        == f"gputop-train report 3f2a91 --run-root '{other}'"
    )
    assert paths.come_back("runs", root=other) == f"gputop-train runs --run-root '{other}'"
