"""What fetching a batch costs is told by process, and the script does not notice the counting."""

from __future__ import annotations

import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.snapshots import loaders_from_snapshot
from gputop_train.model import Loader
from tests.probe_support import deploy, run

MS = 1_000_000

HEAD = """
import functools, os, sys, time, warnings
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.full((4,), float(i))

class Many(Slow):
    def __getitems__(self, indices):
        time.sleep(0.004)
        return [torch.full((4,), float(i)) for i in indices]

class Stream(IterableDataset):
    def __iter__(self):
        for i in range(10):
            time.sleep(0.002)
            yield torch.full((4,), float(i))

class Pile:
    def __call__(self, items):
        time.sleep(0.006)
        return torch.stack(items)
    def bound(self, items):
        return torch.stack(items)

def pile(items, unused=0):
    time.sleep(0.006)
    return torch.stack(items)

def train(*loaders, epochs=2):
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    for loader in loaders:
        for _ in range(epochs):
            for x in loader:
                model(x).sum().backward()
                optimizer.step()
"""


def watched(tmp_path: Path, body: str, head: str = HEAD) -> list[Loader]:
    script = tmp_path / "script.py"
    script.write_text(head + textwrap.dedent(body))
    deployed = deploy(tmp_path, overhead_budget=1)  # every step recorded, however short
    done = run(script, env=deployed.env())
    assert done.returncode == 0, done.stderr
    snapshots = [Ring.open(path).snapshot() or {} for path in deployed.ring_files()]
    (told,) = [snap for snap in snapshots if snap["loaders"]]
    assert told["hooks"]["fetch"] is True and told["errors"] == []
    return loaders_from_snapshot(0, told)


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> list[Loader]:
    """One run over loaders of every kind."""
    return watched(
        tmp_path_factory.mktemp("kinds"),
        """
        train(
            DataLoader(Slow(), 4, collate_fn=pile),
            DataLoader(Slow(), 4, num_workers=2, collate_fn=functools.partial(pile, unused=1)),
            DataLoader(Subset(Many(), range(20)), 4, num_workers=2, persistent_workers=True,
                       collate_fn=Pile()),
            DataLoader(Stream(), 4, num_workers=2, collate_fn=Pile().bound),
            DataLoader(Stream(), None, collate_fn=lambda x: x[None]),
            DataLoader(ConcatDataset([Slow(), Slow()]), 8, num_workers=1, drop_last=True),
            DataLoader([torch.ones(4)] * 8, batch_sampler=[(0, 1), (2, 3, 4)]),
        )
        """,
    )


def counted(loader: Loader) -> list[tuple[int, int, int, int]]:
    return [(f.worker, f.batches, f.items, f.starts) for f in loader.fetch]


def test_the_process_that_trains_counts_its_own_batches(loaders: list[Loader]) -> None:
    (own,) = loaders[0].fetch
    assert counted(loaders[0]) == [(-1, 12, 48, 1)]
    # 2 ms an item and 6 ms a batch: neither part may hold what belongs to the other.
    assert own.collate_ns >= own.batches * 6 * MS
    assert own.fetch_ns - own.collate_ns >= own.items * 2 * MS
    assert own.fetch_ns // own.batches <= own.longest_ns <= own.fetch_ns
    assert loaders[0].starts == loaders[0].start_ns == 0
    assert loaders[0].first_waits == 2 and loaders[0].first_wait_ns >= 2 * 14 * MS


def test_each_worker_counts_for_itself_and_its_successors(loaders: list[Loader]) -> None:
    assert counted(loaders[1]) == [(0, 6, 24, 2), (1, 6, 24, 2)]
    for fetch in loaders[1].fetch:
        assert fetch.collate_ns >= fetch.batches * 6 * MS
        assert fetch.fetch_ns - fetch.collate_ns >= fetch.items * 2 * MS
    assert loaders[1].starts == 2 and loaders[1].start_ns > 0
    assert len({f.pid for f in loaders[1].fetch}) == 2


def test_workers_that_persist_start_once(loaders: list[Loader]) -> None:
    assert counted(loaders[2]) == [(0, 6, 24, 1), (1, 4, 16, 1)]
    assert loaders[2].starts == 1 and loaders[2].first_waits == 2


def test_items_of_a_short_last_batch_are_counted_as_they_are(loaders: list[Loader]) -> None:
    assert counted(loaders[3]) == [(0, 6, 20, 2), (1, 6, 20, 2)]
    assert counted(loaders[4]) == [(-1, 20, 20, 1)]
    assert counted(loaders[6]) == [(-1, 4, 10, 1)]


def test_the_code_that_makes_items_and_batches_is_named(loaders: list[Loader]) -> None:
    def named(loader: Loader) -> tuple[str | None, str | None]:
        source, collate = loader.source, loader.collate
        return source and source.what, collate and collate.what

    assert [named(loader) for loader in loaders] == [
        ("Slow.__getitem__", "pile"),
        ("Slow.__getitem__", "pile"),
        ("Many.__getitems__", "Pile.__call__"),
        ("Stream.__iter__", "Pile.bound"),
        ("Stream.__iter__", "<lambda>"),
        ("Slow.__getitem__", None),
        (None, None),
    ]
    source = loaders[0].source
    assert source is not None
    line = Path(source.file).read_text().splitlines()[source.line - 1]
    assert line.strip() == "def __getitem__(self, i):"


def test_what_a_loader_is_made_of(loaders: list[Loader]) -> None:
    assert [(ld.length, ld.dataset_length) for ld in loaders] == [
        (6, 24),
        (6, 24),
        (5, 20),
        (None, None),
        (None, None),
        (6, 48),
        (None, None),
    ]
    assert {loader.in_order for loader in loaders} == {True}
    assert [loader.context for loader in loaders[:3]] == [None, "fork", "fork"]


def test_odd_workers_are_counted_as_far_as_they_got(tmp_path: Path) -> None:
    """One that raises, one that is killed, those of spawn, and a loader inside a worker."""
    raises, killed, spawned, outer = watched(
        tmp_path,
        """
        class Raises(Slow):
            def __getitem__(self, i):
                if i == 20:
                    raise IndexError(i)
                return super().__getitem__(i)

        class Dies(Slow):
            def __getitem__(self, i):
                if i == 20:
                    os.kill(os.getpid(), 9)
                return super().__getitem__(i)

        class Outer(Slow):
            def __getitem__(self, i):
                return torch.stack(list(DataLoader([torch.ones(4)] * 2, None))).sum(0)

        if __name__ == "__main__":
            for broken in (Raises(), Dies()):
                try:
                    train(DataLoader(broken, 4, num_workers=1))
                except (IndexError, RuntimeError, OSError, EOFError):  # as the queue died
                    pass
            train(DataLoader(Slow(), 4, num_workers=1, multiprocessing_context="spawn"), epochs=1)
            train(DataLoader(Outer(), 4, num_workers=1), epochs=1)
        """,
    )
    assert counted(raises) == [(0, 5, 20, 1)]
    assert counted(killed) == [(0, 5, 20, 1)]
    assert (counted(spawned), spawned.context, spawned.starts) == ([], "spawn", 1)
    assert counted(outer) == [(0, 6, 24, 1)]


HARMLESS = """
import copy, inspect, pickle, random, re, traceback
import numpy as np

def noisy(items):
    warnings.warn("planted", stacklevel=3)
    if len(items) < 9:
        raise ValueError(f"planted {len(items)}")
    return torch.stack(items) + torch.rand(1) + random.random() + np.random.rand()

class Random(Slow):
    def __getitem__(self, i):
        return torch.randn(4) + random.random() + np.random.rand()

class Bare(Dataset):
    asked = 0
    def __getattr__(self, name):
        raise AttributeError(name)
    def __len__(self):
        type(self).asked += 1
        return 4
    def __getitem__(self, i):
        return torch.ones(4)

class Noted(torch.overrides.TorchFunctionMode):
    seen = []
    def __torch_function__(self, function, types, args=(), kwargs=None):
        Noted.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))

class Spied(Dataset):
    asked = []
    def __getattribute__(self, name):
        Spied.asked.append(name)
        return super().__getattribute__(name)
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return torch.ones(4)

def show(loader):
    try:
        for x in loader:
            print(x.double().sum().item().hex())
    except ValueError:
        print(re.sub(r"process \\d+|0x\\w+", "", traceback.format_exc()))

if __name__ == "__main__":
    torch.manual_seed(1); random.seed(1); np.random.seed(1)
    train(DataLoader(Slow(), 8), epochs=1)
    for options in ({}, {"num_workers": 1}, {"num_workers": 1, "multiprocessing_context": "spawn"}):
        show(DataLoader(Random(), 9, shuffle=True, collate_fn=noisy, **options))
        sys.stdout.flush(); sys.stderr.flush()
    print(torch.randn(1).item().hex(), random.random(), np.random.rand())
    loader = DataLoader(Slow(), 8, collate_fn=pile); iterator = iter(loader); next(iterator)
    fetcher = iterator._dataset_fetcher
    print(fetcher.collate_fn is pile, loader.collate_fn is pile, sorted(vars(loader)))
    print(vars(fetcher)["collate_fn"] is pile, pickle.loads(pickle.dumps(loader)).collate_fn is pile)
    for twin in (copy.copy(fetcher), copy.deepcopy(fetcher), pickle.loads(pickle.dumps(fetcher))):
        print(twin.fetch([1, 2]).sum().item())
    fetcher.collate_fn = noisy
    try:
        next(iterator)
    except ValueError:
        traceback.print_exc()
    try:
        fetcher.nothing
    except AttributeError as error:
        print(error)
    kind = type(fetcher)
    print(kind.fetch.__name__, kind.fetch.__qualname__, inspect.signature(kind.fetch))
    list(DataLoader(Bare(), 2))
    with Noted():
        list(DataLoader(Slow(), 8))
    print(Noted.seen)
    list(DataLoader(Spied(), 2))
    print(Spied.asked)
    print(torch.get_num_threads(), warnings.filters[:2])
"""


def test_neither_output_nor_numbers_nor_tracebacks_nor_warnings_change(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HEAD + HARMLESS)
    with ThreadPoolExecutor(2) as pool:
        runs = pool.submit(run, script), pool.submit(run, script, env=deploy(tmp_path).env())
        bare, ours = runs[0].result(), runs[1].result()
    assert bare.returncode == 0 and b"planted 6" in bare.stdout, bare.stderr
    assert ours.stdout.decode() == bare.stdout.decode()
    assert ours.stderr.decode() == bare.stderr.decode()


def test_a_loader_for_each_epoch_leaves_room_for_the_rest(tmp_path: Path) -> None:
    """Three hundred loaders would not fit a snapshot: the newest known are told, and all else."""
    told = watched(
        tmp_path,
        """
        for _ in range(300):
            train(DataLoader([torch.ones(4)] * 4, 2, collate_fn=pile_of_a_long_name), epochs=1)
        """,
        head=HEAD
        + f"\ndef pile_of_a_long_name(items, unused={'x' * 400!r}):\n    return items[0]\n",
    )
    ids = [loader.id for loader in told]
    assert 20 < len(ids) < 256 and ids == sorted(ids)
    assert ids[-1] == 256  # as many as are known at all
    assert counted(told[-1]) == [(-1, 2, 4, 1)]
