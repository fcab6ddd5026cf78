"""Whatever becomes of a run's files, every command ends soon with data or with a clear sentence."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gputop_train import cli
from gputop_train.store.errors import StoreError
from gputop_train.tui.playback import Playback
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.snapshot import View
from gputop_train.tui.source import LiveSource
from tests.faults.damage import Damage, damages
from tests.faults.matrix import told
from tests.faults.training import (
    EXIT_CODE,
    TRAINING,
    Plain,
    gone,
    lost_words,
    plain,
    unharmed,
)
from tests.launching import World, wait_for, world
from tests.tui.made_run import exit_json, run_json, write_store

#: Far beyond what a command takes: it bounds a hang, the test's own time is the machine's.
HANG_S = 60
#: Address space a command may take beyond what the test process has.
ROOM_BYTES = 2 << 30
FILES = ("run.json", "exit.json", "report.json", "run.sqlite", "run.sqlite", "output.log")
READERS = (
    ("report", "aaaaaa"),
    ("report", "aaaaaa", "--json", "-"),
    ("report", "aaaaaa", "--lines", "--memory"),
    ("report", "aaaaaa", "--diff"),
    ("compare", "aaaaaa", "bbbbbb"),
    ("runs",),
    ("runs", "--json"),
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, whole; one with its report, one that has yet to make it."""
    root = tmp_path_factory.mktemp("pristine")
    for name in ("aaaaaa", "bbbbbb"):
        path = root / name
        path.mkdir(mode=0o700)
        ended_ns = write_store(path, seconds=12)
        run_json(path, store=None)
        exit_json(path, ended_ns)
        (path / "output.log").write_bytes(b"epoch 1 loss 0.5\n" * 200)
    assert command(root, "report", "aaaaaa")[0] == 0
    assert (root / "aaaaaa" / "report.json").exists()
    return root


def command(root: Path, *words: str, rooted: bool = True) -> tuple[int | None, str]:
    """Run one of our commands in this process: its exit code, and all it wrote."""
    with tempfile.TemporaryFile("wb+") as written:
        kept = os.dup(1), os.dup(2)
        streams = sys.stdout, sys.stderr
        try:
            for fd in (1, 2):
                os.dup2(written.fileno(), fd)
            sys.stdout, sys.stderr = (os.fdopen(os.dup(fd), "w", encoding="utf-8") for fd in (1, 2))
            try:
                cli.main([*words, *(("--run-root", str(root)) if rooted else ())])
                code: int | None = 0
            except SystemExit as ended:
                code = ended.code  # type: ignore[assignment]
            for stream in (sys.stdout, sys.stderr):
                stream.close()
        finally:
            sys.stdout, sys.stderr = streams
            for fd, before in zip((1, 2), kept, strict=True):
                os.dup2(before, fd)
                os.close(before)
        written.seek(0)
        return code, written.read().decode("utf-8", "replace")


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """No hang, and no memory without bound: either would raise in here."""

    def hang(*_: object) -> None:
        raise AssertionError(f"no answer within {HANG_S} s")

    before = signal.signal(signal.SIGALRM, hang)
    had = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES, had[1]))
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, had)
        signal.signal(signal.SIGALRM, before)


def read_everywhere(root: Path) -> list[str]:
    """Every command and the screen's two sources on a damaged run; gives what was complained of."""
    complaints = []
    for words in READERS:
        with bounded():
            code, wrote = command(root, *words)
        assert "Traceback" not in wrote, wrote
        assert "Something here failed" not in wrote, (words, wrote)
        assert "\x1b" not in wrote, (words, wrote)
        assert code in (0, 1), (words, code, wrote)
        if code:
            complaint = (
                wrote[wrote.index("gputop-train: ") :].strip() if "--diff" not in words else wrote
            )
            assert complaint.count("\n") <= 1, complaint
            complaints.append(complaint)
    at_its_end = Playback()
    at_its_end.seek(1e6)
    for source in (LiveSource(root / "aaaaaa"), ReplaySource(root / "aaaaaa", at_its_end)):
        with contextlib.closing(source), bounded():
            try:
                for page in ("overview", "steps", "lines", "memory", "workers", "findings", "log"):
                    source.read(View(page=page))
            except StoreError as problem:
                assert str(problem).isprintable() and ". " in str(problem), problem
                complaints.append(str(problem))
    return complaints


def strike_and_read(pristine: Path, struck: list[Damage], unreported: bool) -> list[str]:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "kept"
        shutil.copytree(pristine, root)
        run_dir = root / "aaaaaa"
        for damage in struck:
            if (run_dir / damage.file).is_file():
                damage.strike(run_dir)
        if unreported and (run_dir / "report.json").is_file():
            (run_dir / "report.json").unlink()
        complaints = read_everywhere(root)
        assert (root / "bbbbbb" / "run.sqlite").read_bytes()[:15] == b"SQLite format 3"
        return complaints


#: Without shrinking, which would take minutes: what failed is printed, and small already.
ONE_BY_ONE = (Phase.explicit, Phase.generate)
ANY = given(struck=st.lists(damages(*FILES), min_size=1, max_size=2), unreported=st.booleans())


@ANY
@settings(max_examples=8, deadline=None, phases=ONE_BY_ONE, suppress_health_check=list(HealthCheck))
def test_whatever_is_damaged_every_reader_gives_data_or_a_sentence(
    pristine: Path, struck: list[Damage], unreported: bool
) -> None:
    strike_and_read(pristine, struck, unreported)


@pytest.mark.long
@pytest.mark.timeout(3600)
@ANY
@settings(
    max_examples=400, deadline=None, phases=ONE_BY_ONE, suppress_health_check=list(HealthCheck)
)
def test_four_hundred_damages_give_data_or_a_sentence(
    pristine: Path, struck: list[Damage], unreported: bool
) -> None:
    complaints = strike_and_read(pristine, struck, unreported)
    lost = "what was struck, as a sentence says" if complaints else "nothing that was asked for"
    told("files damaged at random", lost=lost, detail=f"{struck} {complaints}")


# -- under a run that goes on ------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    return plain(tmp_path_factory.mktemp("plain"), 100, 1)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        made.script(TRAINING)
        yield made


def spoil(path: Path, dice: random.Random) -> None:
    """Write noise at random places of a file that others hold open, or cut it short."""
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        if dice.random() < 0.1:
            os.truncate(path, dice.randrange(size + 1))
        with path.open("r+b") as file:
            for _ in range(20):
                # The beginning more often than its size alone would have it: headers are there.
                file.seek(dice.randrange(max(1, size if dice.random() < 0.5 else min(size, 9000))))
                file.write(dice.randbytes(dice.randrange(1, 200)))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("what", ["ring", "store"])
def test_training_whose_record_is_damaged_under_way_is_the_same_to_a_bit(
    here: World, bare: Plain, what: str, seed: int
) -> None:
    dice = random.Random(f"{what} {seed}")
    gate = here.place / "gate"
    front = here.start("--no-tui", "--json", "out.json", *bare.arguments(0.02, gate, 20))
    here.wait_for_output(b"step 19 ")
    run = here.run_json()
    supervisor = here.supervisor_pid()
    if what == "ring":
        (struck,) = wait_for(lambda: list(Path(run["ring_dir"]).glob("*.ring")), "a ring")
    else:
        struck = Path(run["store"])
        wait_for(struck.exists, "a store")
    gate.touch()
    while not here.output().count(b"\n") > 100:
        spoil(struck, dice)
        time.sleep(0.05)
    out, err = front.communicate(timeout=240)
    assert (front.returncode, out) == (EXIT_CODE, bare.output)
    unharmed(here, bare)
    assert b"Traceback" not in err and b"Something here failed" not in err, err
    wait_for(lambda: gone(supervisor), "the supervisor's end")
    log = (here.run_dir() / "supervisor.log").read_text()
    assert "Traceback" not in log and len(log) < 100_000
    with bounded():
        code, wrote = command(here.root, "report", here.run_dir().name)
    assert "Traceback" not in wrote and "Something here failed" not in wrote
    found = json.loads((here.place / "out.json").read_bytes()) if code == 0 else None
    lost = lost_words(found) if found else "the report"
    if what == "ring":
        told("ring damaged under way", lost=lost, detail=log[-300:])
    else:
        told("store damaged under way", lost=lost, detail=log[-300:])
