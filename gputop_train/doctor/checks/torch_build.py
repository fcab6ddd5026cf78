"""torch: is it there, does it import, and can it use the GPUs that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gputop_train.doctor.checks.visible import cards_in_use
from gputop_train.doctor.facts import Asked, Card, Facts, Interpreter
from gputop_train.doctor.findings import Check, plural
from gputop_train.doctor.words import last_line, reason_line, shown, signal_name

#: The oldest torch whose internals the probe hooks; docs/install.md.
OLDEST_TORCH = (2, 1)
_WHEELS = "pytorch.org/get-started/locally"
_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)$")
#: First drivers of a CUDA major version (docs.nvidia.com/deploy/cuda-compatibility, table 1).
_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def checks(facts: Facts) -> Iterator[Check]:
    """Judge torch, and torch against the driver."""
    python = facts.interpreter
    yield torch_itself(python)
    told = python.torch_facts
    if not told.get("torch"):
        return
    if told.get("hip"):
        yield _rocm(str(told["hip"]))
        return
    if told.get("cuda") is None:
        yield _without_cuda(facts)
        return
    yield _driver(facts)
    if cards := cards_in_use(facts):
        yield _architecture(facts, cards)
        yield _usable(facts, cards)


def torch_itself(python: Interpreter) -> Check:
    """Whether ``import torch`` gives a PyTorch that we know."""
    told = python.torch_facts
    version, where = told.get("torch"), told.get("file")
    values = {"version": version, "file": where, "cuda": told.get("cuda"), "hip": told.get("hip")}

    def fail(found: str, remedy: str) -> Check:
        return Check("torch", "torch", "fail", found, remedy, values)

    if python.version is None:
        found = "torch was not looked for: there is no Python to ask."
        return Check("torch", "torch", "unchecked", found, None, values)
    if python.torch is None:
        about = python.about.facts if python.about else {}
        unseen = "; packages in ~/.local are not seen (PYTHONNOUSERSITE or -s)"
        why = unseen if about.get("no_user_site") else ""
        return fail(
            f"torch is not installed in {python.path}{why}.",
            f"Install it there ({python.path} -m pip install torch), or name the interpreter "
            "of your environment with --python PATH.",
        )
    if told.get("stage") == "import":
        return fail(*_not_imported(python.torch))
    if version is None:
        origin = (python.about.facts if python.about else {}).get("torch_origin")
        return fail(
            f"What is imported as torch is not PyTorch: {where or origin}.",
            "Rename that file or directory, or take its place out of PYTHONPATH.",
        )
    parts = tuple(int(n) for n in re.findall(r"\d+", str(version))[:2])
    if parts < OLDEST_TORCH:
        return fail(
            f"torch {shown(str(version))} is older than 2.1, and the probe stays out of it.",
            "Update torch to 2.1 or newer to see its steps.",
        )
    return Check("torch", "torch", "ok", shown(str(version)), None, values)


def _not_imported(asked: Asked) -> tuple[str, str]:
    if asked.timed_out:
        return (
            f"import torch was not done after {asked.limit_s:.0f} s and was ended.",
            "Allow more with --timeout S if it lies on a slow disk; python -X importtime -c "
            "'import torch' shows how far it gets.",
        )
    if asked.error:
        return (
            f"import torch was ended by us: {shown(asked.error)}.",
            "Look at what it imports: this is no torch as it is published.",
        )
    if asked.exit_code is not None and asked.exit_code < 0:
        return (
            f"import torch was killed by {signal_name(-asked.exit_code)}.",
            "Reinstall torch in a fresh environment; libraries in LD_LIBRARY_PATH or LD_PRELOAD "
            "may be in its way.",
        )
    return (
        f"import torch fails: {last_line(asked.stderr) or f'exit code {asked.exit_code}'}.",
        "Mend that first: no script with this interpreter gets further.",
    )


def _rocm(hip: str) -> Check:
    return Check(
        "torch-build",
        "torch and GPU",
        "note",
        f"This torch is built for ROCm {shown(hip)}, which we have not been tried on: phases, "
        "loader, lines and allocator are read in torch; a card's utilisation, power and other "
        "processes are not, as NVML knows NVIDIA cards only.",
        "Read a GPU's own numbers with rocm-smi beside us.",
        {"hip": hip},
    )


def _without_cuda(facts: Facts) -> Check:
    version = shown(str(facts.interpreter.torch_facts.get("torch")))
    gpus = facts.gpus
    values = {"cuda": None, "gpus": len(gpus.cards)}
    if not gpus.cards:
        found = "built without CUDA; the CPU trains"
        return Check("torch-build", "torch and GPU", "ok", found, None, values)
    return Check(
        "torch-build",
        "torch and GPU",
        "fail",
        f"This torch ({version}) is built without CUDA while the driver shows {gpus.names}: "
        "everything would be computed on the CPU.",
        f"pip uninstall torch, then install the CUDA wheel that {_WHEELS} names for "
        f"{_newest(gpus.cuda)}.",
        values,
    )


def _newest(cuda: tuple[int, int] | None) -> str:
    return "your driver" if cuda is None else f"CUDA {cuda[0]}.{cuda[1]} or older"


def _driver(facts: Facts) -> Check:
    """A driver serves its own CUDA major version in all minor ones, and all older ones.

    docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility".
    """
    told, gpus = facts.interpreter.torch_facts, facts.gpus
    built = str(told["cuda"])
    values = {"torch_cuda": built, "driver": gpus.driver, "driver_cuda": gpus.cuda}
    title = "torch and driver"
    wanted = tuple(int(n) for n in re.findall(r"\d+", built)[:2])
    if not gpus.cards and gpus.on_pci == 0:
        found = f"CUDA {built}; there is no NVIDIA card, the CPU trains"
        return Check("torch-driver", title, "ok", found, None, values)
    if not gpus.cards and gpus.failure is not None:
        found = f"torch is built for CUDA {built}, and there is no working driver to hold it to."
        return Check("torch-driver", title, "unchecked", found, None, values)
    if gpus.cuda is None or not wanted:
        found = f"torch is built for CUDA {built}; the driver does not say what it supports."
        return Check("torch-driver", title, "unchecked", found, None, values)
    newest = f"{gpus.cuda[0]}.{gpus.cuda[1]}"
    behind = wanted[0] > gpus.cuda[0]
    if behind and not told.get("available"):
        driver = _DRIVERS.get(wanted[0])
        least = f" {driver} or newer" if driver else ""
        return Check(
            "torch-driver",
            title,
            "fail",
            f"torch is built for CUDA {built} and the driver {gpus.driver or ''}"
            f" supports {newest} at most: torch cannot use the GPU.".replace("  ", " "),
            f"Update the driver to{least}, or install a torch built for CUDA "
            f"{gpus.cuda[0]} ({_WHEELS}).".replace("to,", "to a newer one,"),
            values,
        )
    how = ""
    if behind:
        how = ", yet CUDA works (a compatibility package)"
    elif wanted > gpus.cuda:
        how = ", which serves all of CUDA " + str(wanted[0])
    return Check(
        "torch-driver", title, "ok", f"CUDA {built} on a {newest} driver{how}", None, values
    )


def runs_on(archs: list[str], capability: tuple[int, int]) -> bool:
    """Whether code built for ``archs`` runs on a card.

    Machine code (``sm_``) runs on its own major version from its minor version on; with ``a`` on
    exactly that card, with ``f`` on its family. Intermediate code (``compute_``) runs on every
    newer card (CUDA programming guide, "Compute Capabilities").

    Args:
        archs: As of ``torch.cuda.get_arch_list``.
        capability: Of the card.
    """
    for arch in archs:
        match = _ARCH.match(arch)
        if match is None:
            continue
        kind, only = match.group(1), match.group(4)
        built = (int(match.group(2)), int(match.group(3)))
        if only == "a":
            fits = built == capability
        elif kind == "compute":
            fits = built <= capability
        else:
            fits = built[0] == capability[0] and built[1] <= capability[1]
        if fits:
            return True
    return False


def _architecture(facts: Facts, cards: tuple[Card, ...]) -> Check:
    archs = facts.interpreter.torch_facts.get("archs")
    title = "torch and card"
    values = {"archs": archs, "capabilities": [c.capability for c in cards]}
    known = [card for card in cards if card.capability is not None]
    if not archs or not known:
        who = "torch" if not archs else "the driver"
        found = f"Whether torch has code for the card is not known: {who} does not say."
        return Check("torch-arch", title, "unchecked", found, None, values)
    lacking = [c for c in known if c.capability and not runs_on(list(archs), c.capability)]
    if not lacking:
        return Check("torch-arch", title, "ok", f"has code for {_of(known[0])}", None, values)
    return Check(
        "torch-arch",
        title,
        "fail",
        f"This torch has no code for {lacking[0].device.name or 'the card'} ({_of(lacking[0])}); "
        f"it has {', '.join(archs)}.",
        f"Install a torch that is built for that card: {_WHEELS}.",
        values,
    )


def _of(card: Card) -> str:
    return "sm_{}{}".format(*card.capability) if card.capability else "its architecture"


def _usable(facts: Facts, cards: tuple[Card, ...]) -> Check:
    """What torch itself says, which nothing derived can outweigh."""
    asked = facts.interpreter.torch
    told = facts.interpreter.torch_facts
    available, count = told.get("available"), told.get("count")
    values = {"is_available": available, "device_count": count}
    title = "torch.cuda"
    if asked is not None and available is None:
        if asked.timed_out:
            return Check(
                "torch-cuda",
                title,
                "fail",
                f"torch.cuda.is_available() did not return within {asked.limit_s:.0f} s.",
                "Look at dmesg for Xid errors and at nvidia-smi: the driver may hang.",
                values,
            )
        if asked.exit_code is not None and asked.exit_code < 0:
            name = signal_name(-asked.exit_code)
            return Check(
                "torch-cuda",
                title,
                "fail",
                f"torch.cuda.is_available() was killed by {name}.",
                "Reinstall torch in a fresh environment, and look at dmesg for Xid errors.",
                values,
            )
    if available is None:
        found = "Whether torch can use the GPU is not known: it did not say."
        return Check("torch-cuda", title, "unchecked", found, None, values)
    if available:
        if isinstance(count, int) and count != len(cards) and not any(c.mig for c in cards):
            return Check(
                "torch-cuda",
                title,
                "warn",
                f"torch sees {plural(count, 'GPU')} where the driver shows {len(cards)}.",
                "Look at nvidia-smi -L and CUDA_VISIBLE_DEVICES; a container may hide some.",
                values,
            )
        text = f"sees {plural(int(count or 0), 'GPU')}"
        return Check("torch-cuda", title, "ok", text, None, values)
    said = reason_line(asked.stderr) if asked else ""
    return Check(
        "torch-cuda",
        title,
        "fail",
        "torch.cuda.is_available() is False although the driver shows "
        f"{facts.gpus.names}{f': {said}' if said else ''}.",
        "Mend what the other lines say first; with none, restart the container or the driver "
        "(nvidia-smi, dmesg).",
        values,
    )
