"""A launched script runs as it would without us: arguments, streams, exit code, surroundings."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import World, world


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def test_the_exit_code_is_the_scripts(here: World) -> None:
    here.script("import sys; print('seven'); sys.exit(7)")
    done = here.run("--no-tui", "train.py")
    assert (done.returncode, done.stdout) == (7, b"seven\n")
    assert here.exit_json()["exit_code"] == 7


def test_a_script_that_dies_of_a_signal_gives_128_and_the_signal(here: World) -> None:
    here.script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert here.run("train.py").returncode == 128 + signal.SIGSEGV
    assert here.exit_json()["exit_code"] is None
    assert here.exit_json()["signal"] == signal.SIGSEGV


def test_a_traceback_is_byte_for_byte_the_one_of_a_bare_run(here: World) -> None:
    here.script(
        """
        import sys
        print("before", flush=True)
        def deep(n):
            return deep(n - 1) if n else {}["missing"]
        deep(3)
        """
    )
    bare = subprocess.run(
        [sys.executable, "train.py"],
        cwd=here.place,
        env=here.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    done = here.run("train.py")
    assert b"KeyError: 'missing'" in bare.stdout
    assert done.stdout == bare.stdout
    assert here.output() == bare.stdout
    assert done.returncode == bare.returncode == 1


def test_every_argument_behind_the_script_is_the_scripts_byte_for_byte(here: World) -> None:
    here.script("import os, sys; print([os.fsencode(a) for a in sys.argv])")
    behind = [b"--steps", b"5", b"--json", b"x", b"-h", b"--", b"-m", b"\xff\xfe", b"", b"a\nb"]
    done = here.run("--no-tui", "train.py", *behind)
    assert done.stdout == repr([b"train.py", *behind]).encode() + b"\n"
    assert not (here.place / "x").exists()


def test_a_module_is_run_as_python_does(here: World) -> None:
    here.script("import sys; print(__name__, __package__, sys.argv[1:])", "pkg/train.py")
    done = here.run("-m", "pkg.train", "--json", "x")
    assert done.stdout == b"__main__ pkg ['--json', 'x']\n"
    assert here.run_json()["mode"] == "module"


def test_a_command_is_run_as_it_is(here: World) -> None:
    done = here.run("--", "sh", "-c", 'echo "$0 $1"; exit 3', "--no-tui", "two words")
    assert (done.returncode, done.stdout) == (3, b"--no-tui two words\n")
    assert here.run_json()["mode"] == "command"


def test_a_script_called_like_a_command_is_reached_by_its_path(here: World) -> None:
    here.script("print('mine')", "runs")
    assert here.run("./runs").stdout == b"mine\n"


def test_stdin_passes_through(here: World) -> None:
    here.script("import sys; print(len(sys.stdin.buffer.read()))")
    assert here.run("--no-tui", "train.py", input=b"\0\xffx" * 100_000).stdout == b"300000\n"


def test_the_writer_of_a_pipe_learns_that_the_script_stopped_reading(here: World) -> None:
    here.script(
        """
        import os, time
        os.read(0, 1); os.close(0); print("closed", flush=True)
        while not os.path.exists("leave"): time.sleep(0.02)
        """
    )
    read, write = os.pipe()
    front = here.start("--no-tui", "train.py", stdin=read)
    os.close(read)
    os.write(write, b"x")
    here.wait_for_output(b"closed")
    # Only once nobody at all holds the other end does a write fail.
    with pytest.raises(BrokenPipeError):
        for _ in range(1000):
            os.write(write, b"y" * 1024)
    os.close(write)
    (here.place / "leave").touch()
    assert front.wait(60) == 0


def test_output_passes_unchanged_whatever_bytes_it_is(here: World) -> None:
    here.script(
        r"""
        import os
        for i in range(300):
            os.write(1, b"\r%3d%%|###  | \xe2\x96\x88 loss=0.1" % i)
        os.write(2, bytes(range(256)) * 512)
        os.write(1, b"\0" * 8192 + b"end without newline")
        """
    )
    frames = b"".join(b"\r%3d%%|###  | \xe2\x96\x88 loss=0.1" % i for i in range(300))
    whole = frames + bytes(range(256)) * 512 + b"\0" * 8192 + b"end without newline"
    done = here.run("train.py")
    assert done.stdout == whole
    assert here.output() == whole


def test_our_own_lines_never_get_into_stdout(here: World) -> None:
    here.script("print('only this')")
    done = here.run("--no-tui", "train.py")
    assert done.stdout == b"only this\n"
    assert here.run_dir().name.encode() in done.stderr


def test_with_json_to_stdout_the_scripts_output_goes_to_stderr(here: World) -> None:
    here.script("import sys; print('to out'); print('to err', file=sys.stderr)")
    done = here.run("--no-tui", "--json", "-", "train.py")
    assert done.returncode == 0
    assert b"to out" in done.stderr
    assert b"to err" in done.stderr
    report = json.loads(done.stdout)
    assert report["schema"] == 1
    assert report["run"]["exit_code"] == 0


def test_the_report_is_written_where_json_says(here: World) -> None:
    here.script("print('hello')")
    assert here.run("--json", "out.json", "train.py").returncode == 0
    report = json.loads((here.place / "out.json").read_bytes())
    assert report == json.loads((here.run_dir() / "report.json").read_bytes())


def test_the_script_leads_a_session_of_its_own_and_its_children_are_in_it(here: World) -> None:
    here.script(
        """
        import multiprocessing as mp, os
        def say(q): q.put(os.getsid(0))
        if __name__ == "__main__":
            q = mp.get_context("spawn").SimpleQueue()
            p = mp.get_context("spawn").Process(target=say, args=(q,)); p.start()
            print(os.getsid(0) == os.getpid() == os.getpgid(0), q.get() == os.getpid()); p.join()
        """
    )
    assert here.run("train.py").stdout == b"True True\n"


def test_descriptors_and_signals_are_those_of_a_bare_launch(here: World) -> None:
    here.script(
        """
        import os, signal
        fds = sorted(os.listdir("/proc/self/fd"))
        print(fds, os.read(int(os.environ["EXTRA"]), 5) if "EXTRA" in os.environ else "")
        print([n for n in range(1, 32) if signal.getsignal(n) not in
              (signal.SIG_DFL, signal.default_int_handler)])
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        """
    )
    read, write = os.pipe()
    os.write(write, b"extra")
    environ = {**here.environ, "EXTRA": str(read)}
    bare = subprocess.run(
        [sys.executable, "train.py"],
        cwd=here.place,
        env={k: v for k, v in environ.items() if k != "EXTRA"},
        pass_fds=[read],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    done = here.run("train.py", env=environ, pass_fds=[read])
    os.close(read)
    os.close(write)
    assert done.stdout.splitlines()[0].endswith(b" b'extra'")
    assert done.stdout.replace(b"b'extra'", b"") == bare.stdout


def test_the_working_directory_and_umask_are_the_scripts_to_have(here: World) -> None:
    here.script("import os; print(os.getcwd(), oct(os.umask(0)))")
    done = here.run("train.py", umask=0o027)
    assert done.stdout == f"{here.place} 0o27\n".encode()


def test_the_environment_is_ours_plus_a_few_lines(here: World) -> None:
    here.script("import json, os; print(json.dumps(dict(os.environ)))")
    here.environ |= {"PYTHONPATH": "/mine", "MARK": "kept"}
    plain = json.loads(here.run("train.py").stdout)
    probe, theirs = plain["PYTHONPATH"].split(":")
    assert (Path(probe).parent.parent, theirs) == (here.root, "/mine")
    assert plain["PYTHONUNBUFFERED"] == "1"
    # stdout is a pipe here: a bare run would not find a terminal either.
    assert "FORCE_COLOR" not in plain
    without = json.loads(here.run("--no-env", "train.py").stdout)
    assert "PYTHONUNBUFFERED" not in without
    assert {**without, "PYTHONPATH": ""} == {
        **here.environ,
        "PYTHONPATH": "",
        **{k: without[k] for k in without if k == "LC_CTYPE"},
    }


def test_files_are_ours_alone_and_nothing_secret_is_written_down(here: World) -> None:
    here.script("pass")
    here.environ["MY_PASSWORD_VARIABLE"] = "hunter2"
    here.run("train.py", "--api-key", "s3cr3t", "--url=https://u:pw1@h/", "DB_PASSWORD=pw2")
    for path in [here.run_dir(), *here.run_dir().rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        if "__pycache__" not in path.parts:
            assert mode == (0o700 if path.is_dir() else 0o600), path
    written = (here.run_dir() / "run.json").read_bytes()
    for secret in (b"s3cr3t", b"pw1", b"pw2", b"hunter2"):
        assert secret not in written
    assert here.run_json()["command"][1] == "train.py"


def test_run_json_names_the_processes_and_what_was_asked_for(here: World) -> None:
    here.script("import os; print(os.getpid(), os.getppid())")
    done = here.run("--name", "mine", "--set", "num_workers@train.py:3=2", "train.py")
    child, shim = map(int, done.stdout.split())
    run = here.run_json()
    assert (run["child"]["pid"], run["shim"]["pid"]) == (child, shim)
    assert run["child"]["pgid"] == run["child"]["sid"] == child
    assert run["name"] == "mine"
    assert run["overrides"] == {"num_workers@train.py:3": 2}
    assert run["changes_results"] == ["num_workers@train.py:3"]
    config = json.loads((here.run_dir() / "probe" / "config.json").read_bytes())
    assert config["overrides"] == [{"key": "num_workers", "value": 2, "loader": "train.py:3"}]
    assert config["overhead_budget"] == 0.01
    assert config["ring_dir"] == run["ring_dir"]


def test_the_probe_is_importable_in_the_script_and_only_a_copy(here: World) -> None:
    here.script("import sys; print(sys.modules['_gputop_probe'].__file__)")
    done = here.run("train.py")
    assert Path(done.stdout.decode().strip()).is_relative_to(here.run_dir() / "probe")


def test_the_interpreter_is_that_of_the_active_environment(here: World, tmp_path: Path) -> None:
    for name in ("venv", "other"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        python.chmod(0o755)
    here.script("")
    here.environ["VIRTUAL_ENV"] = str(tmp_path / "venv")
    assert here.run("train.py", "-x").stdout == b"venv train.py -x\n"
    named = here.run("--python", str(tmp_path / "other" / "bin" / "python"), "train.py")
    assert named.stdout == b"other train.py\n"
    assert here.run("--python", str(tmp_path / "other"), "train.py").stdout == b"other train.py\n"
    del here.environ["VIRTUAL_ENV"]
    here.environ["PATH"] = f"{tmp_path}/other/bin:{here.environ['PATH']}"
    here.environ["CONDA_PREFIX"] = str(tmp_path / "venv")
    assert here.run("train.py").stdout == b"venv train.py\n"


def test_arguments_larger_than_a_pipe_arrive_whole(here: World) -> None:
    here.script("import sys; print(sum(map(len, sys.argv)))")
    long = ["x" * 1000] * 200
    assert here.run("train.py", *long).stdout == b"200008\n"


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_stream_is_no_reason_to_fail(here: World, closed: int) -> None:
    here.script("open('ran', 'w')")
    done = here.run("train.py", preexec_fn=lambda: os.close(closed))
    assert done.returncode == 0
    assert (here.place / "ran").exists()


def test_a_working_directory_that_is_gone_is_the_scripts_business(
    here: World, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    leave_no_ground = f"cd {tmp_path}/gone && rmdir {tmp_path}/gone && exec "
    words = " ".join(map(str, here.command("--", "echo", "hi")))
    done = subprocess.run(
        ["sh", "-c", leave_no_ground + words], env=here.environ, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"hi\n")


@pytest.mark.slow
def test_a_seeded_training_ends_bit_for_bit_as_without_us(here: World) -> None:
    pytest.importorskip("torch")
    here.script(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        torch.manual_seed(7)
        torch.set_num_threads(1)
        data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.ReLU(),
                                    torch.nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        for epoch in range(3):
            for x, y in DataLoader(data, 16, shuffle=True, num_workers=2):
                loss = torch.nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(epoch, loss.item().hex(), torch.rand(1).item().hex(), flush=True)
        """
    )
    bare = subprocess.run(
        [sys.executable, "train.py"],
        cwd=here.place,
        env=here.environ,
        capture_output=True,
        check=True,
    )
    done = here.run("--json", "out.json", "train.py")
    assert bare.stdout.count(b"0x") == 6
    assert done.stdout == bare.stdout
    # And it was watched: equal because of no probe would prove nothing.
    assert json.loads((here.place / "out.json").read_bytes())["steps"]["count"] == 48
