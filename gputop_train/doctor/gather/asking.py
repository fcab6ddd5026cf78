"""Asks another interpreter something, in a process that may hang, crash or never stop talking."""

from __future__ import annotations

import ast
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from gputop_train.doctor.facts import Asked

#: Far more than any answer; a process that says more is cut off.
MAX_BYTES = 256 * 1024
#: Of what it printed on stderr, the end is kept: that is where the reason is.
_TAIL_BYTES = 4096


def ask(python: str, code: str, environ: Mapping[str, str], limit_s: float) -> Asked:
    """Run ``code`` in ``python`` and collect its answers. Never raises, never takes longer.

    Args:
        python: Path of the interpreter.
        code: One of `questions`; gets the descriptor to answer on as ``argv[1]``.
        environ: Its environment.
        limit_s: Seconds after which it is killed, with all it started.
    """
    answers, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            [python, "-c", code, str(theirs)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs,),
            start_new_session=True,
        )
    except (OSError, ValueError) as failure:
        os.close(answers)
        os.close(theirs)
        return Asked(error=getattr(failure, "strerror", None) or str(failure), limit_s=limit_s)
    os.close(theirs)
    assert process.stderr is not None
    said, complained, in_time = b"", b"", False
    try:
        said, complained, in_time = _listen(process, answers, process.stderr.fileno(), limit_s)
    finally:
        _put_away(process, answers, gently=in_time)
    endless = len(said) > MAX_BYTES
    return Asked(
        facts=_merged(said),
        exit_code=process.returncode if in_time else None,
        timed_out=not in_time and not endless,
        error="it answers without end" if endless else None,
        stderr=complained[-_TAIL_BYTES:].decode("utf-8", "replace"),
        limit_s=limit_s,
    )


def _put_away(process: subprocess.Popen[bytes], answers: int, *, gently: bool) -> None:
    """Leave nothing behind, also when a person interrupts."""
    if not gently:
        # A process ends, and what it started may not: the whole session goes.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    # One that cannot be killed (waiting for a driver or a file server) is left behind.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
    os.close(answers)
    if process.stderr is not None:
        process.stderr.close()


def _listen(
    process: subprocess.Popen[bytes], answers: int, stderr: int, limit_s: float
) -> tuple[bytes, bytes, bool]:
    """Read both until they are closed or the process has ended; ``False``: it took too long."""
    heard = {answers: bytearray(), stderr: bytearray()}
    deadline = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        for fd in heard:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return bytes(heard[answers]), bytes(heard[stderr]), False
            ready = selector.select(min(left, 0.2))
            if not ready and process.poll() is not None:
                break  # somebody it started holds the other end
            for key, _ in ready:
                fd = key.fd
                chunk = os.read(fd, 65536)
                if not chunk:
                    selector.unregister(fd)
                heard[fd] += chunk
                if fd == answers and len(heard[fd]) > MAX_BYTES:
                    return bytes(heard[answers]), bytes(heard[stderr]), False
                del heard[fd][: -MAX_BYTES if fd == stderr else 0]
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return bytes(heard[answers]), bytes(heard[stderr]), False
    return bytes(heard[answers]), bytes(heard[stderr]), True


def _merged(said: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in said.splitlines():
        try:
            part = ast.literal_eval(line.decode("ascii"))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(part, dict):
            facts.update(part)
    return facts
