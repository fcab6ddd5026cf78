"""Which other programs may run in a guarded leg: no hook sees what they do to files.

Allowed are our own kind (a Python that loads this guard too), programs that only tell something,
and compilers, whose output is named on their command line.
"""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Any

#: Programs that only read; libraries call them to describe the machine.
# fmt: off
READERS = frozenset(
    (
        "arch", "basename", "cat", "cut", "date", "df", "dirname", "dmidecode", "du",
        "echo", "env", "false", "file", "find", "free", "getconf", "getent", "grep",
        "groups", "head", "hostname", "id", "ldconfig", "ldd", "ls", "lsb_release", "lscpu",
        "lsmod", "lspci", "nproc", "numactl", "nvidia-smi", "nvidia-debugdump", "objdump",
        "pgrep", "printenv", "printf", "ps", "pwd", "readelf", "readlink", "realpath",
        "rocm-smi", "seq", "sleep", "stat", "tail", "taskset", "test", "true", "tty",
        "uname", "uptime", "wc", "which", "whoami",
    )
)
# fmt: on
#: Not ``find`` with one of these: it acts on what it finds.
_ACTING = ("-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprintf", "-fls")
#: ``git`` commands that only tell; GIT_OPTIONAL_LOCKS=0 keeps ``status`` from writing its index.
# fmt: off
GIT_READERS = frozenset(
    (
        "cat-file", "describe", "diff", "diff-index", "for-each-ref", "help", "log",
        "ls-files", "ls-remote", "ls-tree", "merge-base", "name-rev", "rev-list",
        "rev-parse", "shortlog", "show", "show-ref", "status", "symbolic-ref", "var",
        "version", "--version",
    )
)
# fmt: on
COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "nvcc", "ptxas", "ld", "as", "cicc")
_SHELLS = ("sh", "bash", "dash")
#: Programs that run another one, their own options apart.
_WRAPPERS = ("env", "taskset", "numactl")
_HARMLESS_REDIRECTIONS = ("2>/dev/null", "2> /dev/null", ">/dev/null", "> /dev/null", "2>&1")


def name_of(executable: Any, arguments: Any) -> str:
    """Return a program as a person would write it, shortened."""
    return " ".join(_words(executable, arguments))[:400]


def judge(executable: Any, arguments: Any, env: Any) -> list[str] | None:
    """Return the files a program will write, ``None`` when nobody can say."""
    try:
        words = _words(executable, arguments)
        return _judge(words, env) if words else None
    except Exception:
        return None


def _words(executable: Any, arguments: Any) -> list[str]:
    if isinstance(arguments, (str, bytes, os.PathLike)):
        arguments = [arguments]
    words = [os.fsdecode(os.fspath(word)) for word in arguments or ()]
    if executable is not None and words:
        words[0] = os.fsdecode(os.fspath(executable))
    return words


def _judge(words: list[str], env: Any) -> list[str] | None:
    name = os.path.basename(words[0])
    if _is_guarded_python(words, env):
        return []
    if name in _SHELLS:
        return _judge_shell(words, env)
    if name == "git":
        rest = words[3:] if words[1:2] == ["-C"] else words[1:]
        rest = [word for word in rest if not word.startswith("-") or word == "--version"]
        if rest and rest[0] in ("config", "remote", "branch", "tag"):
            asks = ("--get", "--list", "-l", "--show-current", "-v", "get-url", "--get-regexp")
            return [] if len(rest) == 1 or any(word in asks for word in words) else None
        wrote = any(word.startswith("--output") for word in words)
        return [] if rest and rest[0] in GIT_READERS and not wrote else None
    if name in _WRAPPERS and len(words) > 1:
        return None
    if name == "find" and any(word.startswith(_ACTING) for word in words):
        return None
    if name in READERS:
        return []
    if name.rstrip("0123456789.-") in COMPILERS or name in COMPILERS:
        return _outputs(words)
    return None


def _outputs(words: list[str]) -> list[str] | None:
    if any(word in ("--version", "-v", "-dumpversion", "-dumpmachine", "-E") for word in words):
        return []
    for index, word in enumerate(words):
        if word in ("-o", "--output-file") and index + 1 < len(words):
            return [words[index + 1]]
        if word.startswith("-o") and len(word) > 2:
            return [word[2:]]
    return None


def _judge_shell(words: list[str], env: Any) -> list[str] | None:
    if len(words) < 3 or words[1] != "-c":
        return None
    text = words[2]
    for harmless in _HARMLESS_REDIRECTIONS:
        text = text.replace(harmless, " ")
    if any(char in text for char in "<>;&`$(){}\n\\"):
        return None
    written: list[str] = []
    for part in text.split("|"):
        inner = shlex.split(part)
        files = _judge(inner, env) if inner else None
        if files is None:
            return None
        written += files
    return written


def _is_guarded_python(words: list[str], env: Any) -> bool:
    """A Python that will load the guard: it inherits our path, and no option keeps it from that."""
    if not os.path.basename(words[0]).startswith("python"):
        if not _has_python_shebang(words[0]):
            return False
    else:
        for word in words[1:]:
            if not word.startswith("-") or word in ("-c", "-m"):
                break
            if not word.startswith("--") and any(letter in word[1:] for letter in "IES"):
                return False
    environ = os.environ if env is None else env
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = _get(environ, "PYTHONPATH").split(os.pathsep)
    kept = all(_get(environ, n) for n in ("GPUTOP_TRAIN_SCRATCH", "GPUTOP_TRAIN_GUARD"))
    return kept and any(os.path.abspath(path) == here for path in paths if path)


def _get(environ: Any, name: str) -> str:
    value = environ.get(name) or environ.get(name.encode())
    return os.fsdecode(value) if value else ""


def _has_python_shebang(program: str) -> bool:
    try:
        fd = os.open(shutil.which(program) or program, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        first = os.read(fd, 256).split(b"\n", 1)[0]
    finally:
        os.close(fd)
    return first.startswith(b"#!") and b"python" in first
