"""Children of every kind: another Python, a shell, a pool, a forked trainer."""

import multiprocessing
import subprocess
import sys

import torch
from torch import nn


def train(seed):
    torch.manual_seed(seed)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item().hex()


print(train(0))
print(
    subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.flags.isolated, sys.argv)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
)
print(
    subprocess.run(
        [sys.executable, "-I", "-c", "import torch; print(torch.ones(2).sum().item())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
)
print(subprocess.run("echo $0; exit 4", shell=True).returncode)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(train, range(3)))
print(train(0))
