"""Records for the tests of the store: plain ones, and hypothesis strategies for any."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from hypothesis import strategies as st

from gputop_train.model import (
    EXPOSED_LABELS,
    LABELS,
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    Site,
    Step,
)

SECOND = 1_000_000_000
GPU = "GPU-3f2a9c1e-77b0-4c55-9d2e-000000000001"
NOBODY = 65534

counts = st.integers(0, 2**62)
small = st.integers(0, 2**40)
maybe = st.one_of(st.none(), counts)
numbers = st.one_of(st.none(), st.floats(allow_nan=False))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def step(index: int, t0_ns: int, wall_ns: int = 10_000_000, rank: int = 0, **more: object) -> Step:
    """A step that waits for data for 40% of its time."""
    wait = wall_ns * 4 // 10
    labels = {"data_wait": wait, "forward": wall_ns - wait}
    return Step(rank, index, t0_ns, t0_ns + wall_ns, labels, **more)  # type: ignore[arg-type]


def steps(count: int, t0_ns: int, wall_ns: int = 10_000_000, rank: int = 0) -> list[Step]:
    """Steps one after the other."""
    return [step(i, t0_ns + i * wall_ns, wall_ns, rank) for i in range(count)]


def site(number: int, count: int, total_ns: int, **more: object) -> Site:
    """A blocking read at a line of its own."""
    place = ("sync", "/home/alice/project/train.py", number, "train", "loss.item()")
    return Site(0, number, *place, None, count, total_ns, **more)  # type: ignore[arg-type]


def loader(**more: object) -> Loader:
    """A loader with two workers."""
    place = ("/home/alice/project/train.py", 41, "DataLoader(train_set, num_workers=2)", "Images")
    return Loader(0, 1, *place, 2, 64, True, False, 2, False, **more)  # type: ignore[arg-type]


@st.composite
def any_steps(draw: st.DrawFn, count: int = 12) -> list[Step]:
    """Steps of one rank, one after the other, with any labels and event data."""
    t_ns = draw(st.integers(SECOND, 2**50))
    found = []
    for index in range(draw(st.integers(1, count))):
        labels = draw(st.dictionaries(st.sampled_from(LABELS), st.integers(0, 10**9), max_size=6))
        wall_ns = max(1, sum(labels.values()))
        labels["other"] = labels.get("other", 0) + wall_ns - sum(labels.values())
        exposed = st.dictionaries(st.sampled_from(EXPOSED_LABELS), small, max_size=4)
        found.append(
            Step(
                0, index, t_ns, t_ns + wall_ns,
                dict.fromkeys(LABELS, 0) | labels,
                draw(st.one_of(st.none(), exposed)), draw(st.integers(0, 9)),
                draw(st.one_of(st.none(), st.integers(0, 999))),
                draw(st.one_of(st.none(), st.floats(0, 1))), draw(st.integers(0, 9)),
                draw(st.integers(0, wall_ns)),
            )
        )  # fmt: skip
        t_ns += wall_ns
    return found


sites = st.builds(
    Site, st.integers(0, 63), counts, st.just("sync"), texts, counts, texts, texts,
    st.one_of(st.none(), texts), counts, counts, maybe, maybe,
)  # fmt: skip
loaders = st.builds(
    Loader, st.integers(0, 63), counts, texts, counts, texts, texts, counts, maybe, st.booleans(),
    st.booleans(), maybe, st.booleans(), maybe, st.booleans(),
    st.lists(counts, max_size=3).map(tuple), maybe, counts, counts, st.booleans(), counts,
    st.dictionaries(texts, st.one_of(st.none(), st.integers(0, 9), texts), max_size=2),
)  # fmt: skip
intervals = st.builds(
    Interval, st.integers(0, 63), st.sampled_from(LABELS), small, small, maybe, maybe
)
memories = st.builds(
    MemorySample, st.integers(0, 63), small, maybe, st.just("rss-anon"), counts,
    *[maybe] * 6,
)  # fmt: skip
gpus = st.builds(
    GpuSample, small, st.sampled_from([GPU, "MIG-1"]), *[maybe] * 4, numbers, numbers,
    *[maybe] * 8, numbers, numbers,
)  # fmt: skip
gpms = st.builds(GpmSample, small, st.sampled_from([GPU, "MIG-1"]), *[numbers] * 7)
hosts = st.builds(
    HostSample, small, numbers, numbers, maybe, maybe, numbers, maybe, maybe, maybe, numbers,
    maybe, maybe, *[numbers] * 4,
)  # fmt: skip
procs = st.builds(
    ProcSample, small, st.integers(1, 2**31), st.sampled_from(["trainer", "worker"]), numbers,
    maybe, maybe, maybe, numbers, numbers, st.one_of(st.none(), texts), maybe,
)  # fmt: skip


def in_child(work: Callable[[], object], *, uid: int | None = None) -> int:
    """Runs ``work`` in a forked child, as another user if asked; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
