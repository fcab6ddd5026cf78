"""Dies of an exception inside backward, with a chain and a note; finally blocks and atexit run."""

import atexit

import torch


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("planted in backward")


atexit.register(print, "at exit")
torch.manual_seed(8)
w = torch.randn(4, requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)
for _ in range(3):
    w.square().sum().backward()
    optimizer.step()
try:
    Bad.apply(w).sum().backward()
except RuntimeError as error:
    try:
        raise ValueError("training failed") from error
    finally:
        print("finally")
