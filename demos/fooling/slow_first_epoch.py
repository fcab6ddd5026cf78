"""Train on records that are unpacked when first looked at and come from memory ever after.

What fools a tool: for the whole first epoch the loop waits for its data, as with any cold cache.
More workers or a faster disk would be advised for something that is over after one epoch and never
comes back.

What is right: healthy once the cache is warm; at most a remark about the first epoch.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    """Spectra that become signals at the first look; all signals fit into memory."""

    def __init__(self, count):
        self.count = count
        self.spectrum = np.fft.rfft(np.random.default_rng(0).normal(size=1 << 15))
        self.signals = {}

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index not in self.signals:
            spectrum = self.spectrum.copy()
            spectrum[1 + index % 97 :: 97] = 0
            signal = np.fft.irfft(spectrum)[:128]
            self.signals[index] = torch.from_numpy(signal.astype(np.float32))
        return self.signals[index], index % 10


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600 if cuda else 300)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (8192, 32) if cuda else (512, 32)
    per_epoch = args.steps // 6

    records = Records(per_epoch * batch)
    loader = DataLoader(records, batch_size=batch, shuffle=True)
    layers = [nn.Linear(128, width), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step, epoch = 0, 0
    while step < args.steps:
        began = time.perf_counter()
        for inputs, labels in loader:
            logits = model(inputs.to(device, non_blocking=True))
            loss = nn.functional.cross_entropy(logits, labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
        print(
            f"epoch {epoch} loss {loss.item():.4f} {time.perf_counter() - began:.1f} s", flush=True
        )
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
