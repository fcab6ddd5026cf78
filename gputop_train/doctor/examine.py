"""The examination: gather all facts, then judge them; a check that fails says so, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gputop_train.config import ConfigProblem, load
from gputop_train.doctor.checks import (
    cards,
    driver,
    host,
    interpreter,
    packages,
    places,
    terminal,
    torch_build,
    visible,
)
from gputop_train.doctor.facts import Facts
from gputop_train.doctor.findings import Check, worst_first
from gputop_train.doctor.gather import gpus as gather_gpus
from gputop_train.doctor.gather import host as gather_host
from gputop_train.doctor.gather import interpreter as gather_interpreter
from gputop_train.doctor.gather import places as gather_places
from gputop_train.doctor.gather import terminal as gather_terminal

#: Seconds that ``import torch`` may take, unless said otherwise.
LIMIT_S = 60.0

_Judge = Callable[[Facts], Iterator[Check]]
JUDGES: tuple[_Judge, ...] = (
    interpreter.checks,
    torch_build.checks,
    packages.checks,
    driver.checks,
    visible.checks,
    cards.checks,
    host.checks,
    places.checks,
    terminal.checks,
)


def kept(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the config file and its variables say; nothing when they cannot be taken."""
    try:
        return {name: held.value for name, held in load(environ).items()}
    except ConfigProblem:  # one of the checks says so
        return {}


def gather(
    python: str | None,
    run_root: str | None,
    environ: Mapping[str, str],
    *,
    limit_s: float = LIMIT_S,
    nvml: Any = None,
    proc: str = "/proc",
) -> Facts:
    """Everything the checks need; nothing is changed by it.

    Args:
        python: ``--python``; else the config file's.
        run_root: ``--run-root``; else the config file's.
        environ: The environment a run would get.
        limit_s: Seconds that ``import torch`` may take.
        nvml: What to call in place of ``pynvml``, for tests.
        proc: Where procfs is, for tests.
    """
    held = kept(environ)
    root = run_root or held.get("run_root")
    named = python or held.get("python")
    return Facts(
        interpreter=gather_interpreter.gather(str(named) if named else None, environ, limit_s),
        gpus=gather_gpus.gather(nvml),
        host=gather_host.gather(environ, proc),
        places=gather_places.gather(str(root) if root else None, environ),
        terminal=gather_terminal.gather(environ),
        environ=environ,
    )


def judge(facts: Facts) -> list[Check]:
    """All findings, worst first."""
    return worst_first(check for each in JUDGES for check in _surely(each, facts))


def _surely(each: _Judge, facts: Facts) -> list[Check]:
    try:
        return list(each(facts))
    except Exception as failure:
        name = each.__module__.rpartition(".")[2]
        found = f"The checks of {name} failed themselves: {type(failure).__name__}: {failure}."
        remedy = "Please report it, with the output of doctor --json."
        return [Check(f"{name}-checks", name, "unchecked", found, remedy)]
