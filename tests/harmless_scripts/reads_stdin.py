# stdin: 12\nname with spaces\n
"""Asks for its settings on stdin, then meets the end of it."""

import torch

steps = int(input("steps? "))
name = input("name? ")
torch.manual_seed(13)
w = torch.randn(4, requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)
for _ in range(steps):
    w.square().sum().backward()
    optimizer.step()
print(name, w.sum().item().hex())
input("more? ")
