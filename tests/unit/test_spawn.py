"""The parts of a launch that need no process: environment, probe directory, files, signal policy."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import gputop_train
from gputop_train.launch.environment import script_environment, supervisor_environment
from gputop_train.launch.options import Options, Setting, Target, probe_config
from gputop_train.launch.probe_dir import PACKAGE, install_probe
from gputop_train.launch.runfile import ReservedFile, read_json
from gputop_train.launch.signals import FORWARDED, decide, fetched

PROBE = Path("/run/x/probe")


def test_on_a_terminal_progress_bars_and_colour_are_kept_alive() -> None:
    made = script_environment({"HOME": "/h"}, PROBE, lines=True, terminal=(100, 30))
    assert made == {
        "HOME": "/h",
        "PYTHONPATH": str(PROBE),
        "PYTHONUNBUFFERED": "1",
        "FORCE_COLOR": "1",
        "TTY_COMPATIBLE": "1",
        "COLUMNS": "100",
        "LINES": "30",
    }


def test_what_the_person_set_stays_as_it_is() -> None:
    mine = {"PYTHONUNBUFFERED": "", "FORCE_COLOR": "0", "TTY_COMPATIBLE": "0", "COLUMNS": "60"}
    mine |= {"LINES": "9", "PYTHONPATH": "/a:/b"}
    made = script_environment(mine, PROBE, lines=True, terminal=(100, 30))
    assert made == {**mine, "PYTHONPATH": f"{PROBE}:/a:/b"}


def test_no_color_is_respected() -> None:
    made = script_environment({"NO_COLOR": "1"}, PROBE, lines=True, terminal=(100, 30))
    assert "FORCE_COLOR" not in made
    assert "TTY_COMPATIBLE" not in made


@pytest.mark.parametrize(("lines", "terminal"), [(False, (100, 30)), (True, None)])
def test_without_a_terminal_or_with_no_env_no_colour_is_forced(
    lines: bool, terminal: tuple[int, int] | None
) -> None:
    made = script_environment({}, PROBE, lines=lines, terminal=terminal)
    assert not {"FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"} & made.keys()
    assert ("PYTHONUNBUFFERED" in made) is lines


def test_the_supervisors_libraries_keep_to_one_thread() -> None:
    made = supervisor_environment({"OMP_NUM_THREADS": "64"})
    assert made["OMP_NUM_THREADS"] == made["OPENBLAS_NUM_THREADS"] == "1"


def test_the_probe_directory_holds_the_whole_probe_and_nothing_else_of_ours(
    tmp_path: Path,
) -> None:
    install_probe(tmp_path / "probe", {"v": 1, "run_id": "abc"})
    source = Path(gputop_train.__file__).parent / "probe"
    copied = {p.relative_to(tmp_path / "probe") for p in (tmp_path / "probe").rglob("*.py")}
    expected = {
        Path(PACKAGE) / p.relative_to(source)
        for p in source.rglob("*.py")
        if "bootstrap" not in p.parts
    }
    assert copied == expected | {Path("sitecustomize.py")}
    for relative in expected:
        original = source / relative.relative_to(PACKAGE)
        assert (tmp_path / "probe" / relative).read_bytes() == original.read_bytes()
    assert json.loads((tmp_path / "probe" / "config.json").read_bytes())["run_id"] == "abc"


def test_the_probes_configuration_says_what_was_asked_for() -> None:
    options = Options(
        Target("script", ("t.py",)),
        settings=(Setting("num_workers", 2), Setting("batch_size", 8, "t.py:4")),
        overhead_budget_pct=2.5,
        burst=False,
    )
    config = probe_config(options, "abc", "/ring")
    assert config["overhead_budget"] == 0.025
    assert config["burst"] is False
    assert (config["run_id"], config["ring_dir"], config["v"]) == ("abc", "/ring", 1)
    assert config["overrides"] == [
        {"key": "num_workers", "value": 2, "loader": None},
        {"key": "batch_size", "value": 8, "loader": "t.py:4"},
    ]


def test_a_reserved_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    reserved = ReservedFile(path, 4096)
    assert not path.exists()
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) == 4096
    reserved.commit(b'{"id": "abc"}')
    assert read_json(path) == {"id": "abc"}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_record_reads_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert read_json(tmp_path / "x.json") is None


@pytest.mark.parametrize("number", sorted(FORWARDED - {signal.SIGTSTP}))
def test_a_killed_signal_goes_unchanged_to_the_one_process(number: int) -> None:
    action = decide(number, from_terminal=False, interrupts=5)
    assert (action.kind, action.signum, action.group) == ("send", number, False)


def test_ctrl_c_goes_to_the_group_and_escalates_with_every_press() -> None:
    presses = [decide(signal.SIGINT, from_terminal=True, interrupts=n) for n in range(4)]
    assert [action.signum for action in presses] == [
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGKILL,
        signal.SIGKILL,
    ]
    assert all(action.group for action in presses)
    assert presses[1].kill_after_s is not None


def test_a_hangup_detaches_and_a_strange_signal_does_nothing() -> None:
    assert decide(signal.SIGHUP, from_terminal=True, interrupts=0).kind == "detach"
    assert decide(signal.SIGCHLD, from_terminal=False, interrupts=0).kind == "ignore"


@pytest.mark.parametrize(
    ("tie", "number", "kind"),
    [
        ("init", signal.SIGHUP, "ignore"),
        ("init", signal.SIGTSTP, "ignore"),
        ("init", signal.SIGTERM, "send"),
        ("job", signal.SIGHUP, "send"),
        ("job", signal.SIGTSTP, "pause"),
    ],
)
def test_where_our_leaving_would_end_the_training_we_stay(tie, number, kind) -> None:
    assert decide(number, from_terminal=False, interrupts=0, tie=tie).kind == kind


def test_a_signal_we_were_told_to_ignore_is_not_fetched() -> None:
    assert signal.SIGHUP in fetched()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in fetched()
    finally:
        signal.signal(signal.SIGHUP, before)
