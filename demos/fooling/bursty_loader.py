"""Train from two workers where every so often one sample takes very long to prepare.

What fools a tool: the median wait is zero and on average the workers are faster than the model, so
"the loader keeps up". Yet now and then the whole loop stands still until one slow sample is there,
with finished batches of the other worker waiting behind it.

What is right: input-bound, refined as a burst (``bursty-prefetch``) or as head-of-line blocking
(``slow-worker``), at the loader's line. More workers alone are the wrong advice: most of them idle.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    """Mostly short documents; one in ``every`` is ``times`` as long."""

    def __init__(self, count, every, times):
        self.count, self.every, self.times = count, every, times

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        chapters = self.times if index % self.every == self.every // 2 else 1
        rng = np.random.default_rng(index)
        total = np.zeros(128, np.float32)
        for _ in range(chapters):
            words = np.sort(rng.integers(0, 128, 2_000))
            total += np.bincount(words, minlength=128).astype(np.float32)
        return torch.from_numpy(total / chapters), index % 10


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600 if cuda else 240)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (8192, 16) if cuda else (640, 16)

    documents = Documents(args.steps * batch, every=23 * batch, times=8_000 if cuda else 2_500)
    loader = DataLoader(documents, batch_size=batch, num_workers=2, pin_memory=cuda)
    layers = [nn.Linear(128, width), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, (inputs, labels) in enumerate(loader):
        inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
