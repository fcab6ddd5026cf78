"""The text of ``report --lines``, from real stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gputop_train.commands import report as report_command
from gputop_train.launch.printed import printed
from gputop_train.model import Site
from gputop_train.report import flags, line_facts, lines
from gputop_train.report.line_facts import Facts, Output
from gputop_train.store.reader import RunReader
from tests.unit.report_runs import START, Recorded, probe_state, steps_of

MS = 1_000_000
PLACE = ("/proj/train.py", 41, "main")


def site(number: int, kind: str, call: str = "loss.item()", line: int = 41, **more: Any) -> Site:
    return Site(0, number, kind, "/proj/train.py", line, "main", call, **more)


READ = site(
    1, "sync", count=200, total_ns=500 * MS, seen=200, pairs=10, pair_ns=20 * MS, after_ns=5 * MS,
    pair_bytes=0, bytes=0,
)  # fmt: skip
COPY = site(
    2, "h2d", "x.to(device, non_blocking=True)", 33, count=100, total_ns=20 * MS, seen=25,
    bytes=100 * 12_000_000, unpinned_bytes=0, pairs=4, pair_ns=2 * MS, pair_bytes=48_000_000,
)  # fmt: skip
SAVE = site(3, "save", "torch.save(m, p)", 60, count=2, total_ns=400 * MS, seen=2, bytes=8_000_000)


def facts(folder: Path, *sites: Site, on_gpu: bool = True, steps: int = 100, **state: Any) -> Facts:
    recorded = Recorded(folder).train(steps_of(steps, {"forward": 90, "gc": 10}), on_gpu=on_gpu)
    recorded.writer.put_sites(sites, START)
    if state:
        recorded.writer.put_probe_state(0, probe_state(on_gpu) | state, START + 1)
    recorded.writer.commit()
    with RunReader(recorded.path) as reader:
        return line_facts.gather(reader, "3f2a91")


def text(found: Facts, width: int = 80, **more: Any) -> str:
    return "\n".join(lines.lines(found, width, **more))


def row_of(found: str, place: str) -> list[str]:
    (row,) = [line for line in found.splitlines() if place in line]
    return row.split()


def test_every_kind_has_its_numbers_by_step(tmp_path: Path) -> None:
    shown = text(facts(tmp_path, READ, COPY, SAVE), 120)
    # 200 reads in 100 steps of 100 ms: 2 a step, 5 ms a step, 5% of the wall time. Of 10 that GPU
    # events enclosed the GPU idled 2 ms in each and 0.5 ms after it.
    read = "loss.item() 2.0 5.0 ms 5.0% 5.0 ms"
    assert " ".join(row_of(shown, "train.py:41")[1:]) == read
    # 48 MB in 2 ms of device time; the host's 0.2 ms in the call say nothing about the copy.
    copy = "~1.0 0.20 ms 0.2% 12 MB pinned 24 GB/s"
    assert " ".join(row_of(shown, "train.py:33")).endswith(copy)
    save = "1 in 50 4.0 ms 4.0% 200 ms 4 MB"
    assert " ".join(row_of(shown, "train.py:60")).endswith(save)
    assert "~ estimated" in shown


def test_idle_in_a_read_is_no_longer_than_the_host_was_in_it(tmp_path: Path) -> None:
    long_pair = site(1, "sync", count=100, total_ns=100 * MS, seen=100, pairs=1, pair_ns=900 * MS)
    shown = text(facts(tmp_path, long_pair))
    assert row_of(shown, "train.py:41")[-2:] == ["1.0", "ms"]


def test_what_no_event_enclosed_is_said_to_be_not_measured(tmp_path: Path) -> None:
    bare = site(1, "sync", count=100, total_ns=100 * MS, seen=100, pairs=0, pair_ns=0)
    shown = text(facts(tmp_path, bare))
    assert "GPU idle: not measured" in shown
    assert "GPU idle\n" not in shown.split("not measured")[0]


def test_a_line_the_hooks_do_not_reach_is_told_by_the_sampler(tmp_path: Path) -> None:
    samples = (
        site(5, "sample", "x[mask]", 50, label="sync", count=10),
        site(6, "sample", "loss.item()", 41, label="sync", count=5),
        site(7, "sample", "model(x)", 20, label="forward", count=85),
    )
    shown = text(facts(tmp_path, READ, *samples))
    assert row_of(shown, "train.py:50")[1:] == ["x[mask]", "-", "10.0", "ms", "10%", "-"]
    assert len([line for line in shown.splitlines() if "train.py:41" in line]) == 1
    assert "train.py:20" not in shown


def test_a_run_without_a_gpu_says_why_reads_and_copies_are_missing(tmp_path: Path) -> None:
    shown = text(facts(tmp_path, SAVE, on_gpu=False))
    assert "Blocking reads and copies to the device: none can be" in shown
    assert "None seen: logging, compilation." in shown


def test_a_hook_that_could_not_be_placed_is_not_taken_for_none_seen(tmp_path: Path) -> None:
    hooks = {"sync": False, "h2d": "Tensor.to is gone", "save": True}
    shown = text(facts(tmp_path, hooks=hooks))
    assert "Blocking reads: not measured, no hook." in shown
    assert "Copies to the device: not measured, Tensor.to is gone." in shown


def test_without_a_step_calls_are_totals(tmp_path: Path) -> None:
    shown = text(facts(tmp_path, SAVE, steps=0))
    assert "no step was seen" in shown
    assert row_of(shown, "train.py:60")[-7:] == ["2", "400", "ms", "200", "ms", "4", "MB"]


def test_without_a_probe_nothing_is_measured(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.writer.commit()
    with RunReader(recorded.path) as reader:
        found = line_facts.gather(reader, "3f2a91")
    assert text(found).splitlines()[-1].strip().startswith("Not measured: no probe")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 300])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int, ascii_only: bool) -> None:
    long_call = site(9, "h2d", "b" * 300, 12_345, count=3, total_ns=9 * MS, bytes=10**12)
    shown = lines.lines(facts(tmp_path, READ, COPY, SAVE, long_call), width, ascii_only=ascii_only)
    assert max(map(len, shown)) <= max(width, lines.MIN_WIDTH)
    assert not ascii_only or all(line.isascii() for line in shown)


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    other = Site(0, 8, "save", "/proj/b/train.py", 7, "main", "s()", count=1, total_ns=900 * MS)
    shown = text(facts(tmp_path, SAVE, other))
    assert "b/train.py:7" in shown and "proj/train.py:60" in shown


def test_a_script_cannot_write_to_the_terminal_through_its_source(tmp_path: Path) -> None:
    evil = site(9, "save", "\x1b[2Jboo\u202e", 1, count=1, total_ns=MS)
    state: dict[str, Any] = {
        "dynamo": {"recompiles": 1, "reasons": [["f", "a\x1b.py", 1, "g\x07", 1]]}
    }
    shown = text(facts(tmp_path, evil, **state))
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown


def test_recompilations_and_breaks_come_with_their_reasons() -> None:
    dynamo = {
        "recompiles": 3,
        "graph_breaks": 1,
        "reasons": [["step", "/p/train.py", 9, "tensor 'x' size mismatch at index 0", 3]],
        "breaks": [["builtin print", 1]],
    }
    assert flags.compiling({"dynamo": dynamo}) == [
        "3 recompilations after the first of each function",
        "train.py:9 step: tensor 'x' size mismatch at index 0",
        "1 graph break",
        "1 x builtin print",
    ]
    assert flags.compiling({"dynamo": {"recompiles": 0, "graph_breaks": 0}}) == []


ON_GPU = {"cuda": {"initialized": True}}


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"flags": {"anomaly": True}}, "Anomaly detection"),
        ({"flags": {"user_profiler": True}}, "A profiler"),
        ({"flags": {"launch_blocking": True}}, "CUDA_LAUNCH_BLOCKING"),
        ({"flags": {"sync_debug": True}}, "set_sync_debug_mode"),
        ({"flags": {"data_parallel": True}}, "nn.DataParallel"),
        ({"flags": {"deterministic": True}}, "Deterministic"),
        ({"flags": {"cudnn_benchmark": True}, "shapes": [[1, 9, 12]], **ON_GPU}, "searches anew"),
        ({"shapes": [[1, 9, 12]]}, "9 in the 12 looked at."),
        ({"empty_cache": 50}, "empty_cache() was called 50 times"),
        ({"amp": {"scaler_updates": 9, "scaler_skipped": 2}}, "skipped 2 of 9 steps"),
        ({"amp": {"scaler_updates": 9, "scaler_skipped": None}}, "skipped steps not measured"),
        ({"optimizers": [{"cls": "Adam", "foreach": False}], **ON_GPU}, "one parameter at a time"),
        (
            {
                "amp": {"autocast": []},
                "flags": {"tf32": False},
                "optimizers": [{"cls": "Adam", "dtypes": ["float32"]}],
                **ON_GPU,
            },
            "TF32 off",
        ),
    ],
)
def test_a_flag_worth_knowing_is_one_sentence(state: dict[str, Any], says: str) -> None:
    (note,) = flags.notes(state, 100)
    assert says in note and note.endswith(".")


def test_usual_flags_say_nothing() -> None:
    usual = {
        "flags": {"anomaly": False, "tf32": True, "cudnn_benchmark": True, "user_profiler": None},
        "shapes": [[1, 2, 40]],
        "empty_cache": 1,
        "amp": {"autocast": [], "scaler_updates": 5, "scaler_skipped": 0},
        "optimizers": [{"cls": "AdamW", "foreach": None, "fused": None, "dtypes": ["float32"]}],
        **ON_GPU,
    }
    assert flags.notes(usual, 1000) == []


@pytest.mark.parametrize("junk", [None, 3, "x", [1], {"a": 1}, [[1]], [None], True])
def test_hostile_snapshots_are_read_without_a_fault(junk: Any) -> None:
    keys = ("flags", "cuda", "shapes", "amp", "optimizers", "empty_cache", "dynamo", "gc", "hooks")
    state = dict.fromkeys(keys, junk)
    nested = {"amp": {"autocast": junk}, "dynamo": {"recompiles": 1, "reasons": junk}}
    for one in (state, nested, {"gc": {"count": 1, "total_ns": 5, "generations": junk}}):
        assert isinstance(flags.notes(one, 10), list)
        assert isinstance(flags.compiling(one), list)
        assert isinstance(flags.collecting(one, {}, 10), list)


def test_output_is_counted_in_lines_and_redraws(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"one\ntwo\n" + b"\r10%" * 5)
    assert printed(log) == Output(28, 28, 7)
    assert printed(tmp_path / "gone") is None
    with log.open("r+b") as stream:
        stream.truncate(0)
        stream.seek(1 << 20)
        stream.write(b"x\n" * 50)
    found = printed(log)
    assert found is not None and found.total_bytes == (1 << 20) + 100
    assert found.kept_lines == 50


def test_the_command_prints_it_for_a_recording_and_refuses_json_beside_it(tmp_path: Path) -> None:
    recording = next((Path(__file__).parents[2] / "demos" / "recordings").glob("syncing.zip"))
    runner = CliRunner(env={"COLUMNS": "80"})
    done = runner.invoke(
        report_command, [str(recording), "--lines", "--ascii"], standalone_mode=False
    )
    assert done.exception is None
    assert "syncing.py:48" in done.output and done.output.isascii()
    refused = runner.invoke(report_command, [str(recording), "--lines", "--json", "-"])
    assert refused.exit_code == 2 and "--lines" in refused.output
