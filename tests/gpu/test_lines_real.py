"""On a real NVIDIA GPU: reads and copies by line, with what GPU events say of each.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_lines_real.py`` (one process, some 15 s).
"""

from __future__ import annotations

import json
import math

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.timeline import sites_from_snapshot
from gputop_train.model import Site
from tests.gpu.support import needs_cuda, start

pytestmark = pytest.mark.gpu

STEPS = 400
FAST_ONE_IN = 16
SCRIPT = f"""
import torch
from torch import nn
torch.manual_seed(0)
dev = "cuda"
model = nn.Sequential(*[nn.Linear(4096, 4096, device=dev) for _ in range(4)])
opt = torch.optim.AdamW(model.parameters(), fused=True)
pinned = torch.zeros(16 << 20, dtype=torch.uint8).pin_memory()
pageable = torch.zeros(16 << 20, dtype=torch.uint8)
static = torch.empty(16 << 20, dtype=torch.uint8, device=dev)
back = torch.empty(16 << 20, dtype=torch.uint8).pin_memory()
x = torch.randn(2048, 4096, device=dev)
for i in range({STEPS}):
    a = pinned.to(dev, non_blocking=True)
    b = pageable.to(dev)
    static.copy_(pinned, non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(x).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    for _ in range(3):
        loss.item()
    back.copy_(static)
torch.cuda.synchronize()
print("done")
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Site], dict[str, object]]:
    """Sites by call, and the last snapshot, of one watched run."""
    needs_cuda()
    folder = tmp_path_factory.mktemp("lines")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    running = start(script, probe_in=folder / "run")
    code, out, err = running.end()
    assert (code, out) == (0, "done\n"), err
    assert running.deployed is not None
    (path,) = running.deployed.ring_files()
    with Ring.open(path) as ring:
        snapshot = ring.snapshot()
    assert snapshot is not None and snapshot["errors"] == []
    found = [s for s in sites_from_snapshot(0, snapshot) if s.kind in ("sync", "h2d")]
    print(json.dumps({s.call: [s.count, s.seen, s.pairs, s.pair_ns, s.pair_bytes] for s in found}))
    return {s.call: s for s in found}, snapshot


def test_calls_by_line_are_those_made(told: tuple[dict[str, Site], dict[str, object]]) -> None:
    sites, _ = told
    # The probe is armed in the first step, after its copies and before its reads.
    for call, made in (
        ("loss.item()", 3 * STEPS),
        ("pinned.to(dev, non_blocking=True)", STEPS),
        ("pageable.to(dev)", STEPS),
        ("static.copy_(pinned, non_blocking=True)", STEPS),
        ("back.copy_(static)", STEPS),
    ):
        found = next(s for text, s in sites.items() if call in text)
        # Of calls that take under 20 us one in 16 is looked at, by chance: an estimate.
        slack = max(0.2 * made, 3 * math.sqrt(made * (FAST_ONE_IN - 1)))
        assert abs(found.count - made) <= slack, (call, found)


def test_copies_are_timed_by_the_gpu(told: tuple[dict[str, Site], dict[str, object]]) -> None:
    sites, _ = told
    rates = {}
    for name in ("pinned.to", "pageable.to", "static.copy_(pinned"):
        site = next(s for text, s in sites.items() if name in text)
        assert site.pairs and site.pair_ns and site.pair_bytes, site
        assert site.pair_bytes == site.pairs * (16 << 20)
        rates[name] = site.pair_bytes / site.pair_ns
        unpinned = (site.unpinned_bytes or 0) / (site.bytes or 1)
        assert unpinned == (1.0 if name.startswith("pageable") else 0.0)
    print(json.dumps(rates))
    # PCIe 4 x16 gives about 25 GB/s, PCIe 5 x16 about 55, C2C more; pageable memory is staged.
    assert 8 <= rates["pinned.to"] <= 500
    assert rates["pinned.to"] == pytest.approx(rates["static.copy_(pinned"], rel=0.3)
    assert rates["pageable.to"] < rates["pinned.to"]


def test_only_the_first_read_of_a_result_waits(
    told: tuple[dict[str, Site], dict[str, object]],
) -> None:
    """The host waits in it while the GPU works: long for the host, next to no idle GPU."""
    sites, _ = told
    read = next(s for text, s in sites.items() if "loss.item()" in text)
    assert read.pairs and read.pair_ns is not None
    assert read.pair_ns / read.pairs < 0.2 * 1e6


def test_precision_and_flags_are_the_scripts(
    told: tuple[dict[str, Site], dict[str, object]],
) -> None:
    _, snapshot = told
    amp, flags = snapshot["amp"], snapshot["flags"]
    assert isinstance(amp, dict) and isinstance(flags, dict)
    (block,) = amp["autocast"]
    assert (block["device"], block["dtype"], block["blocks"]) == ("cuda", "bfloat16", STEPS)
    assert flags["data_parallel"] is False and flags["sync_debug"] is False
    assert snapshot["empty_cache"] == 0
