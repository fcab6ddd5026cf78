"""SIGUSR1 asks for a checkpoint, SIGTERM ends the run, an alarm raises inside a step."""

import os
import signal
import sys

import torch
from torch import nn

torch.manual_seed(12)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


class TooSlow(Exception):
    pass


def too_slow(*_):
    raise TooSlow("alarm")


def leave(*_):
    print("leaving")
    sys.exit(143)


signal.signal(signal.SIGUSR1, lambda *_: torch.save(model.state_dict(), "asked.pt"))
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGALRM, too_slow)
for step in range(100):
    try:
        model(torch.randn(4, 8)).square().mean().backward()
        if step == 6:
            os.kill(os.getpid(), signal.SIGALRM)
        optimizer.step()
    except TooSlow as error:
        print("caught", error)
    if step == 4:
        os.kill(os.getpid(), signal.SIGUSR1)
    if step == 20:
        os.kill(os.getpid(), signal.SIGTERM)
