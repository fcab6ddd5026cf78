"""Captures while a loader's pin-memory thread works: python tests/gpu/captures.py MODE COUNT

Prints how many of COUNT captures passed, and how many ended in an error of the capture or of the
loader. MODE is CUDA's capture mode; under ``global``, torch's default, a CUDA call of any other
thread (here ``cudaHostAlloc`` of the pin-memory thread) may invalidate the capture.
"""

import json
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


def batches():
    while True:
        yield from DataLoader(Growing(), batch_size=None, num_workers=2, pin_memory=True)


def main(mode, count):
    small = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(small.parameters(), 0.1)
    x = torch.ones(8, 64, device="cuda")
    for _ in range(30):
        optimizer.zero_grad(set_to_none=True)
        small(x).square().mean().backward()
        optimizer.step()
    loader = batches() if mode != "none" else None
    outcomes = {"passed": 0, "capture": 0, "loader": 0}
    errors = set()
    torch.cuda.synchronize()
    for _ in range(count):
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
        graph = torch.cuda.CUDAGraph()
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
    print(json.dumps({"mode": mode, **outcomes, "errors": sorted(errors)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
