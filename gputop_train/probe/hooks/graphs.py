"""CUDA graph captures: while one is under way the probe makes no CUDA call at all.

In CUDA's default capture mode a query or an allocation by *any* thread invalidates the capture, so
asking whether the current stream is captured is not enough.
"""

from __future__ import annotations

from typing import Any, Callable

from ..state import S
from . import dress, leave_no_frame

#: Captures under way in this process.
capturing = [0]
#: Captures begun in this process.
seen = [0]
#: Called before a capture begins, on its thread; used by a burst, which must end first.
before_capture: list[Callable[[], None]] = []


def place(torch: Any) -> None:
    """Wrap the two methods through which every capture of torch goes, once."""
    owner = torch.cuda.CUDAGraph
    if getattr(owner, "_gputop_watched", False):
        return
    _wrap_begin(owner)
    _wrap_end(owner)
    owner._gputop_watched = True
    S.hooks["graphs"] = True


def _wrap_begin(owner: Any) -> None:
    original = owner.capture_begin

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        for stop in before_capture:
            try:
                stop()
            except Exception as error:
                S.failed("graphs", error)
        capturing[0] += 1
        seen[0] += 1
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            capturing[0] -= 1
            leave_no_frame(error)
            raise

    owner.capture_begin = dress(capture_begin, original)


def _wrap_end(owner: Any) -> None:
    original = owner.capture_end

    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            capturing[0] = max(0, capturing[0] - 1)

    owner.capture_end = dress(capture_end, original)
