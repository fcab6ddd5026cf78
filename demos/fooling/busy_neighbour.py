"""Train on a GPU that another program uses at the same time.

What fools a tool: the device reads 100% busy, so the run looks GPU-bound and well. Or the steps
take twice as long for no reason in the script, and loader or kernels are blamed.

What is right: ``gpu-contention``: somebody else is on the device. There is nothing to mend in this
script. Without a GPU there is nothing to see; the neighbour is then not started.
"""

import argparse
import os
import signal
import subprocess
import sys

import torch
from torch import nn

NEIGHBOUR = """
import os, sys, torch
a = torch.randn(8192, 8192, device="cuda")
held = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
while os.path.exists("/proc/" + sys.argv[1]):
    for _ in range(20):
        a = (a @ a).tanh_()
    torch.cuda.synchronize()
"""
# What a script starts belongs to its run, in whatever session. A stranger's program has no parent
# in it: the one that starts it here ends at once.
START = """
import subprocess, sys
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
command = [sys.executable, "-c", *sys.argv[1:]]
print(subprocess.Popen(command, start_new_session=True, **quiet).pid)
"""


def stranger():
    """The PID of a program on the same GPU, which ends with this one at the latest."""
    command = [sys.executable, "-c", START, NEIGHBOUR, str(os.getpid())]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400 if cuda else 60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    width, batch = (4096, 4096) if cuda else (384, 64)

    neighbour = stranger() if cuda else None
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
            os.kill(neighbour, signal.SIGKILL)


if __name__ == "__main__":
    main()
