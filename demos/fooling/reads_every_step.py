"""Train a wide network that reads its loss with ``.item()`` after every step.

What fools a tool: most of the host's time is spent inside ``.item()``. But the host waits there for
work that the device still has to do; nothing would be won by not waiting.

What is right: healthy. On a GPU the loop is GPU-bound; a ``host-sync-stall`` is a false alarm.
"""

import argparse

import torch
from torch import nn


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300 if cuda else 120)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (8192, 4096) if cuda else (640, 128)
    torch.set_float32_matmul_precision("high")

    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(8, batch, width, device=device)
    smooth = None
    for step in range(args.steps):
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = model(inputs[step % 8]).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        smooth = value if smooth is None else 0.9 * smooth + 0.1 * value
        if step % 50 == 0:
            print(f"step {step} loss {smooth:.4f}", flush=True)
    print(f"final loss {smooth:.6f}")


if __name__ == "__main__":
    main()
