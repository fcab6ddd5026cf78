"""Progress by the script's own count is right, or there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_train.launch.logtail import LineFolder
from gputop_train.store.writer import RunWriter
from gputop_train.tui.gather.counters import counters
from gputop_train.tui.gather.progress import Follower
from gputop_train.tui.paint import UNICODE
from gputop_train.tui.snapshot import View
from gputop_train.tui.source import LiveSource
from gputop_train.tui.views.progress import Progress
from gputop_train.tui.widgets.header import header_row

from .fakes import starved
from .made_run import START, S, run_json
from .made_run import steps as made_steps


@pytest.mark.parametrize(
    ("line", "n", "total", "unit"),
    [
        ("epoch 2:  26%|##6       | 334/1284 [01:29<04:12,  3.73it/s, loss=2.31]", 334, 1284, "it"),
        (" 12%|█▏        | 120/1000 [00:10<01:12, 12.1it/s]", 120, 1000, "it"),
        ("334/1284 [01:29<04:12,  3.73it/s", 334, 1284, "it"),
        ("Epochs:  20%|██        | 2/10 [03:10<12:40, 95.03s/it]", 2, 10, "epoch"),
        ("120/500 [=====>........] - ETA: 12s - loss: 0.5", 120, 500, "it"),
        ("120/500 ━━━━━━━━━━━━━━ 5s 13ms/step - loss: 0.5", 120, 500, "it"),
        ("Epoch 3/9 ━━━━━━━ 120/500 0:00:10 • 0:00:30 12.1it/s", 120, 500, "it"),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.29", 640, 60000, "sample"),
        ("Epoch 3/10", 3, 10, "epoch"),
        ("step 120/5000 loss 0.3", 120, 5000, "step"),
        ("Iteration: 1,200 of 50,000", 1200, 50000, "step"),
        ("[global_step=12/400]", 12, 400, "step"),
    ],
)
def test_counts_of_common_output_are_read(line: str, n: int, total: int, unit: str) -> None:
    found = [(c.n, c.total, c.unit) for c in counters([line])]
    assert (n, total, unit) in found


@pytest.mark.parametrize(
    "line",
    [
        "11/30/2026 12:00:01 INFO start",
        "accuracy 9500/10000",
        "GPU memory 12/16 GiB",
        "step 1/2/3",
        "batch 12/16 GiB",
        "loss 3/4, ratio 1/2",
        "iter 120: loss 2.31",
        "epoch 3",
        "epoch 11/10",
        "stepping 3/4",
        "https://example.com/12/34 [x]",
    ],
)
def test_what_only_looks_like_a_count_is_none(line: str) -> None:
    assert counters([line]) == []


def test_two_counts_on_one_line_are_told_apart() -> None:
    found = counters(["Epoch [3/10], Step [100/600], Loss: 0.12"])
    assert [(c.n, c.total) for c in found] == [(3, 10), (100, 600)]


@given(st.lists(st.text(max_size=300), max_size=20), st.integers(0, 10**6))
def test_any_output_can_be_looked_at(lines: list[str], steps: int) -> None:
    follower = Follower()
    told = [follower.observe(float(t), steps + t, lines) for t in range(40)]
    assert told == [None] * 40  # nothing moved


# A simulated script: what it prints at which second, and how many steps it has made by then.

Event = tuple[float, int, str]  # seconds, steps done, text printed


def bar(n: int, total: int, desc: str = "") -> str:
    return f"\r{desc}{100 * n // total:3d}%|{'#' * 5}     | {n}/{total} [00:10<00:20,  3.1it/s]"


def looks(events: list[Event], every_s: float, end_s: float) -> Iterator[tuple[float, int, str]]:
    """The output in pieces, as somebody who looks every so often sees it."""
    at, steps = 0, 0
    t = every_s
    while t < end_s:
        text = ""
        while at < len(events) and events[at][0] <= t:
            steps = events[at][1]
            text += events[at][2]
            at += 1
        yield t, steps, text
        t += every_s


def watch(
    events: list[Event], end_s: float, *, passes: tuple[int, ...] = (), from_s: float = 0.0
) -> list[tuple[float, Progress]]:
    folder, follower, out = LineFolder(), Follower(), []
    for t, steps, text in looks(events, 1.0, end_s):
        folder.feed(text)
        if t < from_s:
            continue
        found = follower.observe(t, steps, folder.lines(60), passes)
        if found is not None:
            out.append((t, found))
    return out


def epochs_of(
    epochs: int, batches: int, step_s: float, *, inner: bool, style: str
) -> tuple[list[Event], float]:
    events: list[Event] = []
    t, steps = 2.0, 0
    for epoch in range(epochs):
        if style == "begin":
            events.append((t, steps, f"Epoch {epoch + 1}/{epochs}\n"))
        elif style == "begin0":
            events.append((t, steps, f"Epoch {epoch}/{epochs - 1}\n"))
        for batch in range(batches):
            t += step_s
            steps += 1
            text = bar(batch + 1, batches, "train: ") if inner else ""
            events.append((t, steps, text))
        if inner:
            events.append((t, steps, "\n"))
        if style == "end":
            events.append((t, steps, f"epoch {epoch + 1}/{epochs} loss 0.5\n"))
        elif style == "tqdm":
            events.append((t, steps, bar(epoch + 1, epochs, "epochs: ")))
    return events, t


@settings(max_examples=40, deadline=None)
@given(
    epochs=st.integers(3, 12),
    batches=st.integers(10, 60),
    step_s=st.floats(0.3, 2.0),
    inner=st.booleans(),
    style=st.sampled_from(["begin", "begin0", "end", "tqdm"]),
    attached=st.floats(0.0, 0.7),
)
def test_the_end_of_the_run_is_foretold_right_or_not_at_all(
    epochs: int, batches: int, step_s: float, inner: bool, style: str, attached: float
) -> None:
    inner = inner and style != "tqdm"  # one bar a line
    events, end_s = epochs_of(epochs, batches, step_s, inner=inner, style=style)
    unit_s = batches * step_s
    for t, found in watch(events, end_s, from_s=attached * end_s):
        if found.left_s is None or not found.whole:
            continue
        left = end_s - t
        assert found.total in (epochs, epochs - 1)
        # A line's own unit may be half of one off where that hardly matters.
        assert abs(found.left_s - left) <= 0.2 * left + 4.0, (t, found, left, unit_s)


@settings(max_examples=25, deadline=None)
@given(batches=st.integers(40, 400), step_s=st.floats(0.05, 1.5), epochs=st.integers(1, 4))
def test_the_end_of_a_bar_is_foretold_right(batches: int, step_s: float, epochs: int) -> None:
    events, end_s = epochs_of(epochs, batches, step_s, inner=True, style="none")
    told = watch(events, end_s)
    for t, found in told:
        assert found.total == batches and not found.whole
        if found.left_s is None:
            continue
        into = (t - 2.0) % (batches * step_s)
        left = batches * step_s - into
        assert min(abs(found.left_s - left), found.left_s) <= 0.2 * left + 3.0
    if batches * step_s > 40:
        assert any(found.left_s is not None for _, found in told)


def test_an_evaluation_bar_never_counts_as_progress() -> None:
    events: list[Event] = []
    t, steps = 0.0, 0
    for _ in range(4):
        for _ in range(30):
            t, steps = t + 1, steps + 5
            events.append((t, steps, ""))
        for n in range(40):  # no step is made meanwhile
            t += 1
            events.append((t, steps, bar(n + 1, 40, "eval: ")))
        events.append((t, steps, "\n"))
    assert watch(events, t) == []


def test_a_count_without_steps_never_counts_as_progress() -> None:
    events = [(float(t), 0, bar(t, 200, "downloading: ")) for t in range(1, 100)]
    assert watch(events, 99.0) == []


def test_a_count_at_another_pace_than_the_steps_is_not_believed() -> None:
    events = [(float(t), t * 3, f"batch {t * t}/10000\n") for t in range(1, 100)]
    assert watch(events, 99.0) == []


@pytest.mark.parametrize("style", ["begin", "end", "tqdm"])
def test_a_count_of_epochs_comes_to_tell_the_end(style: str) -> None:
    events, end_s = epochs_of(8, 30, 1.0, inner=False, style=style)
    told = [(t, found) for t, found in watch(events, end_s) if found.left_s is not None]
    assert told and all(found.unit == "epoch" and found.whole for _, found in told)
    assert told[0][0] < 0.5 * end_s


def test_a_bar_over_more_batches_than_a_pass_has_spans_the_run() -> None:
    events = [(float(t), 4 * t, bar(4 * t, 1000)) for t in range(1, 100)]
    told = watch(events, 99.0, passes=(250,))
    assert told and all(found.whole for _, found in told)
    t, found = told[-1]
    assert found.left_s == pytest.approx(250 - t, abs=3)
    assert all(not found.whole for _, found in watch(events, 99.0, passes=(1000,)))


def test_the_count_waits_while_the_loop_pauses() -> None:
    events = [(float(t), 4 * t, bar(4 * t, 1000)) for t in range(1, 60)]
    told = watch(events, 90.0, passes=(250,))
    paused = [found.left_s for t, found in told if t > 65]
    assert paused and len(set(paused)) == 1


# Through the source to the header


def test_the_header_of_a_live_run_says_where_its_count_ends(tmp_path: Path) -> None:
    run_dir = tmp_path / "3f2a"
    run_dir.mkdir()
    run_json(run_dir, pid=os.getpid())
    clock = [START]
    source = LiveSource(run_dir, now_ns=lambda: clock[0])
    log = run_dir / "output.log"
    said = []
    with RunWriter(run_dir / "run.sqlite") as writer:
        for second in range(1, 31):
            clock[0] = START + second * S
            writer.add_steps(made_steps(10, START + (second - 1) * S, first=10 * (second - 1)))
            writer.commit()
            with log.open("a") as output:
                output.write(bar(10 * second, 1000))
            snapshot = source.read(View())
            said.append("".join(text for text, _ in header_row(snapshot, 120, UNICODE)))
    source.close()
    assert "ETA" not in said[0] and "left of it" not in said[0]
    assert snapshot.progress is not None and snapshot.progress.done == 300
    assert snapshot.progress.left_s == pytest.approx(70, abs=3)
    assert "it 300/1,000, 1m" in said[-1] and "left of it" in said[-1]


def test_with_a_count_of_steps_asked_for_the_pauses_count_too() -> None:
    made = starved(View())
    parts = (("forward", 100.0), ("checkpoint", 100.0))
    step = replace(made.step, count=100, total=200, median_ms=100.0, parts=parts)
    row = header_row(replace(made, step=step), 120, UNICODE)
    assert "ETA 20s" in "".join(text for text, _ in row)
