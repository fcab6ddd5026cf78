"""Is a call of a module being recorded rather than run: traced, exported, made into a graph?

What is recorded is the script's own: nothing of ours may get into it.
"""

from __future__ import annotations

from typing import Any, Callable


def make(torch: Any) -> Callable[[], bool]:
    """A function that says so, from those of this torch."""
    core = torch._C
    tracing: Any = getattr(core, "_get_tracing_state", lambda: None)
    modes: Any = getattr(core, "_len_torch_dispatch_stack", lambda: 0)
    compiling: Any = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    def recording() -> bool:
        return tracing() is not None or modes() > 0 or compiling()

    return recording


def in_backward(torch: Any) -> bool:
    """Whether a backward runs in this thread: checkpointed forwards are called again in it."""
    task: Any = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1
