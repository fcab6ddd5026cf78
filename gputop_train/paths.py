"""Every file location of gputop-train, and the rules of safety that go with them.

Directories are 0700 and files 0600, owned by us, never reached through a symbolic link of somebody
else. Ring and control socket live on tmpfs where there is ample room, else on local disk, and never
on a network file system: mmap and Unix sockets do not work across nodes, and SQLite's WAL needs one
host (https://www.sqlite.org/wal.html). None of this module needs more than the standard library
and platformdirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Room a tmpfs must have before a ring of at most 2 MB a process may go there: data loaders hand
#: their batches over through the same memory, and theirs comes first.
TMPFS_MIN_FREE_BYTES = 256 * 1024 * 1024
#: ``sun_path`` of sockaddr_un holds 108 bytes on Linux (unix(7)); some room is left below it.
SOCKET_PATH_MAX_BYTES = 99

#: ``f_type`` of file systems served over a network or by a cluster; statfs(2) and linux/magic.h.
_REMOTE_MAGIC = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x517B: "smb",
    0x564C: "ncp",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x00C36400: "ceph",
    0x01021997: "9p",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x20030528: "orangefs",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0x013111A8: "ibrix",
    0x786F4256: "vboxsf",
    0xBACBACBC: "vmhgfs",
}
_FUSE_MAGIC = 0x65735546
_TMPFS_MAGIC = 0x01021994
#: FUSE file systems that are a local disk in disguise; every other one may be a network.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuseblk", "fuse.ntfs-3g", "fuse.bindfs", "fuse.lxcfs"}


class PathError(Exception):
    """A location cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where the files of one run are; see docs/contracts.md, "Run directory"."""

    run_dir: Path

    @property
    def id(self) -> str:
        """The run's id: the directory's name."""
        return self.run_dir.name

    @property
    def run_json(self) -> Path:
        """What was launched."""
        return self.run_dir / "run.json"

    @property
    def output_log(self) -> Path:
        """The script's stdout and stderr."""
        return self.run_dir / "output.log"

    @property
    def exit_json(self) -> Path:
        """How the script ended; written by the shim."""
        return self.run_dir / "exit.json"

    @property
    def report_json(self) -> Path:
        """The report, at the end."""
        return self.run_dir / "report.json"

    @property
    def store(self) -> Path:
        """The store, unless ``run.json`` says it is elsewhere."""
        return self.run_dir / "run.sqlite"

    @property
    def supervisor_json(self) -> Path:
        """Who watches."""
        return self.run_dir / "supervisor.json"

    @property
    def supervisor_log(self) -> Path:
        """The supervisor's own troubles."""
        return self.run_dir / "supervisor.log"

    @property
    def probe_dir(self) -> Path:
        """What ``PYTHONPATH`` of the training points at."""
        return self.run_dir / "probe"


def run_root(override: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory that holds all runs; it need not exist yet.

    ``override`` (``--run-root``) wins; else ``$XDG_STATE_HOME/gputop-train/runs``. A user without
    a home directory, as in many containers, gets a directory of their own under ``/var/tmp``.
    """
    if override is not None:
        return Path(os.path.abspath(Path(override).expanduser()))  # noqa: PTH100  keeps symlinks
    import platformdirs

    # platformdirs takes a relative XDG_STATE_HOME at its word, which would be a new place for every
    # working directory; the XDG specification says to ignore it.
    configured = os.environ.get("XDG_STATE_HOME", "").strip()
    if configured and not Path(configured).is_absolute():
        state = Path.home() / ".local" / "state" / "gputop-train"
    else:
        state = platformdirs.user_state_path("gputop-train", appauthor=False)
    if not state.is_absolute() or str(state).startswith("~"):
        state = Path("/var/tmp") / _own_name()
    return state / "runs"


def spare_root() -> Path:
    """Return a directory for runs on a local disk, for when the usual one takes none.

    Raises:
        PathError: No local directory is writable and ours.
    """
    for place in dict.fromkeys(("/var/tmp", tempfile.gettempdir(), "/tmp")):
        if not is_network_fs(Path(place)):
            with contextlib.suppress(PathError):
                return make_private_dir(make_private_dir(Path(place) / _own_name()) / "runs")
    raise PathError("no local directory is writable")


def config_file(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return where the config file is, there or not; ``None`` where there is to be none.

    ``$GPUTOP_CONFIG`` names another one, empty means none; else
    ``$XDG_CONFIG_HOME/gputop-train/config.toml``.
    """
    env = os.environ if environ is None else environ
    named = env.get("GPUTOP_CONFIG")
    if named is not None:
        return Path(os.path.abspath(named)) if named.strip() else None  # noqa: PTH100
    # As in `run_root`: a relative one is to be ignored.
    home = env.get("XDG_CONFIG_HOME", "").strip()
    base = home if os.path.isabs(home) else os.path.expanduser("~/.config")  # noqa: PTH111, PTH117
    return Path(base) / "gputop-train" / "config.toml" if os.path.isabs(base) else None  # noqa: PTH117


def come_back(verb: str, run_dir: Path | None = None, *, root: Path | None = None) -> str:
    """Return the command that finds a run again, as a person would type it.

    Args:
        verb: Such as ``attach`` or ``report``.
        run_dir: The run; ``None`` for a command about all runs.
        root: The run root, where it is not the run's parent.
    """
    words = ["gputop-train", verb]
    if run_dir is not None:
        words.append(run_dir.name)
        root = run_dir.parent if root is None else root
    if root is not None and os.path.realpath(root) != os.path.realpath(run_root()):
        words += ["--run-root", str(root)]
    return shlex.join(words)


def runtime_candidates(fallback: Path | None = None) -> Iterator[Path]:
    """Yield places for ring and control socket, best first, none of them checked yet.

    Args:
        fallback: A directory of last resort, the run's own.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and has_room_on_tmpfs(Path(runtime)):  # noqa: PTH117
        yield Path(runtime) / "gputop-train"
    if has_room_on_tmpfs(Path("/dev/shm")):
        yield Path("/dev/shm") / _own_name()
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        if not is_network_fs(Path(place)):
            yield Path(place) / _own_name()
    if fallback is not None and not is_network_fs(fallback):
        yield fallback / "runtime"


def make_runtime_dir(run_id: str, fallback: Path | None = None) -> Path:
    """Make and return the private directory for the ring and control socket of one run.

    Raises:
        PathError: No place is local, writable and ours.
    """
    reason = "no local directory is writable"
    for base in runtime_candidates(fallback):
        directory = base / run_id
        if len(os.fsencode(socket_path(directory))) > SOCKET_PATH_MAX_BYTES:
            continue
        try:
            make_private_dir(base)
            make_private_dir(directory)
        except PathError as failure:
            reason = str(failure)
            continue
        return directory
    raise PathError(
        f"There is no local directory for the probe's data ({reason}). "
        "Point TMPDIR at a writable directory on a local disk."
    )


def socket_path(ring_dir: Path) -> Path:
    """Return where the control socket of a run is."""
    return ring_dir / "control.sock"


def choose_store(run_dir: Path) -> Path:
    """Return where the run's store goes: the run directory, or local disk when that is remote.

    Raises:
        PathError: The run directory is on a network file system and no local directory is ours.
    """
    if not is_network_fs(run_dir):
        return RunPaths(run_dir).store
    for place in dict.fromkeys(("/var/tmp", tempfile.gettempdir(), "/tmp")):
        if is_network_fs(Path(place)):
            continue
        directory = Path(place) / _own_name() / run_dir.name
        with contextlib.suppress(PathError):
            make_private_dir(directory.parent)
            make_private_dir(directory)
            return directory / "run.sqlite"
    raise PathError(
        "The run directory is on a network file system and no local directory is writable. "
        "Name a directory on a local disk with --run-root."
    )


def make_private_dir(path: Path) -> Path:
    """Make ``path`` a directory of ours alone (0700), or accept it when it is one already.

    Parents are made as needed. A symbolic link, a foreign owner or a mode that lets others in is
    refused: in a shared directory such as ``/tmp`` anybody may have put it there.

    Raises:
        PathError: It is not, and cannot be made, such a directory.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as failure:
        raise PathError(f"{path} cannot be made: {failure.strerror or failure}") from failure
    if not stat.S_ISDIR(found.st_mode):
        raise PathError(f"{path} is not a directory")
    if found.st_uid != os.geteuid():
        raise PathError(f"{path} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise PathError(f"{path} is open to other users")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PathError(f"{path} is not writable")
    return path


def is_private_dir(path: Path) -> bool:
    """Whether ``path`` is, as it stands, a directory as ``make_private_dir`` makes them."""
    try:
        found = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and not stat.S_IMODE(found.st_mode) & 0o077


def make_run_dir(root: Path, run_id: str) -> Path:
    """Make and return the private directory of a new run.

    The root itself may be a person's own directory with any mode; only what is made is 0700.

    Raises:
        FileExistsError: A run of this id exists.
        PathError: The root cannot be made or written.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        run_dir = root / run_id
        run_dir.mkdir(mode=0o700)
    except FileExistsError:
        if not root.is_dir():
            raise PathError(f"{root} is not a directory") from None
        raise
    except OSError as failure:
        raise PathError(f"{root} cannot be written: {failure.strerror or failure}") from failure
    return run_dir


def open_private_file(path: Path, flags: int = os.O_WRONLY) -> int:
    """Create a new file of ours alone (0600) and return its descriptor.

    Raises:
        OSError: As ``open(2)``; an existing file, even a symbolic link, is refused.
    """
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def is_network_fs(path: Path) -> bool:
    """Return whether ``path``, or its nearest parent that exists, is on a network file system.

    Unknown file systems count as local: refusing to work there would be worse.
    """
    place = _nearest_existing(path)
    magic = _fs_magic(place)
    if magic == _FUSE_MAGIC:
        return _mount_type(place) not in _LOCAL_FUSE
    return magic in _REMOTE_MAGIC


def has_room_on_tmpfs(path: Path) -> bool:
    """Return whether ``path`` is a writable tmpfs with room; a container's 64 MB never has it."""
    try:
        if _fs_magic(path) != _TMPFS_MAGIC or not os.access(path, os.W_OK | os.X_OK):
            return False
        room = os.statvfs(path)
    except OSError:
        return False
    # A tmpfs mounted without a limit reports no blocks at all; it is bounded by memory only.
    if room.f_blocks == 0:
        return True
    return room.f_bavail * room.f_frsize >= TMPFS_MIN_FREE_BYTES


def _own_name() -> str:
    return f"gputop-train-{os.geteuid()}"


def _nearest_existing(path: Path) -> Path:
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _fs_magic(path: Path) -> int | None:
    """Return ``f_type`` of statfs(2), which Python's ``os.statvfs`` does not carry."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # f_type is the first word of the structure on every Linux; 512 bytes hold all of them.
        buffer = ctypes.create_string_buffer(512)
        if libc.statfs(os.fsencode(path), buffer) != 0:
            return None
        return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF
    except (OSError, AttributeError):
        return None


def _mount_type(path: Path) -> str | None:
    """Return the file system type of the mount that holds ``path``; see proc_pid_mountinfo(5)."""
    try:
        device = path.stat().st_dev
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [wanted] and after:
            return after.split()[0]
    return None
