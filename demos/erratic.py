"""Train a recommendation model that is interrupted by two things at once.

What is wrong: every 12 steps the whole validation set is scored, and every 15 steps the embedding
tables are written to disk with the optimizer's state (on a GPU, where steps are shorter, every 120
and 200). Alone, each would be a regular pattern; together they make the device's load look random.

What a tool should say: both, the costlier first: eval-stall at the evaluation, checkpoint-stall at
the ``torch.save(...)`` line.

How to mend it: evaluate on a sample (``--validation 20000``) or more rarely (``--eval-every 100``),
and save rarely (``--save-every 300``).
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)


class Recommender(nn.Module):
    """Two embedding tables and a tower that scores a (user, item) pair."""

    def __init__(self, users, items, width, hidden):
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.tower = nn.Sequential(
            nn.Linear(2 * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )

    def forward(self, users, items):
        pairs = torch.cat([self.users(users), self.items(items)], dim=1)
        return self.tower(pairs).squeeze(1)


def make_clicks(count, users, items, seed):
    """Pairs with a click where user and item have the same taste, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    user = torch.randint(0, users, (count,), generator=generator)
    item = torch.randint(0, items, (count,), generator=generator)
    click = (user % 7 == item % 7) ^ (torch.rand(count, generator=generator) < 0.05)
    return TensorDataset(user, item, click.float())


@torch.no_grad()
def evaluate(model, loader, device):
    """Return the share of validation pairs whose click is predicted right."""
    model.eval()
    right = torch.zeros((), device=device)
    for users, items, clicks in loader:
        scores = model(users.to(device, non_blocking=True), items.to(device, non_blocking=True))
        right += ((scores > 0) == (clicks.to(device, non_blocking=True) > 0.5)).sum()
    model.train()
    return right.item() / len(loader.dataset)


def save_checkpoint(path, step, model, optimizer):
    """Replace the checkpoint at ``path`` in one move."""
    unfinished = path.with_suffix(".tmp")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, unfinished)
    unfinished.replace(path)


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1200 if cuda else 180)
    parser.add_argument("--batch-size", type=int, default=16384 if cuda else 1024)
    parser.add_argument("--users", type=int, default=300_000 if cuda else 100_000)
    parser.add_argument("--items", type=int, default=150_000 if cuda else 50_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=4096 if cuda else 512)
    parser.add_argument("--validation", type=int, default=4_000_000 if cuda else 110_000)
    parser.add_argument("--eval-every", type=int, default=120 if cuda else 12)
    parser.add_argument("--save-every", type=int, default=200 if cuda else 15)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=4 if cuda else 0, help="loader processes")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if cuda else "cpu")
    train = make_clicks(100 * args.batch_size, args.users, args.items, args.seed)
    held_out = make_clicks(args.validation, args.users, args.items, args.seed + 1)
    train_batches = BatchSampler(RandomSampler(train), args.batch_size, drop_last=True)
    eval_batches = BatchSampler(SequentialSampler(held_out), args.batch_size, drop_last=False)
    how = {"batch_size": None, "pin_memory": cuda, "num_workers": args.workers}
    how["persistent_workers"] = args.workers > 0
    loader = DataLoader(train, sampler=train_batches, **how)
    eval_loader = DataLoader(held_out, sampler=eval_batches, **how)
    model = Recommender(args.users, args.items, args.width, args.hidden).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    loss_fn = nn.BCEWithLogitsLoss()

    print(f"training on {device}: {sum(p.numel() for p in model.parameters()):,} parameters")
    step, started = 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        checkpoint = Path(folder) / "last.pt"
        while step < args.steps:
            for users, items, clicks in loader:
                users = users.to(device, non_blocking=True)
                items = items.to(device, non_blocking=True)
                clicks = clicks.to(device, non_blocking=True)
                loss = loss_fn(model(users, items), clicks)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                step += 1
                if step % args.eval_every == 0:
                    accuracy = evaluate(model, eval_loader, device)
                    elapsed = time.perf_counter() - started
                    print(
                        f"step {step}/{args.steps}  loss {loss.item():.4f}  "
                        f"accuracy {accuracy:.4f}  {elapsed:.1f} s"
                    )
                if step % args.save_every == 0:
                    save_checkpoint(checkpoint, step, model, optimizer)
                if step >= args.steps:
                    break
    print(f"done in {time.perf_counter() - started:.1f} s, final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
