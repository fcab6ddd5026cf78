"""Act right after a module was imported, for what must be in place before others use it."""

from __future__ import annotations

import sys
from typing import Any, Callable


class After:
    """A ``meta_path`` finder that calls a function once each named module has run."""

    def __init__(self, actions: dict[str, Callable[[Any], None]]) -> None:
        self._actions = dict(actions)
        self._busy = False

    def place(self) -> None:
        """Start, and catch up with what is imported already."""
        for name in list(self._actions):
            if name in sys.modules:
                self._act(name, sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Let the import through, watched if its name is one of ours."""
        if name not in self._actions or self._busy:
            return None
        self._busy = True
        try:
            spec = None
            for finder in sys.meta_path:
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None else None
                if spec is not None:
                    break
        finally:
            self._busy = False
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        run_module = loader.exec_module

        def exec_module(module: Any) -> None:
            loader.__dict__.pop("exec_module", None)
            run_module(module)
            self._act(name, module)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            pass
        return spec

    def _act(self, name: str, module: Any) -> None:
        action = self._actions.pop(name, None)
        if action is not None:
            try:
                action(module)
            except Exception:
                pass
