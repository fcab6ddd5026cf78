"""Train a classifier that fills its confusion matrix one sample at a time.

What is wrong on a GPU: the metric loop reads two numbers of every sample with ``.item()``. Each
read waits until the GPU has nothing left to do, so the GPU then idles until the next small piece
of work is sent: hundreds of round trips a step, where one would do. On a CPU a read costs next to
nothing and nothing is wrong.

What a tool should say: on a GPU host-sync-stall, at the two ``.item()`` lines; on a CPU nothing.

How to mend it: count on the device and read the matrix when it is printed, ``--vectorised``.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

FEATURES = 784
CLASSES = 10


def make_data(count, seed):
    """Gaussian clouds around one centre per class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    inputs = 0.15 * centres[labels] + torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(inputs, labels)


def build_model(width):
    return nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def count_each(confusion, logits, labels):
    """Add a batch to the confusion matrix, sample by sample."""
    for i in range(len(labels)):
        predicted = logits[i].argmax().item()
        truth = labels[i].item()
        confusion[truth, predicted] += 1


def count_all(confusion, logits, labels):
    """Add a batch to a confusion matrix that lives on the device."""
    cells = labels * CLASSES + logits.argmax(dim=1)
    confusion += torch.bincount(cells, minlength=CLASSES * CLASSES).view(CLASSES, CLASSES)


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000 if cuda else 300)
    parser.add_argument("--batch-size", type=int, default=512 if cuda else 64)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--vectorised", action="store_true", help="count on the device")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if cuda else "cpu")
    data = make_data(64 * args.batch_size, args.seed)
    batches = BatchSampler(RandomSampler(data), args.batch_size, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None, pin_memory=cuda)
    model = build_model(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=cuda)
    loss_fn = nn.CrossEntropyLoss()

    print(f"training on {device}: batches of {args.batch_size}")
    where = device if args.vectorised else "cpu"
    confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.long, device=where)
    count = count_all if args.vectorised else count_each
    step, started = 0, time.perf_counter()
    while step < args.steps:
        for inputs, labels in loader:
            inputs = inputs.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            logits = model(inputs)
            loss = loss_fn(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            count(confusion, logits.detach(), labels)
            step += 1
            if step % 50 == 0:
                accuracy = confusion.diagonal().sum().item() / confusion.sum().item()
                confusion.zero_()
                elapsed = time.perf_counter() - started
                print(
                    f"step {step}/{args.steps}  loss {loss.item():.4f}  "
                    f"accuracy {accuracy:.3f}  {elapsed:.1f} s"
                )
            if step >= args.steps:
                break
    print(f"done in {time.perf_counter() - started:.1f} s, final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
