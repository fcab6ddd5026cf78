"""Savers written in C++ and Rust, which open files without telling Python: asked beforehand."""

from __future__ import annotations

import functools
from typing import Any

from .imports import After
from .watching import before_saving


def install() -> None:
    """Watch for the imports of what can be asked."""
    After(
        {
            "torch": _torch,
            "safetensors": lambda module: _wrap(module, "serialize_file", 1, "filename"),
            "h5py._hl.files": lambda module: _wrap(module, "make_fid", 0, "name", _h5_writes),
            "lmdb.cffi": _lmdb,
            "lmdb.cpython": _lmdb,
            "cv2": lambda module: _wrap(module, "imwrite", 0, "filename"),
            "pyarrow.parquet.core": lambda module: _wrap_init(module.ParquetWriter, 0, "where"),
            "onnx": lambda module: _wrap(module, "save_model", 1, "f"),
        }
    ).place()


def _torch(torch: Any) -> None:
    writer = torch._C.PyTorchFileWriter

    class PyTorchFileWriter(writer):  # type: ignore[misc, valid-type]
        def __init__(self, target: Any, *args: Any, **kwargs: Any) -> None:
            before_saving("torch.save", target)
            super().__init__(target, *args, **kwargs)

    torch._C.PyTorchFileWriter = PyTorchFileWriter
    _wrap(torch.jit, "save", 1, "f")
    _wrap(torch, "from_file", 0, "filename", _shares)
    _wrap(torch.UntypedStorage, "from_file", 0, "filename", _shares)


def _shares(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("shared", args[1] if len(args) > 1 else False))


def _h5_writes(args: Any, kwargs: Any) -> bool:
    return kwargs.get("mode", args[1] if len(args) > 1 else "r") not in ("r", None)


def _lmdb(module: Any) -> None:
    _wrap_init(module.Environment, 0, "path", lambda args, kwargs: not kwargs.get("readonly"))


def _always(args: Any, kwargs: Any) -> bool:
    return True


def _wrap(owner: Any, name: str, index: int, key: str, writes: Any = _always) -> None:
    """Ask before ``owner.name(..., path, ...)``; ``index`` and ``key`` say which argument it is."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def saver(*args: Any, **kwargs: Any) -> Any:
        path = kwargs.get(key, args[index] if len(args) > index else None)
        if path is not None and writes(args, kwargs):
            before_saving(name, path)
        return original(*args, **kwargs)

    setattr(owner, name, staticmethod(saver) if isinstance(owner, type) else saver)


def _wrap_init(owner: Any, index: int, key: str, writes: Any = _always) -> None:
    original = owner.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = kwargs.get(key, args[index] if len(args) > index else None)
        if path is not None and writes(args, kwargs):
            before_saving(owner.__name__, path)
        return original(self, *args, **kwargs)

    owner.__init__ = init
