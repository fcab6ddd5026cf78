"""DistributedDataParallel's own timing of its collectives, read now and then.

DDP times the first ten iterations and every hundredth one (``ddp_runtime_logging_sample_rate``):
forward, backward compute, communication and their overlap, with CUDA events on a GPU and host
clocks on the CPU. We only read what it kept (60 to 90 us a call), at a step's end on the training
thread, and never touch communication hooks: those are the script's.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..state import S, note_error, now
from . import leave_no_frame, wrap_attribute

READ_NS = 5_000_000_000
#: Before this many step ends every one is read: DDP times each of its first ten iterations.
FIRST_STEPS = 12
#: The buckets are built anew after the first iteration: it and the next one are no measure.
FIRST_ITERATION = 3
MAX_SAMPLES = 64
MAX_MODULES = 8
NEVER = 1 << 62
_TIMES = ("forward_compute", "backward_compute", "backward_comm", "backward_compute_comm_overlap")
_SETTINGS = (
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "broadcast_buffers",
    "has_rebuilt_buckets",
    "join_uneven_inputs",
)
_SIZES = (
    "unused_parameter_size",
    "total_parameter_size_bytes",
    "num_parameter_tensors",
    "bucket_cap_bytes",
)

#: Not before this time; a list so that the hot path reads one name.
due_ns = [NEVER]
_modules: list[Module] = []
_step_ends = 0


def place(torch: Any) -> None:
    """Hook the method that builds a module's reducer; once per DDP, also when unpickled."""
    owner = torch.nn.parallel.DistributedDataParallel
    if wrap_attribute(owner, "_ddp_init_helper", _make_init) is None:
        S.hooks["ddp"] = False
        return
    S.hooks["ddp"] = True


def _make_init(original: Any) -> Any:
    def _ddp_init_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        _remember(self)
        return result

    return _ddp_init_helper


def _remember(module: Any) -> None:
    try:
        if len(_modules) < MAX_MODULES:
            _modules.append(Module(module))
            due_ns[0] = 0
    except Exception as error:
        note_error("ddp", error)


class Module:
    """What one DDP module said so far; all times in ns.

    Attributes:
        samples: Per timed iteration: its number and the four times.
        per_step: Iterations that communicate, per optimizer step; None while not known.
    """

    def __init__(self, module: Any) -> None:
        self.reference = weakref.ref(module)
        self.first_step = S.steps
        self.samples: list[tuple[int, ...]] = []
        self.iteration = 0
        self.per_step: float | None = None
        self.facts: dict[str, Any] = {}

    def read(self) -> bool:
        """Take what is new; False when the module is gone."""
        module = self.reference()
        if module is None:
            return False
        logger = module.logger
        if logger is None:
            return True
        kept = logger._get_ddp_logging_data()
        numbers, words = kept.ints_map, kept.strs_map
        self._settings(module, numbers, words)
        iteration = int(numbers.get("iteration", 0))
        self._count(iteration)
        if iteration <= self.iteration:
            return True
        self.iteration = iteration
        times = tuple(int(numbers.get(name + "_time", 0)) for name in _TIMES)
        # Zero is "not measured": DDP resets them, and leaves them where an event is missing.
        if iteration >= FIRST_ITERATION and times[1] > 0 and times[2] > 0:
            self.samples.append((iteration, *times))
            del self.samples[:-MAX_SAMPLES]
        return True

    def _count(self, iteration: int) -> None:
        """Compare iterations with steps while DDP times each of them: it says the one before."""
        steps = S.steps - self.first_step
        if steps > 0 and iteration < 10:
            self.per_step = (iteration + 1) / steps

    def _settings(self, module: Any, numbers: Any, words: Any) -> None:
        buckets = words.get("rebuilt_bucket_sizes") or words.get("bucket_sizes") or ""
        self.facts = {
            "module": words.get("module_name"),
            "backend": words.get("backend_name"),
            "device": str(module.device_type),
            "world_size": numbers.get("world_size"),
            "rank": numbers.get("rank"),
            "bucket_bytes": [int(n) for n in buckets.replace(",", " ").split()][:64],
            "comm_hook": words.get("comm_hook") or None,
            **{name: bool(numbers[name]) for name in _SETTINGS if name in numbers},
            **{name: numbers[name] for name in _SIZES if name in numbers},
        }
        if "static_graph" not in numbers:
            self.facts["static_graph"] = bool(getattr(module, "static_graph", False))

    def told(self) -> dict[str, Any]:
        """For the snapshot: settings, and medians of the timed iterations."""
        rows = list(self.samples)
        found: dict[str, Any] = {
            **self.facts,
            "iteration": self.iteration,
            "per_step": self.per_step,
            "samples": len(rows),
        }
        for n, name in enumerate(_TIMES):
            found[name + "_ns"] = _median([row[n + 1] for row in rows])
        # Communication that no backward compute hid. It includes waiting for slower ranks.
        found["exposed_ns"] = _median([max(0, row[3] - row[4]) for row in rows])
        return found


def _median(values: list[int]) -> int | None:
    return sorted(values)[len(values) // 2] if values else None


def at_step_end(t_ns: int) -> None:
    """On the training thread, with dynamo's evaluator off, when ``due_ns`` has come."""
    global _step_ends
    _step_ends += 1
    due_ns[0] = 0 if _step_ends < FIRST_STEPS else t_ns + READ_NS
    try:
        alive = [module for module in _modules if module.read()]
        if not alive:
            due_ns[0] = NEVER
    except Exception as error:
        due_ns[0] = now() + 12 * READ_NS
        note_error("ddp", error)


def forget() -> None:
    """In a forked child: the parent's modules are not its own."""
    _modules.clear()
    due_ns[0] = NEVER


def report() -> list[dict[str, Any]] | None:
    """What each module said; None where there is none."""
    return [module.told() for module in list(_modules) if module.facts] or None
