"""Train a small language model that writes its whole state to disk far too often.

What is wrong: every 5 steps (20 on a GPU) the loop stops to save the weights and both moments of
AdamW with ``torch.save``. Most of the model is its vocabulary, so a checkpoint is large next to the
work between two of them, and nothing is trained while it is written.

What a tool should say: checkpoint-stall, at the ``torch.save(...)`` line.

How to mend it: save rarely, ``--save-every 100``, or copy the state to host memory and write it in
a background thread (``torch.distributed.checkpoint.async_save``).
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class TokenWindows(Dataset):
    """Windows of a long token stream, fetched a whole batch at a time."""

    def __init__(self, tokens, length):
        self.windows = tokens.unfold(0, length + 1, length // 2)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, indices):
        batch = self.windows[indices]
        return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


class LanguageModel(nn.Module):
    """Embedding, causal transformer encoder, and an output layer tied to the embedding."""

    def __init__(self, vocabulary, width, layers, length):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.project = nn.Linear(width, 512)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens):
        hidden = self.embedding(tokens) + self.position[: tokens.shape[1]]
        hidden = self.encoder(hidden, mask=self.mask, is_causal=True)
        return self.project(hidden)  # scores of the 512 token groups of a two-level softmax


def make_tokens(count, vocabulary, seed):
    """A token stream in which each token depends on the one before it."""
    generator = torch.Generator().manual_seed(seed)
    jumps = torch.randint(0, 50, (count,), generator=generator)
    return torch.cumsum(jumps, 0) % vocabulary


def save_checkpoint(folder, step, model, optimizer, keep=2):
    """Write the state beside the old ones, then drop all but the newest ``keep``."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    unfinished = folder / "unfinished.pt"
    torch.save(state, unfinished)
    unfinished.rename(folder / f"step_{step:06d}.pt")
    for old in sorted(folder.glob("step_*.pt"))[:-keep]:
        old.unlink()


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200 if cuda else 300)
    parser.add_argument("--batch-size", type=int, default=256 if cuda else 4)
    parser.add_argument("--vocabulary", type=int, default=100_000 if cuda else 48_000)
    parser.add_argument("--width", type=int, default=1024 if cuda else 256)
    parser.add_argument("--layers", type=int, default=4 if cuda else 2)
    parser.add_argument("--length", type=int, default=128 if cuda else 32)
    parser.add_argument("--save-every", type=int, default=20 if cuda else 5)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if cuda else "cpu")
    data = TokenWindows(make_tokens(400_000, args.vocabulary, args.seed), args.length)
    batches = BatchSampler(RandomSampler(data), args.batch_size, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None, pin_memory=cuda)
    model = LanguageModel(args.vocabulary, args.width, args.layers, args.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    loss_fn = nn.CrossEntropyLoss()
    group = -(-args.vocabulary // 512)

    print(f"training on {device}: {sum(p.numel() for p in model.parameters()):,} parameters")
    step, started = 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as name:
        folder = Path(name)
        while step < args.steps:
            for tokens, following in loader:
                tokens = tokens.to(device, non_blocking=True)
                following = following.to(device, non_blocking=True)
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=cuda):
                    scores = model(tokens).float()
                loss = loss_fn(scores.flatten(0, 1), (following // group).flatten())
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                step += 1
                if step % args.save_every == 0:
                    save_checkpoint(folder, step, model, optimizer)
                if step % 20 == 0:
                    elapsed = time.perf_counter() - started
                    print(f"step {step}/{args.steps}  loss {loss.item():.4f}  {elapsed:.1f} s")
                if step >= args.steps:
                    break
    print(f"done in {time.perf_counter() - started:.1f} s, final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
