"""Processes that are too many, too fast, too poor, or not the ones they were: training goes on."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop_train.launch import identity, spawn
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from tests.faults.matrix import told
from tests.faults.training import (
    EXIT_CODE,
    TRAINING,
    Plain,
    lost_words,
    plain,
    report,
    unharmed,
    watching,
)
from tests.launching import World, needs_namespaces, wait_for, world

pytestmark = pytest.mark.slow

RING_TRAINER = Path(__file__).parent.parent / "integration" / "ring_trainer.py"
IN_A_NAMESPACE = Path(__file__).with_name("reused_pids.py")
STEPS = 200


def ring_trainer(here: World) -> subprocess.Popen[bytes]:
    """A training that stays after its steps until ``gate`` is there."""
    words = ["--steps", str(STEPS), "--step-ms", "5", "--until", str(here.place / "gate")]
    return here.start("--no-tui", str(RING_TRAINER), *words)


def ended_well(here: World, front: subprocess.Popen[bytes]) -> bytes:
    """Let it end; what was said on stderr."""
    (here.place / "gate").touch()
    out, said = front.communicate(timeout=60)
    assert front.returncode == 0, said
    assert out == b"ready\n" + b"".join(b"step %d\n" % step for step in range(STEPS))
    return said


def noted(here: World, kind: str) -> list[str]:
    """Texts of the notes of one kind; none while there is no store."""
    try:
        with RunReader(here.run_dir()) as reader:
            return [str(note.body.get("text")) for note in reader.notes(kind)]
    except StoreError:
        return []


def limit(pid: int, soft: int | None) -> None:
    """Let a process open no descriptor from ``soft`` on; ``None`` gives it back all it may have."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard if soft is None else soft, hard))


def test_a_supervisor_that_runs_out_of_descriptors_goes_on_once_it_has_some(
    tmp_path: Path,
) -> None:
    with world(tmp_path) as here:
        front = ring_trainer(here)
        supervisor: int = wait_for(lambda: watching(here), "the supervisor")
        limit(supervisor, 0)
        (waits, *_) = wait_for(lambda: noted(here, "part-waits"), "a word about it")
        here.wait_for_output(b"step %d\n" % (STEPS - 1))
        assert watching(here) == supervisor
        limit(supervisor, None)
        wait_for(lambda: stored_steps(here) == STEPS, "all steps in the store")
        ended_well(here, front)
        found = report(here)
    assert "no file descriptors (ulimit -n) left" in waits
    assert (found["steps"]["count"], found["data_lost"]) == (STEPS, [])
    told("no descriptors: supervisor, for a while", said=waits)


def stored_steps(here: World) -> int:
    try:
        with RunReader(here.run_dir()) as reader:
            return len(reader.steps())
    except StoreError:
        return 0


def test_two_supervisors_on_one_run_record_each_step_once(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        front = ring_trainer(here)
        first: int = wait_for(lambda: watching(here), "the supervisor")
        # A cleaner of old files took the lock away: whoever comes next finds the door open.
        (here.run_dir() / "supervisor.lock").unlink()
        second = spawn.start_supervisor(here.run_dir(), here.environ)
        assert second is not None
        try:
            wait_for(lambda: watching(here) == second, "the second supervisor at work")
            assert identity.is_running(first)
            here.wait_for_output(b"step %d\n" % (STEPS - 1))
            ended_well(here, front)
        finally:
            os.waitpid(second, 0)
        found = report(here)
        with RunReader(here.run_dir()) as reader:
            assert [step.index for step in reader.steps()] == list(range(STEPS))
    assert (found["steps"]["count"], found["data_lost"]) == (STEPS, [])
    told("two supervisors on one run")


@needs_namespaces
def test_a_pid_that_is_somebody_elses_by_now_is_neither_believed_nor_signalled(
    tmp_path: Path,
) -> None:
    inside = [sys.executable, str(IN_A_NAMESPACE), str(tmp_path), str(RING_TRAINER)]
    done = subprocess.run(
        ["unshare", "-pf", "--mount-proc", "--kill-child", *inside],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    saw = json.loads(done.stdout.splitlines()[-1])
    # Its supervisor's PID was given to a stranger: it has none, and gets another.
    assert saw["without supervisor"] == "orphaned" and saw["supervised again"]
    # So was the script's, later: the run is lost, and there is nothing to stop.
    assert saw["without anybody"] == "lost"
    assert "nothing to stop" in saw["stop"]
    assert saw["exit_code"] is None and "Nobody was left" in saw["exit_reason"]
    assert saw["strangers alive"]
    told("PID reuse", lost="the exit code", said=saw["stop"])


# -- by hand ------------------------------------------------------------------------------------


def watched(here: World, *arguments: str, patience_s: float = 600.0) -> bytes:
    """Run to the end as a person would; what was said on stderr. The exit code must be its own."""
    done = subprocess.run(
        here.command("--no-tui", *arguments),
        cwd=here.place,
        env=here.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=patience_s,
        check=False,
    )
    assert done.returncode == EXIT_CODE, done.stderr
    return done.stderr


def all_there(here: World, bare: Plain, fault: str, said: str = "") -> None:
    unharmed(here, bare)
    found = report(here)
    missing = bare.steps - found["steps"]["count"]
    assert missing == 0 or "of its steps" in lost_words(found), (missing, found["data_lost"])
    told(fault, lost=lost_words(found), said=said, detail=f"{found['steps']['median_ms']} ms")


@pytest.mark.long
def test_a_thousand_steps_a_second(tmp_path: Path) -> None:
    bare = plain(tmp_path, 30_000, 0)
    with world(tmp_path) as here:
        here.script(TRAINING)
        watched(here, *bare.arguments())
        all_there(here, bare, "1,000 steps a second and more")


@pytest.mark.long
def test_64_workers(tmp_path: Path) -> None:
    bare = plain(tmp_path, 400, 64)
    with world(tmp_path) as here:
        here.script(TRAINING)
        watched(here, *bare.arguments())
        all_there(here, bare, "64 loader workers")


@pytest.mark.long
def test_a_supervisor_that_never_gets_its_descriptors_back(tmp_path: Path) -> None:
    bare, gate = plain(tmp_path, 300, 1), tmp_path / "gate"
    with world(tmp_path) as here:
        here.script(TRAINING)
        front = here.start("--no-tui", *bare.arguments(0.0, gate, 100))
        here.wait_for_output(b"step 99 ")
        wait_for(lambda: stored_steps(here) > 0, "a step in the store")
        limit(here.supervisor_pid(), 0)
        gate.touch()
        _, said = front.communicate(timeout=120)
        assert front.returncode == EXIT_CODE, said
        lines = [line for line in said.decode().splitlines() if "of this run is gone" in line]
        all_there(here, bare, "no descriptors: supervisor, for good", said=" ".join(lines))


#: torch imports parts of itself at the first step, and reports it when it cannot: hence the warm-up.
EXHAUST = """
import resource
with torch.profiler.record_function("warm"), torch.no_grad():
    nn.functional.mse_loss(model(x[:4]), model(x[:4]))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
"""


@pytest.mark.long
def test_a_script_that_has_no_descriptors_left(tmp_path: Path) -> None:
    script = TRAINING.replace("for step, (x, y) in", EXHAUST + "for step, (x, y) in")
    bare = plain(tmp_path, 200, 0, script)
    with world(tmp_path) as here:
        here.script(script)
        watched(here, *bare.arguments())
        unharmed(here, bare)
        found = report(here)
    assert found["status"] in ("no-steps", "abstained")
    said = "; ".join(row["missing"] for row in found["abstained"])
    assert "Too many open files" in said, found
    told("no descriptors: script", lost="the whole record", said=said)


RANKS = """
import hashlib, json, os
import torch
from torch import distributed, nn

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
losses = []
for step in range(100):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
told = hashlib.sha256(b"".join(v.numpy().tobytes() for v in model.state_dict().values()))
with open(f"rank{rank}.json", "w") as file:
    json.dump([told.hexdigest(), losses], file)
if rank == 0:
    print("done")
distributed.destroy_process_group()
"""
RANK_COUNT = 8


@pytest.mark.long
def test_8_ranks(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        here.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        words = ["torchrun", "--standalone", f"--nproc-per-node={RANK_COUNT}", "ranks.py"]
        command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
        results = []
        for launch in (command, [*map(os.fsdecode, here.command("--no-tui", "--", *command))]):
            here.script(RANKS, "ranks.py")
            done = subprocess.run(
                launch,
                cwd=here.place,
                env=here.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=900,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            made = [here.place / f"rank{rank}.json" for rank in range(RANK_COUNT)]
            results.append((done.stdout, [path.read_bytes() for path in made]))
            for path in made:
                path.unlink()
        assert results[0] == results[1]
        found = report(here)
    assert [row["rank"] for row in found["ranks"]] == list(range(RANK_COUNT))
    assert (found["steps"]["count"], found["data_lost"]) == (100, [])
    told("8 ranks")


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

/* The wall clock, off by the seconds that the file named by CLOCK_OFFSET holds. */
static long off(void) {
    static volatile long *seconds;
    if (!seconds) {
        const char *name = getenv("CLOCK_OFFSET");
        int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0) return 0;
        void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED) return 0;
        seconds = page;
    }
    return *seconds;
}
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, t);
    if (!code && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += off();
    return code;
}
int gettimeofday(struct timeval *t, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) { t->tv_sec = now.tv_sec; t->tv_usec = now.tv_nsec / 1000; }
    return 0;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""
DAY_S = 86_400


@pytest.mark.long
@pytest.mark.parametrize("days", [(1, -2), (-30, 400)], ids=["ahead and back", "back and ahead"])
def test_a_wall_clock_that_jumps(days: tuple[int, int], tmp_path: Path) -> None:
    """The machine's own clock is left alone: every process of the run sees another one."""
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    (tmp_path / "clock.c").write_text(CLOCK)
    build = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(tmp_path / "clock.c"), "-ldl"]
    subprocess.run(build, check=True, capture_output=True)
    offset.write_bytes(bytes(8))
    bare, gate = plain(tmp_path, 300, 1), tmp_path / "gate"
    with world(tmp_path) as here:
        here.script(TRAINING)
        here.environ |= {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
        began = time.monotonic()
        front = here.start("--no-tui", *bare.arguments(0.02, gate, 200))
        for step, jump in zip((50, 199), days, strict=True):
            here.wait_for_output(b"step %d " % step)
            set_offset(offset, jump * DAY_S)
        gate.touch()
        _, said = front.communicate(timeout=120)
        took = time.monotonic() - began
        assert front.returncode == EXIT_CODE, said
        unharmed(here, bare)
        found = report(here)
        listing = here.command("runs", "--run-root", str(here.root), root=False)
        listed = subprocess.run(
            listing, cwd=here.place, env=here.environ, capture_output=True, text=True, check=True
        )
    assert (found["steps"]["count"], found["data_lost"]) == (bare.steps, [])
    assert 0 < found["run"]["duration_s"] <= took
    assert found["time"]["training_s"] <= found["run"]["duration_s"]
    assert f"{int(found['run']['duration_s'])}s" in listed.stdout, listed.stdout
    told("wall clock jumps", detail=f"by {days[0]:+} and {days[1]:+} days")


def set_offset(place: Path, seconds: int) -> None:
    """Let the clock jump, at once for everybody who has the file mapped."""
    with place.open("r+b") as file:
        file.write(seconds.to_bytes(8, sys.byteorder, signed=True))
