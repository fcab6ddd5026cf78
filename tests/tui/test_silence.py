"""A screen that shows what is no longer recorded says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gputop_train.launch import identity
from gputop_train.tui.paint import UNICODE
from gputop_train.tui.snapshot import View
from gputop_train.tui.source import LiveSource
from gputop_train.tui.widgets.notice import notice_rows

from .made_run import S, exit_json, run_json, write_store

VIEW = View(window_s=60, columns=60, log_lines=20)


def test_a_run_that_nobody_records_says_so_and_why(tmp_path: Path) -> None:
    run_dir = tmp_path / "3f2a"
    run_dir.mkdir()
    end = write_store(run_dir, pid=os.getpid())
    run_json(run_dir, pid=os.getpid())
    assert LiveSource(run_dir, now_ns=lambda: end + 10 * S).read(VIEW).warning == ""
    late = end + 60 * S
    snap = LiveSource(run_dir, now_ns=lambda: late).read(VIEW)
    assert "Nothing was recorded for 6" in snap.warning and "supervisor is gone" in snap.warning
    (row,) = notice_rows(snap, 120, UNICODE)
    assert "Training is not affected." in "".join(text for text, _ in row)
    us = {"pid": os.getpid(), "start_ticks": identity.start_ticks(os.getpid())}
    (run_dir / "supervisor.json").write_text(json.dumps({**us, "boot_id": identity.boot_id()}))
    snap = LiveSource(run_dir, now_ns=lambda: late).read(VIEW)
    assert "is stopped or kept from writing" in snap.warning
    exit_json(run_dir, end, code=0)
    assert LiveSource(run_dir, now_ns=lambda: late).read(VIEW).warning == ""
