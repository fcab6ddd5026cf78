"""Leaves by os._exit: no atexit, no flush."""

import os

import torch

w = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)
for _ in range(5):
    w.square().sum().backward()
    optimizer.step()
print(w.tolist(), flush=True)
os._exit(9)
