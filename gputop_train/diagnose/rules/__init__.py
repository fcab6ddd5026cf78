"""One small file per diagnosis, found by name: adding one touches that file and its test."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from gputop_train.diagnose.rules.base import Rule


@lru_cache(maxsize=1)
def all_rules() -> tuple[Rule, ...]:
    """Every rule of this package, in gate order (engine.py), then by id."""
    modules = (
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
        if info.name != "base"
    )
    return tuple(sorted((m.RULE for m in modules), key=lambda rule: (rule.gate, rule.id)))


def refinements(parent: str) -> tuple[Rule, ...]:
    """Closer causes of what ``parent`` finds, in the order they are asked."""
    return tuple(rule for rule in all_rules() if rule.parent == parent)
