"""The training loop that is watched: plain PyTorch that knows of no tool.

    python loop.py '{"layers": 4, "width": 64, "batch": 32, "device": "cpu"}' RESULT.json

Every tool runs this file. ``gputop-train`` runs it as it is; for tools that need edits, a copy
gets them (``tools.py`` lists each). Other keys: ``threads`` of torch, ``warm_s`` and ``steady_s``
of looping, ``item`` (read the loss in every step), ``workers`` of the DataLoader and ``work_ms`` of
CPU time that preparing a batch takes.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

FEATURES = 64
BATCHES_AN_EPOCH = 256


class Samples(Dataset):
    """Random vectors, handed out a batch at a time."""

    def __init__(self, count, work_ms):
        self.data = torch.randn(count, FEATURES)
        self.work_s = work_ms / 1e3

    def __len__(self):
        return len(self.data)

    def __getitem__(self, indices):
        batch = self.data[indices]
        until = time.thread_time() + self.work_s
        while time.thread_time() < until:
            batch.sort(dim=0)
        return batch


def build(settings):
    """Model, optimizer and loader of these settings."""
    torch.manual_seed(0)
    width, batch, device = settings["width"], settings["batch"], settings["device"]
    layers = []
    for i in range(settings["layers"]):
        layers += [torch.nn.Linear(width if i else FEATURES, width), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    samples = Samples(batch * BATCHES_AN_EPOCH, settings.get("work_ms", 0))
    sampler = BatchSampler(RandomSampler(samples), batch, drop_last=True)
    workers = settings.get("workers", 0)
    loader = DataLoader(
        samples,
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device == "cuda",
    )
    return model, optimizer, loader


def train_step(model, optimizer, batch, device, item):
    """Forward, backward, update; the loss read where the script does so."""
    loss = model(batch.to(device, non_blocking=True)).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item() if item else loss


def run(model, optimizer, loader, settings):
    """Loop until warm, then for the steady part; the ends of its steps in seconds."""
    device, item = settings["device"], settings.get("item", False)
    warm_s, steady_s = settings.get("warm_s", 1.0), settings.get("steady_s", 2.0)
    started, steps, ends = time.perf_counter(), 0, []
    while True:
        for batch in loader:
            train_step(model, optimizer, batch, device, item)
            steps += 1
            if ends:
                ends.append(time.perf_counter())
                if ends[-1] - ends[0] >= steady_s and len(ends) > 10:
                    return finished(ends, device)
            elif steps >= 20 and time.perf_counter() - started >= warm_s:
                ends = finished(ends, device)


def finished(ends, device):
    """Close a part of the loop: the device has done all its steps."""
    if device == "cuda":
        torch.cuda.synchronize()
    return [*ends[:-1], time.perf_counter()]


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings.get("threads", 1))
    model, optimizer, loader = build(settings)
    ends = run(model, optimizer, loader, settings)
    result = {"ends_s": ends, "torch": torch.__version__}
    Path(sys.argv[2]).write_text(json.dumps(result))
