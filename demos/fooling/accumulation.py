"""Train with eight accumulated micro-batches a step, each from the loader.

What fools a tool: eight waits, eight backward passes, one optimizer call. Counted by backward the
run has eight times as many steps; counted by optimizer, "seven of eight passes have no update" and
the eighth is slow.

What is right: healthy, one step for each optimizer call, of eight micro-batches.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

MICRO = 8


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200 if cuda else 60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (8192, 1024) if cuda else (512, 32)

    inputs = torch.randn(16 * batch, 64)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    # A batch sampler as sampler: the data set is indexed once for a whole batch.
    drawn = RandomSampler(data, replacement=True, num_samples=args.steps * MICRO * batch)
    order = BatchSampler(drawn, batch, drop_last=True)
    loader = DataLoader(data, sampler=order, batch_size=None, pin_memory=cuda)
    layers = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    for number, (x, y) in enumerate(loader, 1):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = nn.functional.cross_entropy(model(x).float(), y) / MICRO
        loss.backward()
        if number % MICRO == 0:
            optimizer.step()
            optimizer.zero_grad()
            if number % (MICRO * 20) == 0:
                print(f"step {number // MICRO} loss {loss.item() * MICRO:.4f}", flush=True)
    print(f"final loss {loss.item() * MICRO:.6f}")


if __name__ == "__main__":
    main()
