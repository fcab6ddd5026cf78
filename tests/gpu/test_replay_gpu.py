"""``replay_batch`` of functions whose batches are on the GPU already, on a real one.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_replay_gpu.py -s``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.test_whatifs_gpu import rows_of, said_by

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_batches_on_the_gpu_are_replayed_from_it_without_one_wait(tmp_path: Path) -> None:
    body = """
    data = torch.arange(640_000.0).remainder_(1000).reshape(10_000, 64)
    drawn = [0]
    def get_batch(split, device):
        drawn[0] += 1
        rows = data[32 * drawn[0] : 32 * drawn[0] + 32].clone()
        rows[0, 0] = float(drawn[0])
        return rows.pin_memory().to(device, non_blocking=True), torch.ones(32, 1, device=device)

    dev, firsts = torch.device("cuda"), []
    for i in range(60):
        if i == 20:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")  # a copy that waits would raise
        batch, target = get_batch("train", dev)
        firsts.append(batch[0, 0].clone())
        loss = (model(batch * 1e-4) - target).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        batch.fill_(-1.0)  # behind the backward, and never to come back
    torch.cuda.set_sync_debug_mode("default")
    said["firsts"], said["drawn"] = [int(one) for one in firsts], drawn[0]
    said["kind"] = [str(batch.device), str(target.dtype)]
    """
    said = said_by(tmp_path, body, ("replay_batch", 8), warmup=12)
    (row,) = rows_of(said, "replay_batch")
    assert row["status"] == "applied", row
    assert "get_batch()" in row["why"] and "its copies to the GPU too" in row["why"]
    assert said["drawn"] <= 12
    assert len(set(said["firsts"][20:])) == 8 and min(said["firsts"]) == 1
    assert said["kind"] == ["cuda:0", "torch.float32"]


def test_more_than_the_gpu_has_room_for_is_refused(tmp_path: Path) -> None:
    body = """
    free = torch.cuda.mem_get_info()[0]
    def get_batch():
        return torch.zeros(free // 20, dtype=torch.uint8, device=dev), x.clone()

    for i in range(20):
        _, batch = get_batch()
        model(batch).square().mean().backward()
        opt.step()
        opt.zero_grad()
    """
    said = said_by(tmp_path, body, ("replay_batch", 8), warmup=12)
    (row,) = rows_of(said, "replay_batch")
    assert row["status"] == "refused" and "free memory of the GPU" in row["why"], row


def test_a_compiled_model_is_compiled_once_while_its_batches_are_replayed(tmp_path: Path) -> None:
    body = """
    def normalised(batch):
        return batch - batch.mean()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.nn.Linear(64, 1, device=dev)
        def forward(self, batch):
            return self.last(normalised(batch))

    def get_batch():
        return torch.randn(32, 64, device=dev)

    net = Net()
    opt = torch.optim.SGD(net.parameters(), 1e-4)
    fast = torch.compile(net, fullgraph=True)
    for i in range(40):
        fast(get_batch()).square().mean().backward()
        opt.step()
        opt.zero_grad()
    from torch._dynamo.utils import counters
    said["graphs"] = counters["stats"]["unique_graphs"]
    """
    said = said_by(tmp_path, body, ("replay_batch", 8), warmup=12)
    (row,) = rows_of(said, "replay_batch")
    assert row["status"] == "applied" and "get_batch()" in row["why"], row
    assert said["graphs"] == 1
