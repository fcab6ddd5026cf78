"""A file system as slow as a loaded network's, and hung when it is told to: a small FUSE server.

``python slow_fs.py BACKING MOUNTPOINT DELAY_S`` serves the directory BACKING at MOUNTPOINT, in a
process of its own; each request waits DELAY_S. SIGSTOP makes it the server that does not respond,
SIGCONT the one that is back. It speaks the kernel's protocol (linux/fuse.h, version 7.31) by
itself: root and ``/dev/fuse`` are all it needs. What is written through it is in BACKING at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time
from typing import Any

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_STATFS = struct.Struct("<QQQQQIIII24x")

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = 1, 2, 3, 4, 5, 6
MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK = 8, 9, 10, 11, 12, 13
OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 14, 15, 16, 17, 18, 20
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR = 25, 26, 27, 28, 29, 30
ACCESS, CREATE, INTERRUPT, DESTROY, BATCH_FORGET, RENAME2 = 34, 35, 36, 38, 42, 45
SILENT = {FORGET, BATCH_FORGET, INTERRUPT}


class SlowFS:
    """Serves one directory; inodes are remembered by path, as a test's few files allow."""

    def __init__(self, backing: str, delay_s: float) -> None:
        self._delay_s = delay_s
        self._paths: dict[int, bytes] = {1: os.fsencode(backing)}
        self._numbers: dict[bytes, int] = {os.fsencode(backing): 1}
        self._files: dict[int, int] = {}
        self._handlers = {
            LOOKUP: self._lookup, GETATTR: self._getattr, SETATTR: self._setattr,
            READLINK: self._readlink, SYMLINK: self._symlink, MKNOD: self._mknod,
            MKDIR: self._mkdir, UNLINK: self._unlink, RMDIR: self._rmdir, RENAME: self._rename,
            RENAME2: self._rename2, LINK: self._link, OPEN: self._open, READ: self._read,
            WRITE: self._write, STATFS: self._statfs, RELEASE: self._release, FSYNC: self._fsync,
            FLUSH: self._nothing, INIT: self._init, OPENDIR: self._opendir,
            READDIR: self._readdir, RELEASEDIR: self._nothing, FSYNCDIR: self._nothing,
            ACCESS: self._nothing, CREATE: self._create, DESTROY: self._nothing,
        }  # fmt: skip

    def serve(self, device: int) -> None:
        """Answer until the file system is unmounted."""
        while True:
            try:
                request = os.read(device, 1 << 18)
            except OSError as gone:
                if gone.errno == errno.ENODEV:
                    return
                if gone.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            if opcode in SILENT:
                continue
            if opcode != INIT:
                time.sleep(self._delay_s)
            code, body = 0, b""
            handler = self._handlers.get(opcode)
            try:
                if handler is None:
                    code = errno.ENOSYS
                else:
                    body = handler(node, request[_IN.size :])
            except OSError as failed:
                code = failed.errno or errno.EIO
            try:
                os.write(device, _OUT.pack(_OUT.size + len(body), -code, unique) + body)
            except OSError as interrupted:  # who asked was killed meanwhile
                if interrupted.errno != errno.ENOENT:
                    raise

    # -- names ------------------------------------------------------------------------------------

    def _child(self, node: int, name: bytes) -> bytes:
        return self._paths[node] + b"/" + name

    def _entry(self, path: bytes) -> bytes:
        info = os.lstat(path)
        node = self._numbers.get(path)
        if node is None:
            node = max(self._paths) + 1
            self._numbers[path], self._paths[node] = node, path
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self._attributes(node, info)

    def _attributes(self, node: int, info: os.stat_result) -> bytes:
        times = [divmod(ns, 10**9) for ns in (info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns)]
        return _ATTR.pack(
            node, info.st_size, info.st_blocks, *(t[0] for t in times), *(t[1] for t in times),
            info.st_mode, info.st_nlink, info.st_uid, info.st_gid, info.st_rdev, 4096, 0,
        )  # fmt: skip

    def _moved(self, old: bytes, new: bytes) -> None:
        for path in [p for p in self._numbers if p == new or p.startswith(new + b"/")]:
            del self._numbers[path]
        for path in [p for p in self._numbers if p == old or p.startswith(old + b"/")]:
            node = self._numbers.pop(path)
            self._paths[node] = new + path[len(old) :]
            self._numbers[self._paths[node]] = node

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body[:-1]))

    def _getattr(self, node: int, body: bytes) -> bytes:
        flags, _, handle = struct.unpack_from("<IIQ", body)
        info = os.fstat(handle) if flags & 1 else os.lstat(self._paths[node])
        return struct.pack("<QII", 0, 0, 0) + self._attributes(node, info)

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode = (
            struct.unpack_from("<IIQQQQQQIIII", body)
        )
        uid, gid = struct.unpack_from("<II", body, 76)
        path = self._paths[node]
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(handle if valid & 64 else path, size)
        if valid & 0x1B0:
            now = time.time_ns()
            os.utime(
                path,
                ns=(
                    now if valid & 128 or not valid & 16 else atime * 10**9 + atime_ns,
                    now if valid & 256 or not valid & 32 else mtime * 10**9 + mtime_ns,
                ),
            )
        return struct.pack("<QII", 0, 0, 0) + self._attributes(node, os.lstat(path))

    def _readlink(self, node: int, _: bytes) -> bytes:
        return os.readlink(self._paths[node])

    def _symlink(self, node: int, body: bytes) -> bytes:
        name, target, _ = body.split(b"\0")
        os.symlink(target, self._child(node, name))
        return self._entry(self._child(node, name))

    def _mknod(self, node: int, body: bytes) -> bytes:
        mode, _, umask, _ = struct.unpack_from("<IIII", body)
        path = self._child(node, body[16:-1])
        os.mknod(path, mode & ~umask)
        return self._entry(path)

    def _mkdir(self, node: int, body: bytes) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        path = self._child(node, body[8:-1])
        os.mkdir(path, mode & ~umask)
        return self._entry(path)

    def _unlink(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[:-1])
        os.unlink(path)
        self._numbers.pop(path, None)
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[:-1])
        os.rmdir(path)
        self._numbers.pop(path, None)
        return b""

    def _rename(self, node: int, body: bytes) -> bytes:
        return self._move(node, struct.unpack_from("<Q", body)[0], body[8:])

    def _rename2(self, node: int, body: bytes) -> bytes:
        target, flags, _ = struct.unpack_from("<QII", body)
        if flags:
            raise OSError(errno.EINVAL, "")
        return self._move(node, target, body[16:])

    def _move(self, node: int, target: int, names: bytes) -> bytes:
        old, new, _ = names.split(b"\0")
        source, place = self._child(node, old), self._child(target, new)
        os.rename(source, place)
        self._moved(source, place)
        return b""

    def _link(self, node: int, body: bytes) -> bytes:
        (old,) = struct.unpack_from("<Q", body)
        path = self._child(node, body[8:-1])
        os.link(self._paths[old], path)
        return self._entry(path)

    # -- content ----------------------------------------------------------------------------------

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        # The kernel appends by itself, and a page that is written in part is read before.
        kind = os.O_RDWR if flags & os.O_ACCMODE else os.O_RDONLY
        fd = os.open(self._paths[node], kind | flags & os.O_TRUNC | os.O_NOFOLLOW)
        return struct.pack("<QII", fd, 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<IIII", body)
        path = self._child(node, body[16:-1])
        kept = flags & (os.O_TRUNC | os.O_EXCL)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | kept | os.O_NOFOLLOW, mode & ~umask & 0o7777)
        return self._entry(path) + struct.pack("<QII", fd, 0, 0)

    def _read(self, _: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def _write(self, _: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _release(self, _: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _fsync(self, _: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def _statfs(self, *_: Any) -> bytes:
        found = os.statvfs(self._paths[1])
        return _STATFS.pack(
            found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
            found.f_bsize, found.f_namemax, found.f_frsize, 0,
        )  # fmt: skip

    def _opendir(self, *_: Any) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        answer = b""
        names = [b".", b"..", *sorted(os.listdir(self._paths[node]))]
        for number, name in enumerate(names[offset:], offset + 1):
            entry = struct.pack("<QQII", 0xFFFFFFFF, number, len(name), 0) + name
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def _init(self, *_: Any) -> bytes:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 8, 8, 1 << 17, 1, 0, 0, 0)

    def _nothing(self, *_: Any) -> bytes:
        return b""


def main(backing: str, mountpoint: str, delay_s: str) -> None:
    """Mount, say so on stdout, and serve."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    # nosuid, nodev: as any network's file system would be.
    if libc.mount(b"slow", os.fsencode(mountpoint), b"fuse.slow", 6, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    print("mounted", flush=True)
    os.umask(0)
    SlowFS(backing, float(delay_s)).serve(device)


if __name__ == "__main__":
    main(*sys.argv[1:4])
