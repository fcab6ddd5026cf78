"""What the next run is to have: values a person chose over those in force. Pure.

A choice is kept by what ``--set`` would name, so it survives a loader that is built anew and a
screen that is closed and opened again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from gputop_train.launch import again
from gputop_train.launch.options import (
    COMPILE_MODES,
    SETTINGS,
    Setting,
    SettingValue,
    UsageProblem,
    parse_setting,
)
from gputop_train.tui.snapshot import SettingGroup, SettingSeen

#: What a choice is kept by: the setting and its place. A value of ``None`` leaves it to the script.
Key = tuple[str, str | None]
Choices = Mapping[Key, SettingValue]

#: Values worth a key press, besides those in force and advised.
_LADDERS: Mapping[str, tuple[int, ...]] = {
    "num_workers": (0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    "prefetch_factor": (1, 2, 4, 8, 16),
    "omp_threads": (1, 2, 4, 8, 16, 32, 64),
}
#: A number of workers or threads beyond the cores is not offered, though it can be typed.
_BY_CORES = ("num_workers", "omp_threads")


def walk(groups: Sequence[SettingGroup]) -> Iterator[tuple[SettingGroup, SettingSeen]]:
    """Every setting with its group, from top to bottom."""
    for group in groups:
        for row in group.rows:
            yield group, row


def key_of(group: SettingGroup, row: SettingSeen) -> Key:
    """What a choice for this row is kept by."""
    return row.key, group.place


def wanted(group: SettingGroup, row: SettingSeen, choices: Choices) -> SettingValue:
    """The value of the next run."""
    return choices.get(key_of(group, row), row.value)


def cannot(group: SettingGroup, row: SettingSeen, choices: Choices) -> str:
    """Why a row cannot be set, what else was chosen considered; empty = it can."""
    if row.cannot:
        return row.cannot
    if row.key in ("prefetch_factor", "persistent_workers"):
        workers = next((one for one in group.rows if one.key == "num_workers"), None)
        if workers is not None and workers.known and not wanted(group, workers, choices):
            return "it needs num_workers of at least 1"
    return ""


def offered(row: SettingSeen, cores: float | None) -> tuple[SettingValue, ...]:
    """The values that keys step through, in order.

    Args:
        row: The setting.
        cores: Cores the run may use; ``None`` = not known.
    """
    if row.key == "compile":
        return (False, True, *COMPILE_MODES)
    if _kind(row.key) is bool:
        return (False, True)
    own = [value for value in (row.value, row.suggested) if isinstance(value, int)]
    if row.key == "batch_size":
        base = row.value if isinstance(row.value, int) and row.value else 32
        steps = [int(base * factor) for factor in (0.25, 0.5, 1, 2, 4, 8, 16)]
    else:
        most = int(cores) if cores and row.key in _BY_CORES else None
        steps = [n for n in _LADDERS.get(row.key, (1, 2, 4, 8)) if most is None or n <= most]
        own += [most] if most is not None else []
    low = 0 if row.key == "num_workers" else 1
    return tuple(sorted({n for n in (*steps, *own) if n >= low}))


def stepped(row: SettingSeen, now: SettingValue, by: int, cores: float | None) -> SettingValue:
    """The next larger or smaller value; the outermost stays."""
    values = offered(row, cores)
    if takes_digits(row):
        numbers = [value for value in values if isinstance(value, int)]
        current = now if isinstance(now, int) else numbers[0]
        at = bisect_right(numbers, current) if by > 0 else bisect_left(numbers, current) - 1
        return numbers[max(0, min(len(numbers) - 1, at))]
    at = values.index(now) if now in values else 0
    return values[max(0, min(len(values) - 1, at + by))]


def toggled(row: SettingSeen, now: SettingValue, cores: float | None) -> SettingValue:
    """What one key press makes of a value: advised, back to what is in force, or the next one."""
    if row.suggested is not None:
        return row.suggested if now != row.suggested else row.value
    if _kind(row.key) is bool:
        return not now
    values = offered(row, cores)
    larger = stepped(row, now, 1, cores)
    return larger if larger != now else values[0]


def typed(row: SettingSeen, text: str) -> SettingValue:
    """A value as typed.

    Raises:
        UsageProblem: It makes no sense; says why in words.
    """
    return parse_setting(f"{row.key}={text}").value


def with_choice(
    choices: Choices, group: SettingGroup, row: SettingSeen, value: SettingValue
) -> dict[Key, SettingValue]:
    """Choices with one more; going back to what is in force is none.

    What can be switched on but not off is left to the script instead, which takes back a setting of
    this run.
    """
    out = dict(choices)
    out.pop(key_of(group, row), None)
    if value is False and not _takes(row.key, value):
        value = None
        if not row.override:
            return out
    if value != row.value or not row.known:
        out[key_of(group, row)] = value
    return out


def reset(choices: Choices, group: SettingGroup, row: SettingSeen) -> dict[Key, SettingValue]:
    """Choices without this one; where there is none, what was set for this run goes."""
    if key_of(group, row) not in choices and row.override:
        return {**choices, key_of(group, row): None}
    return {key: value for key, value in choices.items() if key != key_of(group, row)}


def _takes(key: str, value: SettingValue) -> bool:
    try:
        parse_setting(f"{key}={again.shown(value)}")
    except UsageProblem:
        return False
    return True


def advised(groups: Sequence[SettingGroup]) -> dict[Key, SettingValue]:
    """What the diagnosis advises, as choices."""
    return {
        key_of(group, row): row.suggested
        for group, row in walk(groups)
        if row.suggested is not None
    }


def settings(groups: Sequence[SettingGroup], choices: Choices) -> tuple[Setting, ...]:
    """The choices that can be set, as settings, in the order shown."""
    found = []
    for group, row in walk(groups):
        key = key_of(group, row)
        if key in choices and not cannot(group, row, choices):
            found.append(Setting(row.key, choices[key], group.place))
    return tuple(found)


def changing_results(chosen: Sequence[Setting]) -> tuple[str, ...]:
    """Of these, the settings after which a seeded run computes something else."""
    return tuple(dict.fromkeys(one.label for one in chosen if SETTINGS[one.key][1]))


def value_words(value: SettingValue, *, known: bool = True) -> str:
    """A value as people say it."""
    if not known:
        return "not measured"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def wanted_words(value: SettingValue) -> str:
    """A choice as people say it."""
    return "script's own" if value is None else value_words(value)


def takes_digits(row: SettingSeen) -> bool:
    """Whether a number can be typed for it."""
    return _kind(row.key) is int


def _kind(key: str) -> type:
    return SETTINGS[key][0] if key in SETTINGS else str
