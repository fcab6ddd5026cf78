"""Whatever a store holds or lacks, every panel draws it: the screen may be dull, never broken."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gputop_train.model import (
    LABELS,
    Abstention,
    Advice,
    Diagnosis,
    Evidence,
    Finding,
    Gain,
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    UtilSample,
    Where,
)
from gputop_train.store.writer import RunWriter
from gputop_train.tui.paint import ASCII, UNICODE, fit
from gputop_train.tui.playback import Playback
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.snapshot import (
    Chart,
    HostView,
    Lane,
    LoaderView,
    Mark,
    MemoryView,
    ReplayView,
    RunView,
    Series,
    Snapshot,
    StepView,
    View,
)
from gputop_train.tui.source import LiveSource
from gputop_train.tui.widgets.finding_words import grounds, unjudged
from gputop_train.tui.widgets.verdict import advice_block, card_height

from .driving import Controls, lines, settle
from .fakes import FakeSource, axis_of, starved
from .made_run import MS, START, S, exit_json, run_json, steps
from .test_widgets import PAINTERS, read

WORDS = st.text(max_size=60) | st.sampled_from(
    (
        "",
        "x" * 5000,
        "loss\x1b[31m\x00\r\n\t",
        "数据" * 50,
        "e\u0301" * 40,
        "a b " * 300,
        "(((",
        "\u202e",
    )
)
SHARES = st.none() | st.floats(0, 1) | st.sampled_from((math.nan, math.inf, -1.0, 7.0))
PERCENTS = st.none() | st.floats(0, 100) | st.sampled_from((math.nan, math.inf, -5.0, 400.0))
BYTES = st.none() | st.integers(0, 1 << 50)
AMOUNTS = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 1 << 60)
TIMES = st.none() | st.floats(0, 1e9)


def bins(values: st.SearchStrategy[float | None]) -> st.SearchStrategy[tuple[float | None, ...]]:
    return st.lists(values, max_size=12).map(tuple)


FINDINGS = st.builds(
    Finding,
    id=st.sampled_from(("input-bound", "memory-leak", "brand-new", "")),
    summary=WORDS,
    severity=st.sampled_from(("info", "warn", "critical")),
    confidence=st.sampled_from(("low", "medium", "high")),
    lost_share=st.floats(0, 1),
    evidence=st.lists(
        st.builds(
            Evidence,
            WORDS | st.sampled_from(("saves", "trainer process", "growth of the low-water marks",
                                     "time until memory runs out", "num_workers")),
            AMOUNTS | WORDS | st.booleans(),
            st.sampled_from(("", "ms", "kB a step", "of wall", "%", "cores", "reads, 3 ms blocked")),
        ),
        max_size=9,
    ).map(tuple),
    where=st.lists(st.builds(Where, WORDS, st.integers(0, 10**9), WORDS), max_size=3).map(tuple),
    where_missing=st.none() | WORDS,
    advice=st.lists(
        st.builds(Advice, WORDS, st.none() | st.dictionaries(WORDS, AMOUNTS, max_size=2)), max_size=4
    ).map(tuple),
    gain=st.none()
    | st.builds(
        Gain,
        st.none() | st.floats(0, 1e6),
        st.none() | st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
        WORDS,
        st.booleans(),
    ),
)  # fmt: skip
GAPS = st.lists(st.builds(Abstention, WORDS, WORDS), max_size=3).map(tuple)
SNAPSHOTS = st.builds(
    Snapshot,
    run=st.builds(RunView, WORDS, WORDS, WORDS, WORDS, st.lists(WORDS, max_size=3).map(tuple)),
    state=st.sampled_from(("starting", "live", "stopping", "ended", "lost", "replay")),
    axis=st.builds(lambda n: axis_of(View(columns=n)), st.integers(1, 300)),
    elapsed_s=TIMES,
    exit_code=st.none() | st.integers(-300, 300),
    exit_text=WORDS,
    diagnosis=st.none()
    | st.builds(
        Diagnosis,
        status=st.sampled_from(("verdict", "healthy", "abstained", "too-early", "no-steps")),
        healthy=st.none() | st.booleans(),
        verdict=st.none() | FINDINGS,
        also=st.lists(FINDINGS, max_size=3).map(tuple),
        abstained=GAPS,
        ruled_out=GAPS,
        note=WORDS,
    ),
    chart=st.none()
    | st.builds(
        Chart,
        WORDS,
        st.sampled_from(("gpu", "cpu")),
        st.builds(lambda v: Series("util", v, v), bins(PERCENTS)),
        st.none() | st.builds(Series, WORDS, bins(PERCENTS), st.just(()), PERCENTS),
        st.lists(WORDS, max_size=4).map(tuple),
    ),
    lanes=st.lists(
        st.builds(Lane, st.sampled_from((*LABELS, "new_label")), st.floats(0, 1), bins(SHARES)),
        max_size=16,
    ).map(tuple),
    marks=st.lists(
        st.builds(Mark, st.sampled_from(("checkpoint", "eval")), st.integers(-5, 400)), max_size=9
    ).map(tuple),
    step=st.builds(
        StepView,
        count=st.integers(0, 10**12),
        total=st.none() | st.integers(1, 10**12),
        median_ms=TIMES,
        p95_ms=TIMES,
        parts=st.lists(
            st.tuples(st.sampled_from((*LABELS, "new_label")), st.floats(1e-9, 1e9)), max_size=16
        ).map(tuple),
        samples_per_s=st.none() | st.floats(1e-9, 1e12),
    ),
    memory=st.none()
    | st.builds(
        MemoryView,
        st.sampled_from(("cuda-allocator", "rss-anon", "rss")),
        st.integers(0, 1 << 50),
        BYTES,
        BYTES,
        BYTES,
        bins(st.none() | st.floats(0, 1e15) | st.just(math.nan)),
        BYTES,
    ),
    loader=st.none()
    | st.builds(
        LoaderView,
        st.integers(0, 500),
        WORDS,
        st.lists(SHARES, max_size=200).map(tuple),
        st.none() | st.integers(0, 1000),
        st.none() | st.integers(0, 1000),
        st.lists(st.none() | st.integers(0, 1000), max_size=20).map(tuple),
    ),
    host=st.none()
    | st.builds(HostView, TIMES, st.none() | st.integers(0, 512), TIMES, TIMES),
    log=st.lists(WORDS, max_size=6).map(tuple),
    log_note=WORDS,
    notes=st.lists(WORDS, max_size=3).map(tuple),
    replay=st.none()
    | st.builds(ReplayView, st.floats(0, 1e9), st.floats(1e-3, 1e9), st.floats(0.25, 32), st.booleans()),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SNAPSHOTS, st.integers(1, 220), st.integers(1, 40), st.booleans())
def test_every_panel_fills_its_rows_whatever_it_is_given(
    snap: Snapshot, width: int, height: int, ascii: bool
) -> None:
    glyphs = ASCII if ascii else UNICODE
    for name, painter in PAINTERS.items():
        rows = [fit(row, width, glyphs) for row in painter(snap, width, height, glyphs)[:height]]
        for row in rows:
            assert sum(cell_len(text) for text, _ in row) == width, name
        if ascii:
            assert read(rows).isascii(), name
    assert card_height(snap, width, glyphs) >= 2
    if snap.diagnosis is not None:
        for row in (
            *grounds(snap.diagnosis, width, glyphs),
            *unjudged(snap.diagnosis, width, glyphs),
        ):
            assert sum(cell_len(text) for text, _ in fit(row, width, glyphs)) == width
    advice_block(snap)


@pytest.mark.parametrize("no_color", [False, True])
async def test_a_hostile_log_and_hundreds_of_workers_do_not_move_the_screen(
    no_color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gputop_train.tui.app import GputopApp

    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    source = FakeSource("starved")
    source.make = lambda view: replace(
        starved(view),
        log=("y" * 100_000, "\x1b[2J\x1b[H\x07gone?", "数" * 10_000, "\x9b31m"),
        loader=LoaderView(200, "train.py:1", (0.5,) * 200, 3, 400, (1,) * 12),
    )
    app = GputopApp(source, replay=Controls(), hz=20.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = lines(app)
    assert all(cell_len(line) == 80 for line in shown)
    assert all(line.isprintable() for line in shown)
    assert "STARVED" in shown[1]


def odd_store(path: Path, kind: str) -> int:
    end = START + 30 * S
    with RunWriter(path / "run.sqlite") as writer:
        if kind != "no steps":
            writer.add_steps(steps(300))
        if kind == "8 gpus":
            for gpu in range(8):
                uuid = f"GPU-{gpu}"
                writer.add_util(
                    [UtilSample(t, uuid, 10.0 * gpu) for t in range(START, end, S // 5)]
                )
                writer.add_gpu([GpuSample(end - S, uuid)])
                writer.add_gpm([GpmSample(end - S, uuid)])
        if kind == "200 workers":
            pids = tuple(range(1000, 1200))
            writer.put_loaders(
                [
                    Loader(
                        rank=0, id=1, file="", line=0, call="", dataset="", num_workers=200,
                        batch_size=None, pin_memory=False, persistent_workers=False,
                        prefetch_factor=None, iterable=True, worker_pids=pids,
                    )
                ],
                end,
            )  # fmt: skip
            writer.add_procs([ProcSample(end - S, pid, "worker") for pid in pids])
        if kind == "nothing measured":
            writer.add_host(HostSample(end - S))
            writer.add_procs([ProcSample(end - S, 1, "trainer")])
            writer.add_memory([MemorySample(0, end - S, None, "cuda-allocator", 0)])
            writer.add_intervals([Interval(0, "checkpoint", end - S, end - S + MS)])
            writer.put_probe_state(0, {"cuda": None}, end)
            writer.set_meta("missing", "not a mapping")
        writer.commit()
    return end


@pytest.mark.parametrize("kind", ["no steps", "8 gpus", "200 workers", "nothing measured"])
def test_an_odd_store_is_read_and_drawn_live_and_replayed(tmp_path: Path, kind: str) -> None:
    run_dir = tmp_path / "3f2a"
    run_dir.mkdir()
    end = odd_store(run_dir, kind)
    run_json(run_dir, pid=os.getpid())
    snaps = []
    live = LiveSource(run_dir, now_ns=lambda: end)
    snaps.append(live.read(View(columns=61)))
    live.close()
    exit_json(run_dir, end)
    ended = LiveSource(run_dir)
    snaps.append(ended.read(View(columns=61)))
    ended.close()
    if kind != "no steps":
        played = ReplaySource(run_dir, Playback(clock=lambda: 0.0))
        snaps.append(played.read(View(columns=61)))
        played.playback.seek(1e12)
        snaps.append(played.read(View(columns=61)))
        played.close()
    for snap in snaps:
        for painter in PAINTERS.values():
            for row in painter(snap, 80, 6, UNICODE)[:6]:
                fit(row, 80, UNICODE)
    if kind == "8 gpus":
        chart = snaps[0].chart
        assert chart is not None
        assert chart.title == "8 GPUs, mean utilisation"
        assert "35% mean" in chart.facts
        assert not any(fact.startswith("shape") for fact in chart.facts)
