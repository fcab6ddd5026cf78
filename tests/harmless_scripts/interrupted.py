"""Ctrl-C in the middle of an epoch: saves, reports and leaves as Python does."""

import os
import signal

import torch
from torch import nn

torch.manual_seed(11)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
try:
    for step in range(100):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if step == 12:
            os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted at", step)
    torch.save(model.state_dict(), "interrupted.pt")
    raise
