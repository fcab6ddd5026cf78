"""Leaves by sys.exit from inside the loop, with a code of its own."""

import sys

import torch

torch.manual_seed(10)
w = torch.randn(4, requires_grad=True)
optimizer = torch.optim.Adam([w])
for step in range(100):
    w.square().sum().backward()
    optimizer.step()
    if step == 9:
        print("leaving")
        sys.exit(3)
