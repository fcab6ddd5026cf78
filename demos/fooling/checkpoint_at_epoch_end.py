"""Train in short epochs; each ends with a full evaluation and, right after it, a checkpoint.

What fools a tool: two interruptions lie side by side, at the very moment a new pass over the loader
begins. One long gap between two steps is easily called slow loading, new workers, or only one of
the two.

What is right: both, each at its own line: ``eval-stall`` and ``checkpoint-stall``, the larger
first; never ``input-bound`` or ``worker-respawn``.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader, device):
    model.eval()
    right = 0
    with torch.no_grad():
        for inputs, labels in loader:
            right += (model(inputs.to(device)).argmax(1).cpu() == labels).sum().item()
    model.train()
    return right


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600 if cuda else 120)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (6144, 512) if cuda else (512, 64)

    def data(count):
        inputs = torch.randn(count, 64)
        return TensorDataset(inputs, (inputs.sum(1) > 0).long())

    train = DataLoader(data(20 * batch), batch_size=batch, shuffle=True)
    held_out = DataLoader(data(60 * batch), batch_size=batch)
    layers = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 2)).to(device)
    memory = nn.Embedding(40_000, width).to(device)  # large and rarely touched
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    with tempfile.TemporaryDirectory() as folder:
        while step < args.steps:
            for inputs, labels in train:
                loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
            right = evaluate(model, held_out, device)
            state = {"model": model.state_dict(), "memory": memory.state_dict()}
            torch.save(state, Path(folder) / "last.pt")
            print(f"step {step} loss {loss.item():.4f} right {right}", flush=True)
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
