"""What a script prints, returns and computes is the same with the probe and without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.probe_support import deploy, run

PREAMBLE = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)

def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

def bits(t):
    return t.detach().double().sum().item().hex()
"""

SCRIPTS = {
    "plain loop": """
        m = net(); o = torch.optim.AdamW(m.parameters())
        for _ in range(20):
            loss = m(torch.randn(4, 8)).square().mean(); o.zero_grad(); loss.backward(); o.step()
        print(bits(loss), torch.randn(1).item().hex())
    """,
    "loader with workers": """
        from torch.utils.data import DataLoader, TensorDataset
        data = DataLoader(TensorDataset(torch.randn(64, 8)), 8, shuffle=True, num_workers=2)
        m = net(); o = torch.optim.SGD(m.parameters(), 0.1)
        for epoch in range(2):
            for (x,) in data:
                loss = m(x).square().mean(); o.zero_grad(); loss.backward(); o.step()
        print(bits(loss), torch.randn(1).item().hex(), type(iter(data)).__name__)
    """,
    "two optimizers": """
        g, d = net(), net()
        og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        for _ in range(6):
            od.zero_grad(); d(torch.randn(4, 8)).mean().backward(); od.step()
            og.zero_grad(); g(torch.randn(4, 8)).mean().backward(); og.step()
        print(bits(g[0].weight), bits(d[0].weight))
    """,
    "closure optimizer": """
        m = net(); o = torch.optim.LBFGS(m.parameters(), max_iter=4); x = torch.randn(16, 8)
        def closure():
            o.zero_grad(); loss = (m(x) - 1).square().mean(); loss.backward(); return loss
        for _ in range(3):
            loss = o.step(closure)
        print(bits(loss))
    """,
    "manual gradients": """
        w = torch.randn(8, requires_grad=True)
        for _ in range(8):
            (g,) = torch.autograd.grad((w * torch.randn(8)).sum().square(), w)
            w = (w - 0.01 * g).detach().requires_grad_()
        print(bits(w))
    """,
    "lazy modules move": """
        m = nn.LazyLinear(3).to("cpu").to(torch.float64); print(m(torch.ones(2, 5).double()).shape)
        m.half(); print(m.weight.dtype)
    """,
    "script and trace": """
        m = torch.jit.script(net()); print(type(m).__name__, bits(m(torch.ones(1, 8))))
        print(type(torch.jit.trace(net(), torch.ones(1, 8))).__name__)
    """,
    "pickle, copy, whole-module save": """
        import copy, io, pickle
        from torch.utils.data import DataLoader
        m = net(); o = torch.optim.Adam(m.parameters()); m(torch.ones(1, 8)).sum().backward(); o.step()
        b = io.BytesIO(); torch.save(m, b); b.seek(0)
        print(len(b.getvalue()), bits(torch.load(b, weights_only=False)[0].weight))
        copy.deepcopy(o); copy.deepcopy(m); print(pickle.loads(pickle.dumps(torch.save)).__name__)
        print(pickle.loads(pickle.dumps(DataLoader([1, 2], 2))).batch_size, sorted(vars(m)))
    """,
    "evaluation": """
        m = net(); o = torch.optim.SGD(m.parameters(), 0.1)
        for i in range(6):
            m.train(); loss = m(torch.ones(1, 8)).sum(); loss.backward(); o.step()
            m.eval()
            with torch.no_grad(), torch.inference_mode():
                v = m(torch.ones(1, 8))
        print(bits(v), m.training, nn.Module.train.__name__, nn.Module.eval.__qualname__)
    """,
    "transforms and subclasses": """
        class Tagged(torch.Tensor): pass
        t = torch.ones(3).as_subclass(Tagged)
        print(type(t.to(torch.float64)).__name__, (t + 1).sum().item(), torch.vmap(torch.sin)(t).shape)
        f = torch.func.grad(lambda x: (x ** 2).sum()); print(f(torch.ones(3)))
    """,
    "raises": """
        m = net(); o = torch.optim.SGD(m.parameters(), 0.1)
        m(torch.ones(1, 8)).sum().backward(); o.step()
        raise ValueError("planted")
    """,
    "exits 7": """
        import sys
        net()(torch.ones(1, 8)).sum().backward(); sys.exit(7)
    """,
    "error inside backward": """
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x.clone()
            @staticmethod
            def backward(ctx, g): raise RuntimeError("in backward")
        Bad.apply(torch.ones(1, requires_grad=True)).backward()
    """,
    "error in a worker": """
        from torch.utils.data import DataLoader
        class Broken:
            def __len__(self): return 8
            def __getitem__(self, i): raise IndexError("planted %d" % i)
        m = net(); m(torch.ones(1, 8)).sum().backward()
        for workers in (0, 1):
            try:
                next(iter(DataLoader(Broken(), 2, num_workers=workers)))
            except IndexError:
                import re, traceback
                print(re.sub(r"process \\d+", "", traceback.format_exc()))
    """,
    "warnings name the same lines": """
        from torch.utils.data import DataLoader
        m = net(); o = torch.optim.SGD(m.parameters(), 0.1)
        for x in DataLoader([torch.ones(8)] * 4, 2, pin_memory=True, num_workers=9):
            loss = m(x).sum(); loss.backward(create_graph=True); o.step()
        torch.cuda.amp.GradScaler(enabled=True); print(bits(loss))
        try:
            torch.save({}, "/nonexistent/x.pt")
        except RuntimeError:
            import traceback; traceback.print_exc()
        try:
            DataLoader([1], prefetch_factor=3)
        except ValueError:
            traceback.print_exc()
    """,
    "compiled model": """
        import torch._dynamo
        m = net(); c = torch.compile(m, backend="aot_eager"); o = torch.optim.SGD(m.parameters(), 0.1)
        for n in (4, 4, 6, 8):
            loss = c(torch.ones(n, 8)).sum(); o.zero_grad(); loss.backward(); o.step()
        k = torch._dynamo.utils.counters
        print(bits(loss), dict(k["stats"]), sum(k["graph_break"].values()), dict(k["frames"]))
    """,
    "compiled step and breaks": """
        import torch._dynamo
        m = net(); o = torch.optim.SGD(m.parameters(), 0.1)
        def train(x):
            loss = m(x).sum(); print("break"); loss.backward(); return loss
        c = torch.compile(train, backend="eager"); step = torch.compile(o.step, backend="eager")
        for _ in range(3):
            o.zero_grad(); loss = c(torch.ones(2, 8)); step()
        k = torch._dynamo.utils.counters
        print(bits(loss), dict(k["stats"]), sum(k["graph_break"].values()), dict(k["recompiles"]))
    """,
    "fork trains": """
        import torch.multiprocessing as mp
        def child(q):
            m = net(); o = torch.optim.SGD(m.parameters(), 0.1)
            for _ in range(4):
                loss = m(torch.ones(2, 8)).sum(); loss.backward(); o.step()
            q.put(bits(loss))
        m = net(); o = torch.optim.SGD(m.parameters(), 0.1); m(torch.ones(2, 8)).sum().backward(); o.step()
        ctx = mp.get_context("fork"); q = ctx.SimpleQueue(); p = ctx.Process(target=child, args=(q,))
        p.start(); print(q.get()); p.join(); print(p.exitcode)
    """,
}


def side_by_side(
    script: Path, env: dict[str, str]
) -> tuple[subprocess.CompletedProcess[bytes], subprocess.CompletedProcess[bytes]]:
    """The same script bare and watched, at once: importing torch is most of what it takes."""
    with ThreadPoolExecutor(2) as pool:
        runs = pool.submit(run, script), pool.submit(run, script, env=env)
        return runs[0].result(), runs[1].result()


def without_clock(log: bytes) -> bytes:
    """torch's log lines carry the time and a process id."""
    return re.sub(rb"[WIE]\d{4} [\d:.]+ +\d+ ", b"", log)


#: One after the other in one process, those that do not train first: before the hooks are placed.
IN_TURN = (
    "lazy modules move", "script and trace", "transforms and subclasses", "manual gradients",
    "plain loop", "pickle, copy, whole-module save", "evaluation",
)  # fmt: skip
#: Rings that are there afterwards, where it is not the one of the script's own process.
RINGS = {"loader with workers": 1, "fork trains": 2}


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in IN_TURN])
def test_a_script_behaves_as_without_us(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + textwrap.dedent(SCRIPTS[name]))
    deployed = deploy(tmp_path)
    bare, watched = side_by_side(script, deployed.env())
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout)
    assert without_clock(watched.stderr) == without_clock(bare.stderr)
    assert bare.stdout or bare.returncode, bare.stderr
    if name in RINGS:  # workers get none, a forked trainer gets one of its own
        assert len(deployed.ring_files()) == RINGS[name]


def test_scripts_in_turn_behave_as_without_us(tmp_path: Path) -> None:
    turns = []
    for name in IN_TURN:
        turns.append(tmp_path / f"{name.replace(' ', '_')}.py")
        turns[-1].write_text(PREAMBLE + textwrap.dedent(SCRIPTS[name]))
    script = tmp_path / "script.py"
    script.write_text(
        "import runpy\n"
        f"for path in {[str(path) for path in turns]}:\n"
        "    print('==', path)\n    runpy.run_path(path, run_name='__main__')\n"
    )
    bare, watched = side_by_side(script, deploy(tmp_path).env())
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout)
    assert without_clock(watched.stderr) == without_clock(bare.stderr)
    told = bare.stdout.decode().split("== ")[1:]
    assert bare.returncode == 0 and len(told) == len(IN_TURN), bare.stderr
    assert all(len(part.splitlines()) > 1 for part in told)


CUDA_HOOKS = """
import sys
if "_gputop_probe" in sys.modules:  # these are placed with the first CUDA context otherwise
    import _gputop_probe.hooks.transfer as transfer
    transfer.place(torch)
    assert torch.Tensor.item.__code__.co_filename.startswith("<gputop")
"""
TENSOR_SCRIPTS = {
    "methods keep their meaning": """
        import copy, inspect, pickle
        t = torch.arange(3.0)
        print(t.to(torch.float64).dtype, t.sum().item(), t.tolist(), float(t[1]), int(t[2]), bool(t[1]))
        print(t.cpu() is t, t.to("cpu") is t, [1, 2, 3][torch.tensor(1)], t.nonzero().shape)
        print(torch.Tensor.item.__name__, torch.Tensor.to.__doc__ == torch.Tensor.to.__doc__)
        print(nn.LazyLinear(3).to("cpu").to(torch.float64)(torch.ones(2, 5).double()).shape)
        try:
            torch.ones(2).item()
        except RuntimeError:
            import traceback; traceback.print_exc()
        try:
            t.to("nowhere")
        except RuntimeError as error:
            print(type(error).__name__)
        print(torch.jit.script(lambda: 1) if False else "", pickle.loads(pickle.dumps(t)).tolist())
    """,
    "a subclass that counts what is asked of it": """
        asked = []
        class Counting(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                asked.append(getattr(func, "__name__", str(func)))
                return super().__torch_function__(func, types, args, kwargs or {})
        c = torch.ones(2).as_subclass(Counting)
        c.to(torch.float64); c.sum().item(); c.tolist(); bool(c[0]); c.cpu()
        print(asked)
    """,
    "compiled and transformed": """
        import torch._dynamo
        m = net(); o = torch.optim.AdamW(m.parameters())
        def f(x):
            y = m(x.to(torch.float32)); return y.sum() + y.mean().item()
        c = torch.compile(f, backend="eager")
        for n in (2, 2, 5):
            loss = c(torch.ones(n, 8)); o.zero_grad(); loss.backward(); o.step()
        k = torch._dynamo.utils.counters
        print(bits(loss), dict(k["stats"]), sum(k["graph_break"].values()), dict(k["recompiles"]))
        print(torch.vmap(lambda x: x.to(torch.float64) * 2)(torch.ones(3, 2)).dtype)
        print(torch.fx.symbolic_trace(m)(torch.ones(1, 8)).shape, torch.export.export(m, (torch.ones(2, 8),)).graph_signature.user_inputs)
    """,
}


@pytest.mark.parametrize("name", TENSOR_SCRIPTS)
def test_watched_tensor_methods_behave_as_torchs_own(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + CUDA_HOOKS + textwrap.dedent(TENSOR_SCRIPTS[name]))
    bare, watched = side_by_side(script, deploy(tmp_path).env())
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout), watched.stderr
    assert without_clock(watched.stderr) == without_clock(bare.stderr)
    assert bare.returncode == 0 and bare.stdout, bare.stderr


def test_death_by_signal_is_passed_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    body = "\nnet()(torch.ones(1, 8)).sum().backward()\nimport os; os.kill(os.getpid(), 11)\n"
    script.write_text(PREAMBLE + body)
    assert run(script, env=deploy(tmp_path).env()).returncode == -11


TRAINS = PREAMBLE + (
    "\nm = net(); o = torch.optim.SGD(m.parameters(), 0.1)\n"
    "for _ in range(5):\n    m(torch.ones(1, 8)).sum().backward(); o.step()\nprint('done')\n"
)


def test_a_process_that_does_not_train_gets_no_ring(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.ones(2).sum().item())\n")
    deployed = deploy(tmp_path)
    assert run(script, env=deployed.env()).returncode == 0
    assert deployed.ring_files() == []


@pytest.mark.parametrize("trouble", ["missing", "open to all", "a link", "no config", "bad config"])
def test_training_goes_on_where_no_ring_can_be(trouble: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRAINS)
    deployed = deploy(tmp_path)
    if trouble == "missing":
        deployed.rings.rmdir()
    elif trouble == "open to all":
        deployed.rings.chmod(0o777)
    elif trouble == "a link":
        deployed.rings.rmdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        deployed.rings.symlink_to(tmp_path / "elsewhere")
    elif trouble == "no config":
        (deployed.directory / "config.json").unlink()
    else:
        (deployed.directory / "config.json").write_text("[1, 2")
    result = run(script, env=deployed.env())
    assert (result.returncode, result.stdout, result.stderr) == (0, b"done\n", b"")
    assert list(tmp_path.rglob("*.ring")) == []


def test_a_full_disk_under_the_ring_costs_only_the_ring(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    script.write_text(limit + TRAINS)
    deployed = deploy(tmp_path)
    result = run(script, env=deployed.env(PYTHONDONTWRITEBYTECODE="1"))
    assert (result.returncode, result.stdout, result.stderr) == (0, b"done\n", b"")
    assert list(deployed.rings.iterdir()) == []


def test_a_ring_truncated_under_way_does_not_reach_training(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    cut = (
        "\nimport glob, os, time\n"
        f"for f in glob.glob({str(tmp_path / 'rings')!r} + '/*.ring'):\n    os.truncate(f, 0)\n"
        "for _ in range(40):\n    m(torch.ones(1, 8)).sum().backward(); o.step(); time.sleep(0.01)\n"
        "print('end')\n"
    )
    script.write_text(TRAINS + cut)
    result = run(script, env=deploy(tmp_path).env())
    assert (result.returncode, result.stdout, result.stderr) == (0, b"done\nend\n", b"")


def test_a_probe_that_fails_everywhere_is_not_noticed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    sabotage = (
        "import _gputop_probe.helper as h, _gputop_probe.sites as s, _gputop_probe.sampler as p\n"
        "def fail(*a, **k): raise RuntimeError('sabotage')\n"
        "h.start = fail; s.caller = fail; s.register = fail; p.Sampler.sample = fail\n"
    )
    script.write_text(sabotage + TRAINS)
    result = run(script, env=deploy(tmp_path).env())
    assert (result.returncode, result.stdout, result.stderr) == (0, b"done\n", b"")


def test_an_existing_sitecustomize_still_runs(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins\nbuiltins.THEIRS = 1\n")
    script = tmp_path / "script.py"
    script.write_text("print(THEIRS)\nimport sys\nprint(sys.modules['sitecustomize'].__file__)\n")
    deployed = deploy(tmp_path)
    env = deployed.env(PYTHONPATH=os.pathsep.join([str(deployed.directory), str(theirs)]))
    result = run(script, env=env)
    assert result.stdout.split() == [b"1", str(theirs / "sitecustomize.py").encode()]


def test_a_broken_sitecustomize_fails_as_it_would_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    deployed = deploy(tmp_path)
    env = deployed.env(PYTHONPATH=os.pathsep.join([str(deployed.directory), str(theirs)]))
    result = run(script, env=env)
    assert result.returncode == 0 and result.stdout == b"ran\n"
    assert b"ValueError: theirs" in result.stderr


def test_isolated_interpreters_run_as_ever(tmp_path: Path) -> None:
    deployed = deploy(tmp_path)
    for flag in ("-I", "-E", "-S"):
        done = subprocess.run(
            [sys.executable, flag, "-c", "print(1)"],
            env=deployed.env(),
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")
