"""The screen on a real terminal, over a real store, with real keys and signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.terminal.screen_pty import LIVE, REPLAY, Terminal
from tests.tui.made_run import S, exit_json, run_json, write_store


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A run that started a minute ago and whose process, this one, is alive."""
    path = tmp_path / "3f2a"
    path.mkdir()
    start = time.monotonic_ns() - 60 * S
    write_store(path, start_ns=start, pid=os.getpid())
    run_json(path, start_ns=start, pid=os.getpid(), control_socket=str(path / "s"))
    return path


@pytest.fixture
def screen(live: Path) -> Iterator[Terminal]:
    with Terminal(LIVE, str(live)) as terminal:
        terminal.wait_for("STARVED")
        yield terminal


def test_q_and_d_detach_with_exit_code_0_and_give_the_terminal_back(screen: Terminal) -> None:
    screen.type("q")
    text = screen.wait_for("The script is still running")
    assert "gputop-train attach" in text
    assert "--run-root" in text  # this run does not lie where runs usually do
    screen.type("d")
    screen.wait_for("RESULT detached 0")
    assert screen.wait_exit() == 0
    assert screen.restored()


def test_ctrl_c_asks_the_same_and_escape_stays(screen: Terminal) -> None:
    screen.type("\x03")
    screen.wait_for("The script is still running")
    screen.type("\x1b")
    screen.wait_for(lambda text: "The script is still running" not in text, "the dialog gone")
    assert screen.process.poll() is None


def test_the_arrows_choose_and_enter_takes(screen: Terminal) -> None:
    screen.type("q")
    screen.wait_for("> d ")
    screen.type("\x1b[B")
    screen.wait_for("> s ")
    screen.type("\x1b[A\r")
    screen.wait_for("RESULT detached 0")


def test_space_freezes_the_view_and_says_so(screen: Terminal) -> None:
    screen.type(" ")
    screen.wait_for("frozen")
    screen.type(" ")
    screen.wait_for("● live")


def test_help_and_evidence_open_and_close(screen: Terminal) -> None:
    screen.type("?")
    screen.wait_for("How to read this")
    screen.type("\x1b")
    screen.wait_for(lambda text: "How to read this" not in text, "help closed")
    screen.type("e")
    screen.wait_for("[8 findings]")
    screen.wait_for("exposed data wait")


def test_every_size_shows_header_and_verdict(screen: Terminal) -> None:
    for columns, rows in ((80, 24), (40, 12), (200, 60), (120, 40)):
        screen.resize(columns, rows)
        text = screen.wait_for(
            # The names of the pages stand between them where there is room.
            lambda text: (
                "STARVED" in "".join(text.split("\n")[1:3]) and "q quit" in text.split("\n")[-1]
            ),
            f"the screen at {columns}x{rows}",
        )
        assert "train.py" in text.split("\n")[0]
        assert len(text.split("\n")) == rows


def test_copying_the_advice_writes_a_private_file_and_the_clipboard(
    screen: Terminal, live: Path
) -> None:
    screen.type("y")
    screen.wait_for("Advice copied")
    advice = live / "advice.txt"
    assert "num_workers=7" in advice.read_text()
    assert advice.stat().st_mode & 0o777 == 0o600
    assert b"\x1b]52;" in screen.raw


def test_s_saves_pictures_beside_each_other(screen: Terminal, live: Path) -> None:
    screen.type("s")
    screen.wait_for("screen-1.svg")
    screen.type("s")
    screen.wait_for("screen-2.svg")
    assert (live / "screen-2.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_leaves_with_128_plus_n_and_restores_the_terminal(
    screen: Terminal, number: signal.Signals
) -> None:
    screen.process.send_signal(number)
    screen.wait_for(f"RESULT detached {128 + number}")
    screen.wait_exit()
    assert screen.restored()


def test_a_terminal_that_vanishes_without_a_signal_ends_the_screen(screen: Terminal) -> None:
    screen.hang_up()
    screen.wait_exit()


@pytest.mark.slow
def test_a_terminal_nobody_reads_does_not_keep_sigterm_out(screen: Terminal) -> None:
    """The event loop stands still once the terminal's buffer is full; a handler still runs."""
    for _ in range(60):  # repaints pile up unread
        screen.type("?\x1b")
        time.sleep(0.05)
    screen.process.send_signal(signal.SIGTERM)
    code = screen.process.wait(timeout=60)
    screen.pump(1)
    # On a machine too busy to let the loop end in time it leaves without its caller's words.
    assert code == 143 or b"RESULT detached 143" in screen.raw
    assert screen.restored()


def test_when_the_script_ends_the_screen_says_how_and_stays_until_q(
    screen: Terminal, live: Path
) -> None:
    exit_json(live, time.monotonic_ns(), code=3)
    screen.wait_for("exit code 3. q closes")
    assert screen.process.poll() is None
    screen.type("q")
    screen.wait_for("RESULT ended 3")


def test_stop_asks_the_supervisor_and_leaves_with_the_scripts_code(live: Path) -> None:
    asked: list[bytes] = []
    live.chmod(0o700)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(live / "s"))
    (live / "s").chmod(0o600)
    server.listen(1)

    def supervise() -> None:
        connection, _ = server.accept()
        asked.append(connection.recv(4096))
        connection.sendall(b'{"ok": true}\n')
        connection.close()
        exit_json(live, time.monotonic_ns(), code=None, signal=signal.SIGINT)

    threading.Thread(target=supervise, daemon=True).start()
    with server, Terminal(LIVE, str(live)) as screen:
        screen.wait_for("STARVED")
        screen.type("q")
        screen.wait_for("still running")
        screen.type("s")
        screen.wait_for("RESULT stopped 130")
    assert json.loads(asked[0])["op"] == "stop"


def test_a_supervisor_that_does_not_answer_is_said_and_the_screen_stays(screen: Terminal) -> None:
    screen.type("qs")
    screen.wait_for("does not answer")
    assert screen.process.poll() is None


def test_a_fault_of_the_screen_is_one_sentence_and_no_local_variables(live: Path) -> None:
    code = LIVE.replace(
        "result = ",
        "from gputop_train.tui.widgets.memory import MemoryBar\n"
        "def broken(self, *a):\n"
        "    password = 'hunter2'\n"
        "    raise RuntimeError('boom')\n"
        "MemoryBar.rows = broken\n"
        "result = ",
        1,
    )
    with Terminal(code, str(live)) as screen:
        text = screen.wait_for("RESULT detached 0")
        assert "training is not affected" in text
        assert "Traceback" not in text
        assert "hunter2" not in screen.raw.decode(errors="replace").split("\x1b[?1049l")[-1]
        screen.wait_exit()
        assert screen.restored()
    report = (live / "screen-crash.txt").read_text()
    assert "boom" in report
    assert "hunter2" not in report.replace("password = 'hunter2'", "")


def test_plain_ascii_is_plain_ascii(live: Path) -> None:
    with Terminal(
        LIVE.replace("run_live(sys.argv[1])", "run_live(sys.argv[1], ascii=True)"), str(live)
    ) as screen:
        assert screen.wait_for("STARVED").isascii()


def test_no_color_means_no_colour_at_all(live: Path) -> None:
    with Terminal(LIVE, str(live), env={"NO_COLOR": "1"}) as screen:
        screen.wait_for("STARVED")
        assert b"38;2;" not in screen.raw
        assert b"48;2;" not in screen.raw


def test_a_replay_plays_pauses_and_seeks_by_keys(tmp_path: Path) -> None:
    path = tmp_path / "3f2a"
    path.mkdir()
    end = write_store(path)
    run_json(path)
    exit_json(path, end)
    with Terminal(REPLAY, str(path)) as screen:
        screen.wait_for("2x")  # a minute of training in half a minute
        screen.type(" ")
        screen.wait_for("❚❚")
        screen.type("\x1b[C\x1b[C\x1b[C")
        screen.wait_for(lambda text: any(f" {t}s of" in text for t in (30, 31, 32, 33)), "30 s in")
        screen.wait_for("STARVED")
        screen.type(">")
        screen.wait_for("4x")
        screen.type("q")
        screen.wait_for("RESULT ended 0")


@pytest.mark.parametrize(
    ("env", "size", "reason"),
    [
        ({"TERM": "dumb"}, (120, 40), "TERM=dumb"),
        ({}, (30, 8), "30x8"),
    ],
)
def test_a_terminal_that_cannot_show_the_screen_is_told_apart(
    env: dict[str, str], size: tuple[int, int], reason: str
) -> None:
    code = "from gputop_train.tui.app import can_run\nprint('REASON', can_run())"
    with Terminal(code, columns=size[0], rows=size[1], env=env) as screen:
        screen.wait_exit()
        assert reason in screen.text.replace("\n", "")
