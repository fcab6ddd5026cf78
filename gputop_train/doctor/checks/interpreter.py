"""The Python that runs the script: is it one, is it new enough, and does the probe get in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gputop_train.doctor.facts import Asked, Facts, Interpreter
from gputop_train.doctor.findings import Check, Level, plural
from gputop_train.doctor.words import last_line, signal_name

#: What the probe is written for; docs/install.md.
OLDEST_PYTHON = (3, 9)
_OF_PYTHON = re.compile(r"/python(\d\.\d+)/")


def checks(facts: Facts) -> Iterator[Check]:
    """Judge the interpreter."""
    python = facts.interpreter
    yield _python(python)
    if python.version is None or python.version < OLDEST_PYTHON:
        return
    yield _entry(python)
    yield _path(python)
    yield _customized(python)


def _python(python: Interpreter) -> Check:
    def fail(found: str, remedy: str) -> Check:
        return Check("python", "Python", "fail", found, remedy, {"path": python.path})

    if python.path is None:
        found, _, remedy = (python.problem or "There is no Python.").partition(". ")
        return fail(found.rstrip(".") + ".", remedy or "Name one with --python PATH.")
    if python.version is None:
        return fail(_no_answer(python.path, python.about), "Name an interpreter: --python PATH.")
    version = ".".join(map(str, python.version))
    if python.version < OLDEST_PYTHON:
        return fail(
            f"{python.path} is Python {version}: the probe needs 3.9 or newer and stays out.",
            "Train with a newer Python, or name another interpreter with --python PATH.",
        )
    values = {"path": python.path, "version": version}
    return Check("python", "Python", "ok", f"{version}, {python.path}", None, values)


def _no_answer(path: str, about: Asked | None) -> str:
    if about is None or about.error:
        why = f": {about.error}" if about and about.error else ""
        return f"{path} cannot be started{why}."
    if about.timed_out:
        return f"{path} did not say who it is within {about.limit_s:.0f} s and was ended."
    if about.exit_code and about.exit_code < 0:
        return f"{path} was killed by {signal_name(-about.exit_code)} at its start."
    said = last_line(about.stderr)
    ended = f"it ended with {about.exit_code}" + (f" and said: {said}" if said else "")
    return f"{path} does not answer as a Python interpreter: {ended}."


def _entry(python: Interpreter) -> Check:
    """The probe comes in as a ``sitecustomize`` on PYTHONPATH; this was tried for real."""
    about = python.about.facts if python.about else {}
    values = {
        "entered": python.entered,
        "ignore_environment": about.get("ignore_environment"),
        "no_site": about.get("no_site"),
    }
    if python.entered:
        return Check("probe-entry", "probe", "ok", "gets in through PYTHONPATH", None, values)
    if python.entered is None:
        found = "Whether the probe gets in could not be tried: the interpreter did not answer."
        return Check("probe-entry", "probe", "unchecked", found, None, values)
    why = "its sitecustomize is not imported"
    if about.get("ignore_environment") or about.get("isolated"):
        why = "it ignores PYTHONPATH (-E or -I)"
    elif about.get("no_site"):
        why = "it does not import site (-S)"
    return Check(
        "probe-entry",
        "probe",
        "fail",
        f"The probe does not get into {python.path}: {why}, so steps will not be seen.",
        f"If {python.path} is a wrapper, name the Python behind it with --python PATH.",
        values,
    )


def _path(python: Interpreter) -> Check:
    about = python.about.facts if python.about else {}
    values = {name: about.get(name) for name in ("path_given", "path_absent", "shadows")}

    def check(level: Level, found: str, remedy: str | None = None) -> Check:
        return Check("python-path", "PYTHONPATH", level, found, remedy, values)

    if shadows := about.get("shadows"):
        more = f" and {len(shadows) - 1} more" if len(shadows) > 1 else ""
        return check(
            "warn",
            f"{shadows[0]}{more} stands in place of a module of the standard library.",
            "Rename it, or take its directory out of PYTHONPATH.",
        )
    given = [str(place) for place in about.get("path_given") or ()]
    own = ".".join(map(str, (python.version or ())[:2]))
    foreign = [p for p in given if (m := _OF_PYTHON.search(p + "/")) and m.group(1) != own]
    if foreign:
        return check(
            "warn",
            f"PYTHONPATH holds packages of another Python than {own}: {foreign[0]}.",
            "Unset PYTHONPATH, and install what is needed into the environment itself.",
        )
    if absent := about.get("path_absent"):
        return check(
            "note",
            f"PYTHONPATH names what is not there: {absent[0]}.",
            "Take it out, or mend the path.",
        )
    return check("ok", plural(len(given), "directory") if given else "not set")


def _customized(python: Interpreter) -> Check:
    about = python.about.facts if python.about else {}
    values = {name: about.get(name) for name in ("sitecustomize", "usercustomize", "no_user_site")}
    title = "sitecustomize"
    theirs = about.get("sitecustomize")
    if theirs and str(theirs).startswith(str(about.get("base_prefix") or "/usr") + "/lib"):
        # Debian and its kin ship one with their Python, which is as it should be.
        found = f"the distribution's, {theirs}"
        return Check("sitecustomize", title, "ok", found, None, values)
    if theirs:
        found = f"There is one already, {theirs}; the probe runs first and then hands over to it."
        remedy = "Nothing, unless a run fails at its start: then try it without that file."
        return Check("sitecustomize", title, "note", found, remedy, values)
    return Check("sitecustomize", title, "ok", "none in the way", None, values)
