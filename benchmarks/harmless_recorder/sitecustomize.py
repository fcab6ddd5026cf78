"""Writes down what a process was like when it ended; the same in plain and in watched runs.

On ``PYTHONPATH`` of every run of ``harmlessness.py``. In a watched run the probe's own
``sitecustomize`` chains to this one, as to anybody's.
"""

import atexit
import hashlib
import json
import os
import sys
from pathlib import Path

_OUT = os.environ.get("HARMLESS_OUT")
_optimizers = []
_warnings = []
_MAX_WARNINGS = 5000


class _AfterImport:
    """Looks at three modules right after they ran, as the probe does at others."""

    def __init__(self):
        self._wanted = {
            "torch.optim.optimizer": _keep_optimizers,
            "numpy.random": lambda module: module.seed(0),
            "torch.random": lambda module: module.default_generator.manual_seed(0),
        }

    def find_spec(self, name, path=None, target=None):
        then = self._wanted.pop(name, None)
        if then is None:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            then(module)

        spec.loader.exec_module = exec_module
        return spec


def _keep_optimizers(module):
    """Keep every optimizer, for its parameters: a script's functions have ended by the exit."""
    original = module.Optimizer.__init__

    def __init__(optimizer, *args, **kwargs):
        original(optimizer, *args, **kwargs)
        _optimizers.append(optimizer)

    module.Optimizer.__init__ = __init__


def _watch_warnings():
    import warnings

    show = warnings.showwarning

    def showwarning(message, category, filename, lineno, file=None, line=None):
        if len(_warnings) < _MAX_WARNINGS:
            _warnings.append([category.__name__, str(message)[:300], filename, lineno])
        show(message, category, filename, lineno, file, line)

    warnings.showwarning = showwarning


def _hash(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
    return digest.hexdigest()[:16]


def _bytes(torch, tensor):
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _random_streams(torch):
    import random

    streams = {"python": _hash(random.getstate())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        streams["numpy"] = _hash(
            *(numpy.asarray(p).tobytes() for p in numpy.random.get_state()[1:])
        )
    streams["torch"] = _hash(_bytes(torch, torch.get_rng_state()))
    if torch.cuda.is_initialized():
        streams["cuda"] = _hash(*(_bytes(torch, s) for s in torch.cuda.get_rng_state_all()))
    return streams


def _parameters(torch):
    """One hash over parameters, gradients and optimizer state, bit for bit."""
    parts = []
    for optimizer in _optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parts += [_bytes(torch, parameter), parameter.grad is None]
                if parameter.grad is not None:
                    parts.append(_bytes(torch, parameter.grad))
                state = optimizer.state.get(parameter, {})
                for key in sorted(state, key=str):
                    value = state[key]
                    parts.append(_bytes(torch, value) if torch.is_tensor(value) else value)
    return {"optimizers": len(_optimizers), "hash": _hash(*parts)} if parts else None


def _dynamo():
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    # Not "frames", which counts functions looked at and left alone: ours are among them.
    names = ("stats", "graph_break", "recompiles", "unimplemented")
    return {name: dict(utils.counters[name]) for name in names if name in utils.counters}


def _process():
    import resource
    import signal
    import threading

    os.umask(mask := os.umask(0o22))
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "signals": [
            [int(s), str(signal.getsignal(s))[:60].split(" at 0x")[0]]
            for s in sorted(signal.valid_signals())
            if signal.getsignal(s) not in (signal.SIG_DFL, None)
        ],
        "blocked": sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "limits": [resource.getrlimit(n) for n in range(resource.RLIMIT_NOFILE + 1)],
        "umask": mask,
        "nice": os.nice(0),
        "gc": __import__("gc").get_threshold(),
        "recursion": sys.getrecursionlimit(),
    }


def _write():
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_rng_state"):
        return
    process = sys.modules.get("multiprocessing.process")
    # First, before anything here could change it.
    record = {"process": _process(), "warnings": list(_warnings), "dynamo": _dynamo()}
    record["rng"] = _random_streams(torch)
    record["parameters"] = _parameters(torch)
    record["who"] = [
        os.environ.get("RANK", ""),
        Path(sys.argv[0]).name if sys.argv else "",
        process.current_process().name if process else "MainProcess",
    ]
    text = json.dumps(record, sort_keys=True, default=str)
    (Path(_OUT) / f"{os.getpid()}.json").write_text(text)


if _OUT:
    import random

    random.seed(0)  # All three seed themselves from the system: no two runs would agree.
    _watch_warnings()
    sys.meta_path.insert(0, _AfterImport())
    atexit.register(_write)
