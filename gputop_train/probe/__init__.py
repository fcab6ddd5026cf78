"""The probe: runs inside training, standard library only, Python >= 3.9.

Deployed as the package ``_gputop_probe`` in a per-run directory on ``PYTHONPATH``. Nothing but this
file is imported until the script itself imports torch; ring and helper thread exist only in
processes that train.
"""

from __future__ import annotations

import sys
import time
from typing import Any

__all__ = ["install"]

#: Modules whose import the probe reacts to, right after they ran.
WATCHED = (
    "torch",
    "torch._dynamo",
    "torch.utils.tensorboard.writer",
    "torch.distributed.checkpoint.state_dict_saver",
    "accelerate.accelerator",
    "safetensors.torch",
    "torchdata.stateful_dataloader.stateful_dataloader",
    "wandb.sdk.wandb_run",
    "mlflow.tracking.fluent",
)


#: When the import of a watched module began.
began_ns: dict[str, int] = {}


class ImportWatcher:
    """A ``meta_path`` finder that lets every import through and looks at a few after they ran."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.pending = set(names)
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Costs one set lookup for every name that is not watched."""
        if name not in self.pending or self._busy:
            return None
        self._busy = True
        try:
            spec = self._real_spec(name, path, target)
        finally:
            self._busy = False
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        self.pending.discard(name)
        run_module = loader.exec_module

        def exec_module(module: Any) -> None:
            # Back to the class's own method first: the loader is as it was while the module runs.
            if "exec_module" in getattr(loader, "__dict__", {}):
                del loader.exec_module
            began_ns.setdefault(name, time.monotonic_ns())
            run_module(module)
            _imported(name, module)

        try:
            # On the instance: the loader's type, and isinstance checks on it, stay unchanged.
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            pass
        return spec

    def _real_spec(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


def _imported(name: str, module: Any) -> None:
    try:
        from . import arming

        arming.on_import(name, module)
    except Exception:  # not a Ctrl-C that arrives here: that is the script's
        pass


_watcher: ImportWatcher | None = None


def install() -> None:
    """Start watching imports. Safe to call twice; looks at what is already imported."""
    global _watcher
    if _watcher is not None:
        return
    _watcher = ImportWatcher(WATCHED)
    sys.meta_path.insert(0, _watcher)
    for name in WATCHED:
        module = sys.modules.get(name)
        if module is not None:
            _watcher.pending.discard(name)
            _imported(name, module)
