"""A store whose steps differ in known ways, written by the real writer."""

from __future__ import annotations

import os
from pathlib import Path

from gputop_train.model import LABELS, Interval, Site, Step
from gputop_train.store.writer import RunWriter

from .made_run import MS, START, S, cuda, exit_json, run_json

#: By label: a step of 100 ms.
USUAL = {"data_wait": 20 * MS, "forward": 25 * MS, "backward": 40 * MS, "optimizer": 15 * MS}
SAVES, EVALUATION, SLOW_WAIT, QUICK = (60, 120, 180), 100, 150, 170
EVERY = 5


def parts_of(index: int) -> dict[str, int]:
    parts = dict(USUAL)
    parts["forward"] += index * 7 % 11 * MS // 4  # no two neighbours alike
    if index == 0:
        parts["forward"] += 900 * MS
    elif index in SAVES:
        parts["checkpoint"] = (640 + index) * MS
    elif index == EVALUATION:
        parts["eval"] = 1_100 * MS
    elif index == SLOW_WAIT:
        parts["data_wait"] = 320 * MS
    elif index == QUICK:
        parts["backward"], parts["data_wait"] = 5 * MS, 2 * MS
    return parts


def made(count: int, rank: int = 0, *, gpu: bool = True, recorded: bool = True) -> list[Step]:
    out = []
    t = START + 5 * S
    for index in range(count):
        parts = parts_of(index)
        wall = sum(parts.values())
        exposed = None
        if gpu and index % EVERY == 0:
            exposed = {"data_wait": max(0, parts["data_wait"] - 5 * MS), "h2d": 0, "sync": 0}
            if "checkpoint" in parts:
                exposed["checkpoint"] = parts["checkpoint"] - 30 * MS
        timed = wall - parts["forward"] if recorded else parts.get("checkpoint", 0)
        more = {"samples": 64, "measured_ns": timed}
        dry = None if exposed is None else 0.0
        labels = dict.fromkeys(LABELS, 0) | parts
        out.append(Step(rank, index, t, t + wall, labels, exposed, dry=dry, **more))
        t += wall
    return out


def pauses_of(steps: list[Step]) -> list[Interval]:
    found = []
    for step in steps:
        begin = step.t0_ns + MS
        if save := step.labels["checkpoint"]:
            found.append(Interval(step.rank, "checkpoint", begin, begin + save, 8, 1_841_419_490))
        if length := step.labels["eval"]:
            found.append(Interval(step.rank, "eval", begin, begin + length))
    return found


def write(
    path: Path,
    count: int = 240,
    *,
    gpu: bool = True,
    recorded: bool = True,
    ranks: int = 1,
    ended: bool = False,
) -> int:
    """A run directory; returns the whole second its last step ended in, as a screen reads it."""
    path.mkdir(exist_ok=True)
    run_json(path, pid=os.getpid())
    end = START + 5 * S
    with RunWriter(path / "run.sqlite") as writer:
        for rank in range(ranks):
            steps = made(count, rank, gpu=gpu, recorded=recorded)
            writer.add_steps(steps)
            writer.add_intervals(pauses_of(steps))
            places = [
                Site(rank, 8, "save", "/p/train.py", 88, "main", "torch.save(state, path)"),
                Site(rank, 9, "eval", "/p/train.py", 62, "main", "model.eval()"),
            ]
            writer.put_sites(places, START + 6 * S)
            events = {"every": EVERY, "steps": count // EVERY, "off_reason": None}
            state = {"cuda": cuda(gpu)} | ({"gpu_events": events} if gpu else {})
            state["detail"] = {"recorded": count if recorded else 8, "steps": count}
            writer.put_probe_state(rank, state, START + 6 * S)
            end = steps[-1].t1_ns if steps else end
        writer.commit()
    (path / "output.log").write_text("training\n")
    if ended:
        exit_json(path, end + S)
    return -(-end // S) * S
