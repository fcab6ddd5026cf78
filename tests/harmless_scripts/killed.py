"""Dies of a signal nobody handles."""

import os
import signal

import torch

w = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([w], 0.1)
for _ in range(5):
    w.square().sum().backward()
    optimizer.step()
print("last words", flush=True)
os.kill(os.getpid(), signal.SIGABRT)
