"""Every number of a finding reads as a person would write it, and fits a line of 110 columns."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from synthetic_windows import (
    MS,
    gpm,
    intervals_of,
    loader,
    make_steps,
    probe,
    readings,
    site,
    window,
)

from gputop_train.diagnose.rules import all_rules
from gputop_train.diagnose.rules.base import amount, cores, number, plain, span
from gputop_train.model import Finding
from gputop_train.report import text
from gputop_train.report.json import finding_body as as_data
from gputop_train.tui.widgets.verdict import gain_text

#: 110 columns less the key of a row.
ROOM = 101
LONG = "predicted = self.model.head(self.model.backbone(batch.images)).argmax(dim=-1).item()"


def periodic(label, every, cost_ms):
    steps = make_steps(
        3000, {"forward": 10}, extra=lambda i: {label: cost_ms} if i % every == 0 else {}
    )
    return window(
        steps,
        intervals=tuple(intervals_of(steps, label, 61)),
        sites=(site("eval", 61, func="evaluate"), site("save", 61)),
    )


STARVED = make_steps(2000, {"data_wait": 1600, "forward": 8})
WINDOWS = {
    "loading": window(STARVED, loaders=(loader(),), cores=64),
    "workers": window(
        STARVED, loaders=(loader(num_workers=2),), workers=(0.99, 0.97), depths=[0] * 20
    ),
    "no events": window(STARVED, on_gpu=True, util=12.5, loaders=(loader(num_workers=0),)),
    "events": window(
        make_steps(2000, {"data_wait": 1600, "forward": 8}, exposed={"data_wait": 1500}),
        on_gpu=True,
        util=3,
        loaders=(loader(),),
    ),
    "save": periodic("checkpoint", 1500, 12_345),
    "eval": periodic("eval", 1200, 23_456),
    "reads": window(
        make_steps(2000, {"sync": 50, "forward": 2}, exposed={"sync": 40}, dry=0.9, syncs=123_456),
        on_gpu=True,
        util=15,
        sites=(site("sync", 49, call=LONG, count=1_234_567, total_ns=98_765 * MS),),
    ),
    "launch": window(
        make_steps(2000, {"forward": 900, "backward": 900}, dry=1.0), on_gpu=True, util=4
    ),
    "leak": window(
        make_steps(2000, {"forward": 50}), memory=list(np.linspace(2e9, 9e10, 240)), cores=8
    ),
}

COPIED = make_steps(600, {"h2d": 1600, "forward": 8}, exposed={"h2d": 1500}, dry=0.1)
COPY = site(
    "h2d", 49, call=LONG, func="f", count=600, total_ns=960_000 * MS, bytes=123_456_789_012_345,
    unpinned_bytes=123_456_789_012_345, pairs=20, pair_ns=30_000 * MS, pair_bytes=4 * 10**12,
)  # fmt: skip
READ = site(
    "sync", 48, call=LONG, func="f", count=600, total_ns=9_600 * MS, bytes=123_000_000_000_000
)
NARROW = {"pcie_gen": 1, "pcie_gen_max": 5, "pcie_width": 4, "pcie_width_max": 16}
CROWDED = {"foreign_processes": 12, "foreign_util": 45.6789, "memory_used": 123_456_789_012}
HOT = {"throttle_reasons": 0xE8, "sm_clock_mhz": 1234, "sm_clock_max_mhz": 1980}
BUSY_STEPS = make_steps(600, {"gpu_wait": 100, "forward": 8}, exposed={"sync": 0.1}, dry=0.01)
WINDOWS |= {
    "copies": window(COPIED, on_gpu=True, util=17, sites=(COPY,), gpu=readings(COPIED, **NARROW)),
    "round trip": window(
        COPIED, on_gpu=True, util=60, sites=(READ, COPY), gpu=readings(COPIED, **NARROW)
    ),
    "pinned": window(
        COPIED, on_gpu=True, util=17, sites=(replace(COPY, unpinned_bytes=0),), loaders=(loader(),),
        gpu=readings(COPIED, **NARROW), gpm=gpm(pcie_rx_mib_per_s=12_345.678),
    ),
    "card": window(
        BUSY_STEPS, on_gpu=True, util=97.654, gpm=gpm(sm=12.3456, tensor=0.1234, dram=71.2345),
        gpu=readings(BUSY_STEPS, **HOT, temperature_c=91),
        probe=probe(
            True, flags={"tf32": False, "cudnn_tf32": True, "data_parallel": True},
            optimizers=[{"cls": "AdamW", "dtypes": ["float32"]}], amp={"autocast": []},
        ),
    ),
    "shared card": window(
        BUSY_STEPS, on_gpu=True, util=97.654,
        gpu=readings(BUSY_STEPS, memory_ours=1_234_567_890, **CROWDED),
    ),
}  # fmt: skip


def findings(made):
    judged = [rule.judge(made) for rule in all_rules() if rule.judge]
    return [f for f in judged if isinstance(f, Finding)]


@pytest.mark.parametrize("name", WINDOWS)
def test_no_number_is_written_for_a_machine_and_every_line_fits(name):
    found = findings(WINDOWS[name])
    assert found, name
    for finding in found:
        data = as_data(finding)
        lines = [text._evidence(e) for e in data["evidence"]]
        for line in lines:
            assert len(line) <= ROOM, line
        if finding.gain is not None:
            lines.append(gain_text(finding.gain))
            assert len(lines[-1]) <= ROOM, lines[-1]
        spoken = " ".join([data["summary"], *lines, *(a["text"] for a in data["advice"])])
        assert not re.search(r"\de[+-]\d", spoken), spoken
        assert not re.search(r"\d{5,}", spoken.replace(",", "_")), spoken


def test_a_number_keeps_three_digits_and_a_count_all_of_them():
    assert [plain(v) for v in (1024.4, 99.7, 23.456, 1.023, 0.0)] == [
        "1,024",
        "100",
        "23.5",
        "1.02",
        "0",
    ]
    assert (number("saves", 9.0).value, number("reads", 1024.0).value) == (9, 1024)
    share = number("saving", 1.0, "of wall").value
    assert share == 1.0 and isinstance(share, float)


def test_times_bytes_and_cores_come_in_the_unit_a_person_would_use():
    def said(evidence):
        return evidence.value, evidence.unit

    assert said(span("save", 2080.0)) == (2.08, "s")
    assert said(span("save", 978.4)) == (978, "ms")
    assert said(amount("leak", 44_043_219.4, " a step")) == (44, "MB a step")
    assert said(amount("leak", 40_690_000_000)) == (40.7, "GB")
    assert said(amount("leak", 812.0)) == (0.812, "kB")
    assert said(cores("trainer", 0.386)) == (0.386, "of a core")
    assert said(cores("trainer", 1.423)) == (1.42, "cores")
    assert said(cores("trainer", None)) == (None, "of a core")
