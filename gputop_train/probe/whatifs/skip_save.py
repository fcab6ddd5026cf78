"""``skip_checkpoint``: writers of checkpoints write next to nothing.

Where a file was to be, one line stands, so that a script that renames it, asks for its size or
deletes it goes on; one that exists is left as it is. Reading such a file back as a checkpoint
makes the leg inconclusive. A save into memory is done: it is a copy of something, not a checkpoint.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from ..hooks import dress, leave_no_frame
from ..state import S, note_error
from . import outcomes

KEY = "skip_checkpoint"
MARK = b"gputop-train: this checkpoint was skipped in a trial\n"


class _DoIt(Exception):
    """This save is to be done as ever."""


def place(torch: Any, trial: Any) -> None:
    """Wrap torch's own writer and reader, below the probe's hook."""
    trial.outcomes.unmet[KEY] = "no known writer of checkpoints was called in this leg"
    writer = _wrap(torch.serialization, "save", _to_target("f", 1))
    if writer is not None:
        torch.save = writer
    reader = _watch_reader(torch.serialization, "load", "f")
    if reader is not None:
        torch.load = reader


def on_import(name: str, module: Any) -> None:
    """A library with writers of its own has just been imported."""
    if name == "safetensors.torch":
        _wrap(module, "save_file", _to_target("filename", 1))
        _wrap(module, "save_model", _to_target("filename", 1))
        _watch_reader(module, "load_file", "filename")
    elif name == "torch.distributed.checkpoint.state_dict_saver":
        _wrap(module, "save", lambda args, kwargs: None)
        _wrap(module, "async_save", _already_done)
    elif name == "accelerate.accelerator":
        _wrap(module.Accelerator, "save_state", _accelerate_state)
    elif name == "transformers.trainer":
        _wrap(module.Trainer, "_save_checkpoint", lambda args, kwargs: None)
    elif name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
        _wrap(module.Trainer, "save_checkpoint", _lightning_file)


def _wrap(owner: Any, name: str, instead: Any) -> Any:
    original = getattr(owner, name, None)
    if original is None:
        return None

    def save(*args: Any, **kwargs: Any) -> Any:
        skipped = False
        result = None
        try:
            result = instead(args, kwargs)
            skipped = True
            S.trial.outcomes.tell(KEY, _caller(), outcomes.APPLIED, "nothing was written", 1)
        except _DoIt:
            pass
        except Exception as error:
            note_error("skip_checkpoint", error)
        if skipped:
            return result
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    wrapper = dress(save, original)
    setattr(owner, name, wrapper)
    return wrapper


def _to_target(name: str, position: int) -> Any:
    """Instead of a writer that is told where to by this argument."""

    def write(args: Any, kwargs: Any) -> None:
        where = kwargs.get(name, args[position] if len(args) > position else None)
        if isinstance(where, (str, os.PathLike)):
            _leave_mark(os.fspath(where), make_folder=False)
        elif _is_file(where):
            where.write(MARK)
        else:
            raise _DoIt

    return write


def _is_file(where: Any) -> bool:
    """Whether this is a file on disk that was opened to write bytes."""
    if type(where) not in (io.BufferedWriter, io.BufferedRandom, io.FileIO):
        return False
    return bool(where.writable())


def _leave_mark(path: Any, make_folder: bool) -> None:
    """Let a file be where one would be.

    Raises:
        _DoIt: It cannot be; the real writer says so in its own words.
    """
    if os.path.lexists(path):
        return
    try:
        if make_folder:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "xb") as stream:
            stream.write(MARK)
    except OSError:
        raise _DoIt from None


def _already_done(args: Any, kwargs: Any) -> Any:
    from concurrent.futures import Future

    future: Any = Future()
    future.set_result(None)
    return future


def _accelerate_state(args: Any, kwargs: Any) -> Any:
    """``save_state`` returns its directory; one it would name itself is left to it."""
    accelerator = args[0]
    where = kwargs.get("output_dir", args[1] if len(args) > 1 else None)
    automatic = getattr(accelerator.project_configuration, "automatic_checkpoint_naming", False)
    if where is None or automatic:
        raise _DoIt
    os.makedirs(where, exist_ok=True)
    return where


def _lightning_file(args: Any, kwargs: Any) -> None:
    where = kwargs.get("filepath", args[1] if len(args) > 1 else None)
    if not isinstance(where, (str, os.PathLike)) or "://" in str(where):
        raise _DoIt
    _leave_mark(os.fspath(where), make_folder=True)


def _caller() -> str | None:
    return user_place(sys._getframe(2))


def user_place(frame: Any) -> str | None:
    """``file:line`` of the nearest frame of the script's own."""
    from .. import sites

    for _ in range(sites.MAX_DEPTH):
        if frame is None:
            return None
        if not sites.is_library(frame.f_code):
            return "%s:%d" % (os.path.basename(frame.f_code.co_filename), frame.f_lineno or 0)
        frame = frame.f_back
    return None


def _watch_reader(owner: Any, name: str, argument: str) -> Any:
    original = getattr(owner, name, None)
    if original is None:
        return None

    def load(*args: Any, **kwargs: Any) -> Any:
        try:
            where = kwargs.get(argument, args[0] if args else None)
            if isinstance(where, (str, os.PathLike)) and _is_mark(os.fspath(where)):
                why = "the script read a checkpoint back that was skipped"
                S.trial.outcomes.tell(KEY, user_place(sys._getframe(1)), outcomes.INCONCLUSIVE, why)
        except Exception as error:
            note_error("skip_checkpoint", error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    wrapper = dress(load, original)
    setattr(owner, name, wrapper)
    return wrapper


def _is_mark(path: Any) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(MARK)) == MARK
    except OSError:
        return False
