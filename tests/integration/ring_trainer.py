"""A training process as the supervisor sees one: it writes a real ring, without torch.

Started by the real launcher, it finds the probe beside itself as any script would, and writes the
words of a loop (batch, backward, optimizer) with real times through the probe's own ring writer.

Options: --steps N, --step-ms MS, --exit CODE, --rank R, --stubborn (ignore SIGINT and SIGTERM),
--marker FILE (written at the very end), --save-every N, --after FILE (before the loop, wait until FILE is
there), --until FILE (after the loop, stay until FILE is there).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time

PROBE = next(
    place
    for place in os.environ["PYTHONPATH"].split(os.pathsep)
    if os.path.isdir(os.path.join(place, "_gputop_probe"))
)
if PROBE not in sys.path:
    sys.path.insert(0, PROBE)

from _gputop_probe import ring, words  # type: ignore[import-not-found]  # noqa: E402


def edge(phase: int, end: bool) -> int:
    return time.monotonic_ns() << words.CODE_BITS | phase << 1 | end


def argument(amount: int, site: int) -> int:
    return (amount << 16 | site) << words.CODE_BITS | words.ARG_SITE


def snapshot(steps: int) -> bytes:
    return json.dumps(
        {
            "v": 1,
            "t_ns": time.monotonic_ns(),
            "cuda": {"built": False, "available": False, "initialized": False},
            "param_device": "cpu",
            "sites": [[1, "save", "train.py", 7, "main", "torch.save(...)", None]],
            "site_stats": {"1": [steps, steps * 1000, 0, 0]},
            "loaders": [
                {"id": 1, "file": "train.py", "line": 3, "call": "DataLoader(data)",
                 "dataset": "Data", "num_workers": 0, "batch_size": 4, "feeds_training": True,
                 "batches": steps, "wait_ns": steps * 1000},
            ],
            "hooks": dict.fromkeys(("data", "backward", "optimizer", "sync", "save", "eval"), True),
        }
    ).encode()  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--marker")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--after")
    parser.add_argument("--until")
    args = parser.parse_args()
    if args.stubborn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(os.path.join(PROBE, "config.json")) as file:
        ring_dir = json.load(file)["ring_dir"]
    pid, ticks = os.getpid(), ring.start_ticks(os.getpid())
    writer = ring.RingWriter(
        os.path.join(ring_dir, f"{pid}-{ticks}.ring"),
        pid=pid, start_ticks=ticks, rank=args.rank, local_rank=args.rank,
        wall_ns=time.time_ns(), mono_ns=time.monotonic_ns(),
    )  # fmt: skip
    print("ready", flush=True)
    while args.after and not os.path.exists(args.after):
        time.sleep(0.02)
    for step in range(args.steps):
        train_step(writer, args, step)
    writer.snapshot(snapshot(args.steps))
    writer.set_state(ring.FINISHED)
    while args.until and not os.path.exists(args.until):
        writer.beat(time.monotonic_ns(), 0)
        time.sleep(0.05)
    if args.marker:
        with open(args.marker, "w") as file:
            file.write("done")
    return args.exit


def train_step(writer: ring.RingWriter, args: argparse.Namespace, step: int) -> None:
    third = args.step_ms / 3000
    log = [edge(words.DATA, False)]
    time.sleep(third)
    log += [edge(words.DATA, True), argument(4, 1), edge(words.BACKWARD, False)]
    time.sleep(third)
    log += [edge(words.BACKWARD, True), edge(words.OPTIMIZER, False), argument(1, 0)]
    time.sleep(third)
    log.append(edge(words.OPTIMIZER, True))
    if args.save_every and step % args.save_every == args.save_every - 1:
        log.append(edge(words.SAVE, False))
        time.sleep(third)
        log += [edge(words.SAVE, True), argument(1000, 1)]
    writer.write(log)
    writer.beat(time.monotonic_ns(), 0)
    if step % 20 == 0:
        writer.snapshot(snapshot(step))
    print("step", step, flush=True)


if __name__ == "__main__":
    sys.exit(main())
