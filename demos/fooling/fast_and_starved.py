"""Train a small network on samples that are made one by one, in steps of about 10 ms.

What fools a tool: the GPU is idle for half of every step, but the driver's utilisation is an
average over 200 ms, twenty steps. It reads a flat 50 without a single dip, which looks like many
small operations, or like a device that is simply not very busy.

What is right: input-bound (loading in the main process), at the ``DataLoader(...)`` line.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 256


class Signals(Dataset):
    """Noisy tones; each look at one filters it anew."""

    def __init__(self, count):
        self.count = count
        self.tones = np.random.default_rng(0).normal(size=(64, 1 << 15))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        spectrum = np.fft.rfft(self.tones[index % 64])
        spectrum[1 + index % 97 :: 97] = 0
        signal = np.fft.irfft(spectrum)[:SIZE]
        return torch.from_numpy(signal.astype(np.float32)), index % 10


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500 if cuda else 250)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, depth, batch = (4096, 16, 6) if cuda else (384, 3, 6)

    loader = DataLoader(Signals(args.steps * batch), batch_size=batch, pin_memory=cuda)
    layers = [nn.Linear(SIZE, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, (signals, labels) in enumerate(loader):
        signals = signals.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(signals), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
