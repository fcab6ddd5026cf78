"""The parent of the training process: it starts it, waits for it, and writes how it ended.

Run as a file by ``python -I -S`` in a session of its own, so that neither the screen's end nor the
supervisor's is its end. No threads, no imports beyond the interpreter's own modules, nothing to go
wrong. What to run comes through a pipe and not on its command line, or a ``pkill -f train.py``
meant for the script would take the witness of its end along.

Protocol, on descriptors named on the command line: ``spec`` carries the executable and ``argv``,
separated by NUL; the child writes its PID and a newline to ``status``, waits at ``go`` and
executes once that yields ``g``; anything else means that the launch was called off. ``status`` then
ends, or carries the errno of a failed ``exec``.
"""

# ruff: noqa: PERF203, PTH208, SIM105  (contextlib and pathlib would be half of its memory)
import os
import signal
import sys
import time

#: Bytes reserved for exit.json, so that a disk that fills up during training cannot lose it.
RESERVED_BYTES = 256
#: Signals a terminal, a scheduler or a service manager sends to everybody in reach.
IGNORED = (
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGTSTP", "SIGTTIN", "SIGTTOU"),
    *("SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGXCPU", "SIGALRM"),
)


def main(run_dir: str, spec: int, status: int, go: int) -> int:
    """Run the command ``spec`` carries; return the exit code it ended with, 128+n for a signal."""
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    executable, *argv = _read_all(spec).split(b"\0")
    os.close(spec)
    directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    record = _reserve(directory)
    child = os.fork()
    if child == 0:
        _become(executable, argv, status, go)
    _let_go(keep={directory, record})
    _, waited = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(waited)
    number = os.WTERMSIG(waited) if killed else os.WEXITSTATUS(waited)
    _write(directory, record, killed, number)
    return 128 + number if killed else number


def _read_all(fd: int) -> bytes:
    chunks: list[bytes] = []
    while True:
        chunk = os.read(fd, 65536)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def _reserve(directory: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    record = os.open(".exit.json", flags, 0o600, dir_fd=directory)
    os.write(record, b" " * RESERVED_BYTES)
    return record


def _become(executable: bytes, argv: "list[bytes]", status: int, go: int) -> None:
    try:
        os.setsid()
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                pass  # SIGKILL, SIGSTOP and those the C library keeps for itself
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.set_inheritable(status, False)
        os.set_inheritable(go, False)
        os.write(status, b"%d\n" % os.getpid())
        if os.read(go, 1) == b"g":
            os.execve(executable, argv, os.environb)
    except OSError as failure:
        os.write(status, b"%d" % (failure.errno or 0))
    finally:
        os._exit(127)


def _let_go(keep: "set[int]") -> None:
    """Hold nothing that somebody may wait for the end of: pipes, terminals, directories."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the listing's own descriptor
    os.chdir("/")


def _write(directory: int, record: int, killed: bool, number: int) -> None:
    code, signum = ("null", number) if killed else (number, "null")
    text = f'{{"exit_code": {code}, "signal": {signum}, '
    text += f'"ended_wall_ns": {time.time_ns()}, "ended_mono_ns": {time.monotonic_ns()}}}'
    try:
        os.pwrite(record, text.encode().ljust(RESERVED_BYTES - 1) + b"\n", 0)
        os.rename(".exit.json", "exit.json", src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        pass  # the run directory is gone; our own exit code still tells who waits for us


if __name__ == "__main__":
    os._exit(main(sys.argv[1], *map(int, sys.argv[2:5])))
