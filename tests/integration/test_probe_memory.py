"""What the probe says of memory: who holds it, and what was held when it ran out.

CUDA is stood in for at its boundary only (the allocator's counters and its observers); a tensor's
device is -1, the CPU's, so that real tensors are counted. ``tests/gpu`` has the real errors.
"""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gputop_train.collect.ring_reader import Ring
from tests.probe_support import Deployed, deploy, run

PREAMBLE = """
import sys, time, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
"""
#: A device of -1 and an allocator that has handed out 5 MB of the 6 MB it took.
ALLOCATOR = """
observers = []
class History:
    on = False
def _stat(n):
    return {"all": {"current": n, "peak": n, "allocated": n, "freed": 0}}
torch._C._cuda_memoryStats = lambda device: {
    "allocated_bytes": _stat(5_000_000), "reserved_bytes": _stat(6_000_000),
    "inactive_split_bytes": _stat(400_000), "active": _stat(3), "allocation": _stat(9),
    "num_alloc_retries": 2, "num_ooms": 1}
torch._C._cuda_attach_out_of_memory_observer = observers.append
torch._C._cuda_isHistoryEnabled = lambda: History.on
if "_gputop_probe" in sys.modules:
    import _gputop_probe.oom as probe_oom
    before = list(torch.cuda._queued_calls)
    probe_oom.watch(torch)
    for call, _ in torch.cuda._queued_calls[len(before):]:
        call()  # as torch.cuda._lazy_init does
    torch.cuda._queued_calls[:] = before
def allocate(n):
    for observer in observers:
        observer(-1, n, 8_000_000, 100_000)
    raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {n} bytes.")
"""


def watched(
    tmp_path: Path, body: str, *, stand_in: bool = True
) -> tuple[subprocess.CompletedProcess[bytes], Deployed]:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + (ALLOCATOR if stand_in else "") + textwrap.dedent(body))
    deployed = deploy(tmp_path)
    return run(script, env=deployed.env()), deployed


def side_by_side(
    tmp_path: Path, body: str
) -> tuple[subprocess.CompletedProcess[bytes], subprocess.CompletedProcess[bytes], Deployed]:
    """The same script bare and watched, at once: importing torch is most of what it takes."""
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + ALLOCATOR + textwrap.dedent(body))
    deployed = deploy(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        runs = pool.submit(run, script), pool.submit(run, script, env=deployed.env())
        return runs[0].result(), runs[1].result(), deployed


def snapshot_of(deployed: Deployed) -> dict[str, Any]:
    (path,) = deployed.ring_files()
    with Ring.open(path) as ring:
        found = ring.snapshot()
    assert found is not None
    return found


TRAIN = """
m = nn.Linear(100, 100, bias=False); o = torch.optim.Adam(m.parameters())
def step():
    o.zero_grad(); m(torch.ones(4, 100)).sum().backward(); o.step()
for _ in range(40): step()
"""
WEIGHT = 100 * 100 * 4


COUNTS = """
import gc, json, weakref
import _gputop_probe.helper, _gputop_probe.memory as memory
# The budget may skip the ends of steps as short as these; here each one counts a slice.
_gputop_probe.helper.Helper.at_step_end = lambda self: None
def train(parameters, optimizers, steps):
    seen = []
    for _ in range(steps):
        sum(p.sum() for p in parameters).backward()
        for o in optimizers: o.step()
        memory.at_step_end(time.monotonic_ns())
        seen.append(memory.keeper.picture is not None)
    return seen
def afresh():
    # Without its weak reference nobody says that an optimizer went, and the next at its address
    # would pass for it.
    memory._optimizers.clear(); memory.S.optimizers.clear()
    memory.keeper = memory.Keeper(); memory.due_ns[0] = 0
def tell(**more):
    print(json.dumps({**(memory.keeper.picture or {}), **more}))

w = nn.Parameter(torch.zeros(100, 100))
train([w], [torch.optim.Adam([w])], 8); tell()

for _ in range(5):  # each may get the address of the one before it
    train([w], [torch.optim.SGD([w])], 2); gc.collect()
o = torch.optim.SGD([w]); train([w], [o], 1); memory.keeper = memory.Keeper()
train([w], [o], 2); tell(ids=sorted(row["id"] for row in memory.S.optimizers.values()))

afresh()
a = nn.Parameter(torch.zeros(100)); b = nn.Parameter(torch.zeros(100)); b.data = a.data
train([a, b], [torch.optim.SGD(p, 0.1) for p in ([a], [b], [a])], 8); tell()

afresh()
memory.SLICE_NS = memory.MAX_SLICE_NS = 1  # a slice ends at its first look at the clock
many = [nn.Parameter(torch.zeros(10)) for _ in range(100)]
o = torch.optim.SGD([{"params": many[:30]}, {"params": many[30:]}], 0.1, momentum=0.9)
tell(slices=train(many, [o], 40).index(True) + 1)

afresh()
o = torch.optim.SGD(many, 0.1); train(many, [o], 3)
under_way = memory.keeper._count is not None
gone = [weakref.ref(many[50]), weakref.ref(o)]
del many, o; gc.collect()
tell(under_way=under_way, alive=[ref() is not None for ref in gone])
"""
WEIGHT = 100 * 100 * 4
KINDS = ("parameters", "gradients", "optimizer_state")


def test_what_is_held_is_counted_to_the_byte_and_holds_nothing(tmp_path: Path) -> None:
    result, _ = watched(tmp_path, COUNTS, stand_in=False)
    assert result.returncode == 0, result.stderr.decode()
    plain, again, shared, spread, dropped = (json.loads(row) for row in result.stdout.splitlines())

    assert [plain[k] for k in KINDS] == [WEIGHT, WEIGHT, 2 * WEIGHT + 4]  # two moments, a counter
    assert (plain["device"], plain["allocated"], plain["other"]) == ("cpu", None, None)
    assert plain["partial"] is False

    assert [again[k] for k in KINDS] == [WEIGHT, WEIGHT, 0] and again["ids"] == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    ]

    assert shared["parameters"] == 400  # one memory in two parameters and three optimizers

    assert spread["slices"] >= 6
    assert [spread[k] for k in KINDS] == [4000] * 3

    assert dropped["under_way"] and dropped["alive"] == [False, False]


TRAIN = """
m = nn.Linear(100, 100, bias=False); o = torch.optim.Adam(m.parameters())
def step():
    o.zero_grad(); m(torch.ones(4, 100)).sum().backward(); o.step()
for _ in range(40): step()
"""
CAUGHT_THEN_NOT = """
for batch in (8, 4):
    try:
        if batch == 8: allocate(2_000_000)
        step(); print("fits", batch)
    except torch.cuda.OutOfMemoryError as error:
        import traceback; traceback.print_exc(); print(error)
time.sleep(1.1)
allocate(3_000_000)
"""


def test_an_out_of_memory_error_is_the_one_a_bare_run_gets(tmp_path: Path) -> None:
    bare, result, deployed = side_by_side(tmp_path, TRAIN + CAUGHT_THEN_NOT)
    assert (result.returncode, result.stdout) == (bare.returncode, bare.stdout)
    assert result.stderr == bare.stderr and b"Tried to allocate 3000000" in bare.stderr
    assert b"fits 4" in bare.stdout
    found = snapshot_of(deployed)
    oom = found["oom"]
    assert found["held"]["parameters"] == WEIGHT
    assert (oom["count"], oom["requested"], oom["limit"], oom["free"]) == (
        2, 3_000_000, 8_000_000, 100_000,
    )  # fmt: skip
    assert (oom["allocated"], oom["reserved"], oom["retries"]) == (5_000_000, 6_000_000, 2)
    assert oom["held"] == {
        "parameters": WEIGHT,
        "gradients": WEIGHT,
        "optimizer_state": 2 * WEIGHT + 4,
        "other": 5_000_000 - 4 * WEIGHT - 4,
        "partial": False,
    }
    assert (oom["step"], oom["thread"], oom["grad_enabled"]) == (41, "training", True)
    assert oom["steps_after"] == 0
    # The stand-in's own frame is the leaf here; with CUDA it is the line that asked.
    assert [row["call"] for row in oom["stack"]][1] == "allocate(3_000_000)"
    assert oom["lines"] is None and oom["lines_missing"] == "allocation history is off"


def test_a_first_forward_that_does_not_fit_is_told_and_inference_is_not(tmp_path: Path) -> None:
    bodies = {"trains": "allocate(7_000_000)\n", "infers": "with torch.no_grad(): allocate(7)\n"}
    for name in bodies:
        (tmp_path / name).mkdir()
    with ThreadPoolExecutor(2) as pool:
        told = {name: pool.submit(watched, tmp_path / name, body) for name, body in bodies.items()}
    result, deployed = told["trains"].result()
    assert result.returncode == 1
    found = snapshot_of(deployed)
    assert found["oom"]["requested"] == 7_000_000
    assert found["cost"]["steps"] == 0
    result, deployed = told["infers"].result()
    assert result.returncode == 1 and deployed.ring_files() == []


@pytest.mark.long
def test_a_forked_childs_error_is_not_its_parents(tmp_path: Path) -> None:
    body = """
        import os
        try: allocate(3_000_000)
        except torch.cuda.OutOfMemoryError: pass
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        if os.fork() == 0:
            time.sleep(0.3); step(); step(); sys.exit(0)
        os.wait()
    """
    result, deployed = watched(tmp_path, TRAIN + textwrap.dedent(body))
    assert result.returncode == 0, result.stderr.decode()
    found = []
    for path in deployed.ring_files():
        with Ring.open(path) as ring:
            found.append((ring.snapshot() or {}).get("oom"))
    # The parent's, and the child's that trained; the other child left none.
    assert sorted(oom is None for oom in found) == [False, True]


def test_the_picture_outlives_a_process_that_is_killed_soon_after(tmp_path: Path) -> None:
    body = """
        try: allocate(3_000_000)
        except torch.cuda.OutOfMemoryError: pass
        time.sleep(2)
        import os; os.kill(os.getpid(), 9)
    """
    result, deployed = watched(tmp_path, TRAIN + textwrap.dedent(body))
    assert result.returncode == -signal.SIGKILL
    assert snapshot_of(deployed)["oom"]["requested"] == 3_000_000


WHERE = """
import ctypes, functools, json, threading
import _gputop_probe.memory as memory
def attempt(n):
    try: allocate(n)
    except torch.cuda.OutOfMemoryError: pass
def tell(**more):
    assert probe_oom.last is not None, probe_oom.S.errors
    print(json.dumps({**probe_oom.report(), **more}))
def afresh():
    probe_oom.last = None; probe_oom._counted_ns = 0

counted = []; count_all = memory.count_all
def spy(*args, **kwargs):
    counted.append(1); return count_all(*args, **kwargs)
memory.count_all = spy
for n in range(50): attempt(n)
tell(counted=len(counted))

afresh()
t = threading.Thread(target=attempt, args=(9,)); t.start(); t.join()
tell()

afresh()  # a thread that Python did not start, with no frame of the script's: like the engine's
entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(functools.partial(probe_oom.observe, -1, 7, 8))
libc = ctypes.CDLL(None); handle = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(handle), None, entry, ctypes.c_void_p(9))
libc.pthread_join(handle, None)
tell()

afresh()
History.on = True
def block(size, line, state="active_allocated"):
    library = {"filename": torch.__file__, "line": 1, "name": "f"}
    return {"size": size, "state": state,
            "frames": [library, {"filename": "/home/me/train.py", "line": line, "name": "step"}]}
torch.cuda.memory._snapshot = lambda: {"segments": [{"device": -1, "blocks": [
    block(10, 4), block(20, 5), block(15, 4), block(99, 6, "inactive"),
    {"size": 1, "state": "active_allocated", "frames": []}]}]}
attempt(9); tell()

afresh()
probe_oom.MAX_EVENTS = 8
attempt(9); tell()

# A second rank's training thread chose device 1; in every other thread torch still says 0.
import _gputop_probe.snapshot as snapshot
real, asked = (torch.cuda.is_initialized, torch.cuda.current_device, torch._C._cuda_memoryStats), []
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: int(threading.current_thread() is threading.main_thread())
torch._C._cuda_memoryStats = lambda device: asked.append(device) or real[2](device)
def as_the_helper():
    memory.note_device(); snapshot.memory_stats()
memory.note_device()
t = threading.Thread(target=as_the_helper); t.start(); t.join()
torch.cuda.is_initialized, torch.cuda.current_device, torch._C._cuda_memoryStats = real
print(json.dumps(asked))
"""


def test_a_picture_says_who_asked_and_what_could_be_counted_there(tmp_path: Path) -> None:
    result, _ = watched(tmp_path, TRAIN + WHERE)
    assert result.returncode == 0, result.stderr.decode()
    rows = (json.loads(row) for row in result.stdout.splitlines())
    many, thread, engine, history, long, devices = rows

    assert (many["counted"], many["count"], many["requested"]) == (1, 50, 49)
    assert many["held"]["parameters"] == WEIGHT

    assert thread["thread"] == "other" and thread["held"]["parameters"] == WEIGHT
    # A thread of the script's own: the engine may be writing them just now.
    assert thread["held"]["gradients"] is None and thread["held"]["other"] is None

    assert engine["thread"] == "autograd" and engine["held"]["gradients"] == WEIGHT
    assert "pthread_join" in engine["stack"][0]["call"]

    places = [(r["file"], r["line"], r["bytes"], r["blocks"]) for r in history["lines"]]
    assert places == [
        ("/home/me/train.py", 4, 25, 2),
        ("/home/me/train.py", 5, 20, 1),
        ("", 0, 1, 1),
    ]

    assert long["lines"] is None and "too long" in long["lines_missing"]

    assert devices and set(devices) == {1}


BROKEN = """
def no(*args, **kwargs): raise RuntimeError("gone")
if "_gputop_probe" in sys.modules:
    torch._C._cuda_attach_out_of_memory_observer = no
    probe_oom._attached = False; probe_oom.attach()
    probe_oom.memory.count_all = no
try: allocate(1)
except torch.cuda.OutOfMemoryError as error: print(error)
torch._C._cuda_memoryStats = no
if "_gputop_probe" in sys.modules: probe_oom._user_frames = no
allocate(3)
"""


@pytest.mark.long
def test_what_torch_does_not_offer_is_named_and_the_error_is_as_ever(tmp_path: Path) -> None:
    bare, result, deployed = side_by_side(tmp_path, TRAIN + BROKEN)
    assert (result.returncode, result.stdout) == (bare.returncode, bare.stdout)
    assert result.stderr == bare.stderr and b"Tried to allocate 3" in bare.stderr
    found = snapshot_of(deployed)
    assert found["hooks"]["oom"] is False
    assert found["oom"]["requested"] == 1 and found["oom"]["held"] is None
    assert [e.split(":")[0] for e in found["errors"]] == ["hook oom", "oom held", "oom"]
