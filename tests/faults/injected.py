"""Runs one training under the probe many times over, each time with one part of the probe failing.

Started with the probe on ``PYTHONPATH``. Every function and method of the probe, and the primitives its
hooks are made of, is made to raise, once before the probe wakes up and once while it watches; the
training runs in a forked child whose output, exit code and results go to the parent. Prints a JSON
object: fault -> what differed, for those where something did, and how many were tried.

CUDA stands in at its boundary: events, streams and ``is_cuda``; tensors are real.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import pkgutil
import sys
import textwrap
import traceback
import types

import _gputop_probe
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

#: Nothing in them can fail by itself: the first reads two attributes, in an except block; the second
#: asks the finders that were there before, whose exceptions are the script's; the third runs all it
#: does under a guard.
CANNOT_FAIL = {"hooks.leave_no_frame", ".ImportWatcher.find_spec", "helper.Helper.run"}

#: Tried in every run, however small a part of the faults it tries.
ALWAYS = {"state.append", "state.now", "gpu_events.GpuEvents.mark", "sites.caller"}


# -- CUDA's boundary ----------------------------------------------------------------------------------
class Event:
    def __init__(self, enable_timing=False):
        self.t = 0.0

    def record(self, stream=None):
        self.t = 1.0

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.5

    def synchronize(self):
        raise AssertionError("the probe synchronised")


class Stream:
    device_index, cuda_stream = 0, 7

    def synchronize(self):
        pass


reading = [False]


@contextlib.contextmanager
def on_the_device():
    reading[0] = True
    try:
        yield
    finally:
        reading[0] = False


def stand_in_for_cuda():
    cuda = torch.cuda
    cuda.Event, cuda.Stream = Event, Stream
    cuda.is_initialized = lambda: True
    cuda.current_device = lambda: 0
    cuda.current_stream = lambda device=None: Stream()
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
        name="stand-in", total_memory=1 << 30, uuid="GPU-0"
    )
    torch._C._cuda_getCurrentRawStream = lambda device: 7
    torch._C._cuda_synchronize = lambda: None
    torch._C._cuda_memoryStats = lambda device: {
        "allocated_bytes": {"all": {"current": 10, "peak": 20}}, "num_ooms": 0
    }  # fmt: skip
    torch.Tensor.is_cuda = property(lambda self: reading[0])


# -- the training -----------------------------------------------------------------------------------
class Run:
    """Stands for a logging library's run object."""

    def log(self, row):
        print("logged", row)


class Broken(TensorDataset):
    def __getitem__(self, i):
        raise KeyError("planted")


class Training:
    def __init__(self):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.adam = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.lbfgs = torch.optim.LBFGS(self.net.parameters(), max_iter=2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.data = DataLoader(TensorDataset(torch.randn(24, 8)), 4, shuffle=True)

    def epoch(self):
        self.net.train()
        for (x,) in self.data:
            loss = self.net(x).square().mean()
            self.adam.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.adam)
            self.scaler.update()
            with on_the_device():
                print(loss.item().hex(), float(loss.detach()), x.to("cpu").shape, x.tolist()[0][0])
                torch._C._cuda_synchronize()
        Run().log({"loss": loss.item()})
        self.net.eval()
        with torch.no_grad():
            for (x,) in self.data:
                print(sum(self.net(x).sum() for _ in range(8)).item().hex())
        self.net.train()
        torch.save(self.net.state_dict(), os.devnull)

    def oddities(self):
        def closure():
            self.lbfgs.zero_grad()
            loss = self.net(torch.ones(2, 8)).square().mean()
            loss.backward()
            return loss

        print(self.lbfgs.step(closure).item().hex())
        w = torch.randn(4, requires_grad=True)
        print(torch.autograd.grad(w.square().sum(), w)[0].sum().item().hex())
        for failing in (
            lambda: torch.save({}, "/nonexistent/x.pt"),
            lambda: next(iter(DataLoader(Broken(torch.ones(2)), 1))),
            lambda: DataLoader([1], prefetch_factor=3),
            lambda: torch.ones(2).item(),
            lambda: torch.ones(2).sum().backward(),
        ):
            try:
                failing()
            except Exception as error:  # noqa: PERF203
                print(type(error).__name__, str(error)[:60])
        gc.collect()
        print(torch.randn(1).item().hex(), self.net[0].weight.sum().item().hex())

    def whole(self, between=lambda: None):
        self.epoch()
        between()
        self.epoch()
        self.oddities()


# -- faults -----------------------------------------------------------------------------------------
def modules():
    for found in pkgutil.walk_packages(_gputop_probe.__path__, "_gputop_probe."):
        importlib.import_module(found.name)
    return {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "_gputop_probe"}


def faults():
    """Fault -> (owner, attribute, original)."""
    found = {}
    for name, module in modules().items():
        short = name.partition(".")[2]
        for attribute, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == name:
                found[f"{short}.{attribute}"] = (module, attribute, value)
            if inspect.isclass(value) and value.__module__ == name:
                for method, function in vars(value).items():
                    # What a named tuple or a dataclass was given is no code of ours.
                    if inspect.isfunction(function) and os.path.exists(
                        function.__code__.co_filename
                    ):
                        found[f"{short}.{attribute}.{method}"] = (value, method, function)
    state = sys.modules["_gputop_probe.state"]
    for primitive in ("append", "now"):
        found[f"state.{primitive}"] = (state, primitive, getattr(state, primitive))
    return {
        name: fault
        for name, fault in sorted(found.items())
        if name not in CANNOT_FAIL and not is_guard(fault[2])
    }


def is_guard(function):
    """Whether all of a function's body stands in one ``try`` that lets no Exception out."""
    # Dressed functions carry no file: they run in place of the script's own.
    if not inspect.isfunction(function) or not os.path.exists(function.__code__.co_filename):
        return False
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    body = [s for s in definition.body if not isinstance(s, ast.Expr)]
    return (
        len(body) == 1
        and isinstance(body[0], ast.Try)
        and any(getattr(h.type, "id", None) == "Exception" for h in body[0].handlers)
        and not any(isinstance(s, ast.Raise) for s in ast.walk(body[0]))
    )


def failing(*args, **kwargs):
    raise RuntimeError("injected")


def inject(owner, attribute, original):
    """Everywhere the probe knows it by: module globals, and what wrappers closed over."""
    setattr(owner, attribute, failing)
    for module in modules().values():
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, failing)
    for cell in cells:
        with contextlib.suppress(ValueError):
            if cell.cell_contents is original:
                cell.cell_contents = failing


cells = []


def collect_cells():
    """What the probe's wrappers closed over, found once: a walk over all objects is dear."""
    for function in gc.get_objects():
        if type(function) is not types.FunctionType:
            continue
        if str(function.__globals__.get("__name__", "")).startswith("_gputop_probe"):
            cells.extend(function.__closure__ or ())


def run_in_child(training, before, between):
    """What a child says and how it ends."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.dup2(write, 1)
        os.dup2(write, 2)
        before()
        code = 5
        try:
            training.whole(between)
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)  # tearing the interpreter down takes longer than the training
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode()
    return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def nothing():
    pass


def main():
    stand_in_for_cuda()
    _gputop_probe.arming.on_import("wandb.sdk.wandb_run", types.SimpleNamespace(Run=Run))
    training = Training()
    modules()
    sys.modules["_gputop_probe.hooks.pauses"].GC_MIN_NS = 0
    collect_cells()
    gc.freeze()  # collections in the children look at what is theirs
    plain = run_in_child(training, nothing, nothing)
    part, parts = map(int, sys.argv[1:3])
    every = list(faults().items())
    chosen = every[part::parts]
    if part == 0:
        chosen += [item for item in every if item[0] in ALWAYS and item not in chosen]
    differing = {}
    for name, fault in chosen:
        for when in ("from the start", "under way"):

            def strike(fault=fault):
                inject(*fault)

            order = (strike, nothing) if when == "from the start" else (nothing, strike)
            got = run_in_child(training, *order)
            if got != plain:
                differing[f"{name} {when}"] = [*got, *plain][:2]
    print(json.dumps({"plain": plain, "tried": [n for n, _ in chosen], "differing": differing}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
