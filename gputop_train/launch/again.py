"""The same command once more with other settings, as a person would type it. Pure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gputop_train import paths
from gputop_train.launch.options import Setting, SettingValue


def merged(old: Sequence[Setting], new: Sequence[Setting]) -> tuple[Setting, ...]:
    """Settings of a run, with others in their place or beside them.

    A new one whose value is ``None`` takes the old one out: the script's own value is meant.
    """
    both = {setting.label: setting for setting in (*old, *new)}
    return tuple(setting for setting in both.values() if setting.value is not None)


def typed(setting: Setting) -> str:
    """``KEY=VALUE`` as ``--set`` takes it; of one without a value, what is meant."""
    if setting.value is None:
        return f"{setting.label} as in the script"
    return f"{setting.label}={shown(setting.value)}"


def shown(value: SettingValue) -> str:
    """A value as ``--set`` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def recorded(run: Mapping[str, Any]) -> tuple[Setting, ...]:
    """The settings ``run.json`` tells of."""
    overrides = run.get("overrides")
    found = []
    for label, value in (overrides if isinstance(overrides, Mapping) else {}).items():
        key, _, place = str(label).partition("@")
        found.append(Setting(key, value, place or None))
    return tuple(found)


def candidates(chosen: Sequence[Setting], base: Sequence[Setting] = ()) -> tuple[str, ...]:
    """What a trial tries: each setting by itself, then all together.

    Args:
        chosen: What is to be proved.
        base: What the run had besides; every candidate has it too.

    Returns:
        Values of ``--set``, one for each candidate.
    """
    found = [",".join(map(typed, merged(base, [one]))) for one in chosen]
    if len(chosen) > 1:
        found.append(",".join(map(typed, merged(base, chosen))))
    return tuple(filter(None, dict.fromkeys(found)))


def command_line(
    run: Mapping[str, Any],
    given: Sequence[str],
    *,
    verb: str = "",
    root: str | os.PathLike[str] | None = None,
) -> str:
    """The command that runs a script again, as far as ``run.json`` tells (secrets are masked).

    Args:
        run: ``run.json``.
        given: Values of ``--set``.
        verb: ``trial`` for a trial.
        root: The run root, named where it is not the usual one.
    """
    words = ["gputop-train", *([verb] if verb else [])]
    if root is not None and os.path.realpath(root) != os.path.realpath(paths.run_root()):
        words += ["--run-root", str(root)]
    for value in given:
        words += ["--set", value]
    command = [str(word) for word in run.get("command") or []]
    if run.get("mode") == "command" or not command:
        return shlex.join([*words, "--", *command])
    # Without the interpreter: the one that was chosen by itself is chosen again.
    return shlex.join([*words, *command[1:]])
