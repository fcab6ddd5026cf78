"""Single steps with and without the probe's hooks, as ``overhead.py --by-steps`` measures them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from overhead_bench import inprocess  # noqa: E402

pytestmark = pytest.mark.benchmark

BUILD = """
import importlib, json, sys, time
import torch
from overhead_bench import inprocess, loop
from overhead_bench.switch import Switch
from overhead_bench.toggle import NothingToToggle, Toggle

settings = {"layers": 2, "width": 32, "batch": 16, "device": "cpu", "item": True}
torch.set_num_threads(1)
built = loop.build(settings)

def plain(count):
    model, optimizer, loader = built
    for _, batch in zip(range(count), loader):
        loop.train_step(model, optimizer, batch, "cpu", True)

plain(300)
if "cuda_hooks" in sys.argv:  # placed without a GPU: the methods are the same
    importlib.import_module("_gputop_probe.hooks.transfer").place(torch)
state = sys.modules["_gputop_probe.state"].S
toggle = Toggle()
"""


def in_process(tmp_path, body, *arguments):
    """What a script with the probe in its process prints last, as JSON."""
    file = tmp_path / "script.py"
    file.write_text(BUILD + textwrap.dedent(body))
    done = subprocess.run(
        [sys.executable, str(file), *arguments],
        env=inprocess.deployed(tmp_path / "run"),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("hooks", ["cpu_hooks", "cuda_hooks"])
def test_a_step_without_hooks_writes_nothing_and_one_with_them_does(tmp_path, hooks):
    found = in_process(
        tmp_path,
        """
        switch = Switch(toggle, torch, built, settings)
        pc = time.perf_counter
        words, log = {}, sys.modules["_gputop_probe.state"].log
        state.helper._running.release()  # its thread ends: no samples, and nobody takes words away
        for hooked in (True, False, True, False):
            # All that is on is recorded, so that a hook that is left would write.
            sys.modules["_gputop_probe.budget"].duty.wake()
            switch.turn()  # so that no pass ends meanwhile
            before = len(log)
            for _ in range(40):
                assert switch.step(hooked, pc) > 0
            words.setdefault(str(hooked), []).append(len(log) - before)
        print(json.dumps({"words": words, "names": switch.names}))
        """,
        hooks,
    )
    assert found["words"]["False"] == [0, 0]
    assert min(found["words"]["True"]) > 40
    assert {"__next__", "_engine_run_backward", "_global_optimizer_post_hooks"} <= set(
        found["names"]
    )
    assert ("_get_value" in found["names"]) == (hooks == "cuda_hooks")


def test_after_a_plain_step_everything_is_where_it_was(tmp_path):
    found = in_process(
        tmp_path,
        """
        import gc
        switch = Switch(toggle, torch, built, settings)
        def places():
            return [[id(table[name]) for table, name, _ in switch._values], list(map(id, gc.callbacks))]
        before = places()
        switch.out()
        out = places()
        switch.back()
        print(json.dumps([before == places(), before != out]))
        """,
    )
    assert found == [True, True]


def test_a_hook_that_stays_in_a_plain_step_is_named(tmp_path):
    found = in_process(
        tmp_path,
        """
        hooks = sys.modules["_gputop_probe.hooks"]
        torch.optim.Optimizer.zero_grad_before = torch.optim.Optimizer.zero_grad
        def forgotten(self, *args, **kwargs):
            return self.zero_grad_before(*args, **kwargs)
        forgotten.__code__ = forgotten.__code__.replace(co_filename=hooks.WRAPPER_FILE)
        torch.optim.Optimizer.zero_grad = forgotten
        try:
            Switch(toggle, torch, built, settings)
        except NothingToToggle as error:
            print(json.dumps(str(error)))
        """,
    )
    assert "still ran forgotten" in found


def test_a_name_that_is_no_hook_is_answered_with_the_name(tmp_path):
    found = in_process(
        tmp_path,
        """
        try:
            Switch(toggle, torch, built, settings, ["__next__", "nonsense"])
        except NothingToToggle as error:
            print(json.dumps(str(error)))
        """,
    )
    assert found == "no hook is called nonsense"


def test_what_a_planted_hook_costs_is_found_by_the_look_at_single_hooks(tmp_path):
    found = in_process(
        tmp_path,
        """
        import statistics
        below = toggle._wrappers
        base = torch.utils.data.dataloader._BaseDataLoaderIter
        def planted(self):
            until = time.perf_counter() + 2e-3
            while time.perf_counter() < until:
                pass
            return original(self)
        (original,) = [o for owner, name, _, o, _ in below if owner is base and name == "__next__"]
        switch = Switch(toggle, torch, built, settings, ["__next__"])
        fetch, _ = switch._calls["__next__"]
        switch._calls["__next__"] = (fetch, planted)
        pc, took = time.perf_counter, ([], [])
        for _ in range(60):
            for arm in (0, 1, 1, 0):
                took[arm].append(switch.step(arm == 1, pc))
        print(json.dumps([statistics.median(t) for t in took]))
        """,
    )
    assert found[1] - found[0] >= 1.5e-3
