"""Loads modules: what the first picture needs at once, everything else when that is shown."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from gputop_train.tui import gather, pages

_SCREENS = "gputop_train.tui.screens"
#: What lies over a page.
_OVER = ("settings", "trial", "compare", "reading", "texts")


@contextmanager
def swiftly() -> Iterator[None]:
    """Load modules without looking for garbage among them, now or later: they stay."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def load_rest() -> None:
    """Load what the first picture did without, so that no key has to wait for it.

    It also keeps a screen whole that stays open while gputop-train is upgraded beneath it.
    """
    read = [f"{gather.__name__}.{place}" for place in gather.GATHERERS.values()]
    over = [f"{_SCREENS}.{name}" for name in _OVER]
    modules = [place.partition(":")[0] for place in (*read, *pages.PAGES.values(), *over)]
    missing = [module for module in modules if module not in sys.modules]
    if not missing:
        return
    with swiftly():
        for module in missing:
            with suppress(Exception):  # whoever opens that page is told
                import_module(module)
