"""A repository's older tree, read without touching the repository, its index or its working tree.

Git's own plumbing writes the files: smudge filters and symbolic links come out as a checkout would
make them, and ``export-ignore`` does not hide any. Everything that git may refresh on the way is a
copy of the index in our own directory.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Git that asks for a password or a network that hangs must not hold a check for ever.
_PATIENCE_S = 600.0
_GITLINK = "160000"
_ABSENT = "000000"


class GitProblem(Exception):
    """The older tree cannot be had; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Change:
    """One tracked path that differs between an older commit and the working tree.

    Attributes:
        path: Relative to the top of the working tree.
        was: Whether the commit has it.
        now: Whether the working tree has it.
        submodule: Whether either is another repository.
    """

    path: str
    was: bool
    now: bool
    submodule: bool = False


class Repository:
    """The repository that holds a directory.

    Args:
        place: A directory in its working tree.
        own: A private directory for indices; kept by the caller.

    Raises:
        GitProblem: There is no git, or no repository.
    """

    def __init__(self, place: Path, own: Path) -> None:
        git = shutil.which("git")
        if git is None:
            raise GitProblem(
                "There is no git here to read older code with. Install it, or name a directory "
                "that holds the older code: --baseline-ref ./PATH"
            )
        self._git = git
        self._own = own
        self._at = place
        self._index: Path | None = None
        shown = self._run("rev-parse", "--show-toplevel")
        if shown.returncode != 0 or not shown.stdout:
            why = _last_line(shown.stderr)
            raise GitProblem(
                f"{place} is in no git repository that can be read ({why}). "
                "Name a directory that holds the older code: --baseline-ref ./PATH"
            )
        self.top = Path(os.fsdecode(shown.stdout.rstrip(b"\n")))
        self._at = self.top

    def commit(self, ref: str) -> str:
        """Return the full name of the commit a person named.

        Raises:
            GitProblem: There is none.
        """
        found = self._run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        name = os.fsdecode(found.stdout).strip()
        if ref.startswith("-") or found.returncode != 0 or not name:
            raise GitProblem(
                f"git knows no commit {ref} in {self.top}. Fetch it first (a CI checkout often has "
                "the newest commit alone: fetch-depth: 0), or name a directory."
            )
        return name

    def short(self, commit: str) -> str:
        """Return a commit's short name."""
        found = self._run("rev-parse", "--short", commit)
        return os.fsdecode(found.stdout).strip() or commit[:9]

    def holds(self, commit: str, path: str) -> bool:
        """Whether a commit has a path."""
        return self._run("cat-file", "-e", f"{commit}:{path}").returncode == 0

    def tracks(self, path: str) -> bool:
        """Whether the index has a path."""
        found = self._need("ls-files", "-z", "--", f":(top,literal){path}", index=self._copy())
        return bool(found)

    def changes(self, commit: str) -> list[Change]:
        """Return the tracked paths that differ from a commit, uncommitted changes included.

        Raises:
            GitProblem: Git fails.
        """
        told = self._need(
            "diff",
            "--raw",
            "-z",
            "--no-abbrev",
            "--no-renames",
            "--no-ext-diff",
            "--no-relative",
            "--ignore-submodules=dirty",
            commit,
            "--",
            index=self._copy(),
        )
        fields = told.split(b"\0")
        found: dict[str, Change] = {}
        for about, path in zip(fields[0::2], fields[1::2], strict=False):
            before, after = os.fsdecode(about).lstrip(":").split(" ")[:2]
            name = os.fsdecode(path)
            # An unmerged path is told twice.
            found[name] = Change(
                name,
                was=before != _ABSENT,
                now=(self.top / name).is_symlink() or (self.top / name).exists(),
                submodule=_GITLINK in (before, after),
            )
        return list(found.values())

    def dirty(self) -> bool:
        """Whether tracked files have changes that are not committed."""
        return bool(self._run("diff", "--quiet", "HEAD", "--", index=self._copy()).returncode)

    def untracked(self) -> list[str]:
        """Return what git does not track, ignored or not; whole directories end with a slash."""
        told = self._need("ls-files", "-z", "--others", "--directory", index=self._copy())
        return [os.fsdecode(path) for path in told.split(b"\0") if path]

    def submodules(self) -> list[str]:
        """Return the places of other repositories within this one."""
        told = self._need("ls-files", "-z", "--stage", index=self._copy())
        rows = [row for row in told.split(b"\0") if row.startswith(_GITLINK.encode())]
        return [os.fsdecode(row.partition(b"\t")[2]) for row in rows]

    def write(self, commit: str, into: Path, paths: Iterable[str] | None = None) -> None:
        """Write files of a commit below a directory.

        Args:
            commit: Which.
            into: An existing directory.
            paths: The files; ``None`` = all.

        Raises:
            GitProblem: Git fails, as where the disk is full.
        """
        index = self._own / "older-index"
        index.unlink(missing_ok=True)
        self._need("-c", "core.sparseCheckout=false", "read-tree", commit, index=index)
        wanted = ["--all"] if paths is None else ["-z", "--stdin"]
        listed = b"" if paths is None else b"".join(os.fsencode(p) + b"\0" for p in paths)
        if paths is not None and not listed:
            return
        self._need(
            "-c",
            "core.sparseCheckout=false",
            "checkout-index",
            "--quiet",
            f"--prefix={into}/",
            *wanted,
            index=index,
            given=listed,
        )
        index.unlink(missing_ok=True)

    def _copy(self) -> Path:
        """Return our copy of the index: git refreshes what it reads."""
        if self._index is None:
            told = self._need("rev-parse", "--git-path", "index")
            source = self.top / os.fsdecode(told.rstrip(b"\n"))
            self._index = self._own / "index"
            if source.exists():
                shutil.copyfile(source, self._index)
                # Files younger than the index are looked into, not trusted by their times.
                shutil.copystat(source, self._index)
        return self._index

    def _need(self, *arguments: str, index: Path | None = None, given: bytes = b"") -> bytes:
        done = self._run(*arguments, index=index, given=given)
        if done.returncode != 0:
            verb = next((a for a in arguments if not a.startswith("-") and "=" not in a), "git")
            raise GitProblem(f"git {verb} failed in {self._at}: {_last_line(done.stderr)}.")
        return done.stdout

    def _run(
        self, *arguments: str, index: Path | None = None, given: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        environ = _environ(os.environ)
        if index is not None:
            environ["GIT_INDEX_FILE"] = str(index)
        command = [self._git, "-C", str(self._at), "-c", "core.fsmonitor=false", *arguments]
        try:
            return subprocess.run(
                command,
                env=environ,
                input=given,
                capture_output=True,
                check=False,
                timeout=_PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            raise GitProblem(
                f"git {arguments[0]} did not end within {_PATIENCE_S:.0f} s. Try it by hand."
            ) from None
        except OSError as failure:
            raise GitProblem(f"git cannot be run: {failure.strerror or failure}.") from None


def white_out(directory: Path, path: str) -> bool:
    """Put into a layer what hides a path below it; a character device 0:0 needs no privilege.

    See Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories".

    Returns:
        Whether it is hidden now.
    """
    place = directory / path
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    except FileExistsError:
        return True  # the older tree has something else there, which hides it too
    except NotADirectoryError:
        return True
    except OSError:
        return False
    return True


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Our environment without what would point git at another repository, as in a hook."""
    kept = {k: v for k, v in environ.items() if not k.startswith("GIT_") or k.startswith(_KEPT)}
    return kept | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


#: Of git's own variables those that say how, not where.
_KEPT = ("GIT_CONFIG", "GIT_SSH", "GIT_LFS", "GIT_ASKPASS")


def _last_line(told: bytes) -> str:
    lines = [line for line in told.decode("utf-8", "replace").splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("fatal: ")), lines[-1] if lines else "")
    words = "".join(c if c.isprintable() else "?" for c in said.removeprefix("fatal: "))
    return words.rstrip(".") or "it does not say why"
