"""CUDA's libraries as Python packages: those torch asks for, once each, in one major version."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from gputop_train.doctor.facts import Facts
from gputop_train.doctor.findings import Check, Level
from gputop_train.doctor.words import shown

_PIN = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?==\s*([^\s;,)*]+)\)?\s*(?:;(.*))?$")
_MAJOR = re.compile(r"(.+)-cu(\d\d)$")


def checks(facts: Facts) -> Iterator[Check]:
    """Judge them, where a torch with CUDA or any such package is there."""
    about = facts.interpreter.about
    dists: Mapping[str, str] | None = about.facts.get("dists") if about else None
    if not dists:
        return
    cuda = {
        name: version
        for name, version in dists.items()
        if name.startswith("nvidia-") and name != "nvidia-ml-py"
    }
    if cuda:
        yield _judge(dists, pins(about.facts.get("requires") if about else None), cuda)
        yield from _loaded(facts)


def pins(requires: Sequence[str] | None) -> dict[str, str]:
    """What torch's metadata asks for of CUDA in one version exactly, by normalised name.

    Args:
        requires: ``Requires-Dist`` lines.
    """
    found: dict[str, str] = {}
    for line in requires or ():
        match = _PIN.match(line)
        if match is None or "extra" in (match.group(3) or ""):
            continue
        name = re.sub(r"[-_.]+", "-", match.group(1)).lower()
        if name.startswith("nvidia-"):
            found[name] = match.group(2)
    return found


def _judge(dists: Mapping[str, str], pinned: Mapping[str, str], cuda: Mapping[str, str]) -> Check:
    twice = _in_two_majors(cuda)
    other = {n: (cuda[n], v) for n, v in pinned.items() if n in cuda and not _same(cuda[n], v)}
    absent = sorted(n for n in pinned if n not in cuda)
    values = {
        "packages": len(cuda),
        "in_two_majors": twice,
        "other_than_pinned": {n: list(pair) for n, pair in other.items()},
        "absent": absent,
    }
    remedy = (
        "Make a fresh environment and install torch alone first; what else needs CUDA packages "
        "must ask for the same major version."
    )

    def check(level: Level, found: str, do: str | None = None) -> Check:
        return Check("cuda-packages", "CUDA packages", level, found, do, values)

    if twice:
        names = " and ".join(twice[0])
        more = f", and {len(twice) - 1} more pairs" if len(twice) > 1 else ""
        return check(
            "warn",
            f"{names} are installed together{more}: two CUDA versions of one library, of which "
            "either may be loaded.",
            remedy,
        )
    if other:
        name, (have, want) = next(iter(other.items()))
        more = f", and {len(other) - 1} more differ" if len(other) > 1 else ""
        return check(
            "warn",
            f"{name} is {shown(have)} and torch asks for {shown(want)}{more}.",
            f"pip install {name}=={shown(want)}, or make a fresh environment.",
        )
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        return check(
            "note",
            f"torch asks for {absent[0]}{more}, not installed by pip here.",
            "Nothing if import torch works: a system-wide CUDA may stand in for it.",
        )
    if "torch" in dists and not pinned:
        return check("ok", f"{len(cuda)} installed; torch's metadata pins none of them")
    return check("ok", f"{len(cuda)} installed, as torch pins them")


def _loaded(facts: Facts) -> Iterator[Check]:
    """Which files the loader really took, where packages hold the same libraries.

    A directory of LD_LIBRARY_PATH comes before those that a wheel names as its own (ld.so(8)).
    """
    told = facts.interpreter.torch_facts
    libraries, torch = told.get("libraries"), told.get("file")
    if not libraries or not torch:
        return
    site = str(PurePath(str(torch)).parent.parent)
    outside = [path for path in libraries if not path.startswith(f"{site}/")]
    values = {"loaded": libraries, "LD_LIBRARY_PATH": facts.environ.get("LD_LIBRARY_PATH")}
    if outside:
        yield Check(
            "cuda-loaded",
            "CUDA libraries",
            "note",
            f"torch runs with {shown(outside[0])}, not with the one of the installed package.",
            "If CUDA calls fail, unset LD_LIBRARY_PATH, or take that directory out of it.",
            values,
        )
    else:
        yield Check("cuda-loaded", "CUDA libraries", "ok", "the packages' own", None, values)


def _in_two_majors(cuda: Mapping[str, str]) -> list[list[str]]:
    bases: dict[str, list[str]] = {}
    for name in sorted(cuda):
        match = _MAJOR.match(name)
        if match:
            bases.setdefault(match.group(1), []).append(name)
    return [names for names in bases.values() if len(names) > 1]


def _same(have: str, want: str) -> bool:
    """Local parts (``+cu130``) aside, which a pin may leave out (PEP 440)."""
    return have == want or have.partition("+")[0] == want
