"""Takes out of a run what says whose machine it was: paths, names, device ids. Pure.

A mask works on whatever text it is given, so the same path becomes the same stand-in in the store,
the report and the output, and a place in the code is still found by its relative path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

PROJECT, PYTHON, RUN, HOME = "/project", "/python", "/run", "/home/user"

#: NVML writes ``GPU-`` before a device's UUID, torch does not: both are the same device.
_DEVICE = re.compile(r"\b((?:GPU-|MIG-)?)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b", re.I)
_HOMES = re.compile(r"(?:/home|/Users)/[^/\s:'\",]+|(?<![\w/.])/root(?![\w.-])")
_HOME_OF = re.compile(r"/(?:home|Users)/([^/\s:'\",]+)")
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
#: Interpreters of the system say nothing about a person.
_SYSTEM_PREFIXES = {"", "/", "/usr", "/usr/local", "/opt"}


class Mask:
    """Replaces private parts of text.

    Args:
        run: The run's ``run.json``.
        run_dir: Where the run lies.
        user: Login name of who ran it, if known; names of homes in ``run`` are taken as well.
    """

    def __init__(self, run: Mapping[str, Any], run_dir: str, user: str | None = None) -> None:
        self._devices: dict[str, str] = {}
        self._rules: list[tuple[re.Pattern[str], str]] = []
        stands = {run_dir: RUN, _text(run, "cwd"): PROJECT, _prefix(_text(run, "python")): PYTHON}
        for key in ("ring_dir", "store", "control_socket"):
            stands.setdefault(str(PurePosixPath(_text(run, key)).parent), RUN)
        for path in sorted(stands, key=len, reverse=True):
            if path not in _SYSTEM_PREFIXES and path.startswith("/"):
                whole = re.compile(re.escape(path) + r"(?![\w.-])")
                self._rules.append((whole, stands[path]))
        self._rules.append((_HOMES, HOME))
        host = _text(run, "host")
        for name in sorted({host, host.partition(".")[0]} - {"", "localhost"}, key=len)[::-1]:
            # "train" may be a host, and "train.py" is none.
            word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)")
            self._rules.append((word if len(name) > 3 else _mailed(name), "host"))
        logins = {user or "", *_HOME_OF.findall(str(run))} - {"", "root", "user"}
        for login in sorted(logins):
            name = re.escape(login)
            in_path = rf"(?<=/){name}(?=[/\s:'\",]|$)|(?<![\w.-]){name}(?=@)"
            self._rules.append((re.compile(in_path), "user"))
        self._rules.append((_ADDRESS, "0.0.0.0"))

    def text(self, text: str) -> str:
        """The text with its private parts replaced."""
        for pattern, stand_in in self._rules:
            text = pattern.sub(stand_in, text)
        return _DEVICE.sub(self._device, text)

    def value(self, value: Any) -> Any:
        """Plain data (of JSON or msgpack) with every text in it masked, keys included."""
        return _walk(value, self.text)

    def _device(self, found: re.Match[str]) -> str:
        stand_in = f"00000000-0000-0000-0000-{len(self._devices):012d}"
        return found[1] + self._devices.setdefault(found[2].lower(), stand_in)


def _walk(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {_walk(key, mask): _walk(item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, mask) for item in value]
    return value


def _text(run: Mapping[str, Any], key: str) -> str:
    value = run.get(key)
    return value if isinstance(value, str) else ""


def _prefix(python: str) -> str:
    """The environment an interpreter lies in, ``.../venv`` of ``.../venv/bin/python``."""
    path = PurePosixPath(python)
    return str(path.parent.parent) if path.parent.name == "bin" else ""


def _mailed(name: str) -> re.Pattern[str]:
    """A name so short that it is only told from a word behind an ``@``."""
    return re.compile(rf"(?<=@){re.escape(name)}(?![\w-])")
