"""Captures while a loader's pin-memory thread works: python tests/gpu/captures.py MODE COUNT SECONDS

Prints how many captures were tried, how many passed, and how many ended in an error of the capture
or of the loader. MODE is CUDA's capture mode, or ``none`` for no loader. Under ``global``, torch's
default, a CUDA call of any other thread (here ``cudaHostAlloc`` of the pin-memory thread) may
invalidate the capture, and its own error kills that thread.
"""

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Growing(Dataset):
    """Slow items whose size changes, so that pinned memory has to be allocated again and again."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.zeros(1 << 16, index % 97 + 1)


kept = []  # a loader whose pin-memory thread died cannot be taken down without waiting for it


def batches():
    kept.append(iter(DataLoader(Growing(), batch_size=None, num_workers=2, pin_memory=True)))
    return kept[-1]


def main(mode, count, seconds):
    small = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(small.parameters(), 0.1)
    x = torch.ones(8, 64, device="cuda")
    loader = batches() if mode != "none" else None
    outcomes = {"tried": 0, "passed": 0, "capture": 0, "loader": 0}
    errors = set()
    end = time.monotonic() + seconds
    while outcomes["tried"] < count and time.monotonic() < end:
        if loader is not None:
            try:
                for _ in range(3):
                    next(loader)
            except Exception as error:
                outcomes["loader"] += 1
                errors.add(str(error).strip().splitlines()[0][:120])
                loader = batches()
                next(loader)
        for _ in range(10):
            optimizer.zero_grad(set_to_none=True)
            small(x).square().mean().backward()
            optimizer.step()
        outcomes["tried"] += 1
        graph = torch.cuda.CUDAGraph()
        kept.append(graph)
        try:
            with torch.cuda.graph(graph, capture_error_mode="global" if mode == "none" else mode):
                y = x
                for _ in range(20):
                    y = torch.relu(y @ y.T @ y)
                    time.sleep(0.001)
            graph.replay()
            torch.cuda.synchronize()
            outcomes["passed"] += 1
        except Exception as error:
            outcomes["capture"] += 1
            errors.add(str(error).strip().splitlines()[0][:120])
    print(json.dumps({"mode": mode, **outcomes, "errors": sorted(errors)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
