"""Whether anything of ours grows: a long watched training, sampled; and 30 days in compressed time.

    python benchmarks/soak.py --minutes 60 --write benchmarks/results/soak.md      # a real hour
    python benchmarks/soak.py --device cuda --minutes 20 --write soak_cuda.md      # beside a GPU
    python benchmarks/soak.py --compressed --days 30 --write benchmarks/results/soak_30_days.md

Real time: an ordinary training (loader workers, prints, checkpoints, evaluations) under
``gputop-train`` with the screen on a pseudo-terminal whose pages are turned, beside the same
training without us. Compressed: a real supervisor, store, diagnosis and screen source, whose clock
is ours: the words of a training go through a real ring as fast as they are taken.

Memory (RSS; PSS and private beside it), descriptors, threads and files of each of our processes
are sampled. Over the steady part a slope is fitted with a 95% interval (soak_bench/trend.py), and
``flat`` is said only if the whole interval is inside the bound that stands beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Soak, and print or write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, help="of real time")
    length.add_argument("--minutes", type=float, help="of real time; 60 if neither is given")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for the real training")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--turn", type=float, default=30.0, help="seconds a page is in front")
    parser.add_argument("--settle", type=float, help="minutes left out; a third if not given")
    parser.add_argument("--compressed", action="store_true", help="a made run in our own time")
    parser.add_argument("--days", type=float, default=30.0, help="of a made run")
    parser.add_argument("--limit", type=float, default=7_200.0, help="seconds a made run may take")
    parser.add_argument("--write", type=Path, help="file for the table; stdout if not given")
    parser.add_argument("--samples", type=Path, help="file for every sample, as JSON")
    parser.add_argument("--again", type=Path, help="make the table of such a file again")
    args = parser.parse_args()
    from soak_bench import table

    if args.again:
        found = json.loads(args.again.read_text())
    else:
        with tempfile.TemporaryDirectory(prefix="soak-") as place:
            found = soak(args, Path(place))
        found["command"] = " ".join(["python", "benchmarks/soak.py", *_told(sys.argv[1:])])
        found["python"] = platform.python_version()
        found["at"] = time.strftime("%Y-%m-%d")
        if args.samples:
            args.samples.write_text(json.dumps(found))
    text = table.compressed(found) if found["compressed"] else table.live(found, args.settle)
    if args.write:
        args.write.write_text(text)
    print(text)
    return 0


def soak(args: argparse.Namespace, place: Path) -> dict[str, object]:
    """Run what was asked for; progress goes to stderr."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if args.compressed:
        from soak_bench import compressed

        found = compressed.soak(place, args.days, args.limit, say)
        return {"compressed": True, **found}
    from soak_bench import live

    minutes = args.minutes or (args.hours or 1.0) * 60
    found = live.soak(place, minutes, args.device, args.every, args.turn, say)
    return {"compressed": False, "minutes": minutes, "device": args.device, **found}


def _told(words: list[str]) -> list[str]:
    """The command without where its output went."""
    kept, skip = [], False
    for word in words:
        if skip or word in ("--write", "--samples"):
            skip = not skip
            continue
        kept.append(word)
    return kept


if __name__ == "__main__":
    sys.exit(main())
