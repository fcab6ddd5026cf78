"""What cannot be started is said in one line with a shell's exit code, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.launch import spawn
from gputop_train.launch.interpreter import CommandProblem, choose_interpreter
from gputop_train.launch.options import Options, Target
from gputop_train.launch.runfile import Exit, read_exit, write_exit
from tests.launching import World, world


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def one_line(said: bytes) -> bytes:
    assert said.startswith(b"gputop-train: ")
    assert said.count(b"\n") == 1
    assert b"Traceback" not in said
    return said


def test_a_script_that_is_not_there_is_code_2(here: World) -> None:
    done = here.run("nowhere.py")
    assert done.returncode == 2
    assert b"nowhere.py" in one_line(done.stderr)
    assert not here.root.exists()


def test_a_command_that_is_not_there_is_code_127(here: World) -> None:
    done = here.run("--", "no-such-command-at-all")
    assert done.returncode == 127
    assert b"no-such-command-at-all" in one_line(done.stderr)


def test_a_command_that_cannot_be_executed_is_code_126(here: World) -> None:
    here.script("plain text", "data")
    assert here.run("--", "./data").returncode == 126


def test_a_command_the_kernel_refuses_is_code_126_and_leaves_no_run(here: World) -> None:
    here.script("not a program, although it is marked as one", "odd").chmod(0o755)
    done = here.run("--", "./odd")
    assert done.returncode == 126
    assert b"./odd" in one_line(done.stderr)
    assert list(here.root.iterdir()) == []


def test_an_interpreter_that_is_not_there_is_code_127(here: World) -> None:
    here.script("pass")
    done = here.run("--python", "/no/such/python", "train.py")
    assert done.returncode == 127
    assert b"/no/such/python" in one_line(done.stderr)


def test_no_python_anywhere_is_code_127_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gputop_train.launch.interpreter._own_has_torch", lambda: False)
    with pytest.raises(CommandProblem, match="--python") as raised:
        choose_interpreter(None, {"PATH": str(tmp_path)})
    assert raised.value.code == 127


def test_our_own_python_is_taken_only_if_it_has_torch_and_the_one_on_path_has_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    for has_torch, ours_has in ((0, True), (1, True), (0, False), (1, False)):
        python.write_text(f"#!/bin/sh\nexit {has_torch}\n")
        python.chmod(0o755)
        monkeypatch.setattr(
            "gputop_train.launch.interpreter._own_has_torch", lambda has=ours_has: has
        )
        ours = has_torch != 0 and ours_has
        chosen = choose_interpreter(None, {"PATH": str(tmp_path)})
        assert chosen == (sys.executable if ours else str(python))


def test_a_report_that_could_not_be_written_is_told_before_hours_of_training(here: World) -> None:
    here.script("open('ran', 'w')")
    for target in ("no/such/directory/out.json", "."):
        done = here.run("--json", target, "train.py")
        assert done.returncode == 2
        assert b"--json" in one_line(done.stderr)
    assert not (here.place / "ran").exists()


def test_a_run_root_that_is_a_file_names_the_way_out(here: World) -> None:
    here.script("open('ran', 'w')")
    here.root.write_text("a file")
    done = here.run("train.py")
    assert done.returncode == 125
    assert b"--run-root" in one_line(done.stderr)
    assert not (here.place / "ran").exists()


def in_child(action: object) -> str:
    """Run ``action`` in a forked child and return what it returned or raised, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = str(action())  # type: ignore[operator]
        except BaseException as failure:
            told = f"{type(failure).__name__}: {failure}"
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        told = stream.read().decode()
    os.waitpid(pid, 0)
    return told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_run_root_we_may_not_write_names_the_way_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:-2]:
        parent.chmod(0o755)
    options = Options(Target("command", ("true",)), run_root=str(tmp_path / "runs"))
    command = spawn.resolve_command(options, os.environ)

    def as_nobody() -> object:
        os.setgid(65534)
        os.setuid(65534)
        return spawn.launch(options, command, os.environ)

    told = in_child(as_nobody)
    assert told.startswith("PlaceError: ")
    assert "cannot be written" in told
    assert "--run-root" in told
    assert list(tmp_path.iterdir()) == []


def can_mount() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="file systems cannot be mounted here")


def on_small_disk(here: World, size: str, command: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell command where the run root is a tmpfs of ``size``."""
    here.root.mkdir()
    mounted = f'mount -t tmpfs -o size={size} none "$ROOT" && {command}'
    environ = {**here.environ, "ROOT": str(here.root), "PY": sys.executable}
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted],
        cwd=here.place,
        env=environ,
        capture_output=True,
        timeout=60,
        check=False,
    )


@needs_mounts
def test_a_full_disk_at_the_start_is_said_and_the_script_is_not_started(here: World) -> None:
    here.script("open('ran', 'w')")
    done = on_small_disk(
        here,
        "16k",
        '"$PY" -m gputop_train.cli --run-root "$ROOT" train.py; echo "rc $?" $(ls "$ROOT")',
    )
    assert done.stdout == b"rc 125\n"
    assert b"No space left" in one_line(done.stderr)
    assert b"--run-root" in done.stderr
    assert not (here.place / "ran").exists()


@needs_mounts
def test_a_disk_that_fills_up_during_training_cannot_lose_the_exit_code(here: World) -> None:
    here.script(
        """
        import os, sys
        try:
            with open(os.environ["ROOT"] + "/hog", "wb", buffering=0) as f:
                while True: f.write(b"x" * 4096)
        except OSError:
            os._exit(6)
        """
    )
    done = on_small_disk(
        here,
        "4m",
        '"$PY" -m gputop_train.cli --run-root "$ROOT" train.py; '
        'echo "rc $?"; cat "$ROOT"/*/exit.json',
    )
    code, record = done.stdout.split(b"\n", 1)
    assert code == b"rc 6"
    assert b'"exit_code": 6' in record


def test_a_script_without_torch_is_told_which_interpreter_ran_it(here: World) -> None:
    here.script("raise ModuleNotFoundError(\"No module named 'torch'\")")
    done = here.run("--no-tui", "train.py")
    assert done.returncode == 1
    assert b"has no torch" in done.stderr
    assert b"--python" in done.stderr


def test_an_exit_record_is_never_replaced_by_a_guess(tmp_path: Path) -> None:
    write_exit(tmp_path, Exit(3))
    write_exit(tmp_path, Exit(None, reason="nobody saw it"))
    assert read_exit(tmp_path) == Exit(3)
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (Exit(0), 0),
        (Exit(7), 7),
        (Exit(None, signal.SIGKILL), 137),
        (Exit(None, reason="nobody saw it"), 125),
    ],
)
def test_the_exit_status_is_the_one_a_shell_would_show(ended: Exit, status: int) -> None:
    assert ended.status == status
