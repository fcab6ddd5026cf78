"""Completes command lines in the shell: our words up to the script's name, files from there on.

It runs at every Tab, so it imports click and no more, and reads no more than the newest runs.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
)

from gputop_train import config, paths
from gputop_train.script_command import ScriptCommand, valued_options

PROGRAM = "gputop-train"
#: Set by the shell's side when it asks; click's own form.
VARIABLE = "_GPUTOP_TRAIN_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
#: More than anybody chooses from by Tab.
_MOST_RUNS = 200
#: ``run.json`` is a few KB; anything larger is not one.
_MAX_BYTES = 256 * 1024

Items: TypeAlias = "list[CompletionItem[str]]"

# Click's own script for bash drops every other word where files are offered as well; at our first
# word both commands and scripts may stand.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value files=
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
%(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file) files=-f ;;
            dir) files=-d ;;
        esac
    done
    if [[ -n $files ]]; then
        compopt -o filenames
        COMPREPLY+=($(compgen "$files" -- "$2"))
    elif [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    source_template = _BASH


_CLASSES: Mapping[str, type[ShellComplete]] = {
    "bash": _Bash,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


def source(shell: str) -> str:
    """The script that a shell is to evaluate.

    Args:
        shell: One of `SHELLS`.
    """
    return _CLASSES[shell](click.Command(PROGRAM), {}, PROGRAM, VARIABLE).source()


def answer(instruction: str, launch: click.Command, known: Mapping[str, click.Command]) -> int:
    """Print what completes the line the shell asks about.

    Args:
        instruction: What `VARIABLE` says, such as ``bash_complete``.
        launch: The main job.
        known: The other commands by name.

    Returns:
        The exit code; 1 for an instruction that is not known.
    """
    shell, _, verb = instruction.partition("_")
    made = _CLASSES.get(shell)
    if made is None or verb != "complete":
        return 1
    words, incomplete = made(launch, {}, PROGRAM, VARIABLE).get_completion_args()
    shown = made(launch, {}, PROGRAM, VARIABLE).format_completion
    click.echo("\n".join(map(shown, completions(words, incomplete, launch, known))))
    return 0


def completions(
    args: list[str], incomplete: str, launch: click.Command, known: Mapping[str, click.Command]
) -> Items:
    """What may stand after words.

    Args:
        args: The words before, without the program's name.
        incomplete: The beginning of the word.
        launch: The main job.
        known: The other commands by name.
    """
    from gputop_train.launch.options import UsageProblem, split_command_line

    named = known.get(args[0]) if args else None
    command, own = (launch, args) if named is None else (named, args[1:])
    begins = named is None or isinstance(command, ScriptCommand)
    if begins:
        try:
            own, target = split_command_line(own, valued_options(command))
        except UsageProblem:
            return _files(incomplete)  # right after -- or -m
        if target is not None:
            return _files(incomplete)
    if own and (kind := _kind(command, own[-1])) is not None:
        return [CompletionItem(incomplete, type=kind)]
    items = ShellComplete(command, {}, PROGRAM, VARIABLE).get_completions(own, incomplete)
    waits_for_value = bool(own) and own[-1] in valued_options(command)
    if begins and not waits_for_value and not incomplete.startswith("-"):
        if not args:
            items += _commands(known, incomplete)
        items += _files(incomplete)
    return items


def _commands(known: Mapping[str, click.Command], incomplete: str) -> Items:
    return [
        CompletionItem(name, help=command.get_short_help_str(60))
        for name, command in known.items()
        if name.startswith(incomplete)
    ]


def _kind(command: click.Command, word: str) -> str | None:
    """What the shell completes by itself after an option."""
    for option in command.params:
        if isinstance(option, click.Option) and word in option.opts and not option.is_flag:
            return {"FILE": "file", "PATH": "file", "DIR": "dir"}.get(option.metavar or "")
    return None


def _files(incomplete: str) -> Items:
    return [CompletionItem(incomplete, type="file")]


def runs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Runs, by id and by name, newest first, and recordings: the ``shell_complete`` of RUN."""
    root = _root(ctx.params.get("run_root"))
    found = [] if root is None else [item for item in _known(root) if _begins(item, incomplete)]
    # A path, or a recording: whatever is no run may be a file.
    return found or _files(incomplete)


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """What ``attach`` takes: runs, trials by id, or whatever trains."""
    root = _root(ctx.params.get("run_root"))
    trials = [] if root is None else list(_known(root / "trials", "trial.json"))
    found = [item for item in runs(ctx, param, incomplete) if item.type == "plain"]
    found += [item for item in trials if _begins(item, incomplete)]
    return [*found, CompletionItem("auto")] if "auto".startswith(incomplete) else found


def _begins(item: CompletionItem[str], incomplete: str) -> bool:
    return item.value.startswith(incomplete)


def _root(given: str | None) -> Path | None:
    try:
        held = given or config.load()["run_root"].value
        return paths.run_root(str(held) if held else None)
    except (config.ConfigProblem, OSError):
        return None


def _known(root: Path, record: str = "run.json") -> Iterable[CompletionItem[str]]:
    try:
        with os.scandir(root) as entries:
            places = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return
    for _, place in sorted(places, reverse=True)[:_MOST_RUNS]:
        run = _read(Path(place) / record)
        if run is None:
            continue
        name = run.get("name")
        script = os.path.basename(str(run.get("script") or ""))  # noqa: PTH119
        yield CompletionItem(Path(place).name, help=_printable(script))
        # What would need quotes is left to whoever gave it: shells insert it as it is.
        if isinstance(name, str) and shlex.quote(name) == name:
            yield CompletionItem(name, help=_printable(script))


def _read(place: Path) -> dict[str, Any] | None:
    try:
        with place.open("rb") as stream:
            found = json.loads(stream.read(_MAX_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def settings(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Keys of ``--set``, with the sign their value follows."""
    from gputop_train.launch.options import SETTINGS

    return [CompletionItem(f"{key}=") for key in SETTINGS if key.startswith(incomplete)]


def diagnoses(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Ids of diagnoses: the ``shell_complete`` of ``explain``."""
    # Files are named as their rules are; importing all of them would take too long for a Tab.
    folder = Path(__file__).parent / "diagnose" / "rules"
    names = sorted(path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py"))
    names.remove("base")
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def demos(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Names of demos."""
    from gputop_train import demos_index

    return [
        CompletionItem(demo.name, help=demo.description)
        for demo in demos_index.DEMOS
        if demo.name.startswith(incomplete)
    ]
