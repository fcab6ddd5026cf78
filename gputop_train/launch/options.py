"""What a person asked for, as frozen records, and the one place that parses it.

Nothing here touches files or processes. Everything from the script's name on belongs to the script
and is carried as the very strings Python made of the bytes (``surrogateescape``), so that they go
back as the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gputop_train.look import Look

Mode = Literal["script", "module", "command"]
SettingValue = int | float | bool | str | None


class UsageProblem(Exception):
    """The command line cannot be understood; the message says what and what to do instead."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to run.

    Attributes:
        mode: ``script`` and ``module`` are run by the chosen interpreter; ``command`` as it is.
        arguments: The script's path or the module's name or the command, then its arguments.
    """

    mode: Mode
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The script, module or command."""
        return self.arguments[0]


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``--set``: an override the probe applies in the script's process.

    Attributes:
        loader: ``FILE:LINE`` of the one loader meant; ``None`` means the one that feeds training.
    """

    key: str
    value: SettingValue
    loader: str | None = None

    @property
    def label(self) -> str:
        """The key as typed, with its place."""
        return self.key if self.loader is None else f"{self.key}@{self.loader}"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One ``--what-if``: a change only a trial may make, since it falsifies what is learned.

    Attributes:
        key: One of ``WHAT_IFS``.
        value: How many batches are replayed, every how many steps a read is real; else ``True``.
    """

    key: str
    value: int | bool

    @property
    def label(self) -> str:
        """As typed."""
        return self.key if self.value is True else f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class TrialLeg:
    """What makes a launch one leg of a trial.

    Attributes:
        warmup: Optimizer steps before the measured ones.
        steps: Measured optimizer steps.
        scratch: An existing private directory of this leg, removed by its owner after the leg.
        guard: ``overlay`` diverts every write to ``scratch``; ``refuse`` ends the leg before the
            first write to a file that existed.
        what_if: What is falsified to learn from it.
        seed: Given to every generator at the import of torch, before the script sets its own.
        over: ``(place, directory)``: under the overlay ``directory`` is laid over ``place``, both
            absolute, for a leg of older code whose paths are to stay the same. A character device
            0:0 in it hides what is below (overlayfs calls that a whiteout).
        caches: An existing private directory that the legs of a trial have in common, for what they
            compile; real under the overlay. ``None`` = each leg compiles anew.
    """

    warmup: int
    steps: int
    scratch: str
    guard: Literal["overlay", "refuse"] = "overlay"
    what_if: tuple[WhatIf, ...] = ()
    seed: int = 0
    over: tuple[tuple[str, str], ...] = ()
    caches: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Everything one launch needs to know.

    Attributes:
        overhead_budget_pct: The probe's own cost may not exceed this share of a step, in percent.
        steps: Stop after so many optimizer steps; ``None`` means run to the end.
        json_path: Where the report goes at the end; ``-`` is stdout.
        tui: Whether a screen was asked for and is possible.
        env_lines: Whether to add the environment lines that keep progress bars and colour alive.
        trial: What makes this launch a leg of a trial; ``None`` for a run of its own.
        compared_with: Id of the run that this one repeats with other settings.
        keep_runs: How many runs stay when this one has ended; see `housekeeping.surplus`.
        keep_gb: What they may take together.
        look: How the screen is to look.
    """

    target: Target
    tui: bool = False
    json_path: str | None = None
    steps: int | None = None
    settings: tuple[Setting, ...] = ()
    run_root: str | None = None
    name: str | None = None
    python: str | None = None
    overhead_budget_pct: float = 1.0
    ascii: bool = False
    env_lines: bool = True
    burst: bool = True
    trial: TrialLeg | None = None
    compared_with: str | None = None
    keep_runs: int = 50
    keep_gb: float = 5.0
    look: Look = field(default_factory=Look)


#: What-ifs, each with the value it takes when none is given.
WHAT_IFS: Mapping[str, int | bool] = {
    "replay_batch": 8,
    "sync_every": 10,
    "skip_checkpoint": True,
    "no_eval": True,
}
#: Fewer batches replayed would be learned by heart within a leg; every read is what a script does.
LEAST_OF_WHAT_IF: Mapping[str, int] = {"replay_batch": 8, "sync_every": 2}

#: Settings: the type of the value, and whether the results of a seeded run change with it. Workers
#: draw their own random numbers, and those that persist are not seeded anew for each epoch; the
#: rest of those marked change how numbers are rounded.
SETTINGS: Mapping[str, tuple[type, bool]] = {
    "num_workers": (int, True),
    "batch_size": (int, True),
    "prefetch_factor": (int, False),
    "pin_memory": (bool, False),
    "persistent_workers": (bool, True),
    "non_blocking": (bool, False),
    "tf32": (bool, True),
    "bf16": (bool, True),
    "cudnn_benchmark": (bool, True),
    "compile": (bool, True),
    "fused": (bool, True),
    "expandable_segments": (bool, False),
    "omp_threads": (int, True),
}
#: Those of one loader, which may be named by the line that builds it.
LOADER_SETTINGS = frozenset(
    ("num_workers", "batch_size", "prefetch_factor", "pin_memory", "persistent_workers")
)
#: Modes ``compile`` takes besides on; names of ``torch.compile``.
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
#: What can be switched on for a script and not off: what it does itself is its own code.
_ONLY_ON = frozenset(("non_blocking", "bf16", "compile"))
#: Largest whole number taken; far above any use, so that a slip of the keyboard is told.
_MOST = {"num_workers": 1024, "prefetch_factor": 1024, "omp_threads": 4096, "batch_size": 1 << 24}
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True}
_BOOLEANS |= {"false": False, "no": False, "off": False, "0": False}


def parse_setting(text: str) -> Setting:
    """Parse one ``KEY=VALUE`` or ``KEY@FILE:LINE=VALUE``.

    Raises:
        UsageProblem: No value, an unknown key, a value of the wrong type, or a place without line.
    """
    name, equals, raw = text.rpartition("=")
    if not equals or not name:
        raise UsageProblem(f"--set {text} has no value. Write it as --set num_workers=4.")
    key, at, place = name.partition("@")
    if key in WHAT_IFS:
        raise UsageProblem(
            f"--set {key} is not a setting: only a trial may do that, since what is trained is "
            f"useless then. Write gputop-train trial --what-if {key} SCRIPT."
        )
    if key not in SETTINGS:
        known = ", ".join(SETTINGS)
        raise UsageProblem(f"--set does not know {key!r}. It can set: {known}.")
    if at and key not in LOADER_SETTINGS:
        raise UsageProblem(
            f"--set {text} names a line, but {key} is a setting of the whole process. "
            f"Write it as --set {key}={raw.strip()}."
        )
    if at and not (place.rpartition(":")[0] and place.rpartition(":")[2].isdigit()):
        raise UsageProblem(
            f"--set {text} does not name a line. Write it as --set {key}@train.py:41=4."
        )
    return Setting(key, _value(key, raw.strip()), place or None)


def parse_settings(texts: Sequence[str]) -> tuple[Setting, ...]:
    """Parse every ``--set`` of a command line.

    Raises:
        UsageProblem: One makes no sense, or two give the same setting.
    """
    settings = tuple(parse_setting(text) for text in texts)
    labels = [setting.label for setting in settings]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UsageProblem(f"--set {twice} is given twice. Keep one of them.")
    return settings


def _value(key: str, raw: str) -> SettingValue:
    if SETTINGS[key][0] is bool:
        return _switch(key, raw)
    try:
        number = int(raw)
    except ValueError:
        raise UsageProblem(
            f"--set {key} takes a whole number, not {raw!r}. Write {key}=4."
        ) from None
    least = 0 if key == "num_workers" else 1
    if not least <= number <= _MOST[key]:
        raise UsageProblem(
            f"--set {key}={number} is out of range. Give a number from {least} to {_MOST[key]:,}."
        )
    return number


def _switch(key: str, raw: str) -> bool | str:
    if key == "compile" and raw in COMPILE_MODES:
        return raw
    value = _BOOLEANS.get(raw.lower())
    if value is None:
        modes = f", or a mode: {', '.join(COMPILE_MODES)}" if key == "compile" else ""
        raise UsageProblem(f"--set {key} is on or off, not {raw!r}. Write {key}=true{modes}.")
    if not value and key in _ONLY_ON:
        raise UsageProblem(
            f"--set {key} can be switched on, not off: what the script does itself is left to it. "
            f"Leave --set {key} out."
        )
    return value


def parse_what_if(text: str) -> WhatIf:
    """Parse one ``--what-if KEY`` or ``KEY=N``.

    Raises:
        UsageProblem: An unknown key, or a number that makes no sense.
    """
    key, equals, raw = text.strip().partition("=")
    if key in SETTINGS:
        raise UsageProblem(f"{key} is a setting, no what-if. Write --set {text}.")
    if key not in WHAT_IFS:
        raise UsageProblem(f"--what-if does not know {key!r}. It can do: {', '.join(WHAT_IFS)}.")
    usual = WHAT_IFS[key]
    if not equals:
        return WhatIf(key, usual)
    if usual is True:
        raise UsageProblem(f"--what-if {key} takes no number. Write --what-if {key}.")
    least = LEAST_OF_WHAT_IF[key]
    if not raw.isascii() or not raw.isdigit() or int(raw) < least:
        raise UsageProblem(
            f"--what-if {text} is out of range: it takes a whole number from {least} on. "
            f"Write {key}={usual}."
        )
    return WhatIf(key, int(raw))


def changed_results(settings: Sequence[Setting]) -> list[str]:
    """Return the settings, as typed, after which a seeded run computes something else."""
    return [setting.label for setting in settings if SETTINGS[setting.key][1]]


def split_command_line(
    arguments: Sequence[str], value_options: Collection[str]
) -> tuple[list[str], Target | None]:
    """Cut a command line where the script begins.

    Args:
        arguments: All that follows the program's name.
        value_options: Those of our options that take a value, such as ``--json``.

    Returns:
        Our own options, and what to run (``None`` when nothing was named). From the script's name,
        the module's name or ``--`` on, not a byte is interpreted.

    Raises:
        UsageProblem: ``-m`` or ``--`` stands at the end.
    """
    own: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            if not rest:
                raise UsageProblem("There is no command after --. Write -- python -u train.py.")
            return own, Target("command", tuple(rest))
        if word == "-m" or (word.startswith("-m") and not word.startswith("--")):
            module = [word[2:], *rest] if len(word) > 2 else rest
            if not module:
                raise UsageProblem("There is no module after -m. Write -m package.train.")
            return own, Target("module", tuple(module))
        if word == "-" or not word.startswith("-"):
            return own, Target("script", (word, *rest))
        own.append(word)
        if word in value_options and rest:
            own.append(rest.pop(0))
    return own, None


def probe_config(options: Options, run_id: str, ring_dir: str) -> dict[str, Any]:
    """Return what ``config.json`` tells the probe; see docs/contracts.md."""
    leg = options.trial
    return {
        "v": 1,
        "run_id": run_id,
        "ring_dir": ring_dir,
        "overhead_budget": options.overhead_budget_pct / 100,
        "overrides": [
            {"key": s.key, "value": s.value, "loader": s.loader} for s in options.settings
        ],
        "gpu_events": True,
        "burst": options.burst,
        "sampler_hz": 40,
        "debug": False,
        "trial": None
        if leg is None
        else {
            "warmup": leg.warmup,
            "steps": leg.steps,
            "scratch": leg.scratch,
            "guard": leg.guard,
            "what_if": [{"key": w.key, "value": w.value} for w in leg.what_if],
            "seed": leg.seed,
        },
    }
