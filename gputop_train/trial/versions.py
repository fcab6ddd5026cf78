"""Another version of the code as one side of a check: a git ref, another directory, another script.

A ref is read out of the repository into a private directory. Where the kernel makes overlays, only
what differs is written, and a leg sees it laid over the working tree: every path, editable install
and data file is the same for both sides. Elsewhere the whole tree is written, what git does not
track is linked into it, and the leg runs there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from gputop_train.launch.options import Target
from gputop_train.trial.git_tree import Change, GitProblem, Repository, white_out
from gputop_train.trial.record import Arm

#: More links than this into a written tree are no longer a few data directories.
MAX_LINKS = 10_000
#: What is never linked: git's own directory (git would write into the real one), and compiled code,
#: which would be that of the other version.
_NOT_LINKED = (".git", "__pycache__")
OLDER = "older"


class VersionProblem(Exception):
    """There is no such version of the code; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Older:
    """The other side of a check.

    Attributes:
        arm: How it runs.
        title: What to call it, such as ``main (1a2b3c4)``.
        notes: Sentences a person should know about the comparison.
        foreign: Says of a file that the older side ran whether it is of the newer code.
    """

    arm: Arm
    title: str
    notes: tuple[str, ...] = ()
    foreign: Callable[[str], bool] = lambda _file: False


def older(
    named: str, target: Target, own: Path, environ: Mapping[str, str], *, overlay: bool
) -> Older:
    """Find the version a person named and make it ready to run.

    Args:
        named: A directory, a script or a git ref.
        target: What the check runs, as the newer side does.
        own: An existing private directory; must outlive the legs.
        environ: Of the script.
        overlay: Whether legs may lay one directory over another.

    Raises:
        VersionProblem: There is none, or it cannot be had.
    """
    found = _find(named, target, own, environ, overlay=overlay)
    return replace(found, arm=replace(found.arm, name=found.title))


def _find(
    named: str, target: Target, own: Path, environ: Mapping[str, str], *, overlay: bool
) -> Older:
    path = Path(named).expanduser()
    if not path.exists():
        return _of_ref(named, target, own, environ, overlay=overlay)
    plain = not (named.startswith((".", "~")) or "/" in named)
    if plain and _is_ref_too(named, target, own):
        raise VersionProblem(
            f"{named} is a path here and a commit of git as well. Write ./{named} for the path or "
            f"refs/heads/{named} for the branch."
        )
    return _of_file(path, target) if path.is_file() else _of_directory(path, target, environ)


# -- another script, another directory -------------------------------------------------------------


def _of_file(path: Path, target: Target) -> Older:
    if target.mode != "script":
        raise VersionProblem(
            f"{path} is a file, but the check does not run a script. Name a directory or a ref."
        )
    if target.name != "-" and path.resolve() == Path(target.name).resolve():
        raise VersionProblem(f"{path} is the script itself. Name its older version.")
    instead = Target("script", (str(path), *target.arguments[1:]))
    return Older(Arm(OLDER, target=instead), str(path))


def _of_directory(path: Path, target: Target, environ: Mapping[str, str]) -> Older:
    here, there = Path.cwd(), path.resolve()
    root = _twin(here, there, target)
    if root.resolve() == there:
        raise VersionProblem(f"{path} is the code itself. Name a directory with an older version.")
    moved = _Moved(root, there)
    arm = moved.arm(here, target, environ)
    if target.mode == "script" and target.name != "-":
        script = Path(arm.cwd or here) / (arm.target or target).name
        if not script.exists():
            raise VersionProblem(
                f"There is no {target.name} in {path}. Name the directory that holds the older "
                "version of the tree you are in."
            )
    return Older(arm, str(path), foreign=moved.is_foreign)


def _twin(here: Path, there: Path, target: Target) -> Path:
    """The directory that an older one is the older version of: ours, or one above it."""
    if target.mode == "script":
        wanted = here / target.name
        for root in (here, *here.parents):
            if _within(wanted, root) and (there / wanted.relative_to(root)).exists():
                return root
    return here


# -- a git ref -------------------------------------------------------------------------------------


def _is_ref_too(named: str, target: Target, own: Path) -> bool:
    try:
        Repository(_home(target), own).commit(named)
    except GitProblem:
        return False
    return True


def _of_ref(
    ref: str, target: Target, own: Path, environ: Mapping[str, str], *, overlay: bool
) -> Older:
    try:
        repository = Repository(_home(target), own)
        commit = repository.commit(ref)
        changes = repository.changes(commit)
        notes = [*_script_notes(repository, commit, ref, target), *_notes(repository, changes, ref)]
        title = f"{ref} ({repository.short(commit)})"
        tree = own / "tree"
        tree.mkdir()
        if overlay and not _within(own.resolve(), repository.top):
            notes += _write_layer(repository, commit, changes, tree)
            over = ((str(repository.top), str(tree)),)
            return Older(Arm(OLDER, over=over), title, tuple(notes))
        return _elsewhere(repository, commit, tree, target, environ, title, notes)
    except GitProblem as problem:
        raise VersionProblem(str(problem)) from None
    except OSError as failure:
        raise VersionProblem(
            f"The older code cannot be written to {own}: {failure.strerror or failure}. "
            "Free some space there, or name another directory with --run-root."
        ) from None


def _home(target: Target) -> Path:
    """Where to look for the repository: at the script, else here."""
    if target.mode == "script" and target.name != "-":
        script = Path(target.name).resolve().parent
        if any((place / ".git").exists() for place in (script, *script.parents)):
            return script
    return Path.cwd()


def _script_notes(repository: Repository, commit: str, ref: str, target: Target) -> list[str]:
    """Whether both sides have the script, and the directory they run in."""
    here = Path.cwd().resolve()
    inside = here.relative_to(repository.top).as_posix() if _within(here, repository.top) else "."
    if inside != "." and not repository.holds(commit, inside) and repository.tracks(inside):
        raise VersionProblem(
            f"The directory {inside} is not in {ref}. Run the check from one that both versions "
            "have."
        )
    if target.mode != "script" or target.name == "-":
        return []
    script = Path(target.name).resolve()
    if not _within(script, repository.top):
        return [f"{target.name} is not in the repository: both sides run the same one."]
    name = script.relative_to(repository.top).as_posix()
    if repository.holds(commit, name):
        return []
    if repository.tracks(name):
        raise VersionProblem(
            f"{name} is not in {ref}, so there is nothing to compare it with. Name a commit that "
            "has it, or the older script: --baseline-ref ./OLD.py"
        )
    return [f"git does not track {name}: both sides run the same one."]


def _notes(repository: Repository, changes: list[Change], ref: str) -> list[str]:
    notes = []
    moved = [change.path for change in changes if change.submodule]
    if moved:
        notes.append(
            f"Submodules differ from {ref} ({_some(moved)}): both sides run what is checked out "
            "now."
        )
    if not [change for change in changes if not change.submodule]:
        notes.append(f"No tracked file differs from {ref}: both sides run the same code.")
    elif repository.dirty():
        notes.append("Changes that are not committed are part of the newer side.")
    return notes


def _write_layer(
    repository: Repository, commit: str, changes: list[Change], tree: Path
) -> list[str]:
    """Write what a commit has otherwise than the working tree, and hide what it has not."""
    files = [change for change in changes if not change.submodule]
    repository.write(commit, tree, [change.path for change in files if change.was])
    added = [change.path for change in files if not change.was]
    seen = [path for path in _hidden(repository, commit, added) if not white_out(tree, path)]
    if seen:
        return [f"The older side sees files that are newer than it ({_some(seen)})."]
    return []


def _hidden(repository: Repository, commit: str, added: list[str]) -> list[str]:
    """Paths to hide: a directory as a whole where the commit has none of that name.

    An empty directory left over would still be a package to import. One that holds something that
    is not tracked, such as data, stays.
    """
    untracked = [path for path in repository.untracked() if "__pycache__" not in path]
    found: dict[str, None] = {}
    known: dict[str, bool] = {}
    for path in added:
        hide = path
        for parent in PurePath(path).parents:
            name = parent.as_posix()
            if name == ".":
                break
            if name not in known:
                free = not any(u.startswith(f"{name}/") for u in untracked)
                known[name] = free and not repository.holds(commit, name)
            if not known[name]:
                break
            hide = name
        found[hide] = None
    return list(found)


def _elsewhere(
    repository: Repository,
    commit: str,
    tree: Path,
    target: Target,
    environ: Mapping[str, str],
    title: str,
    notes: list[str],
) -> Older:
    repository.write(commit, tree)
    linked = [*repository.untracked(), *repository.submodules()]
    links = [path.rstrip("/") for path in linked if PurePath(path).name not in _NOT_LINKED]
    if len(links) > MAX_LINKS:
        raise VersionProblem(
            f"There are {len(links):,} untracked files beside the code, too many to link into the "
            "older tree. Name a directory with the older code: --baseline-ref ./PATH"
        )
    for path in links:
        _link(repository.top / path, tree / path, tree)
    moved = _Moved(repository.top, tree)
    return Older(
        moved.arm(Path.cwd().resolve(), target, environ),
        title,
        tuple(notes),
        foreign=moved.is_foreign,
    )


def _link(source: Path, link: Path, tree: Path) -> None:
    # A link of the older tree's own on the way would lead out of it.
    for parent in link.parents:
        if parent == tree:
            break
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            return
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir() and not link.is_symlink():
        if any(link.iterdir()):
            return
        link.rmdir()  # what git leaves where a submodule goes
    if not (link.exists() or link.is_symlink()):
        link.symlink_to(source)


# -- running in another place ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Moved:
    """A tree that stands in for another one, elsewhere."""

    root: Path
    tree: Path

    def arm(self, here: Path, target: Target, environ: Mapping[str, str]) -> Arm:
        """The arm that runs there what ``target`` runs here."""
        inside = _within(here, self.root)
        cwd = self.tree / here.relative_to(self.root) if inside else None
        if cwd is not None and not cwd.is_dir():
            raise VersionProblem(
                f"The older version has no directory {here.relative_to(self.root)}. Run the check "
                "from one that both versions have."
            )
        words = tuple(self._word(word) for word in target.arguments)
        if not inside and target.mode == "script":
            script = Path(target.name).resolve()
            if _within(script, self.root):
                words = (str(self.tree / script.relative_to(self.root)), *words[1:])
        path = environ.get("PYTHONPATH", "")
        moved = os.pathsep.join(self._word(part) for part in path.split(os.pathsep))
        return Arm(
            OLDER,
            cwd=None if cwd is None else str(cwd),
            target=Target(target.mode, words) if words != target.arguments else None,
            environ=(("PYTHONPATH", moved),) if moved != path else (),
        )

    def _word(self, word: str) -> str:
        """An argument with an absolute path into the tree, as it is there: ``--config=/repo/x``."""
        option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
        path = Path(value)
        if not path.is_absolute() or not _within(path, self.root):
            return word
        there = self.tree / path.relative_to(self.root)
        return f"{option}{equals}{there}" if there.exists() else word

    def is_foreign(self, file: str) -> bool:
        """Whether a file is of the tree this one stands in for though the older tree has it too."""
        path = Path(file)
        if not path.is_absolute() or _within(path, self.tree) or not _within(path, self.root):
            return False
        there = (self.tree / path.relative_to(self.root)).resolve()
        return there.is_file() and _within(there, self.tree)  # a link leads to what both share


def _within(path: Path, place: Path) -> bool:
    return path == place or place in path.parents


def _some(paths: Iterable[str]) -> str:
    named = list(paths)
    shown = ", ".join(named[:3])
    return f"{shown} and {len(named) - 3} more" if len(named) > 3 else shown
