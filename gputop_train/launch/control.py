"""The narrow door from a screen to the supervisor: one JSON line each way over a Unix socket.

Only the run's owner may knock: the socket is 0600 in a 0700 directory and the peer's user is asked
of the kernel besides, because a directory's mode is one ``chmod`` away from being wrong. Whatever
arrives is hostile until parsed: its length, number of clients and time are bounded.

Requests: ``{"op": "ping"}``, ``"status"``, ``"stop"`` and ``"burst"``. Replies carry ``"ok"`` and,
when it is false, ``"error"`` in one sentence. Detaching needs no request: the screen just leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gputop_train.launch import runfile

#: The longest request or reply. A status is a few hundred bytes.
LINE_LIMIT = 16 * 1024
_CLIENT_S = 2.0  # a client that has not sent its line by then is cut off
_BACKLOG = 8
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid

Handler = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


class ControlError(Exception):
    """The supervisor could not be asked; the message is one sentence for the user."""


class Server:
    """Answer requests in a daemon thread, one client at a time.

    One at a time is enough (an answer takes microseconds) and makes it impossible for a crowd of
    clients to cost more than one thread and one buffer.
    """

    def __init__(self, path: str | os.PathLike[str], handler: Handler) -> None:
        """Bind the socket; a stale one left by a killed supervisor is replaced.

        Args:
            path: Where to listen; its directory must exist, be ours and closed to others.
            handler: ``(op, request) -> reply`` fields; called in the server's thread.

        Raises:
            OSError: The socket cannot be made here.
        """
        self.path = Path(path)
        self._handler = handler
        _check_directory(self.path.parent)
        self._socket = _bind(self.path)
        self._identity = _identity(self.path)
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def reachable(self) -> bool:
        """Whether the path still leads to this socket (logind removes runtime directories)."""
        return _identity(self.path) == self._identity

    def close(self) -> None:
        """Stop answering and remove the socket, if it is still ours."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        if self.reachable():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._thread.join(timeout=_CLIENT_S + 1)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                # Out of descriptors, or the socket was shut down: never a busy loop.
                time.sleep(0.1)
                continue
            with client, contextlib.suppress(OSError):
                self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        client.settimeout(_CLIENT_S)
        if peer_uid(client) != os.geteuid():
            _send(client, {"ok": False, "error": "Only the user who owns this run may control it."})
            return
        request = _parse(_receive_line(client, time.monotonic() + _CLIENT_S))
        if request is None:
            _send(client, {"ok": False, "error": "The request was not a line of JSON with an op."})
            return
        try:
            reply = {"ok": True, **self._handler(request["op"], request)}
        except LookupError:
            reply = {"ok": False, "error": "This supervisor does not know that request."}
        except Exception as error:
            reply = {"ok": False, "error": f"The supervisor failed to answer: {error}"[:500]}
        _send(client, reply)


class Client:
    """Ask a run's supervisor. Every call opens its own connection and is bounded in time."""

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = 3.0) -> None:
        self._path = Path(path)
        self._timeout_s = timeout_s

    def ping(self) -> dict[str, Any]:
        """Whether somebody answers, and who (``pid``)."""
        return self.request("ping")

    def status(self) -> dict[str, Any]:
        """What the supervisor is doing."""
        return self.request("status")

    def stop(self) -> dict[str, Any]:
        """Ask for the stop ladder; returns at once, the ladder takes its time."""
        return self.request("stop")

    def burst(self) -> dict[str, Any]:
        """Ask for a profiler burst; ``asked`` says of how many processes."""
        return self.request("burst")

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one request and give the reply.

        Raises:
            ControlError: Nobody answers, the socket is not ours, or the supervisor refused.
        """
        try:
            reply = self._exchange({**fields, "op": op})
        except (OSError, ValueError) as error:
            raise ControlError(
                f"The supervisor of this run does not answer ({_plain(error)}); "
                "`gputop-train attach` starts a new one if the run is still alive."
            ) from error
        if reply.get("ok") is not True:
            text = reply.get("error")
            raise ControlError(
                text if isinstance(text, str) else "The supervisor refused the request."
            )
        return reply

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            _connect(connection, os.fspath(self._path), time.monotonic() + self._timeout_s)
            if peer_uid(connection) != os.geteuid():
                raise ValueError("the socket belongs to another user")
            _send(connection, request)
            line = _receive_line(connection, time.monotonic() + self._timeout_s)
        reply = _load(line)
        if reply is None:
            raise ValueError("the answer was not understood")
        return reply


def client_of(run_dir: Path) -> Client:
    """The door to a run's supervisor, wherever it stands now.

    It moves into the run directory when the runtime directory is taken away (logind), and the
    supervisor then says so in ``supervisor.json``.
    """
    for name in ("supervisor.json", "run.json"):
        path = (runfile.read_json(run_dir / name) or {}).get("control_socket")
        if isinstance(path, str):
            return Client(path)
    return Client(run_dir / "control.sock")


def _connect(connection: socket.socket, path: str, deadline: float) -> None:
    """Connect, waiting behind a crowd: a full queue is EAGAIN at once for who has a time limit."""
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:  # noqa: PERF203  a failed try is what is waited for
            if time.monotonic() >= deadline:
                raise TimeoutError("too many are waiting") from None
            time.sleep(0.02)


def peer_uid(connection: socket.socket) -> int:
    """The effective user at the other end, as the kernel knows it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(raw)[1])


def _check_directory(directory: Path) -> None:
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(
            f"{directory} is not a directory of ours that is closed to others (mode 0700)"
        )


def _bind(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
        path.unlink()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(os.fspath(path))
        path.chmod(0o600)
        server.listen(_BACKLOG)
    except BaseException:
        server.close()
        raise
    return server


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _receive_line(connection: socket.socket, deadline: float) -> bytes:
    """Read up to a newline, ``LINE_LIMIT`` or the deadline; more than the limit is no line."""
    buffer = bytearray()
    while b"\n" not in buffer and len(buffer) <= LINE_LIMIT:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no complete line in time")
        connection.settimeout(left)
        data = connection.recv(4096)
        if not data:
            break
        buffer += data
    line, newline, _ = bytes(buffer).partition(b"\n")
    return line if newline and len(line) <= LINE_LIMIT else b""


def _send(connection: socket.socket, body: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(body).encode("utf-8", "replace") + b"\n")


def _load(line: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: a line of nothing but brackets
        return None
    return body if isinstance(body, dict) else None


def _parse(line: bytes) -> dict[str, Any] | None:
    body = _load(line)
    return body if body is not None and isinstance(body.get("op"), str) else None


def _plain(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "its socket is gone"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error).lower() if str(error) else type(error).__name__
