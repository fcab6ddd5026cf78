"""The control socket under siege: crowds, drips and halves cost one thread, and the owner gets in."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gputop_train.launch.control import LINE_LIMIT, Client, ControlError, Server
from tests.launching import wait_for
from tests.unprivileged import run_as_nobody

#: Only bounds a failure: on a slow machine the crowd before us takes its time.
PATIENT_S = 60.0


@pytest.fixture
def door() -> Iterator[Server]:
    """A server in a directory short enough for a socket's path."""
    heard: list[str] = []

    def handle(op: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        heard.append(op)
        return {"heard": list(heard), "pid": os.getpid()}

    with tempfile.TemporaryDirectory(prefix="gpt") as name:
        server = Server(Path(name) / "control.sock", handle)
        yield server
        server.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


CROWD = """
import socket, sys
door, count = sys.argv[1], int(sys.argv[2])
answers = set()
for number in range(count):
    with socket.socket(socket.AF_UNIX) as knock:
        knock.connect(door)
        knock.settimeout(60)
        try:
            knock.sendall((b'{"op": "stop"}\\n', b'{"op": "st', b"", b"\\n" * 9000)[number % 4])
            answers.add(knock.recv(4096))
        except (BrokenPipeError, ConnectionResetError):
            answers.add(b"hung up")
print(sorted(answers))
"""


def test_a_thousand_knocks_of_another_user_do_nothing_even_if_the_modes_were_opened(
    door: Server,
) -> None:
    os.chmod(door.path.parent, 0o777)
    os.chmod(door.path, 0o777)
    threads, open_files = threading.active_count(), descriptors()
    owner = Client(door.path, timeout_s=PATIENT_S)
    siege = threading.Thread(
        target=lambda: done.append(run_as_nobody(CROWD, str(door.path), "1000"))
    )
    done: list[Any] = []
    siege.start()
    heard = [owner.request("ping")["heard"] for _ in range(5)]
    siege.join(PATIENT_S * 2)
    assert done and done[0].returncode == 0, done
    assert "Only the user who owns this run" in done[0].stdout
    assert "'ok': true" not in done[0].stdout.lower().replace('"', "'")
    assert heard[-1] == ["ping"] * 5  # and never a stop
    wait_for(lambda: descriptors() <= open_files, "the last connection closed")
    assert threading.active_count() <= threads


def test_a_hundred_halves_of_the_owners_own_leave_nothing_open(door: Server) -> None:
    """A buggy script of the owner's: what cannot be a request is let go of at once or after 2 s."""
    open_files = descriptors()
    for number in range(100):
        with socket.socket(socket.AF_UNIX) as knock:
            knock.connect(str(door.path))
            knock.settimeout(PATIENT_S)
            knock.sendall((b'{"op": "pi', b"x" * (2 * LINE_LIMIT), b'{"op": "ping"}')[number % 3])
            if number % 2:
                knock.shutdown(socket.SHUT_WR)
    assert Client(door.path, timeout_s=PATIENT_S).ping()["heard"] == ["ping"]
    wait_for(lambda: descriptors() <= open_files, "the last connection closed")


def test_the_owner_waits_behind_a_crowd_instead_of_being_turned_away(door: Server) -> None:
    crowd = []
    for _ in range(12):  # more than the queue holds; each is waited for two seconds at most
        knock = socket.socket(socket.AF_UNIX)
        knock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            knock.connect(str(door.path))
        crowd.append(knock)
    asked = Client(door.path, timeout_s=PATIENT_S)
    answered = threading.Thread(target=lambda: heard.append(asked.ping()["ok"]))
    heard: list[bool] = []
    answered.start()
    for knock in crowd:
        knock.close()
    answered.join(PATIENT_S)
    assert heard == [True]


def test_who_drips_is_cut_off_and_who_never_reads_holds_nobody_up(door: Server) -> None:
    ended = threading.Event()

    def drip() -> None:
        with socket.socket(socket.AF_UNIX) as slow:
            slow.connect(str(door.path))
            try:
                while not ended.wait(0.05):
                    slow.sendall(b" ")  # each byte in time, and never a line
            except OSError:
                ended.set()

    dripping = threading.Thread(target=drip)
    dripping.start()
    deaf = socket.socket(socket.AF_UNIX)
    deaf.connect(str(door.path))
    deaf.sendall(b'{"op": "echo"}\n' * 500)
    assert Client(door.path, timeout_s=PATIENT_S).ping()["ok"] is True
    assert ended.wait(PATIENT_S), "it was served for ever"
    dripping.join(PATIENT_S)
    deaf.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"[" * 16_000 + b"\n",
        b'{"ok": true, "pid": ' + b"9" * 5000 + b"}\n",
        b"x" * (4 * LINE_LIMIT),
        b"",
        b'{"ok": "yes"}\n',
        b'{"ok": false, "error": {"a": 1}}\n',
    ],
    ids=["brackets", "digits", "no end", "nothing", "no boolean", "no text"],
)
def test_whatever_a_supervisor_answers_the_asker_gets_a_sentence(
    tmp_path: Path, answer: bytes
) -> None:
    with tempfile.TemporaryDirectory(prefix="gpt") as name:
        path = Path(name) / "s"
        with socket.socket(socket.AF_UNIX) as false:
            false.bind(str(path))
            false.listen(1)

            def reply() -> None:
                client, _ = false.accept()
                with client:
                    client.recv(100)
                    with contextlib.suppress(OSError):
                        client.sendall(answer)

            answering = threading.Thread(target=reply)
            answering.start()
            with pytest.raises(ControlError) as told:
                Client(path, timeout_s=PATIENT_S).stop()
            answering.join(PATIENT_S)
    assert str(told.value).endswith(".")
    assert json.dumps(str(told.value))
