"""Train a wide multilayer perceptron whose data is ready long before it is needed.

Nothing is wrong here: large matrix multiplications fill the device, a batch is one indexed read of
a tensor in memory, and the loss is looked at every 50 steps only.

What a tool should say: healthy.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def make_data(count, features, seed):
    """Points on a noisy, random, non-linear surface."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, features, generator=generator)
    direction = torch.randn(features, 1, generator=generator) / features**0.5
    targets = torch.sin(2 * inputs @ direction) + 0.05 * torch.randn(count, 1, generator=generator)
    return TensorDataset(inputs, targets)


def build_model(features, width, depth):
    layers = [nn.Linear(features, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000 if cuda else 180)
    parser.add_argument("--batch-size", type=int, default=8192 if cuda else 512)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--width", type=int, default=8192 if cuda else 1024)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if cuda else "cpu")
    data = make_data(40 * args.batch_size, args.features, args.seed)
    loader = DataLoader(
        data,
        sampler=BatchSampler(RandomSampler(data), args.batch_size, drop_last=True),
        batch_size=None,
        pin_memory=cuda,
    )
    model = build_model(args.features, args.width, args.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=cuda)

    print(f"training on {device}: {sum(p.numel() for p in model.parameters()):,} parameters")
    step, started = 0, time.perf_counter()
    while step < args.steps:
        for inputs, targets in loader:
            inputs = inputs.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=cuda):
                loss = nn.functional.mse_loss(model(inputs).float(), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.log_every == 0:
                rate = step * args.batch_size / (time.perf_counter() - started)
                print(f"step {step}/{args.steps}  loss {loss.item():.4f}  {rate:.0f} samples/s")
            if step >= args.steps:
                break
    print(f"done in {time.perf_counter() - started:.1f} s, final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
