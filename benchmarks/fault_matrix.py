"""Every fault of the matrix, provoked: python benchmarks/fault_matrix.py [--only WORDS] [FILE]

Runs the tests that `tests/faults/matrix.py` names, those by hand included, and writes a Markdown
table to FILE or stdout: rounds, how many were harmed, what was lost and what was said. A round is
harmed when its test fails: output, exit code or trained parameters are not those of the plain run,
or the record is wrong about itself. Rows of FILE that were not run now stay as they are. Exit code
1 if any round was harmed. An hour on two cores, most of it 200 kills at random moments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.faults.matrix import FILES, OUTCOMES, Fault, faults  # noqa: E402

HEAD = "| fault | rounds | harmed | lost | said |\n| --- | ---: | ---: | --- | --- |"
#: Different losses (differing in a number, mostly) that a cell spells out.
SPELT_OUT = 2


def provoke(fault: Fault) -> tuple[str, int]:
    """Run a fault's tests; its line of the table, and how many rounds were harmed."""
    nodes = list(dict.fromkeys(f"tests/{test.partition('[')[0]}" for test in fault.tests))
    names = [test.rpartition("::")[2].rstrip("*]") for test in fault.tests if "::" in test]
    with tempfile.TemporaryDirectory() as place:
        outcomes, report = Path(place) / "outcomes.jsonl", Path(place) / "report.xml"
        outcomes.touch()
        command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
        command += ["--timeout", "3600", f"--junitxml={report}", *nodes]
        if len(names) == len(fault.tests):
            command += ["-k", " or ".join(names)]
        environ = {**os.environ, OUTCOMES: str(outcomes)}
        subprocess.run(command, cwd=ROOT, env=environ, check=False, stdout=sys.stderr)
        became = Counter(
            "harmed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
            for case in ElementTree.parse(report).iter("testcase")
            for kinds in [
                {child.tag for child in case} - {"system-out", "system-err", "properties"}
            ]
        )
        told = [json.loads(line) for line in outcomes.read_text().splitlines()]
    mine = [one for one in told if one["fault"] == fault.name]
    return line(fault, became, [one["lost"] for one in mine], [one["said"] for one in mine])


def line(fault: Fault, became: Counter[str], lost: list[str], said: list[str]) -> tuple[str, int]:
    """A row: what the rounds told, else what the matrix says."""
    rounds = max(became["passed"], len(lost)) + became["harmed"]
    losses = Counter(lost)
    many = len(losses) > 1
    words = [f"{text} ({n})" if many else text for text, n in losses.most_common(SPELT_OUT)]
    if len(losses) > SPELT_OUT:
        words.append(f"and the like ({sum(n for _, n in losses.most_common()[SPELT_OUT:])})")
    sentences = Counter(text for text in said if text)
    message = sentences.most_common(1)[0][0] if sentences else fault.said
    cells = [fault.name, str(rounds or "not run"), str(became["harmed"])]
    cells += ["; ".join(words) or fault.lost, message]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", became["harmed"]


def kept(file: Path | None) -> dict[str, str]:
    """Fault -> its row in an earlier table."""
    if file is None or not file.exists():
        return {}
    lines = [text for text in file.read_text().splitlines() if text.startswith("| ")]
    return {text.split(" | ")[0].removeprefix("| "): text for text in lines[1:]}


def page(rows: dict[str, str]) -> str:
    """The table of all faults that were run, in the matrix's order."""
    order = [fault.name for fault in faults() if fault.name in rows]
    harmed = sum(int(rows[name].split(" | ")[2]) for name in order)
    rounds = sum(int(rows[name].split(" | ")[1]) for name in order)
    machine = (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch')}"
    )
    return f"""# The fault matrix

`python benchmarks/fault_matrix.py` on {machine}. What each fault is and does:
[docs/faults.md](../../docs/faults.md). **{harmed} of {rounds} rounds were harmed**: output, exit
code or trained parameters other than the plain run's, or a record that is wrong about itself.

{HEAD}
""" + "".join(f"{rows[name]}\n" for name in order)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, help="keep the table here")
    parser.add_argument("--only", default="", help="only faults with these words in their name")
    parser.add_argument("--files", action="store_true", help="only those of files and output")
    args = parser.parse_args()
    rows, bad = kept(args.file), 0
    for fault in FILES if args.files else faults():
        if args.only in fault.name:
            rows[fault.name], harmed = provoke(fault)
            bad += harmed
            if args.file is not None:
                args.file.write_text(page(rows))
    if args.file is None:
        print(page(rows), end="")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
