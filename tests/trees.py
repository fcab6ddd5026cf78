"""Working trees as trainings leave them, and what tells that nothing in one has changed."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

#: Saves beside the checkpoint and renames over it, rewrites JSON and NumPy metrics, and reads all
#: of it back as it goes. Prints what it found there at its start.
PLAIN = """
import json, os
import numpy, torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
model.load_state_dict(torch.load("model.pt")["model"])
history, losses = json.load(open("metrics.json")), numpy.load("losses.npy").tolist()
print("found", torch.load("model.pt")["step"], history, losses, flush=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(4000, 8)), batch_size=4), 1):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        torch.save({"model": model.state_dict(), "step": step}, "model.pt.tmp")
        os.replace("model.pt.tmp", "model.pt")
        assert torch.load("model.pt")["step"] == step
        history.append({"step": step, "loss": loss.item()})
        with open("metrics.json", "w") as file:
            json.dump(history, file)
        assert json.load(open("metrics.json")) == history
        losses.append(loss.item())
        numpy.save("losses.npy", numpy.array(losses))
        with open("log.csv", "a") as file:
            print(step, loss.item(), sep=",", file=file)
        os.makedirs(f"samples/{step}")
        open(f"samples/{step}/image", "w").close()
    if step == 5:
        print("saved", flush=True)
"""

#: Leaves what an earlier run of ``PLAIN`` would have.
PLAIN_BEFORE = """
import json, numpy, torch
torch.save({"model": torch.nn.Linear(8, 1).state_dict(), "step": -1}, "model.pt")
json.dump([], open("metrics.json", "w"))
numpy.save("losses.npy", numpy.zeros(1))
open("log.csv", "w").write("step,loss\\n")
"""


def fingerprint(tree: Path) -> str:
    """Names, kinds, modes, owners, times, contents and links of everything in a tree."""
    told = hashlib.sha256()
    for path in sorted([tree, *tree.rglob("*")]):
        seen = path.lstat()
        told.update(
            repr((str(path), seen.st_mode, seen.st_uid, seen.st_size, seen.st_mtime_ns)).encode()
        )
        if stat.S_ISLNK(seen.st_mode):
            told.update(os.readlink(path).encode())
        elif stat.S_ISREG(seen.st_mode):
            told.update(path.read_bytes())
    return told.hexdigest()
