"""Facts by line and flags in the probe's snapshot, from real scripts; and that they change nothing."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.timeline import sites_from_snapshot
from gputop_train.model import Site
from gputop_train.probe import pairs, sampler
from gputop_train.probe import sites as probe_sites
from gputop_train.probe import words as W
from tests.integration.test_probe_harmless import PREAMBLE, side_by_side, without_clock
from tests.probe_support import Deployed, deploy, run

TRAIN = """
m = net(); o = torch.optim.AdamW(m.parameters())
def step(x):
    loss = m(x).square().mean(); o.zero_grad(); loss.backward(); o.step(); return loss
"""


#: A busy machine may not get to the last snapshot in the half second an exit waits for it.
PATIENT = """
import sys
if "_gputop_probe" in sys.modules:
    import _gputop_probe.helper
    _gputop_probe.helper.FINISH_S = 60
"""


def snapshot_of(deployed: Deployed) -> dict[str, Any]:
    (path,) = deployed.ring_files()
    with Ring.open(path) as ring:
        snapshot = ring.snapshot()
    assert snapshot is not None
    assert snapshot["errors"] == []
    return snapshot


def watched(tmp_path: Path, body: str) -> dict[str, Any]:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + PATIENT + TRAIN + textwrap.dedent(body))
    deployed = deploy(tmp_path)
    result = run(script, env=deployed.env())
    assert result.returncode == 0, result.stderr.decode()
    return snapshot_of(deployed)


def sites(snapshot: dict[str, Any], kind: str) -> list[Site]:
    return [s for s in sites_from_snapshot(0, snapshot) if s.kind == kind]


def test_saves_are_told_by_line_with_the_bytes_they_wrote(tmp_path: Path) -> None:
    snapshot = watched(
        tmp_path,
        f"""
        import io
        step(torch.ones(2, 8))
        path = {str(tmp_path / "x.pt")!r}
        for _ in range(3):
            torch.save(m.state_dict(), path)
        buffer = io.BytesIO()
        torch.save(m.state_dict(), buffer)
        class Sink:
            def __init__(self): self.n = 0
            def write(self, b): self.n += len(b); return len(b)
            def flush(self): pass
            def tell(self): raise AssertionError("asked")
        torch.save(m.state_dict(), Sink(), _use_new_zipfile_serialization=True)
        """,
    )
    by_file, to_memory, to_sink = sites(snapshot, "save")
    size = (tmp_path / "x.pt").stat().st_size
    assert (by_file.count, by_file.bytes) == (3, 3 * size)
    assert by_file.call == "torch.save(m.state_dict(), path)"
    assert to_memory.count == 1 and to_memory.bytes is not None and to_memory.bytes > 1000
    assert (to_sink.count, to_sink.bytes) == (1, 0)


def test_a_checkpoint_of_many_files_counts_what_was_written_now(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    snapshot = watched(
        tmp_path,
        f"""
        import os, torch.distributed.checkpoint as dcp
        os.makedirs({str(folder)!r})
        old = os.path.join({str(folder)!r}, "old.bin")
        open(old, "wb").write(bytes(100_000)); os.utime(old, (1, 1))
        step(torch.ones(2, 8))
        dcp.save(m.state_dict(), checkpoint_id={str(folder)!r})
        """,
    )
    (save,) = sites(snapshot, "save")
    written = sum(f.stat().st_size for f in folder.rglob("*") if f.name != "old.bin")
    assert (save.count, save.bytes) == (1, written)


def test_a_save_no_hook_passes_is_named_by_the_sampler(tmp_path: Path) -> None:
    snapshot = watched(
        tmp_path,
        """
        import pickle, time
        big = [[i] for i in range(200_000)]
        end = time.monotonic() + 2
        while time.monotonic() < end:
            step(torch.ones(2, 8))
            with open("/dev/null", "wb") as f:
                pickle.dump(big, f)
        """,
    )
    (save,) = [s for s in sites(snapshot, "sample") if s.label == "checkpoint"]
    assert save.call == "pickle.dump(big, f)" if sys.version_info >= (3, 11) else save.line
    assert save.count >= 4


def test_a_save_written_by_hand_is_named_by_the_function_that_makes_it(tmp_path: Path) -> None:
    snapshot = watched(
        tmp_path,
        """
        import time
        def write_tensors(path, tensors):
            with open(path, "wb") as f:
                for t in tensors * 200:
                    f.write(t.numpy().tobytes())
        big = [torch.ones(200_000) for _ in range(8)]
        end = time.monotonic() + 2
        while time.monotonic() < end:
            step(torch.ones(2, 8))
            write_tensors("/dev/null", big)
        """,
    )
    saves = [s for s in sites(snapshot, "sample") if s.label == "checkpoint"]
    assert {s.func for s in saves} == {"write_tensors"}
    assert sum(s.count for s in saves) >= 4
    assert not [s for s in sites(snapshot, "sample") if s.label == "logging"]


def test_what_a_line_computes_to_print_is_logging(tmp_path: Path) -> None:
    snapshot = watched(
        tmp_path,
        """
        import time
        big = torch.ones(2_000_000)
        def tell():
            print(f"{big.mean():.3f} {big.std():.3f}")
        end = time.monotonic() + 2
        while time.monotonic() < end:
            step(torch.ones(2, 8))
            tell()
        """,
    )
    told = [s for s in sites(snapshot, "sample") if s.func == "tell"]
    assert {s.label for s in told} == {"logging"}
    assert sum(s.count for s in told) >= 4


@pytest.mark.parametrize(
    "func", ["save_checkpoint", "_save_best_model", "write_tensors", "export_weights"]
)
def test_a_saver_is_known_by_its_name(func: str) -> None:
    assert sampler._SAVER.match(func)


@pytest.mark.parametrize(
    ("called", "loads"),
    [
        ("get_batch", True),
        ("load_images", True),
        ("_load", True),
        ("next_data", True),
        ("load_state_dict", False),
        ("load_target_weights", False),
        ("reload", False),
    ],
)
def test_what_loads_is_known_by_its_name(called: str, loads: bool) -> None:
    assert bool(sampler._DATA_NAME.search(called)) == loads


@pytest.mark.parametrize(
    "func", ["checkpoint", "save_image", "save_model_outputs", "store_state", "forward_model"]
)
def test_what_else_is_named_alike_is_no_saver(func: str) -> None:
    assert not sampler._SAVER.match(func)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("x[mask]", W.L_SYNC),
        ("loss[~padding_mask]", W.L_SYNC),
        ("torch.unique(ids)", W.L_SYNC),
        ("x.masked_select(keep)", W.L_SYNC),
        ("torch.nonzero(x)", W.L_SYNC),
        ("np.savez(path, x=x)", W.L_CHECKPOINT),
        ("self.writer.writerows(rows)", W.L_LOGGING),
        ("os.fsync(f.fileno())", W.L_LOGGING),
        ("with open(self.path, 'w', newline='') as f:", W.L_LOGGING),
        ("open(path, 'rb')", W.L_FORWARD),
        ("open(path, 'wb')", W.L_FORWARD),
        ("overwrite(x)", W.L_FORWARD),
        ("x[rows]", W.L_FORWARD),
        ("masked_loss(x)", W.L_FORWARD),
    ],
)
def test_the_sampler_knows_a_read_by_its_text(
    text: str, label: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler.S, "gpu", object())
    code = test_the_sampler_knows_a_read_by_its_text.__code__
    assert sampler.Sampler._by_text(text, W.L_FORWARD, code) == label


def _saves(torch: Any, stream: Any, path: str) -> None:
    torch.save({}, stream)
    os.fsync(stream.fileno())
    print("saved", path)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("os.fsync(f.fileno())", W.L_CHECKPOINT),
        ("f.flush()", W.L_CHECKPOINT),
        ("os.replace(path + '.tmp', path)", W.L_CHECKPOINT),
        ("print('saved', path)", W.L_LOGGING),
    ],
)
def test_what_brings_a_save_to_the_disk_is_the_save(text: str, label: int) -> None:
    """A checkpoint was told as 6.6% saving and 4.1% logging, for its own fsync."""
    assert sampler.Sampler._by_text(text, W.L_FORWARD, _saves.__code__) == label


def test_logging_libraries_are_told_by_name_and_line(tmp_path: Path) -> None:
    (tmp_path / "wandb" / "sdk").mkdir(parents=True)
    (tmp_path / "wandb" / "__init__.py").write_text("from wandb.sdk.wandb_run import Run\n")
    (tmp_path / "wandb" / "sdk" / "__init__.py").write_text("")
    (tmp_path / "wandb" / "sdk" / "wandb_run.py").write_text(
        "import time\n"
        "class Run:\n"
        "    def log(self, data):\n"
        "        if data.get('deep'):\n"
        "            self.log({})\n"
        "        if 's' in data:\n"
        "            time.sleep(data['s'])\n"
    )
    snapshot = watched(
        tmp_path,
        """
        import wandb
        run = wandb.Run()
        for _ in range(5):
            step(torch.ones(2, 8)); run.log({"s": 0.002, "deep": 1})
        for _ in range(3200):
            run.log({})
        """,
    )
    told = snapshot["logging"]["wandb"]
    assert told["calls"] == 3205
    assert told["total_ns"] >= 10_000_000
    slow, fast = sorted(sites(snapshot, "logging"), key=lambda s: s.line)
    assert (slow.count, slow.seen) == (5, 5)
    assert fast.call == "run.log({})"
    # Drawn at a random place of each 16 calls; now and then one is slow and counts for itself.
    assert fast.seen is not None and fast.seen < fast.count
    assert 2800 <= fast.count <= 3600


def test_precision_is_what_was_entered(tmp_path: Path) -> None:
    snapshot = watched(
        tmp_path,
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for i in range(8):
            with torch.autocast("cpu", torch.bfloat16):
                loss = m(torch.ones(2, 8)).square().mean()
            if i in (2, 5): loss = loss * float("inf")
            o.zero_grad(); scaler.scale(loss).backward(); scaler.step(o); scaler.update()
        with torch.autocast("cpu", torch.bfloat16, enabled=False): pass
        """,
    )
    entered = {(b["dtype"], b["enabled"]): b["blocks"] for b in snapshot["amp"]["autocast"]}
    assert entered == {("bfloat16", True): 8, ("bfloat16", False): 1}
    assert (snapshot["amp"]["scaler_updates"], snapshot["amp"]["scaler_skipped"]) == (8, 2)
    assert snapshot["flags"]["grad_scaler"] is True
    (optimizer,) = snapshot["optimizers"]
    assert optimizer["dtypes"] == ["float32"]
    assert (optimizer["capturable"], optimizer["differentiable"]) == (False, False)


def test_flags_are_read_where_they_are_kept(tmp_path: Path) -> None:
    """From another thread, as the helper does: a profiler's C flag is kept by thread."""
    script = tmp_path / "script.py"
    body = """
        import json, threading
        torch.autograd.set_detect_anomaly(True)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        with torch.autograd.profiler.profile():
            step(torch.ones(2, 8))
            from _gputop_probe.hooks import precision
            t = threading.Thread(target=lambda: print(json.dumps(precision.flags())))
            t.start(); t.join()
        """
    script.write_text(PREAMBLE + PATIENT + TRAIN + textwrap.dedent(body))
    deployed = deploy(tmp_path)
    options = "max_split_size_mb:128, expandable_segments:True"
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    env = deployed.env(**dict.fromkeys(names, options))
    flags = json.loads(run(script, env=env).stdout)
    after = snapshot_of(deployed)["flags"]
    for name in ("anomaly", "cudnn_benchmark", "tf32", "user_profiler", "expandable_segments"):
        assert flags[name] is True, name
    assert flags["data_parallel"] is False
    assert (after["anomaly"], after["user_profiler"]) == (True, False)


def test_shapes_that_change_are_counted(tmp_path: Path) -> None:
    snapshot = watched(
        tmp_path,
        """
        import time
        from torch.utils.data import DataLoader
        data = [torch.ones(8)] * 4000
        sizes = [list(range(1 + i % 16)) for i in range(320)]
        for x in DataLoader(data, batch_sampler=sizes): step(x)
        for x in DataLoader(data[:1280], 4): step(x); time.sleep(0.003)
        """,
    )
    shapes = {row[0]: row[1:] for row in snapshot["shapes"]}
    changing, fixed = shapes[1], shapes[2]
    assert changing[0] >= 4 and changing[1] >= changing[0]
    assert fixed[0] == 1 and fixed[1] >= 1


RECOMPILES = """
import torch._dynamo
def f(x):
    y = x.sin()
    print("break")
    return y + 1
c = torch.compile(f, backend="eager", dynamic=False)
step(torch.ones(2, 8))
for n in range(3, 7):
    c(torch.ones(n))
k = torch._dynamo.utils.counters
print(dict(k["frames"]), dict(k["stats"]), sum(k["graph_break"].values()), sorted(k))
print({c.co_name: r for c, r in torch._dynamo.utils.guard_failures.items()})
print(len(torch._dynamo.utils.get_compilation_metrics()))
import time; time.sleep(1.5); print(sorted(k), len(torch._dynamo.utils.guard_failures))
"""


def test_recompilations_have_a_count_and_a_reason_and_are_those_of_a_bare_run(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + PATIENT + TRAIN + RECOMPILES)
    deployed = deploy(tmp_path)
    bare, seen = side_by_side(script, deployed.env())
    assert (seen.returncode, seen.stdout) == (bare.returncode, bare.stdout)
    assert without_clock(seen.stderr) == without_clock(bare.stderr)
    dynamo = snapshot_of(deployed)["dynamo"]
    assert dynamo["recompiles"] == 6  # three more of the function, three of what follows its break
    assert dynamo["graph_breaks"] == 4
    reasons = {row[0]: row for row in dynamo["reasons"]}
    assert reasons["f"][1] == str(script)
    assert "size mismatch at index 0" in reasons["f"][3]
    assert not reasons["f"][3].startswith("0/")
    ((reason, count),) = dynamo["breaks"]
    assert count == 4 and "print" in reason


HARMLESS = {
    "autocast keeps its meaning": """
        import pickle, inspect, torch._dynamo
        step(torch.ones(2, 8))
        a = torch.autocast("cpu", torch.bfloat16)
        with a as b:
            print(b is a, torch.is_autocast_cpu_enabled() if hasattr(torch, "is_autocast_cpu_enabled") else 1)
            print(m(torch.ones(1, 8)).dtype)
        @torch.autocast("cpu", torch.bfloat16)
        def g(x): return m(x)
        print(g(torch.ones(1, 8)).dtype, type(a).__enter__.__name__)
        print(inspect.getsource(type(a).__enter__).count("is_scripting"))
        def h(x):
            with torch.autocast("cpu", torch.bfloat16): y = m(x)
            return y.float().sum()
        c = torch.compile(h, backend="eager", fullgraph=True); d = torch.compile(g, backend="eager")
        for n in (2, 2, 3): c(torch.ones(n, 8)).backward(); d(torch.ones(n, 8))
        k = torch._dynamo.utils.counters
        print(dict(k["stats"]), sum(k["graph_break"].values()), dict(k["frames"]))
        class WithAmp(nn.Module):
            def forward(self, x):
                with torch.autocast("cpu", torch.bfloat16, enabled=True):
                    return torch.mm(x, x)
        print(torch.jit.script(WithAmp())(torch.ones(2, 2)).dtype)
        try:
            with torch.autocast("cpu", torch.bfloat16): raise ValueError("inside")
        except ValueError:
            import traceback; traceback.print_exc()
    """,
    "scaler and data parallel keep theirs": """
        import pickle, torch.nn.parallel
        s = torch.amp.GradScaler("cpu"); step(torch.ones(2, 8))
        s.scale(m(torch.ones(1, 8)).sum()).backward(); s.step(o); s.update(); s.update(4.0)
        print(s.get_scale(), pickle.loads(pickle.dumps(s)).state_dict() == s.state_dict())
        try:
            torch.amp.GradScaler("cpu").update()
        except AssertionError:
            import traceback; traceback.print_exc()
        print(torch.nn.parallel.replicate.__module__, nn.DataParallel(m)(torch.ones(1, 8)).shape)
    """,
    "loggers keep theirs": """
        import sys, types, traceback, inspect, pickle
        import mlflow.tracking.fluent as fluent
        step(torch.ones(2, 8))
        print(fluent.log_metric("a", 1), inspect.signature(fluent.log_metric), fluent.log_metric.__name__)
        print(pickle.loads(pickle.dumps(fluent.log_metric)) is fluent.log_metric)
        try:
            fluent.log_metric("bad", None)
        except TypeError:
            traceback.print_exc()
    """,
    "copies keep theirs": """
        import torch._dynamo
        class Asked(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                print(func.__name__); return super().__torch_function__(func, types, args, kwargs or {})
        t = torch.zeros(3); print(t.copy_(torch.ones(3)) is t, t.copy_(torch.ones(1), non_blocking=True))
        torch.zeros(3).as_subclass(Asked).copy_(t); t.copy_(torch.ones(3).as_subclass(Asked))
        print(t.copy_(torch.ones(3), True).sum().item(), torch.Tensor.copy_.__name__)
        try:
            t.copy_(torch.ones(4))
        except RuntimeError:
            import traceback; traceback.print_exc()
        for bad in ((), ("x",), (None,)):
            try:
                t.copy_(*bad)
            except TypeError as e:
                print(str(e)[:60])
        l = nn.LazyLinear(3); l(torch.ones(2, 5)); l.load_state_dict({"weight": torch.ones(3, 5), "bias": torch.zeros(3)})
        def f(x): return torch.empty(3).copy_(x) + 1
        c = torch.compile(f, backend="eager", fullgraph=True); print(c(torch.ones(3)), c(torch.zeros(3)))
        k = torch._dynamo.utils.counters; print(dict(k["stats"]), dict(k["frames"]))
        print(torch.vmap(lambda a: torch.zeros(2).copy_(a) if False else a * 2)(torch.ones(2, 2)))
        print(torch.func.functionalize(lambda a: torch.zeros(2).copy_(a))(torch.ones(2)))
    """,
}
CUDA_HOOKS = """
import sys
if "_gputop_probe" in sys.modules:  # these are placed with the first CUDA context otherwise
    import _gputop_probe.hooks.transfer as transfer
    transfer.place(torch)
    assert torch.Tensor.copy_.__code__.co_filename.startswith("<gputop")
"""


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_hooked_behaves_as_without_us(name: str, tmp_path: Path) -> None:
    mlflow = tmp_path / "mlflow" / "tracking"
    mlflow.mkdir(parents=True)
    (tmp_path / "mlflow" / "__init__.py").write_text("")
    (mlflow / "__init__.py").write_text("")
    (mlflow / "fluent.py").write_text(
        "def log_metric(key, value, step=None):\n    return key + str(value + 0)\n"
    )
    script = tmp_path / "script.py"
    hooks = CUDA_HOOKS if name.startswith("copies") else ""
    script.write_text(PREAMBLE + TRAIN + hooks + textwrap.dedent(HARMLESS[name]))
    bare, seen = side_by_side(script, deploy(tmp_path).env())
    assert (seen.returncode, seen.stdout) == (bare.returncode, bare.stdout), seen.stderr.decode()
    assert without_clock(seen.stderr) == without_clock(bare.stderr)
    assert bare.returncode == 0 and bare.stdout, bare.stderr.decode()


def test_reads_and_copies_are_counted_by_line_through_a_stand_in_for_the_device(
    tmp_path: Path,
) -> None:
    """The wrappers with tensors that say they are on a device: only CUDA's boundary is stood in."""
    snapshot = watched(
        tmp_path,
        """
        import sys, time
        step(torch.ones(2, 8))
        import _gputop_probe.hooks.transfer as transfer, _gputop_probe.sites as sites
        from _gputop_probe.budget import gate
        class Device(torch.Tensor):
            is_cuda = True
            __torch_function__ = torch._C._disabled_torch_function_impl
        transfer._kinds = lambda: frozenset((Device, torch.Tensor))
        loss = torch.ones(()).as_subclass(Device)
        slow = transfer._make_read("item", lambda t: time.sleep(0.0005) or 1.0)
        fast = transfer._make_read("item", lambda t: 1.0)
        fill = transfer._make_fill("copy_", lambda t, s, non_blocking=False: t)
        gate.open, gate.weight = True, 3
        for _ in range(10):
            slow(loss)
        for _ in range(800):
            fast(loss); fast(loss)
        target, source = torch.zeros(1000).as_subclass(Device), torch.zeros(1000)
        for _ in range(160):
            fill(target, source)
        for _ in range(160):
            fill(source, target, non_blocking=True)
        gate.open = False
        fast(loss); fill(target, source)
        """,
    )
    slow, fast = sorted(sites(snapshot, "sync"), key=lambda s: s.line)
    assert (slow.count, slow.seen) == (30, 10)
    assert slow.total_ns >= 30 * 500_000
    assert fast.call.startswith("fast(loss)")
    # One in sixteen, and each that the machine made slow.
    assert fast.seen is not None and 80 <= fast.seen < 1600
    assert 3 * 1500 <= fast.count <= 3 * 1700
    (fill,) = sites(snapshot, "h2d")
    assert fill.bytes == fill.count * 4000
    assert fill.unpinned_bytes == fill.bytes
    assert 3 * 120 <= fill.count <= 3 * 200


def test_a_lot_draws_evenly_whatever_the_period() -> None:
    lot = probe_sites.Lot(16)
    drawn = [n for n in range(160_000) if lot.drawn()]
    assert len(drawn) == 10_000
    assert all(n // 16 == k for k, n in enumerate(drawn))  # one in each sixteen, exactly
    by_place = [sum(1 for n in drawn if n % 4 == p) for p in range(4)]
    assert min(by_place) > 2000 and max(by_place) < 3000


def test_event_pairs_add_up_by_line() -> None:
    def marks(*edges: tuple[int, int, int]) -> list[tuple[int, Any, int, int]]:
        return [(edge, None, flags, argument) for edge, flags, argument in edges]

    probe_sites.stats[1:] = [[0] * 9, [0] * 9]
    try:
        read, copy, data = W.SYNC_EDGE * 2, W.H2D_EDGE * 2, W.DATA * 2
        pairs.note(
            marks(
                (read, 0, 0), (read + 1, 0, 1), (data, pairs.IDLE, 0), (data + 1, 0, 0),
                (copy, 0, 0), (copy + 1, 0, 4096 << 16 | 2), (read, 0, 0), (read + 1, 0, 1),
                (data, 0, 0), (read + 1, 0, 1),
            ),
            [0, 70, 100, 300, 310, 400, 410, 460, 500, 900],
        )  # fmt: skip
        # The second read's queue was not idle at the loader; the last end has no begin before it.
        assert probe_sites.stats[1] == [0, 0, 0, 0, 0, 2, 120, 0, 30]
        assert probe_sites.stats[2] == [0, 0, 0, 0, 0, 1, 90, 4096, 0]
    finally:
        del probe_sites.stats[1:]


def test_the_snapshot_is_json_of_bounded_size(tmp_path: Path) -> None:
    snapshot = watched(tmp_path, "for _ in range(5): step(torch.ones(2, 8))")
    assert len(json.dumps(snapshot)) < 20_000
    assert snapshot["empty_cache"] is None
    assert snapshot["gc"]["enabled"] is True


def test_a_snapshot_of_many_long_places_still_fits_into_the_ring(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    body = """
        import _gputop_probe.sites as s, _gputop_probe.snapshot as snapshot, _gputop_probe.ring as ring
        step(torch.ones(2, 8))
        codes = [compile("0", "/very/long/path/" + "d" * 200 + "%d.py" % i, "exec") for i in range(1100)]
        for code in codes:
            s.register(code, 1, "sync", "call" * 30)
        builder = snapshot.SnapshotBuilder()
        body = builder.build({})
        assert len(s.places) == s.MAX_SITES and len(body) < ring.SNAPSHOT_BYTES - 8, len(body)
        assert builder.build({})[-200:] == body[-200:]
        s.clear(); s.register(codes[0], 7, "save", "again()")
        import json
        print(json.dumps(json.loads(builder.build({}))["sites"]))
        """
    script.write_text(PREAMBLE + TRAIN + textwrap.dedent(body))
    result = run(script, env=deploy(tmp_path).env())
    assert result.returncode == 0, result.stderr.decode()
    # The helper thread looks at the script while it runs, and may name a line of it by itself.
    told = [site for site in json.loads(result.stdout) if site[1] != "sample"]
    ((_, kind, _, line, _, call, _),) = told
    assert (kind, line, call) == ("save", 7, "again()")


def test_modes_that_slow_a_step_are_told_with_how_long_they_were_on_and_their_line(
    tmp_path: Path,
) -> None:
    snapshot = watched(
        tmp_path,
        """
        import time
        # torch.autograd.set_detect_anomaly(True) in a comment is no switch
        torch.autograd.set_detect_anomaly(False)
        for _ in range(30):
            with torch.autograd.detect_anomaly():
                step(torch.ones(2, 8)); time.sleep(0.03)
            time.sleep(0.03)
        """,
    )
    told = snapshot["modes"]
    on, since = told["anomaly"]
    assert 0 < on < told["looked"]
    assert 0 <= since < told["looked"]
    assert told["profiler"] == [0, None]
    ((_, _, text),) = told["at"]["anomaly"]
    assert text == "with torch.autograd.detect_anomaly():"


def test_a_gradient_free_block_says_whether_it_measures_or_collects(tmp_path: Path) -> None:
    snapshot = watched(
        tmp_path,
        """
        import time
        held = torch.randn(64, 8)
        for n in range(4):
            step(torch.ones(2, 8))
            with torch.no_grad():
                acc = 0
                for chunk in held.split(8):
                    acc += m(chunk).argmax(1).eq(1).sum().item()
                time.sleep(0.001)
            with torch.no_grad():
                action = m(held).argmax(1)  # an accuracy would be computed elsewhere
                time.sleep(0.001)
            with torch.no_grad():
                ahead = m(torch.ones(64, 8))
                time.sleep(0.001)
        """,
    )
    assert [s.label for s in sorted(sites(snapshot, "nograd"), key=lambda s: s.line)] == [
        "acc",
        None,
        None,
    ]
