"""What ``report --memory`` prints, from stores whose every number is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_runs import RUN, SECOND, START, Recorded, probe_state, steps_of

from gputop_train.diagnose import evidence
from gputop_train.model import MemorySample
from gputop_train.report import memory
from gputop_train.store.reader import RunReader

GB, MB = 10**9, 10**6
HELD = {
    "device": "cuda:0", "step": 1234, "parameters": 12 * GB, "gradients": 6 * GB,
    "optimizer_state": 15 * GB, "allocated": 41 * GB, "other": 8 * GB, "partial": False,
}  # fmt: skip
OOM: dict[str, Any] = {
    "t_ns": START + 30 * SECOND, "count": 3, "step": 400, "steps_after": 0, "device": 0,
    "requested": 2 * GB, "limit": 139 * GB, "free": 500 * MB, "allocated": 50 * GB,
    "reserved": 59 * GB, "inactive_split": 3 * GB, "thread": "autograd",
    "stack": [
        {"file": "/proj/train.py", "line": 88, "func": "step", "call": "loss.backward()"},
        {"file": "/proj/train.py", "line": 120, "func": "main", "call": "step(batch)"},
    ],
    "held": {**{k: HELD[k] for k in ("parameters", "gradients", "optimizer_state")}, "other": 17 * GB},
    "lines": None, "lines_missing": "allocation history is off",
}  # fmt: skip


def facts(
    tmp_path: Path, samples: list[MemorySample], *, on_gpu: bool = True, **state: Any
) -> memory.MemoryFacts:
    run = Recorded(tmp_path).train(steps_of(400, {"forward": 60, "backward": 40}), on_gpu=on_gpu)
    run.remember(samples)
    told = probe_state(on_gpu)
    told["cuda"] |= {"device": 0, "total": 139 * GB}
    run.writer.put_probe_state(0, told | state, START + 31 * SECOND)
    run.writer.commit()
    with RunReader(run.path) as reader:
        return memory.gather(reader, evidence.build(reader, final=True))


def on_a_gpu(grows: int = 2 * MB) -> list[MemorySample]:
    fixed = {"reserved": 58 * GB, "peak_allocated": 52 * GB, "peak_reserved": 61 * GB, "retries": 2}
    return [
        MemorySample(
            0, START + i * SECOND // 4, None, "cuda-allocator", 38 * GB + i * grows, **fixed
        )
        for i in range(160)
    ]


def text_of(found: memory.MemoryFacts, width: int = 80) -> str:
    return "\n".join(memory.lines(found, width))


def one_line(found: memory.MemoryFacts) -> str:
    return " ".join(text_of(found).split())


def test_the_allocators_numbers_are_told_with_what_they_are_of(tmp_path: Path) -> None:
    text = one_line(facts(tmp_path, on_a_gpu(), held=HELD))
    assert "caching allocator on NVIDIA H200 (cuda:0)" in text
    assert "allocated 38.3 GB · reserved 58.0 GB · 19.7 GB of it free" in text
    assert "peak allocated 52.0 GB · reserved 61.0 GB of 139 GB" in text
    assert "lowest after a step 38.0 GB at first" in text and "+800 kB a step" in text
    assert "2 retries after a flush of the cache" in text
    assert "counted at the end of step 1,234 on cuda:0" in text


def test_what_holds_memory_stands_in_columns_with_its_part(tmp_path: Path) -> None:
    rows = text_of(facts(tmp_path, on_a_gpu(), held=HELD)).splitlines()
    at = next(n for n, row in enumerate(rows) if row.startswith(" held"))
    assert [row[9:].split()[-3:] for row in rows[at : at + 4]] == [
        ["12.0", "GB", "29%"],
        ["6.0", "GB", "15%"],
        ["15.0", "GB", "37%"],
        ["8.0", "GB", "20%"],
    ]
    assert len({row.index("GB") for row in rows[at : at + 4]}) == 1


def test_an_out_of_memory_error_tells_what_asked_and_what_was_held(tmp_path: Path) -> None:
    text = one_line(facts(tmp_path, on_a_gpu(), held=HELD, oom=OOM))
    assert "the last of 3, after step 400, 30s after the first reading, no step followed" in text
    assert "asked for 2.0 GB with 500 MB free on the device, 139 GB allowed in all" in text
    assert "9.0 GB reserved but free, 3.0 GB of it split" in text
    assert "train.py:88 loss.backward() (in backward)" in text
    assert "other 17.0 GB 34%" in text
    assert "_record_memory_history()" in text


def test_an_error_that_was_caught_is_said_to_be(tmp_path: Path) -> None:
    caught = OOM | {"count": 1, "steps_after": 1200, "held": None, "thread": "training"}
    text = one_line(facts(tmp_path, on_a_gpu(), oom=caught))
    assert "oom after step 400, 30s after the first reading, 1,200 steps followed: caught" in text
    assert "holding not counted" in text and "(in backward)" not in text


def test_a_run_that_ended_there_says_so_in_a_sentence() -> None:
    told = memory.last_words({0: {}, 1: {"oom": OOM}})
    assert told is not None and told.startswith(
        "CUDA ran out of memory at train.py:88 on rank 1 (asked for 2.0 GB), and no step followed"
    )
    assert memory.last_words({0: {"oom": OOM | {"steps_after": 3}}}) is None
    assert memory.last_words({0: {"oom": None}, 1: {}}) is None


def test_lines_of_a_recorded_history_come_largest_first(tmp_path: Path) -> None:
    rows = [
        {"file": "/proj/model.py", "line": 33, "func": "f", "bytes": 12 * GB, "blocks": 24},
        {"file": "", "line": 0, "func": "", "bytes": 2 * GB, "blocks": 1},
    ]
    text = one_line(facts(tmp_path, on_a_gpu(), oom=OOM | {"lines": rows}))
    assert "lines 12.0 GB model.py:33 24 blocks 2.0 GB no line recorded 1 block" in text


def test_a_run_on_the_cpu_says_what_it_can(tmp_path: Path) -> None:
    held = HELD | {"device": "cpu", "allocated": None, "other": None}
    samples = [MemorySample(0, START + i * SECOND, i, "rss-anon", 300 * MB) for i in range(40)]
    text = one_line(facts(tmp_path, samples, on_gpu=False, held=held))
    assert "private memory (RssAnon), read once a second now 300 MB" in text
    assert "parameters 12.0 GB gradients 6.0 GB optimizer state 15.0 GB counted" in text
    assert "other" not in text and "%" not in text and "oom" not in text


def test_what_was_not_measured_is_said_to_be_so(tmp_path: Path) -> None:
    text = one_line(facts(tmp_path, []))
    for said in ("basis not measured", "growth not judged", "held not counted"):
        assert said in text


HOSTILE: dict[str, Any] = {
    "held": {"parameters": "many", "step": None, "device": "\x1b[2J"},
    "oom": {"stack": [3, {"file": "\x1b]0;x\x07", "call": "a\nb"}], "held": [], "lines": [7]},
}


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_any_content_fits_its_width_and_holds_no_control_codes(tmp_path: Path, width: int) -> None:
    found = facts(tmp_path, on_a_gpu(), held=HELD, oom=OOM)
    hostile = replace(found, ranks=tuple(replace(r, state=HOSTILE) for r in found.ranks))
    for case in (found, hostile):
        rows = memory.lines(case, width, ascii_only=True)
        assert all(len(row) <= max(width, memory.MIN_WIDTH) for row in rows)
        assert all(row.isascii() and row.isprintable() for row in rows)


def test_several_ranks_are_told_apart(tmp_path: Path) -> None:
    found = facts(tmp_path, on_a_gpu())
    many = replace(found, ranks=tuple(replace(found.ranks[0], rank=n) for n in range(11)))
    rows = text_of(many).splitlines()
    assert sum(row.startswith(" rank") for row in rows) == memory.MAX_RANKS
    assert "and 3 more ranks" in rows[-1]


def test_the_command_prints_it_for_a_run_on_disk(tmp_path: Path) -> None:
    facts(tmp_path, on_a_gpu(), held=HELD, oom=OOM)
    for name in ("run.json", "report.json"):
        (tmp_path / name).write_text(json.dumps(RUN))
    done = subprocess.run(
        [sys.executable, "-m", "gputop_train.cli", "report", str(tmp_path), "--memory"],
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert rows[0].startswith("── gputop-train") and max(map(len, rows)) <= 80
    assert any(row.startswith(" oom") for row in rows)
