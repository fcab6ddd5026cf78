"""Train on ``next(iter(loader))``, as one does to look at a single batch.

What fools a tool: the loader has workers, they are fast, and whenever its queue is looked at there
are batches ready. Yet every step waits: ``iter`` starts new workers and ``next`` takes one batch of
them, the rest is thrown away. More workers make it slower.

What is right: input-bound, refined as ``worker-respawn``, at the loader or at the call of ``iter``.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100 if cuda else 60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (4096, 256) if cuda else (512, 32)

    inputs = torch.randn(50 * batch, 64)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=2)
    layers = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    for step in range(args.steps):
        x, y = next(iter(loader))
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
