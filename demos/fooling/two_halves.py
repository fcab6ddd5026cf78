"""Train with two faults of equal cost: samples made in the training process, and frequent saves.

What fools a tool: neither is half of the time. One that names a single cause promises a gain that
its mend cannot bring, and one that asks for a cause of 80% names none.

What is right: both ``input-bound`` and ``checkpoint-stall``, each at its own line and with the gain
of its own part.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


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
        return torch.from_numpy(np.fft.irfft(spectrum)[:256].astype(np.float32)), index % 10


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400 if cuda else 150)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (4096, 32) if cuda else (512, 16)

    loader = DataLoader(Signals(args.steps * batch), batch_size=batch)
    layers = [nn.Linear(256, width), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
    table = nn.Embedding(60_000 if cuda else 40_000, width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        for step, (signals, labels) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(signals.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                state = {"model": model.state_dict(), "table": table.state_dict()}
                torch.save(state, Path(folder) / "last.pt")
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
