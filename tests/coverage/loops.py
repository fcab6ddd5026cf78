"""Loops as people write them, each with what it truly did; run by name, every one in its own child.

``python loops.py OUT NAME...`` forks one child a loop. A child writes ``OUT/NAME.json``: its pid and
what the loop itself knows (steps made, seconds it waited for each batch, lines of interest),
measured with its own clock. Nothing here knows that it is watched. ``--no-waits`` leaves out every
planted sleep: what is computed stays the same.
"""

import asyncio
import importlib
import inspect
import json
import os
import queue
import random
import sys
import tempfile
import threading
import time

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, Dataset, IterableDataset

clock = time.perf_counter
WAIT_S = 0.012
WORK_S = 0.008
waits = []
sleeps = [True]


def rest(seconds):
    if sleeps[0]:
        time.sleep(seconds)


def wait(seconds):
    began = clock()
    rest(seconds)
    waits.append(clock() - began)


class Rows(Dataset):
    """A batch of four takes ``wait_s`` to load."""

    def __init__(self, batches, wait_s=WAIT_S):
        self.batches, self.wait_s = batches, wait_s

    def __len__(self):
        return 4 * self.batches

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        if index % 4 == 0:
            wait(self.wait_s)
        return torch.full((8,), float(index)), torch.zeros(1)


class Stream(IterableDataset):
    def __init__(self, batches):
        self.rows = Rows(batches)

    def __iter__(self):
        for index in range(len(self.rows)):
            yield self.rows[index]


class Net(nn.Module):
    def __init__(self, work_s=WORK_S):
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.work_s = work_s

    def forward(self, x):
        rest(self.work_s)
        return self.layer(x)


def squared(model, x, y):
    return (model(x) - y).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def line_of(text, function):
    """Number of the one line of ``function`` that holds ``text``."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [
        first + at for at, line in enumerate(lines) if text in line and "line_of(" not in line
    ]
    return found


def loader_line(function):
    return line_of("DataLoader(", function)


# -- where a step begins and ends -------------------------------------------------------------------


def plain():
    model = Net()
    optimizer = sgd(model)
    loader = DataLoader(Rows(30), batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        squared(model, x, y).backward()
        optimizer.step()
    return {"steps": 30, "micro": 1, "samples": 4, "loader": loader_line(plain)}


def accumulation():
    model = Net(0.004)
    optimizer = sgd(model)
    for number, (x, y) in enumerate(DataLoader(Rows(60, 0.006), batch_size=4)):
        squared(model, x, y).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return {"steps": 15, "micro": 4, "samples": 16, "loader": loader_line(accumulation)}


def gan():
    maker, critic = Net(0.004), Net(0.004)
    maker_optimizer, critic_optimizer = sgd(maker), sgd(critic)
    for x, _ in DataLoader(Rows(24), batch_size=4):
        fake = maker(x).detach().expand(-1, 8)
        critic_optimizer.zero_grad()
        (critic(x).mean() - critic(fake).mean()).backward()
        critic_optimizer.step()
        maker_optimizer.zero_grad()
        critic(maker(x).expand(-1, 8)).mean().neg().backward()
        maker_optimizer.step()
    return {"steps": 24, "micro": 2, "samples": 4}


def lbfgs_closure():
    model = Net(0.001)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for x, y in DataLoader(Rows(20), batch_size=4):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = squared(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return {"steps": 20}


def autograd_grad():
    model = Net(0.004)
    for x, y in DataLoader(Rows(20), batch_size=4):
        gradients = torch.autograd.grad(squared(model, x, y), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 1e-3 * gradient
    return {"steps": 20, "micro": 1, "samples": 4}


def manual_update():
    weight = torch.zeros(8, 1, requires_grad=True)
    for x, y in DataLoader(Rows(20), batch_size=4):
        rest(WORK_S)
        (x @ weight - y).square().mean().backward()
        with torch.no_grad():
            weight -= 1e-3 * weight.grad
            weight.grad = None
    return {"steps": 20, "micro": 1, "samples": 4}


def functional_loop():
    """torch.func.grad calls no public autograd entry until it differentiates."""
    model = Net(0)
    parameters = dict(model.named_parameters())

    def loss_of(parameters, x, y):
        return (torch.func.functional_call(model, parameters, (x,)) - y).square().mean()

    for x, y in DataLoader(Rows(20), batch_size=4):
        rest(WORK_S)
        gradients = torch.func.grad(loss_of)(parameters, x, y)
        parameters = {k: p.detach() - 1e-3 * gradients[k] for k, p in parameters.items()}
    return {"steps": 20, "samples": 4}


def skipped_scaler_steps():
    model = Net(0.004)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=1000)
    for number, (x, y) in enumerate(DataLoader(Rows(24), batch_size=4)):
        optimizer.zero_grad()
        loss = squared(model, x, y)
        scaler.scale(loss * (float("inf") if number % 6 == 5 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return {"steps": 24, "micro": 1, "samples": 4}


def optimizer_in_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for x, y in DataLoader(Rows(24), batch_size=4):
        rest(WORK_S)
        squared(model, x, y).backward()
    return {"steps": 24, "micro": 1, "samples": 4}


def several_optimizers_of_one_step():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizers = [sgd(layer) for layer in model]
    for x, y in DataLoader(Rows(24), batch_size=4):
        rest(WORK_S)
        squared(model, x, y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {"steps": 24, "micro": 1, "samples": 4}


# -- where the data comes from ----------------------------------------------------------------------


def get_batch(wait_s=WAIT_S):
    wait(wait_s)
    return torch.randn(4, 8), torch.zeros(4, 1)


def train_without_loader(steps, fetch):
    model = Net()
    optimizer = sgd(model)
    for _ in range(steps):
        x, y = fetch()
        optimizer.zero_grad()
        squared(model, x, y).backward()
        optimizer.step()


def calls_get_batch():
    model = Net()
    optimizer = sgd(model)
    for _ in range(60):
        x, y = get_batch()
        optimizer.zero_grad()
        squared(model, x, y).backward()
        optimizer.step()
    return {"steps": 60, "data_line": line_of("x, y = get_batch()", calls_get_batch)}


def get_batch_without_optimizer():
    weight = torch.zeros(8, 1, requires_grad=True)
    for _ in range(150):
        x, y = get_batch()
        rest(WORK_S)
        (x @ weight - y).square().mean().backward()
        with torch.no_grad():
            weight -= 1e-3 * weight.grad
            weight.grad = None
    return {"steps": 150, "data_line": line_of("x, y = get_batch()", get_batch_without_optimizer)}


def get_batch_and_optimizer_in_backward():
    model = Net()
    optimizer = sgd(model)
    model.layer.bias.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for _ in range(60):
        x, y = get_batch()
        model.zero_grad()
        squared(model, x, y).backward()
    return {
        "steps": 60,
        "data_line": line_of("x, y = get_batch()", get_batch_and_optimizer_in_backward),
    }


def waits_on_a_queue():
    """A loader consumed in a thread; the training thread waits on a queue."""
    ready = queue.Queue(maxsize=2)

    def produce():
        rows = [(torch.full((8,), float(number)), torch.zeros(1)) for number in range(160)]
        for batch in DataLoader(rows, batch_size=4):
            rest(0.03)
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=produce, daemon=True).start()
    model = Net(0.004)
    optimizer = sgd(model)
    while True:
        began = clock()
        batch = ready.get()
        waits.append(clock() - began)
        if batch is None:
            break
        optimizer.zero_grad()
        squared(model, *batch).backward()
        optimizer.step()
    return {"steps": 40, "data_line": line_of("ready.get()", waits_on_a_queue)}


def reads_a_memmap():
    import numpy as np

    model = Net()
    optimizer = sgd(model)
    with tempfile.NamedTemporaryFile() as file:
        np.zeros(1 << 24, dtype=np.float32).tofile(file)
        tokens = np.memmap(file.name, dtype=np.float32, mode="r")
        for _ in range(30):
            began = clock()
            rows = [
                torch.from_numpy(tokens[at : at + 100_000].copy())
                for at in range(0, 1 << 24, 200_000)
            ]
            waits.append(clock() - began)
            x = torch.stack([row[:8] for row in rows[:4]])
            optimizer.zero_grad()
            squared(model, x, torch.zeros(4, 1)).backward()
            optimizer.step()
    return {"steps": 30, "data_line": line_of("torch.from_numpy", reads_a_memmap)}


def iterable_dataset():
    model = Net()
    optimizer = sgd(model)
    for x, y in DataLoader(Stream(24), batch_size=4):
        optimizer.zero_grad()
        squared(model, x, y).backward()
        optimizer.step()
    return {"steps": 24, "samples": 4, "loader": loader_line(iterable_dataset)}


def workers(method):
    model = Net()
    optimizer = sgd(model)
    loader = DataLoader(Rows(24, 0.03), batch_size=4, num_workers=1, multiprocessing_context=method)
    for x, y in loader:
        optimizer.zero_grad()
        squared(model, x, y).backward()
        optimizer.step()
    return {"steps": 24, "samples": 4, "loader": loader_line(workers), "workers": 1}


def fork_workers():
    return workers("fork")


def spawn_workers():
    return workers("spawn")


def forkserver_workers():
    return workers("forkserver")


def train_and_validation():
    model = Net(0.004)
    optimizer = sgd(model)
    training = DataLoader(Rows(10), batch_size=4)
    held_out = DataLoader(Rows(5, 0.02), batch_size=4)
    for _ in range(3):
        model.train()
        for x, y in training:
            optimizer.zero_grad()
            squared(model, x, y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in held_out:
                squared(model, x, y)
    return {
        "steps": 30,
        "samples": 4,
        "evals": 3,
        "eval_line": line_of("model.eval()", train_and_validation),
    }


def interleaved_loaders():
    model = Net()
    optimizer = sgd(model)
    labelled = DataLoader(Rows(24, 0.008), batch_size=4)
    others = DataLoader(Rows(24, 0.008), batch_size=4)
    for (x, y), (z, _) in zip(labelled, others, strict=True):
        optimizer.zero_grad()
        (squared(model, x, y) + model.layer(z).mean()).backward()
        optimizer.step()
    return {"steps": 24, "samples": 8}


# -- where the loop runs ----------------------------------------------------------------------------


def in_a_thread():
    told = {}
    thread = threading.Thread(target=lambda: told.update(plain()))
    thread.start()
    thread.join()
    return told


def threads_in_turn():
    """Two trainers, one after the other, each in a thread of its own."""
    for _ in range(2):
        thread = threading.Thread(target=train_without_loader, args=(20, get_batch))
        thread.start()
        thread.join()
    return {"steps": 40}


def threads_at_once():
    """Two trainers at the same time: the first one to train is the one that is watched."""
    fetched, trains = [], threading.Event()

    def fetch():
        fetched.append(None)
        if len(fetched) == 3:  # two steps are done
            trains.set()
        return get_batch()

    first = threading.Thread(target=train_without_loader, args=(30, fetch))
    second = threading.Thread(target=train_without_loader, args=(6, get_batch))
    first.start()
    trains.wait()
    second.start()
    first.join()
    second.join()
    return {"steps": 30}


def two_models_in_turn():
    for _ in range(2):
        model = Net()
        optimizer = sgd(model)
        for x, y in DataLoader(Rows(15), batch_size=4):
            optimizer.zero_grad()
            squared(model, x, y).backward()
            optimizer.step()
    return {"steps": 30, "samples": 4}


def asyncio_loop():
    async def fetch():
        began = clock()
        await asyncio.sleep(WAIT_S if sleeps[0] else 0)
        waits.append(clock() - began)
        return torch.randn(4, 8), torch.zeros(4, 1)

    async def train():
        model = Net()
        optimizer = sgd(model)
        for _ in range(60):
            x, y = await fetch()
            optimizer.zero_grad()
            squared(model, x, y).backward()
            optimizer.step()

    asyncio.run(train())
    return {"steps": 60}


def generator_driven():
    """The loop body lives in a generator, as in many home-made trainers."""

    def steps(model, optimizer, loader):
        for x, y in loader:
            optimizer.zero_grad()
            loss = squared(model, x, y)
            loss.backward()
            optimizer.step()
            yield loss.detach()

    model = Net()
    total = sum(steps(model, sgd(model), DataLoader(Rows(24), batch_size=4)))
    assert total >= 0
    return {"steps": 24, "samples": 4}


# -- saves and evaluations --------------------------------------------------------------------------


class Heavy:
    def __getstate__(self):
        rest(0.15)
        return {"x": 1}


def saves_after_its_last_step():
    told = plain()
    torch.save({"heavy": Heavy()}, os.devnull)
    return {**told, "save_line": line_of("torch.save(", saves_after_its_last_step)}


def evaluates_after_its_last_step():
    model = Net()
    optimizer = sgd(model)
    for _ in range(20):
        x, y = get_batch()
        optimizer.zero_grad()
        squared(model, x, y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(Rows(10, 0.02), batch_size=4):
            squared(model, x, y)
    return {"steps": 20}


def compiled_optimizer_step():
    """Model and optimizer step through dynamo (the eager backend: the same frames, no compiler)."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend="eager")

    @torch.compile(backend="eager")
    def update():
        optimizer.step()

    for x, y in DataLoader(Rows(24), batch_size=4):
        optimizer.zero_grad()
        squared(compiled, x, y).backward()
        update()
    return {"steps": 24, "samples": 4}


def compiled_model():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = sgd(model)
    compiled = torch.compile(model, backend="eager")
    for x, y in DataLoader(Rows(24), batch_size=4):
        optimizer.zero_grad()
        squared(compiled, x, y).backward()
        optimizer.step()
    return {"steps": 24, "micro": 1, "samples": 4}


def data_parallel():
    """Without a GPU ``nn.DataParallel`` is the module itself."""
    model = nn.DataParallel(Net())
    optimizer = sgd(model)
    for x, y in DataLoader(Rows(24), batch_size=4):
        optimizer.zero_grad()
        squared(model, x, y).backward()
        optimizer.step()
    return {"steps": 24, "micro": 1, "samples": 4}


def checksum():
    """What a training run must leave as it is: the state of every random stream it may use."""
    return [float(parameters_to_vector([torch.rand(3)])[0]), random.random()]


def run(name, out):
    torch.manual_seed(7)
    random.seed(7)
    told = globals()[name]()
    told.update(pid=os.getpid(), waits=waits, random=checksum())
    with open(os.path.join(out, name + ".json"), "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    importlib.import_module("torch._dynamo")  # the first optimizer would, in every child again
    torch.set_num_threads(1)
    out, at_once = sys.argv[1], 4
    names = [name for name in sys.argv[2:] if name != "--no-waits"]
    sleeps[0] = "--no-waits" not in sys.argv
    running = set()
    for name in names:
        if len(running) == at_once:
            running.discard(os.wait()[0])
        child = os.fork()
        if not child:
            run(name, out)
            sys.exit(0)
        running.add(child)
    for _ in running:
        os.wait()
