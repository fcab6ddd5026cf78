"""Train on a GPU that another program uses at the same time.

What fools a tool: the device reads 100% busy, so the run looks GPU-bound and well. Or the steps
take twice as long for no reason in the script, and loader or kernels are blamed.

What is right: ``gpu-contention``: somebody else is on the device. There is nothing to mend in this
script. Without a GPU there is nothing to see; the neighbour is then not started.
"""

import argparse
import subprocess
import sys

import torch
from torch import nn

NEIGHBOUR = """
import torch
a = torch.randn(8192, 8192, device="cuda")
held = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
while True:
    for _ in range(20):
        a = (a @ a).tanh_()
    torch.cuda.synchronize()
"""


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400 if cuda else 60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (4096, 4096) if cuda else (384, 64)

    neighbour = None
    if cuda:
        # In a session of its own: a stranger's program, no part of this run.
        neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], start_new_session=True)
    try:
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]
        model = nn.Sequential(*layers).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs = torch.randn(8, batch, width, device=device)
        for step in range(args.steps):
            loss = model(inputs[step % 8]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
        print(f"final loss {loss.item():.6f}")
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()


if __name__ == "__main__":
    main()
