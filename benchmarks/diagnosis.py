"""Judge the diagnosis: run every script of a directory of cases and compare with what is expected.

    python benchmarks/diagnosis.py DIR [--only 03 25] [--repeat 5] [--no-gain] [--keep KEPT]
    python benchmarks/diagnosis.py DIR --rejudge KEPT     judge kept recordings again: seconds

DIR holds ``scripts/*.py``, ``fixed/*.py`` (the same with the fault mended) and ``expected.json``.
Each script and its twin run under ``gputop-train`` on the device that is there (without a GPU only
the cases visible on a CPU), then both plain and in turn, for the gain. A script that fails or takes
too long is a line of the table. ``--keep`` leaves a recording of each run, ``--out`` the table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from diagnosis_bench import cases, judging, running, table

#: A case may take so long in all; what is left over goes to further pairs.
CASE_S = 300.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="names or numbers")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="watched runs of each")
    parser.add_argument("--no-twin", action="store_true", help="leave the corrected scripts out")
    parser.add_argument("--no-gain", action="store_true", help="no plain runs")
    parser.add_argument("--pairs", type=int, default=2, help="plain pairs of script and twin")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once; disturbs timings")
    parser.add_argument("--seconds", type=float, default=120.0, help="most for one run")
    parser.add_argument("--steps", type=int, metavar="N", help="at most so many steps a run")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep a recording of each run")
    parser.add_argument("--rejudge", type=Path, metavar="DIR", help="judge kept recordings again")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the table here too")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the scripts")
    return parser.parse_args(arguments)


class Sweep:
    """The cases, their answers so far, and the table that is written as they come."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.facts = table.machine(args.python)
        on_gpu = self.facts["card"] is not None
        if args.rejudge is not None and not args.only:
            # Recordings may come from another machine: whatever was kept is judged.
            kept = {path.name.split(".")[0] for path in args.rejudge.glob("*.zip")}
            args.only = sorted(kept)
        self.cases = [
            replace(case, steps=min(case.steps, args.steps or case.steps))
            for case in cases.load(args.directory, on_gpu=on_gpu, only=args.only)
        ]
        self.rows: list[judging.Judged] = []
        self.measured: dict[str, running.Measured] = {}
        self._how = "python benchmarks/diagnosis.py DIR"

    def run(self) -> None:
        """Everything; the table is complete after every case."""
        if self.args.keep is not None:
            self.args.keep.mkdir(parents=True, exist_ok=True)
        work = self._rejudged if self.args.rejudge is not None else self._watched
        gains = not (self.args.no_gain or self.args.no_twin or self.args.rejudge is not None)
        paired = [case for case in self.cases if gains and case.twin is not None]
        if self.args.jobs <= 1:
            # Each case is finished before the next: a sweep cut short is whole as far as it got.
            for case in self.cases:
                self._took(work(case))
                if case in paired:
                    self._measure(case)
            return
        with ThreadPoolExecutor(self.args.jobs) as pool:
            for rows in pool.map(work, self.cases):
                self._took(rows)
        for case in paired:  # last: several at once would disturb the timings
            self._measure(case)

    def _took(self, rows: Sequence[judging.Judged]) -> None:
        self.rows += rows
        for row in rows:
            word = "right" if row.passed else "WRONG"
            why = "; ".join([*row.failures, *row.remarks, *row.abstained[:1]])
            print(f"{row.name} {row.kind:6} {word} said {row.said} {row.where} {why}", flush=True)
        self._write()

    def _write(self) -> None:
        if self.args.out is not None:
            self.args.out.write_text(self.text())

    def text(self) -> str:
        """The table as it stands."""
        return table.render(self.rows, self.measured, table.heading(self.facts, self._how))

    def _watched(self, case: cases.Case) -> list[judging.Judged]:
        found = []
        for number in range(self.args.repeat):
            found += list(self._answers(case, number))
        return found

    def _answers(self, case: cases.Case, number: int) -> Iterator[judging.Judged]:
        first = self._one(case, "as is", number)
        yield self._judged(case, "as is", first, None)
        if case.twin is not None and not self.args.no_twin:
            second = self._one(case, "twin", number)
            yield self._judged(case, "twin", second, first)

    def _one(self, case: cases.Case, kind: str, number: int) -> running.Watched:
        keep = None if self.args.keep is None else self.args.keep / kept_name(case, kind, number)
        try:
            return running.watch(case, kind, self.args.seconds, keep, self.args.python)
        except Exception as failure:  # one case that cannot be run is a line, not the end
            return running.Watched(None, 0.0, ended=f"{type(failure).__name__}: {failure}")

    def _rejudged(self, case: cases.Case) -> list[judging.Judged]:
        rows = []
        number = 0
        while (path := self.args.rejudge / kept_name(case, "as is", number)).exists():
            first = self._again(path)
            rows.append(self._judged(case, "as is", first, None))
            twin = self.args.rejudge / kept_name(case, "twin", number)
            if twin.exists():
                rows.append(self._judged(case, "twin", self._again(twin), first))
            number += 1
        return rows

    def _again(self, path: Path) -> running.Watched:
        try:
            return running.rejudge(path)
        except Exception as failure:  # a rule that fails on one recording is a line, not the end
            return running.Watched(None, 0.0, ended=f"{type(failure).__name__}: {failure}")

    def _judged(
        self, case: cases.Case, kind: str, found: running.Watched, first: running.Watched | None
    ) -> judging.Judged:
        if found.report is None:
            why = found.ended or "no report"
            tail = found.tail.strip().rpartition("\n")[2][:200]
            row = judging.Judged(case.name, kind, case.expected, "no answer")
            row.failures.append(f"{why}: {tail}" if tail else why)
            return row
        if kind == "as is":
            row = judging.judge(case, found.report, found.current)
        else:
            row = judging.judge_twin(case, found.report, first.report if first else None)
        row.wall_s = found.wall_s
        if found.ended:
            row.remarks.append(found.ended)
        if found.told and kind == "as is":
            row.remarks.append(f"told live after {found.told}")
        return row

    def _measure(self, case: cases.Case) -> None:
        deadline = time.monotonic() + CASE_S / 2
        result = running.measure(
            case, self.args.pairs, self.args.seconds, deadline, python=self.args.python
        )
        self.measured[case.name] = result
        ratios = " ".join(f"{ratio:.2f}x" for ratio in result.ratios)
        print(f"{case.name} mended: {ratios} {result.note}", flush=True)
        self._write()


def kept_name(case: cases.Case, kind: str, number: int) -> str:
    """The file of one kept run."""
    return f"{case.name}.{kind.replace(' ', '-')}.{number}.zip"


def main() -> int:
    """Run or judge again, print the table; 1 if anything is wrong."""
    sweep = Sweep(parse())
    sweep.run()
    print(sweep.text())
    return 0 if all(row.passed for row in sweep.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
