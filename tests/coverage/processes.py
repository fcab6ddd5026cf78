"""Trainers in processes of every kind: ``python processes.py OUT``.

Each trainer writes ``OUT/KIND-PID`` with the number of steps it made; the file's name tells the pid.
"""

import importlib
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import torch.multiprocessing as mp


def train(out, kind, steps):
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    # By hand in fresh interpreters: there, the first optimizer would take seconds of imports.
    by_hand = kind in ("spawn", "forkserver")
    optimizer = None if by_hand else torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            continue
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-3 * parameter.grad
    (Path(out) / f"{kind}-{os.getpid()}").write_text(str(steps))
    return steps


def spawned(rank, out):
    train(out, "spawn", 30 + rank)


def in_child(method, out):
    child = multiprocessing.get_context(method).Process(target=train, args=(out, method, 25))
    child.start()
    child.join()
    assert child.exitcode == 0


def evaluate_only(out):
    with torch.no_grad():
        torch.nn.Linear(8, 1)(torch.randn(4, 8))
    (Path(out) / f"evaluates-{os.getpid()}").write_text("0")


if __name__ == "__main__":
    out = sys.argv[1]
    importlib.import_module("torch._dynamo")  # as the first optimizer does, once for all forks
    mp.spawn(spawned, args=(out,), nprocs=1)
    in_child("forkserver", out)
    in_child("fork", out)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.submit(train, out, "pool", 35).result() == 35
    train(out, "parent", 20)
    in_child("fork", out)  # of a parent that trains itself
    helper = multiprocessing.get_context("fork").Process(target=evaluate_only, args=(out,))
    helper.start()
    helper.join()
    pid = os.fork()
    if not pid:
        train(out, "bare-fork", 40)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
