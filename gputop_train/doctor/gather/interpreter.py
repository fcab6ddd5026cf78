"""Facts about the interpreter that scripts will use: three questions, a process for each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gputop_train.doctor.facts import Interpreter
from gputop_train.doctor.gather import questions
from gputop_train.doctor.gather.asking import ask
from gputop_train.launch.interpreter import CommandProblem, choose_interpreter

#: An interpreter that has not said who it is by then never will; a cold network disk may take long.
ABOUT_LIMIT_S = 30.0


def gather(named: str | None, environ: Mapping[str, str], limit_s: float) -> Interpreter:
    """Choose the interpreter as a run would, and ask it.

    Args:
        named: ``--python``, else what the config file says.
        environ: The environment a run would get.
        limit_s: Seconds that ``import torch`` may take.
    """
    try:
        path = choose_interpreter(named, environ)
    except CommandProblem as problem:
        return Interpreter(problem=str(problem))
    about = ask(path, questions.ABOUT, environ, max(ABOUT_LIMIT_S, limit_s))
    if not about.facts.get("version"):
        return Interpreter(path, about=about)
    torch = None
    if about.facts.get("torch_origin") is not None:
        torch = ask(path, questions.TORCH, environ, limit_s)
    return Interpreter(path, about=about, torch=torch, entered=_entered(path, environ, limit_s))


def _entered(path: str, environ: Mapping[str, str], limit_s: float) -> bool | None:
    """Whether the probe's way in is open: a ``sitecustomize`` of ours, as it is put there."""
    try:
        with tempfile.TemporaryDirectory(prefix="gputop-train-") as place:
            Path(place, "sitecustomize.py").write_text(questions.SITECUSTOMIZE, "ascii")
            inherited = environ.get("PYTHONPATH", "")
            given = os.pathsep.join(filter(None, (place, inherited)))
            answer = ask(path, questions.ENTERED, {**environ, "PYTHONPATH": given}, limit_s)
    except OSError:
        return None
    entered = answer.facts.get("entered")
    return entered if isinstance(entered, bool) else None
