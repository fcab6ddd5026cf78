"""Stores of runs with few, many and no loader workers, written by the real writer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from gputop_train.model import Fetch, Loader, MemorySample, ProcSample
from gputop_train.store.writer import RunWriter

from .made_cards import END, SECONDS, host_at
from .made_run import GIB, MS, START, S, cuda, run_json, steps

MIB = 1 << 20


def loader(workers: int, *, number: int = 1, feeds: bool = True) -> Loader:
    fetch = tuple(
        Fetch(w, 5000 + w, 150, 150 * (180 + 3 * w) * MS, 150 * 20 * MS, 400 * MS, 150 * 64)
        for w in (range(workers) if workers else (-1,))
    )
    return Loader(
        rank=0,
        id=number,
        file="/home/me/proj/train.py" if feeds else "/home/me/proj/evaluate.py",
        line=41 if feeds else 88,
        call="DataLoader(train_set)",
        dataset="ImageFolder" if feeds else "Validation",
        num_workers=workers,
        batch_size=64,
        pin_memory=True,
        persistent_workers=False,
        prefetch_factor=2 if workers else None,
        iterable=False,
        length=20_019,
        worker_pids=tuple(5000 + w for w in range(workers)) if feeds else (),
        ready=0,
        batches=600 if feeds else 40,
        wait_ns=600 * 60 * MS,
        feeds_training=feeds,
        epochs=2,
        fetch=fetch if feeds else (),
        dataset_length=1_281_167,
        context="fork" if workers else None,
    )


def write(path: Path, workers: int = 4, *, loaders: int = 1) -> int:
    """Fill a store; returns its end."""
    path.mkdir(parents=True, exist_ok=True)
    run_json(path, pid=os.getpid())
    with RunWriter(path / "run.sqlite") as writer:
        writer.add_steps(steps(SECONDS * 10))
        writer.put_probe_state(0, {"cuda": cuda(False), "param_device": "cpu"}, END)
        writer.set_meta("missing", {"nvml": "There is no NVIDIA driver on this machine."})
        for second in range(SECONDS):
            t = START + second * S
            mine = [loader(workers)]
            mine += [loader(2, number=2 + n, feeds=False) for n in range(loaders - 1)]
            for one in mine:
                ready = (second // 3) % 3 if workers else None
                writer.put_loaders([_with(one, ready)], t)
            writer.add_host(host_at(t, 16))
            writer.add_procs(
                [
                    ProcSample(
                        t,
                        4000,
                        "trainer",
                        cpu=1.6,
                        main_cpu=0.97,
                        rss=2 * GIB,
                        rss_anon=GIB,
                        run_delay=0.1,
                        state="R",
                        rank=0,
                    ),
                    *(
                        ProcSample(
                            t,
                            5000 + w,
                            "worker",
                            cpu=((w * 13 + second) % 11) / (10 if workers < 16 else 60),
                            rss_anon=(300 + w) * MIB,
                            uss=(250 + w) * MIB,
                            read_bytes_per_s=3e6 + 1e5 * w,
                            rchar_per_s=4e6,
                            state="DRSR"[(w + second) % 4],
                            run_delay=0.02,
                        )
                        for w in range(workers)
                    ),
                ]
            )
            writer.add_memory([MemorySample(0, t, second * 10, "rss-anon", GIB)])
        writer.commit()
    (path / "output.log").write_text("")
    return END


def _with(one: Loader, ready: int | None) -> Loader:
    return replace(one, ready=ready)
