"""Train an autoencoder that keeps every step's activations to report one average at the end.

What is wrong: ``sparsity.append(activity)`` keeps a tensor, and with it the graph that made it and
the activations this graph has saved for a backward pass that never comes. Memory grows by the same
amount every step until there is none left.

What a tool should say: memory-leak; on a CPU from the process's private memory, on a GPU from what
the allocator holds at the end of each step.

How to mend it: keep the number, not the graph: ``sparsity.append(code.abs().mean().item())``, which
is what ``--numbers`` does. On a GPU, where reading a number each step waits for it, add up a
``.detach()``-ed mean and read that once.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Autoencoder(nn.Module):
    """An overcomplete autoencoder: a wide code, of which few entries should be active."""

    def __init__(self, features, width, depth):
        super().__init__()
        inner = [m for _ in range(2 * depth) for m in (nn.Linear(width, width), nn.GELU())]
        self.encoder = nn.Sequential(nn.Linear(features, width), nn.GELU(), *inner[: 2 * depth])
        self.decoder = nn.Sequential(*inner[2 * depth :], nn.Linear(width, features))

    def forward(self, inputs):
        code = self.encoder(inputs)
        return self.decoder(code), code


def make_data(count, features, seed):
    """Sparse mixtures of a few fixed patterns."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(64, features, generator=generator)
    weights = torch.rand(count, 64, generator=generator)
    return TensorDataset((weights * (weights > 0.9)) @ patterns)


def default_batch_size(width, steps):
    """A batch that suits the card: larger cards take larger ones."""
    if not torch.cuda.is_available():
        return 256
    total = torch.cuda.get_device_properties(0).total_memory
    return max(64, min(4096, int(0.3 * total / (steps * width * 4)) // 64 * 64))


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000 if cuda else 360)
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--width", type=int, default=8192 if cuda else 1024)
    parser.add_argument("--depth", type=int, default=4 if cuda else 1, help="layers a side")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--numbers", action="store_true", help="keep numbers instead of tensors")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if cuda else "cpu")
    batch_size = args.batch_size or default_batch_size(args.width, args.steps)
    data = make_data(16 * batch_size, args.features, args.seed)
    batches = BatchSampler(RandomSampler(data), batch_size, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None, pin_memory=cuda)
    model = Autoencoder(args.features, args.width, args.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=cuda)

    print(f"training on {device}: batches of {batch_size}")
    sparsity = []
    step, started = 0, time.perf_counter()
    while step < args.steps:
        for (inputs,) in loader:
            inputs = inputs.to(device, non_blocking=True)
            output, code = model(inputs)
            loss = nn.functional.mse_loss(output, inputs) + 1e-3 * code.abs().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            activity = code.abs().mean()
            sparsity.append(activity.item() if args.numbers else activity)
            step += 1
            if step % 40 == 0:
                elapsed = time.perf_counter() - started
                print(f"step {step}/{args.steps}  loss {loss.item():.4f}  {elapsed:.1f} s")
            if step >= args.steps:
                break
    average = torch.as_tensor(sum(sparsity) / len(sparsity)).item()
    print(f"mean activity of the code over the run: {average:.4f}")
    print(f"done in {time.perf_counter() - started:.1f} s, final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
