"""Settings that only a GPU shows: in force as torch itself tells it, with the same values copied."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.launch.environment import script_environment
from gputop_train.launch.options import parse_settings
from tests.gpu.support import needs_cuda
from tests.probe_support import deploy, run

pytestmark = pytest.mark.gpu

SCRIPT = """
import json, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

saw = {"types": []}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 256), torch.nn.Linear(256, 1)
    def forward(self, x):
        y = self.first(x)
        if not torch.compiler.is_compiling():
            saw["types"].append(str(y.dtype))
        return self.last(torch.relu(y))

def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2048, 64))
    loader = DataLoader(data, batch_size=256, pin_memory="pageable" not in sys.argv)
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    moved = torch.zeros(64, device="cuda", dtype=torch.float64)
    own = torch.zeros(256, 64).pin_memory()
    for epoch in range(2):
        for (x,) in loader:
            if "own" in sys.argv:
                own.copy_(x)
                y = own.to("cuda")
                own.zero_()
            else:
                y = x.to("cuda")
            moved += y.double().sum(0)
            optimizer.zero_grad()
            output = model(y)
            output.square().mean().backward()
            optimizer.step()
    saw["moved"] = bool(torch.allclose(moved.cpu(), 2 * data.tensors[0].double().sum(0)))
    saw["output"] = str(output.dtype)
    saw["tf32"] = torch._C._get_cublas_allow_tf32() and torch._C._get_cudnn_allow_tf32()
    saw["benchmark"] = torch.backends.cudnn.benchmark
    saw["fused"] = optimizer.param_groups[0]["fused"]
    saw["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    saw["expandable"] = any(s.get("is_expandable") for s in torch.cuda.memory_snapshot())
    saw["types"] = sorted(set(saw["types"]))
    print(json.dumps(saw))

if __name__ == "__main__":
    main()
"""


def outcome(tmp_path: Path, *texts: str, words: tuple[str, ...] = ()) -> tuple[Any, dict[str, Any]]:
    """What the script saw, and each setting's newest status and reason."""
    needs_cuda()
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    settings = parse_settings(texts)
    rows = [{"key": s.key, "value": s.value, "loader": s.loader} for s in settings]
    deployed = deploy(tmp_path, overrides=rows)
    environ = script_environment(
        deployed.env(), deployed.directory, lines=False, terminal=None, settings=settings
    )
    result = run(script, *words, env=environ)
    assert result.returncode == 0, result.stderr.decode()
    with Ring.open(deployed.ring_files()[0]) as ring:
        snapshot = ring.snapshot()
    assert snapshot is not None and snapshot["errors"] == []
    told = {row["key"]: (row["status"], row["why"]) for row in snapshot["overrides"]}
    return json.loads(result.stdout.decode().splitlines()[-1]), told


def test_precision_search_kernels_and_allocator_are_really_in_force(tmp_path: Path) -> None:
    keys = ("tf32", "bf16", "cudnn_benchmark", "fused", "expandable_segments", "non_blocking")
    saw, told = outcome(tmp_path, *(f"{key}=true" for key in keys))
    assert {key: told.get(key) for key in keys} == dict.fromkeys(keys, ("applied", ""))
    assert saw["tf32"] and saw["benchmark"] and saw["fused"] and saw["expandable"]
    assert (saw["types"], saw["output"]) == (["torch.bfloat16"], "torch.float32")
    assert saw["moved"]


def test_nothing_of_it_is_in_force_without_a_setting(tmp_path: Path) -> None:
    saw, told = outcome(tmp_path)
    assert told == {} and saw["moved"] and saw["types"] == ["torch.float32"]
    assert not (saw["tf32"] or saw["benchmark"] or saw["fused"] or saw["expandable"])


@pytest.mark.parametrize("mode", ["true", "reduce-overhead"])
def test_the_model_is_compiled_for_its_training_forward(tmp_path: Path, mode: str) -> None:
    saw, told = outcome(tmp_path, f"compile={mode}", "bf16=true")
    assert told["compile"] == told["bf16"] == ("applied", "")
    assert saw["graphs"] >= 1 and saw["output"] == "torch.float32" and saw["moved"]


def test_copies_from_a_buffer_of_the_script_still_block(tmp_path: Path) -> None:
    saw, told = outcome(tmp_path, "non_blocking=true", words=("own",))
    assert told["non_blocking"][0] == "refused" and "pins memory itself" in told["non_blocking"][1]
    assert saw["moved"]


def test_copies_from_pageable_memory_say_that_they_stay_as_they_are(tmp_path: Path) -> None:
    saw, told = outcome(tmp_path, "non_blocking=true", words=("pageable",))
    assert told["non_blocking"][0] == "no effect" and "pin_memory" in told["non_blocking"][1]
    assert saw["moved"]


def test_memory_is_pinned_where_it_was_not(tmp_path: Path) -> None:
    saw, told = outcome(tmp_path, "pin_memory=true", "non_blocking=true", words=("pageable",))
    assert told["pin_memory"] == told["non_blocking"] == ("applied", "")
    assert saw["moved"]
