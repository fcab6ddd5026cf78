"""Signals reach the script as without us; our own death, the terminal's or a helper's never does."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.launch import identity
from tests.launching import World, needs_namespaces, wait_for, world

#: Tells of every signal and ends by itself once it is told to with a file.
TELLER = """
import os, signal, sys, time
def tell(number, frame):
    print("got", signal.Signals(number).name, flush=True)
for name in filter(lambda word: word.startswith("SIG"), sys.argv):
    signal.signal(getattr(signal, name), tell)
print("ready", flush=True)
while not os.path.exists("leave"):
    time.sleep(0.02)
print("left", flush=True)
sys.exit(5)
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        made.script(TELLER)
        yield made


def end(here: World) -> None:
    (here.place / "leave").touch()


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT", "SIGCONT", "SIGQUIT"])
def test_a_signal_to_us_reaches_the_script_and_we_leave_only_after_it(
    here: World, name: str
) -> None:
    front = here.start("--no-tui", "train.py", name)
    here.wait_for_output(b"ready")
    front.send_signal(getattr(signal, name))
    here.wait_for_output(f"got {name}".encode())
    assert front.poll() is None
    end(here)
    assert front.wait(60) == 5
    # Once and not more: a second SIGTERM would end many a script that is saving.
    assert here.output().count(b"got") == 1


def test_a_preemption_notice_leaves_time_for_a_checkpoint_and_its_exit_code(here: World) -> None:
    here.script(
        """
        import signal, sys, time
        def save(number, frame):
            time.sleep(0.5); open("checkpoint", "w").close(); sys.exit(9)
        signal.signal(signal.SIGTERM, save); print("ready", flush=True); time.sleep(60)
        """
    )
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    front.terminate()
    assert front.wait(60) == 9
    assert (here.place / "checkpoint").exists()


def test_a_script_killed_by_the_signal_we_passed_on_gives_128_and_its_number(here: World) -> None:
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    front.terminate()
    assert front.wait(60) == 128 + signal.SIGTERM


def test_timeout_ends_the_script_through_us(here: World) -> None:
    command = ["timeout", "--signal=USR1", "4", *here.command("--no-tui", "train.py", "SIGTERM")]
    ended = subprocess.run(
        command, cwd=here.place, env=here.environ, capture_output=True, check=False
    )
    assert ended.returncode == 124
    assert here.exit_json()["signal"] == signal.SIGUSR1


class Terminal:
    """A front on a terminal of its own, as in a window that may be closed."""

    def __init__(self, here: World, *arguments: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(here.place)
            words = here.command("--no-tui", *arguments)
            os.execve(os.fsencode(words[0]), [os.fsencode(w) for w in words], here.environ)

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def read(self) -> bytes:
        said = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(self.fd, 65536):
                said += chunk
        return said

    def close(self) -> None:
        os.close(self.fd)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        with contextlib.suppress(OSError):
            terminal.close()
        with contextlib.suppress(OSError):
            os.kill(terminal.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(terminal.pid, 0)


def test_ctrl_c_interrupts_the_whole_group_as_at_a_terminal(
    here: World, terminals: list[Terminal]
) -> None:
    here.script(
        """
        import os, time
        child = os.fork()
        try:
            print("ready", flush=True); time.sleep(60)
        except KeyboardInterrupt:
            # One string, one write: two processes share the file.
            print(("child" if child == 0 else "parent") + " interrupted", flush=True)
            if child == 0: os._exit(0)
            os.waitpid(child, 0)
        """
    )
    terminals.append(Terminal(here, "train.py"))
    wait_for(lambda: here.output().count(b"ready") == 2)
    terminals[0].type(b"\x03")
    here.wait_for_output(b"child interrupted")
    here.wait_for_output(b"parent interrupted")
    terminals[0].read()
    assert terminals[0].wait() == 0


def test_a_second_ctrl_c_ends_a_script_that_took_no_notice_of_the_first(
    here: World, terminals: list[Terminal]
) -> None:
    terminals.append(Terminal(here, "train.py", "SIGINT"))
    here.wait_for_output(b"ready")
    terminals[0].type(b"\x03")
    here.wait_for_output(b"got SIGINT")
    terminals[0].type(b"\x03")
    said = terminals[0].read()
    assert terminals[0].wait() == 128 + signal.SIGTERM
    assert b"Ctrl-C again" in said


def test_a_third_ctrl_c_kills_what_takes_no_notice_at_all(
    here: World, terminals: list[Terminal]
) -> None:
    terminals.append(Terminal(here, "train.py", "SIGINT", "SIGTERM"))
    here.wait_for_output(b"ready")
    for told in (b"got SIGINT", b"got SIGTERM"):
        terminals[0].type(b"\x03")
        here.wait_for_output(told)
    terminals[0].type(b"\x03")
    terminals[0].read()
    assert terminals[0].wait() == 128 + signal.SIGKILL


def test_ctrl_z_pauses_script_and_front_and_continuing_resumes_both(
    here: World, terminals: list[Terminal]
) -> None:
    terminals.append(Terminal(here, "train.py"))
    here.wait_for_output(b"ready")
    child = here.run_json()["child"]["pid"]
    terminals[0].type(b"\x1a")
    wait_for(lambda: state(child) == "T", "the script to stop")
    wait_for(lambda: state(terminals[0].pid) == "T", "the front to stop")
    os.kill(terminals[0].pid, signal.SIGCONT)
    wait_for(lambda: state(child) != "T", "the script to go on")
    end(here)
    terminals[0].read()
    assert terminals[0].wait() == 5


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_closing_the_terminal_detaches_and_training_ends_normally(
    here: World, terminals: list[Terminal]
) -> None:
    terminals.append(Terminal(here, "train.py"))
    here.wait_for_output(b"ready")
    terminals[0].close()
    terminals[0].wait()
    assert not here.gone()
    end(here)
    assert here.exit_json()["exit_code"] == 5
    assert here.output().endswith(b"left\n")


def test_a_hangup_detaches_without_a_word(here: World) -> None:
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    front.send_signal(signal.SIGHUP)
    _, said = front.communicate(timeout=60)
    assert front.returncode == 0
    assert said.count(b"\n") == 1  # the line with the run's id, from the start
    assert not here.gone()
    end(here)
    assert here.exit_json()["exit_code"] == 5


def test_a_reader_that_left_detaches_us_and_training_goes_on(here: World) -> None:
    here.script(
        """
        import os, time
        i = 0
        while not os.path.exists("leave"):
            print("line", i, flush=True); i += 1; time.sleep(0.01)
        """
    )
    front = here.start("train.py")
    assert front.stdout is not None
    front.stdout.readline()
    front.stdout.close()
    assert front.wait(60) == 0
    assert not here.gone()
    end(here)
    assert here.exit_json()["exit_code"] == 0


def test_a_reader_that_does_not_read_keeps_no_signal_from_the_script(here: World) -> None:
    here.script("import time\nprint('x' * 5_000_000, flush=True)\ntime.sleep(60)")
    front = here.start("train.py")
    wait_for(lambda: len(here.output()) > 5_000_000)
    front.terminate()
    assert here.exit_json()["signal"] == signal.SIGTERM
    assert front.stdout is not None
    assert len(front.stdout.read()) == 5_000_001
    assert front.wait(60) == 128 + signal.SIGTERM


def test_killing_the_front_leaves_training_and_its_exit_code_alone(here: World) -> None:
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    front.kill()
    front.wait()
    end(here)
    assert here.exit_json()["exit_code"] == 5


def test_killing_the_supervisor_leaves_training_its_output_and_its_exit_code_alone(
    here: World,
) -> None:
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    os.kill(here.supervisor_pid(), signal.SIGKILL)
    end(here)
    out, _ = front.communicate(timeout=60)
    assert front.returncode == 5
    assert out == b"ready\nleft\n"


def test_killing_the_shim_loses_only_the_exit_code_and_says_so(here: World) -> None:
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    os.kill(here.run_json()["shim"]["pid"], signal.SIGKILL)
    assert not here.gone()
    end(here)
    out, said = front.communicate(timeout=60)
    assert front.returncode == 125
    assert out == b"ready\nleft\n"
    told = json.loads((here.run_dir() / "exit.json").read_bytes())
    assert told["exit_code"] is None
    assert told["signal"] is None
    assert "shim" in told["reason"]
    assert b"exit code is unknown" in said


def test_signals_sent_to_everybody_do_not_end_the_witness(here: World) -> None:
    front = here.start("train.py", "SIGTERM", "SIGUSR1")
    here.wait_for_output(b"ready")
    shim = here.run_json()["shim"]["pid"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(shim, number)
    end(here)
    assert front.wait(60) == 5


def test_pkill_by_the_scripts_name_does_not_match_the_witness(here: World) -> None:
    here.start("train.py", "--a-very-special-argument")
    here.wait_for_output(b"ready")
    words = Path(f"/proc/{here.run_json()['shim']['pid']}/cmdline").read_bytes()
    assert b"train.py" not in words
    assert b"special" not in words
    end(here)


def test_after_the_front_left_no_process_of_ours_holds_its_streams(here: World) -> None:
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    supervisor = here.supervisor_pid()
    front.kill()
    # communicate() returns only when nobody at all can write into the pipes any more.
    front.communicate(timeout=30)
    assert not here.gone()
    assert identity.is_running(supervisor)
    end(here)
    here.exit_json()


@needs_namespaces
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_as_pid_1_of_a_container_signals_and_exit_code_pass_as_ever(here: World, name: str) -> None:
    here.script(
        f"""
        import os, signal, sys, time
        def stop(number, frame):
            print("got {name}", flush=True); sys.exit(5)
        signal.signal(signal.{name}, stop)
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(0.2); os._exit(0)
            os._exit(0)
        os.wait(); time.sleep(0.5)
        zombies = [p for p in os.listdir("/proc") if p.isdigit()
                   and open(f"/proc/{{p}}/stat").read().rpartition(")")[2].split()[0] == "Z"]
        print("ppid", os.getppid(), "zombies", zombies, flush=True)
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    words = ["unshare", "-pf", "--mount-proc", "--kill-child", *here.command("train.py")]
    outer = subprocess.Popen(
        words, cwd=here.place, env=here.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        here.wait_for_output(b"ready")
        first = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        # As `docker stop` does: from outside, to PID 1 of the namespace.
        os.kill(int(first[0]), getattr(signal, name))
        out, _ = outer.communicate(timeout=60)
    finally:
        outer.kill()
        outer.communicate()
    assert f"got {name}".encode() in out
    assert b"zombies []" in out
    assert here.exit_json()["exit_code"] == 5
    assert outer.returncode == 5


def test_under_nohup_a_hangup_changes_nothing(here: World) -> None:
    words = ["nohup", *here.command("train.py")]
    front = subprocess.Popen(
        words,
        cwd=here.place,
        env=here.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    here.wait_for_output(b"ready")
    os.kill(front.pid, signal.SIGHUP)
    # A signal that does count, sent after it: once that has passed, the first one has had its turn.
    os.kill(front.pid, signal.SIGCONT)
    end(here)
    out, _ = front.communicate(timeout=60)
    assert (front.returncode, out) == (5, b"ready\nleft\n")


def test_in_plain_mode_the_keyboard_is_the_scripts(here: World, terminals: list[Terminal]) -> None:
    here.script("print('hello ' + input('name? '))")
    terminals.append(Terminal(here, "train.py"))
    here.wait_for_output(b"name? ")
    terminals[0].type(b"ada\n")
    assert b"hello ada" in terminals[0].read()
    assert terminals[0].wait() == 0


def test_a_supervisor_told_to_leave_leaves_and_training_goes_on(here: World) -> None:
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    supervisor = here.supervisor_pid()
    wait_for((here.run_dir() / "supervisor.json").exists)
    os.kill(supervisor, signal.SIGTERM)
    wait_for(lambda: not identity.is_running(supervisor), "the supervisor to leave")
    end(here)
    assert front.wait(60) == 5


def test_a_supervisor_that_was_killed_is_replaced_while_we_are_there(here: World) -> None:
    front = here.start("train.py")
    here.wait_for_output(b"ready")
    first = here.supervisor_pid()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not identity.is_running(first), "the supervisor to be gone")
    second = here.supervisor_pid()
    assert second != first
    end(here)
    out, said = front.communicate(timeout=60)
    assert (front.returncode, out) == (5, b"ready\nleft\n")
    # The second one wrote the report; nobody had to step in for it.
    assert b"is gone" not in said
    assert (here.run_dir() / "report.json").exists()
