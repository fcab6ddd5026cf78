"""Train a character-level recurrent network whose cell is written out as single tensor operations.

What is wrong on a GPU: every time step is a dozen operations on tensors so small that the GPU is
done with one before Python has sent the next. A training step is thousands of such kernels, and the
GPU spends it waiting for launches. On a CPU the same operations simply are the work.

What a tool should say: on a GPU launch-bound; on a CPU nothing.

How to mend it: give each kernel more to do (``--batch-size 1024`` takes about as long a step), let
``torch.compile`` fuse the cell, or use ``torch.nn.GRU``, which is one call for the whole sequence.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

CHARACTERS = 64


class Windows(Dataset):
    """Windows of a long text, fetched a whole batch at a time."""

    def __init__(self, text, length):
        self.windows = text.unfold(0, length + 1, 3)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, indices):
        batch = self.windows[indices]
        return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


class GatedCell(nn.Module):
    """A gated recurrent unit, as in the textbook."""

    def __init__(self, width):
        super().__init__()
        self.update = nn.Linear(2 * width, width)
        self.reset = nn.Linear(2 * width, width)
        self.candidate = nn.Linear(2 * width, width)

    def forward(self, x, hidden):
        both = torch.cat([x, hidden], dim=1)
        update = torch.sigmoid(self.update(both))
        reset = torch.sigmoid(self.reset(both))
        candidate = torch.tanh(self.candidate(torch.cat([x, reset * hidden], dim=1)))
        return (1 - update) * hidden + update * candidate


class CharacterModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(CHARACTERS, width)
        self.cell = GatedCell(width)
        self.output = nn.Linear(width, CHARACTERS)

    def forward(self, characters):
        embedded = self.embedding(characters)
        hidden = embedded.new_zeros(characters.shape[0], self.width)
        states = []
        for t in range(characters.shape[1]):
            hidden = self.cell(embedded[:, t], hidden)
            states.append(hidden)
        return self.output(torch.stack(states, dim=1))


def make_text(count, seed):
    """A text in which each character usually follows from the two before it."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, CHARACTERS, (CHARACTERS, CHARACTERS), generator=generator).tolist()
    surprises = torch.rand(count, generator=generator).tolist()
    others = torch.randint(0, CHARACTERS, (count,), generator=generator).tolist()
    text = [0, 1]
    for i in range(count):
        text.append(others[i] if surprises[i] < 0.1 else table[text[-2] // 8][text[-1]])
    return torch.tensor(text)


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=350 if cuda else 1000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128 if cuda else 64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if cuda else "cpu")
    data = Windows(make_text(200_000, args.seed), args.length)
    batches = BatchSampler(RandomSampler(data), args.batch_size, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None, pin_memory=cuda)
    model = CharacterModel(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_fn = nn.CrossEntropyLoss()

    print(f"training on {device}: sequences of {args.length} characters")
    step, started = 0, time.perf_counter()
    while step < args.steps:
        for characters, following in loader:
            characters = characters.to(device, non_blocking=True)
            following = following.to(device, non_blocking=True)
            loss = loss_fn(model(characters).flatten(0, 1), following.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                elapsed = time.perf_counter() - started
                print(f"step {step}/{args.steps}  loss {loss.item():.4f}  {elapsed:.1f} s")
            if step >= args.steps:
                break
    print(f"done in {time.perf_counter() - started:.1f} s, final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
