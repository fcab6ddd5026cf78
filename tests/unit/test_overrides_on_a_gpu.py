"""What settings of a GPU decide, with CUDA's own calls stood in for and torch's switches real."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

#: Runs in a process of its own: the switches are the process's.
SCRIPT = """
import json, sys
import torch
from gputop_train.probe.overrides import copies, flags, forward, telling
from gputop_train.probe.state import S

S.torch = torch
torch.cuda.get_device_capability = lambda device=None: capability
torch.cuda.current_device = lambda: 0
torch._C._cuda_getCurrentStream = lambda device: (stream, 0, 1)
capability, stream = (9, 0), 0
device = torch.device("cuda")
found = {}

def legacy():
    return torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()

found["on"] = [*flags._tf32(True, device), *legacy()]
found["again"] = flags._tf32(True, device)[0]
found["off"] = [*flags._tf32(False, device), *legacy()]
capability = (7, 5)
found["old card"] = flags._tf32(True, device)
capability = (9, 0)
if hasattr(torch._C, "_set_fp32_precision_setter"):
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # the script mixes nothing: newer names only
    try:
        torch._C._get_cublas_allow_tf32()
        found["mixed"] = False
    except RuntimeError:
        found["mixed"] = True
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch._C._set_cublas_allow_tf32(True)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    found["newer"] = [*flags._tf32(True, device), torch.backends.cuda.matmul.fp32_precision]
found["benchmark"] = [*flags._benchmark(True, device), torch.backends.cudnn.benchmark]
torch.backends.cudnn.deterministic = True
found["deterministic"] = flags._benchmark(True, device)

class Pinned(torch.Tensor):
    pinned = True
    def is_pinned(self, *args):
        return self.pinned

def may(tensor, *args, name="to", **kwargs):
    telling._rows.clear(); S.overrides.clear(); copies._told[0] = ""
    copies._override[:] = [{"key": "non_blocking", "value": True, "loader": None}]
    allowed = copies._may(tensor, name, args, kwargs)
    return [allowed, *((S.overrides[0]["status"], S.overrides[0]["why"]) if S.overrides else ())]

batch, mine = torch.ones(4).as_subclass(Pinned), torch.ones(4).as_subclass(Pinned)
kept = []
copies._collect({"x": [batch], "n": 3, "s": "text"}, kept, 0)
copies._fresh[:] = [frozenset(kept)]
found["batch"] = may(batch, "cuda")
found["part of it"] = may(batch[1:], device)
found["by name"] = may(batch, name="cuda")
found["as another"] = may(batch, device="cuda:0")
found["own buffer"] = may(mine, "cuda")
found["to a type"] = may(batch, torch.float16)
found["to the host"] = may(batch, "cpu")
found["said so"] = may(batch, "cuda", torch.float32, False)
stream = 7
found["other stream"] = may(batch, "cuda")
stream, batch.pinned = 0, False
found["pageable"] = may(batch, "cuda")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_tf32_is_switched_for_products_and_convolutions(found: dict[str, Any]) -> None:
    assert found["on"] == ["applied", "", True, True]
    assert found["again"] == "no effect"
    assert found["off"] == ["applied", "", False, False]


def test_tf32_is_refused_by_a_card_without_it(found: dict[str, Any]) -> None:
    assert found["old card"] == ["refused", "the GPU's compute capability is 7.5, it needs 8.0"]


def test_tf32_goes_by_the_newer_names_where_the_script_does(found: dict[str, Any]) -> None:
    if "mixed" not in found:
        pytest.fail("this torch has the older names only; run it with torch 2.9 or newer")
    assert found["mixed"]
    assert found["newer"] == ["applied", "", "tf32"]


def test_cudnn_searches_unless_the_script_wants_the_same_every_time(
    found: dict[str, Any],
) -> None:
    assert found["benchmark"] == ["applied", "", True]
    assert found["deterministic"] == ["refused", "the script asks for deterministic algorithms"]


@pytest.mark.parametrize("call", ["batch", "part of it", "by name", "as another"])
def test_a_pinned_batch_of_a_loader_goes_without_blocking(found: dict[str, Any], call: str) -> None:
    assert found[call] == [True, "applied", ""]


@pytest.mark.parametrize("call", ["to a type", "to the host", "said so"])
def test_other_calls_are_left_as_they_are(found: dict[str, Any], call: str) -> None:
    assert found[call] == [False]


@pytest.mark.parametrize(
    ("call", "status", "word"),
    [
        ("own buffer", "refused", "pins memory itself"),
        ("other stream", "refused", "stream"),
        ("pageable", "no effect", "pin_memory"),
    ],
)
def test_what_may_not_be_sure_blocks_and_says_why(
    found: dict[str, Any], call: str, status: str, word: str
) -> None:
    allowed, told, why = found[call]
    assert (allowed, told) == (False, status) and word in why
