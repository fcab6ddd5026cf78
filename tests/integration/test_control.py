"""The control socket: the owner may ask, nobody else, and no bytes can hurt it."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gputop_train.launch.control import LINE_LIMIT, Client, ControlError, Server

NOBODY = 65534


@pytest.fixture
def place():
    # Not tmp_path: a socket's path must stay under 100 bytes.
    with tempfile.TemporaryDirectory(prefix="gpt") as name:
        yield Path(name)


def handle(op, request):
    if op == "ping":
        return {"pid": os.getpid()}
    if op == "echo":
        return {"got": request.get("text")}
    if op == "boom":
        raise RuntimeError("out of cheese")
    raise LookupError(op)


@pytest.fixture
def server(place):
    server = Server(place / "control.sock", handle)
    yield server
    server.close()


def raw(server: Server, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(server.path))
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server hung up first, which is its right
        received = b""
        try:
            while data := connection.recv(4096):
                received += data
        except ConnectionResetError:
            pass
        return received


def test_the_owner_is_answered(server):
    client = Client(server.path)
    assert client.ping()["pid"] == os.getpid()
    assert client.request("echo", text="größe")["got"] == "größe"


def test_an_unknown_request_and_a_failing_one_are_refused_in_a_sentence(server):
    client = Client(server.path)
    with pytest.raises(ControlError, match="does not know that request"):
        client.request("format-disk")
    with pytest.raises(ControlError, match="out of cheese"):
        client.request("boom")


def test_the_socket_is_closed_to_others(server):
    assert stat.S_IMODE(server.path.lstat().st_mode) == 0o600


def test_a_directory_that_lets_others_in_is_refused(place):
    place.chmod(0o755)
    with pytest.raises(PermissionError):
        Server(place / "control.sock", handle)


AS_NOBODY = """
import os, socket
os.setgid({uid}); os.setuid({uid})
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(10)
connection.connect({path!r})
try:
    connection.sendall(b'{{"op": "ping"}}\\n')
    print(connection.recv(4096).decode())
except (BrokenPipeError, ConnectionResetError):
    print('{{"ok": false, "error": "hung up"}}')
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_if_the_modes_were_opened(server):
    # The kernel is asked who knocks, so a chmod gone wrong does not hand over the run.
    os.chmod(server.path, 0o777)
    os.chmod(server.path.parent, 0o777)
    code = AS_NOBODY.format(uid=NOBODY, path=str(server.path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reply = json.loads(done.stdout)
    assert reply["ok"] is False
    assert "pid" not in reply


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_client_does_not_talk_to_a_socket_of_another_user(place):
    code = f"""
import os, socket
os.setgid({NOBODY}); os.setuid({NOBODY})
server = socket.socket(socket.AF_UNIX)
server.bind({str(place / "s")!r}); os.chmod({str(place / "s")!r}, 0o777)
server.listen(1)
print("ready", flush=True)
connection, _ = server.accept()
print(connection.recv(100), flush=True)
"""
    os.chmod(place, 0o777)
    impostor = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert impostor.stdout is not None
    assert impostor.stdout.readline() == "ready\n"
    with pytest.raises(ControlError, match="another user"):
        Client(place / "s").stop()
    assert impostor.stdout.readline() == "b''\n", "something was sent to the impostor"
    impostor.wait()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"not json\n",
        b"[1, 2]\n",
        b'{"op": 7}\n',
        b'{"no": "op"}\n',
        b"\xff\xfe\x00\n",
        b"[" * 10_000 + b"\n",
        b'{"op": "echo", "text": "' + b"x" * (4 * LINE_LIMIT),
        b'{"op": "ping"}',  # no newline
    ],
)
def test_hostile_bytes_do_nothing_and_the_next_client_is_served(server, data):
    reply = raw(server, data)
    assert reply == b"" or json.loads(reply)["ok"] is False
    assert Client(server.path).ping()["ok"] is True


def test_a_client_that_says_nothing_cannot_hold_the_door(server):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(server.path))
        assert Client(server.path, timeout_s=20).ping()["ok"] is True


def test_a_stale_socket_is_replaced_but_a_file_is_not(place):
    path = place / "control.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = Server(path, handle)
    assert Client(path).ping()["ok"] is True
    server.close()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        Server(path, handle)
    assert path.read_text() == "precious"


def test_a_vanished_socket_is_noticed(server):
    assert server.reachable()
    server.path.unlink()
    assert not server.reachable()


def test_a_dead_supervisor_is_a_sentence_with_the_next_step(place):
    with pytest.raises(ControlError, match="gputop-train attach"):
        Client(place / "control.sock").ping()
