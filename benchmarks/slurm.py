"""Steps, signals, requeues and time limits of a real SLURM, of which this machine is a node.

    python benchmarks/slurm.py [--out TABLE.md]

To be run as a user who may submit, with four CPUs in the partition and ``JobRequeue=1``. Each row
is one job; the script is seeded data-parallel training with gloo, or a loop that tells of signals.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

PATIENCE_S = 240.0
ENDED = ("finished", "lost")
DDP = """
import hashlib, os, time, torch, torch.distributed as dist
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29613")
dist.init_process_group("gloo", rank=rank, world_size=world)
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(150):
    time.sleep(0.02 * rank)
    optimizer.zero_grad()
    model(torch.randn(8, 64)).pow(2).mean().backward()
    optimizer.step()
state = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
print("rank", rank, "state", state.hexdigest(), flush=True)
"""
TOLD = """
import os, signal, sys, time
def told(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM and "stubborn" not in sys.argv:
        sys.exit(7)
for name in ("SIGUSR1", "SIGHUP", "SIGTERM"):
    signal.signal(getattr(signal, name), told)
print("ready", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


class Place:
    """A directory of the jobs, shared by nodes where there are several."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "ddp.py").write_text(DDP)
        (path / "told.py").write_text(TOLD)

    def us(self, *words: str) -> list[str]:
        """Our command line."""
        root = ("--run-root", str(self.path / "runs"))
        python = ("--python", sys.executable)
        return [sys.executable, "-m", "gputop_train.cli", "--no-tui", *root, *python, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=self.path
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.path
        )

    def runs(self) -> list[dict[str, Any]]:
        """What ``gputop-train runs`` lists, newest first."""
        listed = self.run(*self.us()[:3], "runs", "--json", "--run-root", str(self.path / "runs"))
        found: list[dict[str, Any]] = json.loads(listed.stdout)
        return found

    def output(self) -> str:
        """What the newest run has printed."""
        logs = sorted(self.path.glob("runs/*/output.log"), key=lambda log: log.stat().st_mtime)
        return logs[-1].read_text() if logs else ""

    def submit(self, script: str, *options: str) -> str:
        done = self.run("sbatch", "--parsable", "-n1", *options, "--wrap", script)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)
    return found


def states(text: str) -> list[str]:
    return sorted(re.findall(r"rank \d+ state \w+", text))


def one_run_of_a_step(place: Place) -> str:
    bare = place.run("srun", "-n2", sys.executable, "ddp.py")
    ours = place.run("srun", "-n2", *place.us("--json", "report.json", "ddp.py"))
    report = json.loads((place.path / "report.json").read_bytes())
    assert states(ours.stdout) == states(bare.stdout) and ours.returncode == 0, ours.stderr
    assert len(place.runs()) == 1 and ours.stderr.count("gputop-train: run ") == 1
    slow = max(report["ranks"], key=lambda row: row["shares"]["other"])
    assert [row["rank"] for row in report["ranks"]] == [0, 1] and slow["rank"] == 1
    return "one run, ranks 0 and 1, the slow one is rank 1; parameters as bare; one voice"


def around_srun(place: Place) -> str:
    words = ("--json", "report.json", "--", "srun", "-n2", sys.executable, "ddp.py")
    ours = place.run(*place.us(*words))
    report = json.loads((place.path / "report.json").read_bytes())
    slow = max(report["ranks"], key=lambda row: row["shares"]["other"])
    assert [row["rank"] for row in report["ranks"]] == [0, 1] and slow["rank"] == 1
    assert len(states(ours.stdout)) == 2 and ours.returncode == 0
    return "the same, of the ranks on this node"


def signals_once(place: Place) -> str:
    stop = str(place.path / "stop")
    step = place.start("srun", "-n1", "--job-name=told", *place.us("told.py", stop))
    until(lambda: "ready" in place.output())
    for number, name in (("USR1", "SIGUSR1"), ("HUP", "SIGHUP"), ("TERM", "SIGTERM")):
        place.run("scancel", "--name=told", f"--signal={number}")
        until(lambda name=name: f"got {name}" in place.output())
    out, _ = step.communicate(timeout=PATIENCE_S)
    assert out.split("\n")[1:4] == ["got SIGUSR1", "got SIGHUP", "got SIGTERM"], out
    assert step.returncode == 7
    return "USR1, HUP, TERM: once each; srun ends with the script's 7"


def to_the_batch_script_alone(place: Place) -> str:
    stop = str(place.path / "stop")
    job = place.submit("exec " + " ".join(place.us("told.py", stop)))
    until(lambda: "ready" in place.output())
    place.run("scancel", "--batch", "--signal=USR1", job)
    until(lambda: "got SIGUSR1" in place.output())
    (place.path / "stop").touch()
    until(lambda: place.runs()[0]["exit_code"] == 0)
    assert place.output().count("got") == 1
    return "handed on, once"


def requeued(place: Place) -> str:
    stop = place.path / "stop"
    words = place.us("--json", "report.json", "told.py", str(stop))
    job = place.submit(" ".join(words), "--requeue")
    until(lambda: "ready 0" in place.output())
    place.run("scontrol", "requeue", job)
    until(lambda: place.runs()[-1]["state"] in ENDED)
    # A requeued job is held back for two minutes; begin at once.
    soon = ("scontrol", "update", f"jobid={job}", "StartTime=now")
    until(lambda: place.run(*soon).returncode == 0)
    until(lambda: "ready 1" in place.output())
    stop.touch()
    until(lambda: place.runs()[0]["exit_code"] == 0 and (place.path / "report.json").exists())
    assert json.loads((place.path / "report.json").read_bytes())["run"]["attempts"] == 2
    return f"a run for each attempt, the first {place.runs()[-1]['state']}; the second is attempt 2"


def time_limit(place: Place) -> str:
    words = place.us("told.py", str(place.path / "stop"))
    place.submit("exec " + " ".join(words), "--time=1")
    until(lambda: "ready" in place.output())
    until(lambda: place.runs()[0]["state"] in ENDED)
    assert place.output().count("got SIGTERM") == 1 and place.runs()[0]["exit_code"] == 7
    return "SIGTERM, once; the script's 7 is kept"


def killed(place: Place) -> str:
    words = place.us("told.py", str(place.path / "stop"), "stubborn")
    job = place.submit("exec " + " ".join(words))
    until(lambda: "ready" in place.output())
    place.run("scancel", "--signal=KILL", "--full", job)
    until(lambda: place.runs()[0]["state"] in ENDED)
    run = place.runs()[0]
    report = place.run(*place.us()[:3], "report", run["id"], "--run-root", str(place.path / "runs"))
    assert report.returncode == 0, report.stderr
    return f"the run is {run['state']}, exit code {run['exit_code']}; its report can be had"


ROWS: tuple[tuple[str, Callable[[Place], str]], ...] = (
    ("`srun -n2 gputop-train train.py`", one_run_of_a_step),
    ("`gputop-train -- srun -n2 python train.py`", around_srun),
    ("`scancel --signal` to a step", signals_once),
    (
        "`scancel --batch --signal=USR1`, to the batch script alone",
        to_the_batch_script_alone,
    ),
    ("`scontrol requeue`", requeued),
    ("a time limit, `exec gputop-train` in the batch script", time_limit),
    ("SIGKILL to everything", killed),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    told = subprocess.run(
        ["scontrol", "show", "config"], capture_output=True, text=True, check=True
    )
    facts = dict(re.findall(r"^(\w+)\s+= (\S+)", told.stdout, re.M))
    lines = [
        "# A real SLURM",
        "",
        f"{date.today()}, SLURM {facts['SLURM_VERSION']}, `{facts['ProctrackType']}`, one node,",
        f"{os.cpu_count()} CPU cores. Rerun on a node of a cluster: `python benchmarks/slurm.py`.",
        "",
        "| what | came to |",
        "|---|---|",
    ]
    failed = False
    for what, check in ROWS:
        with tempfile.TemporaryDirectory(prefix="slurm-") as directory:
            try:
                said = check(Place(Path(directory)))
            except Exception as problem:
                failed, said = True, f"FAILED: {type(problem).__name__} {problem}"
        lines.append(f"| {what} | {said} |")
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    if args.out:
        args.out.write_text(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
