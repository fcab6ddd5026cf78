"""A disk that is full, at any time and under any of our writers, costs training nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.launch import runfile
from gputop_train.launch.runs import store_path
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from gputop_train.tui.files import write_private
from tests.faults.disks import small_disk
from tests.faults.matrix import told
from tests.faults.training import (
    EXIT_CODE,
    TRAINING,
    Plain,
    lost_words,
    plain,
    report,
    unharmed,
)
from tests.launching import World, wait_for, world

#: Few enough for all that the script prints to fit into the block that its first line took.
STEPS = 100


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    return plain(tmp_path_factory.mktemp("plain"), STEPS, 1)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        made.script(TRAINING)
        yield made


def steps_kept(here: World) -> int:
    try:
        with RunReader(store_path(here.run_dir(), here.run_json())) as reader:
            return sum(rollup.n for rollup in reader.step_rollups())
    except StoreError:
        return 0


def test_a_disk_that_is_full_to_the_end_costs_a_while_of_the_record_and_says_so(
    here: World, bare: Plain
) -> None:
    gate = here.place / "gate"
    with small_disk(here.root, "6m") as disk:
        front = here.start("--no-tui", "--json", "out.json", *bare.arguments(0, gate, 40))
        wait_for(lambda: steps_kept(here) >= 20, "steps in the store")
        disk.fill()
        gate.touch()
        out, err = front.communicate(timeout=120)
        assert (front.returncode, out) == (EXIT_CODE, bare.output)
        unharmed(here, bare)
        assert b"The report could not be kept in" in err and b"Traceback" not in err
        told_at_once = json.loads((here.place / "out.json").read_bytes())
        assert told_at_once["status"] == "abstained"
        missing = {gap["id"]: gap["missing"] for gap in told_at_once["abstained"]}["probe"]
        assert re.fullmatch(r"the disk was full at the end, so its last \d+\.\d s .*", missing)
        assert missing.encode() in b" ".join(err.split())
        # The rings are still there: with some room the record is whole again.
        disk.free()
        whole = report(here)
        assert (whole["steps"]["count"], whole["data_lost"]) == (STEPS, [])
        assert not Path(here.run_json()["ring_dir"]).exists()


@pytest.mark.long
@pytest.mark.parametrize("when", range(5))
def test_a_disk_that_is_full_for_a_while_costs_nothing(here: World, bare: Plain, when: int) -> None:
    """Once its first line has its block: what it prints itself then needs no room."""
    gate = here.place / "gate"
    hold = max(1, 10 * when)
    with small_disk(here.root, "6m") as disk:
        front = here.start("--no-tui", "--json", "out.json", *bare.arguments(0.01, gate, hold))
        here.wait_for_output(f"step {hold - 1} ".encode())
        if when > 1:
            wait_for(lambda: steps_kept(here) >= hold - 1, "steps in the store")
        disk.fill()
        gate.touch()
        here.wait_for_output(f"step {STEPS - 5} ".encode())
        disk.free()
        _, err = front.communicate(timeout=120)
        assert front.returncode == EXIT_CODE and b"Traceback" not in err
        unharmed(here, bare)
        found = report(here)
        assert (found["steps"]["count"], found["data_lost"]) == (STEPS, [])
        told("disk full for a while", lost=lost_words(found))


@pytest.mark.long
def test_what_the_script_prints_itself_fails_as_into_any_file_on_a_full_disk(here: World) -> None:
    """As with ``cmd >file 2>&1``: the script is told, and what it does then is its own."""
    here.script(
        """
        import os
        failed = 0
        for number in range(2000):
            try:
                os.write(1, b"x" * 1024)
            except OSError as error:
                assert error.errno == 28
                failed += 1
        os._exit(7 if failed else 0)
        """
    )
    with small_disk(here.root, "1m") as disk:
        with open(disk.place / "log", "wb") as log:
            bare = subprocess.run([sys.executable, "train.py"], cwd=here.place, stdout=log)
        (disk.place / "log").unlink()
        watched = here.run("--no-tui", "train.py")
        assert (bare.returncode, watched.returncode) == (7, 7)
        assert watched.stdout == b"x" * len(watched.stdout)
        assert b"Traceback" not in watched.stderr
        assert b"is full, so a print of the script may have failed" in watched.stderr
        told("disk full: what the script prints itself")


@pytest.mark.long
def test_a_disk_full_under_the_ring_leaves_training_unmeasured_and_says_so(
    here: World, bare: Plain
) -> None:
    here.environ["TMPDIR"] = str(here.place / "tmp")
    with small_disk(here.place / "tmp", "64k") as disk:
        here.environ["XDG_RUNTIME_DIR"] = str(disk.place)
        driver = (
            "import sys; from pathlib import Path; from gputop_train import cli, paths\n"
            "place = Path(sys.argv.pop(1))\n"
            "paths.runtime_candidates = lambda fallback=None: iter([place])\n"
            "cli.main()"
        )
        words = [*map(str, here.command("--no-tui", *bare.arguments()))][3:]
        done = subprocess.run(
            [sys.executable, "-c", driver, str(disk.place / "rings"), *words],
            cwd=here.place, env={**here.environ, "PYTHONPATH": os.getcwd()}, capture_output=True,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (EXIT_CODE, bare.output), done.stderr
        assert b"could not open its ring" in b" ".join(done.stderr.split())
        told("disk full: ring", lost="the whole record")


@pytest.mark.long
def test_a_limit_on_the_size_of_files_is_met_as_a_full_disk_is(here: World, bare: Plain) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *here.command("--no-tui", *bare.arguments())],
        cwd=here.place, env=here.environ, capture_output=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (EXIT_CODE, bare.output), done.stderr
    assert b"Traceback" not in done.stderr
    told("limit on the size of files", lost=lost_words(report(here)))


def test_every_file_a_command_writes_says_that_the_disk_is_full_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.faults.test_corruption import command
    from tests.tui.made_run import exit_json, run_json, write_store

    root = tmp_path / "kept"
    for name in ("aaaaaa", "bbbbbb"):
        (root / name).mkdir(parents=True, mode=0o700)
        run_json(root / name, store=None)
        exit_json(root / name, write_store(root / name, seconds=12))
        assert command(root, "report", name)[0] == 0
    with small_disk(tmp_path / "disk", "64k") as disk:
        for name in ("out.json", "out.md"):
            (disk.place / name).write_text("old")
        disk.fill()
        before = {path.name: path.read_bytes() for path in disk.place.iterdir()}
        monkeypatch.setenv("GPUTOP_CONFIG", str(disk.place / "config.toml"))
        out, text = str(disk.place / "out.json"), str(disk.place / "out.md")
        for words in (
            ("report", "aaaaaa", "--json", out),
            ("compare", "aaaaaa", "bbbbbb", "--json", out),
            ("compare", "aaaaaa", "bbbbbb", "--markdown", text),
            ("attach", "aaaaaa", "--no-tui", "--json", out),
        ):
            _, wrote = command(root, *words)
            assert "No space left on device" in wrote and "Traceback" not in wrote, wrote
        code, wrote = command(root, "config", "--init", rooted=False)
        assert (code, "No space left on device" in wrote) == (1, True), wrote
        assert write_private(disk.place, "picture.svg", "x" * 10_000) is None
        assert {path.name: path.read_bytes() for path in disk.place.iterdir()} == before
    # And a report whose own place takes none is made all the same, for who asks.
    (root / "aaaaaa" / "report.json").unlink()
    with small_disk(tmp_path / "full", "2m") as disk:
        run = disk.place / "aaaaaa"
        run.mkdir(mode=0o700)
        for path in (root / "aaaaaa").iterdir():
            (run / path.name).write_bytes(path.read_bytes())
        disk.fill()
        code, wrote = command(disk.place, "report", "aaaaaa")
        assert (code, "verdict" in wrote, "Traceback" in wrote) == (0, True, False), wrote
        assert runfile.read_report(run) is None
