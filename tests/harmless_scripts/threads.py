"""Trains in a thread while the main thread waits; a prefetch thread feeds it through a queue."""

import queue
import threading

import torch
from torch import nn

torch.manual_seed(25)
batches: queue.Queue = queue.Queue(4)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []


def feed():
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        batches.put(torch.randn(4, 8, generator=generator))
    batches.put(None)


def train():
    while (x := batches.get()) is not None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


threads = [threading.Thread(target=f, name=f.__name__) for f in (feed, train)]
for thread in threads:
    thread.start()
print([t.name for t in threading.enumerate()][:1])
for thread in threads:
    thread.join()
print(len(losses), losses[-1].hex())
