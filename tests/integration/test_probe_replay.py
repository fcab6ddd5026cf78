"""``replay_batch`` and its like in loops of every kind: what the script then gets, and what is told.

One process imports torch as a leg of a trial; each script below runs in a fork of it.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.probe_support import deploy, run

KEPT = 8
WARMUP = KEPT + 4

ZYGOTE = """
import json, os, runpy, signal, sys, traceback
import torch, torch._dynamo
from _gputop_probe.state import S
torch.set_num_threads(1)
for name in sys.argv[1:]:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    signal.alarm(100)
    told = {}
    try:
        told["said"] = runpy.run_path(name + ".py", run_name="__main__")["SAID"]
    except BaseException:
        told["error"] = traceback.format_exc()
    told.update(trial=S.trial.report(), errors=S.errors)
    with open(name + ".json", "w") as stream:
        json.dump(told, stream)
    os._exit(0)
"""

#: ``fresh`` makes a batch that never was before and ``N`` counts them; ``go`` is a step.
HEAD = """
import itertools, queue, threading, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from _gputop_probe.state import S
N, SEEN = [0], []
model = nn.Linear(4, 4)

def fresh():
    N[0] += 1
    return torch.full((2, 4), float(N[0]))

def go(x):
    SEEN.append(float(x[0, 0]))
    (model(x) - 1).pow(2).mean().backward()
    x.fill_(-1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)\n"

SCRIPTS: dict[str, str] = {}


def script(name: str, text: str, head: str = HEAD + OPTIMIZER) -> str:
    SCRIPTS[name] = head + textwrap.dedent(text)
    return name


# -- functions and methods

script(
    "nanogpt",
    """
    drawn = {"train": 0, "val": 0}

    def get_batch(split):
        drawn[split] += 1
        x = fresh()
        return x, x + 1

    @torch.no_grad()
    def estimate_loss():
        model.eval()
        held_out = [get_batch(split)[0] for split in ("train", "val") for _ in range(2)]
        model.train()
        return len({float(x[0, 0]) for x in held_out})

    distinct = []
    X, Y = get_batch("train")
    for it in range(40):
        if it % 10 == 0:
            distinct.append(estimate_loss())
        for micro in range(2):
            loss = (model(X) - Y).pow(2).mean()
            SEEN.append(float(X[0, 0]))
            X, Y = get_batch("train")
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    SAID = {"drawn": drawn, "distinct": distinct, "met": len(set(SEEN[-24:]))}
    """,
)
script(
    "local",
    """
    def main():
        def get_batch(size, name="train"):
            return {"x": fresh(), "name": name}

        for _ in range(40):
            batch = get_batch(2, name="train")
            go(batch.pop("x"))

    main()
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:]))}
    """,
)
script(
    "method",
    """
    class Batches:
        def __init__(self):
            self.position = 0

        def next_batch(self):
            self.position += 1
            return fresh()

    class Trainer:
        def __init__(self):
            self.model, self.data = model, Batches()

        def run(self):
            for _ in range(40):
                go(self.data.next_batch())

    trainer = Trainer()
    trainer.run()
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:])), "holds": sorted(vars(trainer.data))}
    """,
)
script(
    "inside_the_forward",
    """
    def get_batch():
        return fresh()

    def compute():
        x = get_batch()
        SEEN.append(float(x[0, 0]))
        return (model(x) - 1).pow(2).mean()

    for _ in range(40):
        compute().backward()
        optimizer.step()
        optimizer.zero_grad()
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:]))}
    """,
)
script(
    "two_that_train",
    """
    def get_batch():
        return fresh()

    def train_one():
        go(get_batch())

    def train_other():
        x = get_batch()
        SEEN.append(float(x[0, 0]))
        (model(x) + 1).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(20):
        train_one()
        train_other()
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:]))}
    """,
)
script(
    "by_indices",
    """
    def load(index):
        return fresh()

    for epoch in range(4):
        order = torch.randperm(20)
        for first in range(0, 20, 2):
            go(load(order[first : first + 2]))
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:]))}
    """,
)

COMPILED = """
    def centred(x):
        return x - x.mean()

    def scaled(x):
        return centred(x) * 2

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x):
            return self.inner(scaled(x))

    @torch.compile(fullgraph=True, backend="eager")
    def distance(x):
        return centred(x).pow(2).mean()

    def get_batch():
        return fresh()

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    fast = torch.compile(net, fullgraph=True, backend="eager")
    for _ in range(40):
        x = get_batch()
        SEEN.append(float(x[0, 0]))
        centred(x), scaled(x)
        distance(fast(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:])),
            "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}
"""
script("compiled", COMPILED, HEAD)

# -- generators, iterators and queues

script(
    "generator",
    """
    def batches(size):
        while True:
            yield fresh(), size

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for i, (x, _) in enumerate(batches(2)):
        go(x)
        if i == 40:
            break
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:]))}
    """,
    HEAD,
)
script(
    "generator_of_epochs",
    """
    def batches(epoch):
        for _ in range(6):
            yield fresh()
        return "over"

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    passes = []
    for epoch in range(8):
        count = 0
        for x in batches(epoch):
            count += 1
            go(x)
        passes.append(count)
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:])), "passes": passes}
    """,
    HEAD,
)
script(
    "generator_made_early",
    """
    def batches():
        while True:
            yield fresh()

    stream = batches()
    """
    + OPTIMIZER
    + """
    for _ in range(40):
        go(next(stream))
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:]))}
    """,
    HEAD,
)
script(
    "iterator_class",
    """
    class Batches:
        def __iter__(self):
            self.left = 10
            return self

        def __next__(self):
            if not self.left:
                raise StopIteration
            self.left -= 1
            return fresh()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    passes = []
    for epoch in range(5):
        count = 0
        for x in Batches():
            count += 1
            go(x)
        passes.append(count)
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:])), "passes": passes}
    """,
    HEAD,
)
script(
    "iterable_class",
    """
    class Batches:
        def __len__(self):
            return 10

        def __iter__(self):
            for _ in range(10):
                yield fresh()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    batches, passes = Batches(), []
    for epoch in range(5):
        passes.append(sum(1 for _ in map(go, batches)))
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:])), "passes": passes}
    """,
    HEAD,
)
QUEUE = """
    ready = queue.Queue({bound})

    def fill():
        for _ in range(300):
            ready.put(fresh())

    threading.Thread(target=fill, daemon={daemon}, name="filler").start()
    for _ in range({steps}):
        go(ready.get())
        {after}
    SAID = {{"drawn": N[0], "met": len(set(SEEN[-{last}:]))}}
"""
script("from_a_queue", QUEUE.format(bound=4, daemon=True, steps=60, last=24, after=""))

REPLAYED = {
    "nanogpt": "get_batch()",
    "local": "get_batch()",
    "method": "Batches.next_batch()",
    "inside_the_forward": "get_batch()",
    "by_indices": "load()",
    "two_that_train": "get_batch()",
    "compiled": "get_batch()",
    "generator": "batches()",
    "generator_of_epochs": "batches()",
    "generator_made_early": "batches()",
    "iterator_class": "Batches.__next__()",
    "iterable_class": "Batches.__iter__()",
    "from_a_queue": "Queue.get()",
}

# -- what is refused

script(
    "in_a_local_variable",
    """
    def main():
        def batches():
            while True:
                yield fresh()

        stream = batches()
        for _ in range(40):
            go(next(stream))

    main()
    SAID = {"drawn": N[0], "met": len(set(SEEN[-24:]))}
    """,
)
script(
    "made_too_early",
    """
    def batches():
        while True:
            yield fresh()

    for x in itertools.islice(batches(), 40):
        go(x)
    SAID = {"drawn": N[0]}
    """,
)
REFUSED: dict[str, str] = {}


def refused(name: str, why: str, text: str) -> None:
    REFUSED[script(name, text)] = why


LOOP = """
    for _ in range(40):
        go(get_batch())
    SAID = {"drawn": N[0], "met": len(set(SEEN))}
"""
refused(
    "changes_a_global",
    "get_batch(): it changes the global position",
    """
    position = 0

    def advance():
        global position
        position += 1

    def get_batch():
        advance()
        return fresh()
    """
    + LOOP,
)
refused(
    "changes_what_is_around",
    "it changes position of the function around it",
    """
    def make():
        position = 0

        def get_batch():
            nonlocal position
            position += 1
            return fresh()

        return get_batch

    get_batch = make()
    """
    + LOOP,
)
refused(
    "uses_the_model",
    "get_batch(): it uses the model model",
    """
    def imagine():
        with torch.no_grad():
            return model(fresh()).abs()

    def get_batch():
        return imagine()
    """
    + LOOP,
)
refused(
    "is_given_the_model",
    "it uses the model that it is given",
    """
    def get_batch(net):
        return fresh()

    for _ in range(40):
        go(get_batch(model))
    SAID = {"drawn": N[0], "met": len(set(SEEN))}
    """,
)
refused(
    "talks_to_ranks",
    "it talks to other ranks",
    """
    import torch.distributed as dist

    def get_batch():
        x = fresh()
        if dist.is_initialized():
            dist.broadcast(x, 0)
        return x
    """
    + LOOP,
)
refused(
    "asks_for_a_gradient",
    "its tensors ask for a gradient",
    """
    def get_batch():
        return fresh().requires_grad_()

    for _ in range(40):
        go(get_batch().detach())
    SAID = {"drawn": N[0], "met": len(set(SEEN))}
    """,
)
refused(
    "called_elsewhere",
    "it is called from elsewhere than the training loop too",
    """
    def get_batch():
        return fresh()

    def look():
        return float(get_batch().sum())

    for _ in range(20):
        go(get_batch())
        look()
    SAID = {"drawn": N[0], "met": len(set(SEEN)) * 2}
    """,
)
refused(
    "one_buffer",
    "it hands out the same tensor again",
    """
    buffer = torch.zeros(2, 4)

    def get_batch():
        return buffer.copy_(fresh())
    """
    + LOOP,
)
refused(
    "cannot_be_copied",
    "cannot be copied",
    """
    def get_batch():
        return fresh(), threading.Lock()

    for _ in range(40):
        go(get_batch()[0])
    SAID = {"drawn": N[0], "met": len(set(SEEN))}
    """,
)
EVERY = {"steps": 60, "last": 60, "daemon": True, "bound": 4}
refused(
    "task_done",
    "task_done() is called",
    QUEUE.format(**EVERY, after="ready.task_done()"),
)
refused("no_bound", "has no bound", QUEUE.format(**{**EVERY, "bound": 0}, after=""))
refused("no_daemon", "is no daemon", QUEUE.format(**{**EVERY, "daemon": False}, after=""))

# -- DataLoaders

ROWS = """
    class Rows(Dataset):
        def __init__(self, count, drawn=None):
            self.count, self.drawn = count, drawn

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            if self.drawn is not None:
                with self.drawn.get_lock():
                    self.drawn.value += 1
            return torch.full((4,), float(index))

    def train(loader, epochs=3, until=None):
        passes = []
        for _ in range(epochs):
            count = 0
            for x in loader:
                go(x)
                count += 1
                if count == until:
                    break
            passes.append(count)
        return passes
"""
script(
    "workers_that_stay",
    ROWS
    + """
    import multiprocessing, os
    drawn = multiprocessing.Value("i", 0)
    loader = DataLoader(Rows(40, drawn), batch_size=2, num_workers=2, persistent_workers=True)
    passes = train(loader, 1)
    before = drawn.value
    alive = [p.pid for p in multiprocessing.active_children()]
    passes += train(loader, 2)
    SAID = {"passes": passes, "met": len(set(SEEN[-40:])), "more": drawn.value - before,
            "alive": len(alive)}
    """,
)
script(
    "stream_of_a_loader",
    ROWS
    + """
    class Stream(IterableDataset):
        def __iter__(self):
            for _ in range(20):
                yield fresh()[0]

    SAID = {"passes": train(DataLoader(Stream(), batch_size=2), 4), "drawn": N[0]}
    """,
)
script(
    "fewer_than_are_kept",
    ROWS
    + """
    SAID = {"passes": train(DataLoader(Rows(10), batch_size=2, shuffle=True), 8),
            "met": len(set(SEEN[-20:]))}
    """,
)
script(
    "broken_off",
    ROWS
    + """
    loader = DataLoader(Rows(40), batch_size=2)
    passes = train(loader, 5, until=7)
    SAID = {"passes": passes, "met": len(set(SEEN[-14:])), "after": len(list(loader))}
    """,
)
script(
    "two_loaders",
    ROWS
    + """
    one = DataLoader(Rows(40), batch_size=2)
    other = DataLoader(Rows(60), batch_size=2)
    passes, met = [], set()
    for epoch in range(3):
        count = 0
        for x, y in zip(one, other):
            go(x)
            met.add(float(y[0, 0]))
            count += 1
        passes.append(count)
    SAID = {"passes": passes, "met": [len(set(SEEN)), len(met)]}
    """,
)
script(
    "cycled_and_prepared",
    ROWS
    + """
    def cycle(loader):
        while True:
            yield from loader

    def prepare(x):
        return x.clone()

    batches = cycle(DataLoader(Rows(40), batch_size=2))
    for _ in range(50):
        go(prepare(next(batches)))
    SAID = {"met": len(set(SEEN[-24:]))}
    """,
)
script(
    "labels_made_of_batches",
    ROWS
    + """
    class Labelled(Rows):
        def __getitem__(self, index):
            return super().__getitem__(index), index

    def one_hot(labels):
        return torch.nn.functional.one_hot(labels, 40)

    loader, wrong = DataLoader(Labelled(40), batch_size=2), 0
    for epoch in range(2):
        for x, labels in loader:
            made = one_hot(labels)
            wrong += made.argmax(1).tolist() != [int(v) for v in x[:, 0]]
            go(x)
    SAID = {"wrong": wrong, "met": len(set(SEEN[-24:]))}
    """,
)
script(
    "read_back",
    """
    def get_batch():
        return fresh()

    for _ in range(20):
        go(get_batch())
    torch.save(model.state_dict(), "kept.pt")
    try:
        torch.load("kept.pt")
        read = "read"
    except Exception:
        read = "not read"
    SAID = {"read": read}
    """,
)
script(
    "fails",
    """
    def get_batch():
        if N[0] == 5:
            raise ValueError("gone")
        return fresh()

    def batches():
        while True:
            yield get_batch()

    for x in batches():
        go(x)
    """,
)


@pytest.fixture(scope="module")
def legs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each script says of itself, and what is told of it."""
    place = tmp_path_factory.mktemp("replay")
    (place / "scratch").mkdir()
    asked = [
        {"key": "replay_batch", "value": KEPT},
        {"key": "skip_checkpoint", "value": True},
    ]
    config = {"warmup": WARMUP, "steps": 30, "scratch": str(place / "scratch"), "seed": 0}
    placed = deploy(place, trial={**config, "guard": "overlay", "what_if": asked})
    (place / "zygote.py").write_text(ZYGOTE)
    for name, text in SCRIPTS.items():
        (place / f"{name}.py").write_text(text)
    done = run(place / "zygote.py", *SCRIPTS, env=placed.env())
    assert done.returncode == 0, done.stderr.decode()
    return {name: told(place / f"{name}.json", done.stderr.decode()) for name in SCRIPTS}


def told(path: Path, said: str) -> dict[str, Any]:
    assert path.exists(), f"{path.stem} did not end: {said}"
    found: dict[str, Any] = json.loads(path.read_text())
    assert found["errors"] == [], path.stem
    return found


def rows(leg: dict[str, Any], key: str = "replay_batch") -> list[dict[str, Any]]:
    assert "said" in leg, leg.get("error")
    return [row for row in leg["trial"]["what_if"] if row["key"] == key]


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYED)
def test_what_gives_the_batches_is_found_and_replayed(legs: dict[str, Any], name: str) -> None:
    (row,) = rows(legs[name])
    said = legs[name]["said"]
    assert row["status"] == "applied", row
    assert f"{KEPT} batches of {REPLAYED[name]}, replayed from step" in row["why"]
    assert "what else it does is left out" in row["why"]
    assert said["met"] == KEPT
    if name not in ("from_a_queue", "nanogpt"):
        # Nothing is drawn any more once it is replayed, and that is in the warm-up.
        assert said["drawn"] <= WARMUP + 1
    if name == "from_a_queue":
        assert said["drawn"] <= WARMUP + 1 + 4 + 1
    if name == "nanogpt":
        # Two a step; an evaluation gets batches of its own, of both splits.
        assert said["drawn"] == {"train": said["drawn"]["train"], "val": 8}
        assert said["drawn"]["train"] <= 2 * WARMUP + 8
        assert said["distinct"] == [4] * 4
    if "passes" in said:
        assert len(set(said["passes"])) == 1
    if name == "compiled":
        assert said["graphs"] == 2  # of two functions: neither was compiled again
    if name == "method":
        assert said["holds"] == ["position"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_more_than_a_source_of_batches_is_refused_by_name(
    legs: dict[str, Any], name: str
) -> None:
    (row,) = rows(legs[name])
    said = legs[name]["said"]
    assert row["status"] == "refused" and REFUSED[name] in row["why"], row
    assert said["met"] in (40, 60)
    if "drawn" in said and "Queue" not in row["why"]:
        assert said["drawn"] == 40


@pytest.mark.slow
def test_a_generator_that_runs_already_is_named(legs: dict[str, Any]) -> None:
    (row,) = rows(legs["made_too_early"])
    assert row["status"] == "refused"
    assert "batches() at made_too_early.py:" in row["why"]
    assert "may have been called before it could be watched" in row["why"]
    assert legs["made_too_early"]["said"]["drawn"] == 40


@pytest.mark.slow
def test_a_generator_in_a_functions_variable_is_replayed_where_python_lets_it(
    legs: dict[str, Any],
) -> None:
    (row,) = rows(legs["in_a_local_variable"])
    said = legs["in_a_local_variable"]["said"]
    if sys.version_info >= (3, 13):
        assert row["status"] == "applied" and said["met"] == KEPT
    else:
        assert row["status"] == "refused" and "the generator stream of main()" in row["why"]
        assert said["drawn"] == 40


@pytest.mark.slow
def test_workers_that_stay_load_nothing_more(legs: dict[str, Any]) -> None:
    said = legs["workers_that_stay"]["said"]
    (row,) = rows(legs["workers_that_stay"])
    assert row["status"] == "applied"
    assert said == {"passes": [20] * 3, "met": KEPT, "more": 0, "alive": 0}


@pytest.mark.slow
def test_passes_of_loaders_stay_as_long_as_they_are(legs: dict[str, Any]) -> None:
    assert legs["stream_of_a_loader"]["said"]["passes"] == [10] * 4
    assert legs["stream_of_a_loader"]["said"]["drawn"] <= 2 * (WARMUP + 1)
    assert legs["fewer_than_are_kept"]["said"] == {"passes": [5] * 8, "met": 5}
    assert legs["broken_off"]["said"] == {"passes": [7] * 5, "met": 7, "after": 20}
    for name in ("stream_of_a_loader", "fewer_than_are_kept", "broken_off"):
        (row,) = rows(legs[name])
        assert row["status"] == "applied", name


@pytest.mark.slow
def test_two_loaders_that_train_are_both_replayed(legs: dict[str, Any]) -> None:
    told = rows(legs["two_loaders"])
    assert [row["status"] for row in told] == ["applied"] * 2
    assert legs["two_loaders"]["said"] == {"passes": [20] * 3, "met": [KEPT, KEPT]}


@pytest.mark.slow
def test_what_only_hands_a_loaders_batches_on_is_left_alone(legs: dict[str, Any]) -> None:
    (row,) = rows(legs["cycled_and_prepared"])
    assert row["status"] == "applied" and " of " not in row["why"]
    assert legs["cycled_and_prepared"]["said"]["met"] == KEPT
    (row,) = rows(legs["labels_made_of_batches"])
    assert row["status"] == "applied" and " of " not in row["why"]
    assert legs["labels_made_of_batches"]["said"] == {"wrong": 0, "met": KEPT}


@pytest.mark.slow
def test_a_checkpoint_read_back_makes_the_leg_inconclusive(legs: dict[str, Any]) -> None:
    found = {row["status"] for row in rows(legs["read_back"], "skip_checkpoint")}
    assert found == {"applied", "inconclusive"}
    assert legs["read_back"]["said"]["read"] == "not read"


@pytest.mark.slow
def test_a_script_that_fails_fails_in_its_own_frames(legs: dict[str, Any]) -> None:
    error = legs["fails"]["error"]
    assert error.endswith("ValueError: gone\n")
    assert "_gputop_probe" not in error and "gputop-train" not in error
