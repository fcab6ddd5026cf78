"""The config file: options a person keeps, read strictly and never guessed at.

A key that is not known, a value that is not allowed or a file that others can write is told in one
sentence before anything starts: a run that silently went by half of a file would be another run
than was asked for. The command line wins over the environment, which wins over the file.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gputop_train import paths
from gputop_train.config_keys import BY_NAME, KEYS, Key, Value, toml

#: Far more than all keys with comments take.
_MAX_BYTES = 64 * 1024

Source = Literal["default", "config", "environment"]


class ConfigProblem(Exception):
    """The file or a variable makes no sense: a sentence of what, and one of what to do."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value and who said it."""

    value: Value | None
    source: Source


def load(environ: Mapping[str, str] | None = None) -> dict[str, Held]:
    """What holds for every key, from the file and the environment.

    Raises:
        ConfigProblem: Something in either of them cannot be taken.
    """
    env = os.environ if environ is None else environ
    held = {key.name: Held(key.default, "default") for key in KEYS}
    place = paths.config_file(env)
    if place is not None:
        held |= {name: Held(value, "config") for name, value in read_file(place).items()}
    for key in KEYS:
        text = env.get(key.variable, "").strip()
        if text:
            held[key.name] = Held(_from_variable(key, text), "environment")
    return held


def defaults(params: frozenset[str], environ: Mapping[str, str] | None = None) -> dict[str, Value]:
    """The defaults of a command, by parameter, that somebody gave: click's ``default_map``.

    Args:
        params: Names of the command's parameters.
        environ: The environment.

    Raises:
        ConfigProblem: As `load`.
    """
    if params.isdisjoint(key.param for key in KEYS):
        return {}
    held = load(environ)
    return {
        key.param: value
        for key in KEYS
        if key.param in params
        and held[key.name].source != "default"
        and (value := held[key.name].value) is not None
    }


def read_file(place: Path) -> dict[str, Value]:
    """The keys of a file; nothing where there is no file.

    Raises:
        ConfigProblem: It cannot be read, is not ours alone to write, or says what is not allowed.
    """
    raw = _read(place)
    if raw is None:
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        body: dict[str, Any] = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigProblem(f"{place} is not UTF-8. Save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as problem:
        raise ConfigProblem(
            f"{place} is not TOML: {_lowered(problem)}. Write it as key = value, text in quotes."
        ) from None
    found: dict[str, Value] = {}
    for name, value in body.items():
        key = BY_NAME.get(name)
        if key is None:
            raise ConfigProblem(_unknown(place, name, value))
        try:
            found[name] = key.check(value)
        except ValueError:
            raise ConfigProblem(
                f"{place} has {name} = {_shown(value)}, which is not allowed: it takes "
                f"{key.allowed}. Correct it or take the line out."
            ) from None
    return found


def _from_variable(key: Key, text: str) -> Value:
    try:
        return key.check(key.read(text))
    except ValueError:
        raise ConfigProblem(
            f"{key.variable} is {text!r}, which is not allowed: it takes {key.allowed}. "
            "Correct it or unset it."
        ) from None


def _read(place: Path) -> bytes | None:
    """The file's content, if it is a file of ours that nobody else writes."""
    try:
        # Without O_NONBLOCK a named pipe in its place would hold everything up.
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise _unreadable(place, failure) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigProblem(f"{place} is not a file. Put a file there, or nothing.")
        # It can name the interpreter that is run.
        if found.st_uid != os.geteuid():
            raise ConfigProblem(
                f"{place} belongs to another user. Make one of your own there, or set "
                "GPUTOP_CONFIG= to go without it."
            )
        if stat.S_IMODE(found.st_mode) & 0o022:
            raise ConfigProblem(f"{place} can be written by others. Say: chmod 600 {place}")
        raw = os.read(fd, _MAX_BYTES + 1)
    except OSError as failure:
        raise _unreadable(place, failure) from None
    finally:
        os.close(fd)
    if len(raw) > _MAX_BYTES:
        raise ConfigProblem(f"{place} is too large for a config file. Keep it below 64 KB.")
    return raw


def _unreadable(place: Path, failure: OSError) -> ConfigProblem:
    return ConfigProblem(
        f"{place} cannot be read: {failure.strerror or failure}. Mend its mode or its path, or set "
        "GPUTOP_CONFIG= to go without it."
    )


def _unknown(place: Path, name: str, value: object) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), BY_NAME, n=1, cutoff=0.7)
    if isinstance(value, dict):
        return f"{place} has a table [{name}], and there are none. Write keys without a table."
    meant = f"Did you mean {near[0]}?" if near else f"It knows {', '.join(BY_NAME)}."
    return f"{place} has a key {name!r}, which is not known. {meant}"


def _lowered(problem: Exception) -> str:
    text = str(problem)
    return text[:1].lower() + text[1:]


def _shown(value: object) -> str:
    text = toml(value) if isinstance(value, str | bool | int | float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


#: What a key without a default looks like in the file that is written.
_EXAMPLES: Mapping[str, Value] = {
    "hz": 2,
    "run_root": "/data/runs",
    "python": "~/venv/bin/python",
    "price_per_hour": 2.5,
}


def template() -> str:
    """A file in which every key is explained and none is set."""
    lines = [
        "# What gputop-train keeps between runs. A line without its # holds; the command line and",
        "# GPUTOP_NAME in the environment win over it. What is not allowed here is an error.",
    ]
    for key in KEYS:
        value = _EXAMPLES.get(key.name, key.default)
        lines += ["", f"# {key.note}", f"# It takes {key.allowed}.", f"#{key.name} = {toml(value)}"]
    return "\n".join(lines) + "\n"
