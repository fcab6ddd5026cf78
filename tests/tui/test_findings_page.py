"""The findings page: the history of claims, their grounds, the whole run's, and how it looks."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from gputop_train.launch.verdicts import Claims, as_body
from gputop_train.model import Diagnosis
from gputop_train.store.reader import RunReader
from gputop_train.store.retention import KEEP_NS
from gputop_train.store.rollup import StepRollup
from gputop_train.store.writer import RunWriter
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.findings import (
    Findings,
    Seen,
    _add,
    claims_of,
    of_report,
    window_idle,
)
from gputop_train.tui.paint import ASCII, UNICODE, Row, width_of
from gputop_train.tui.screens.findings import FindingsPage
from gputop_train.tui.screens.lines import LinesPage
from gputop_train.tui.snapshot import Axis, View
from gputop_train.tui.views.findings import FindingsView
from gputop_train.tui.widgets.findings import Looking, findings_rows, place_of

from .driving import app_of, lines, settle, until
from .fakes import STARVED
from .made_findings import VIEWS, FindingsSource
from .made_run import START, S, exit_json, run_json, write_store

SIZES = {"120x40": (120, 40), "80x24": (80, 24), "40x12": (40, 12), "200x60": (200, 60)}


def text(row: Row) -> str:
    return "".join(span for span, _ in row)


def shown(view: FindingsView, looking: Looking | None = None) -> list[str]:
    rows, _ = findings_rows(view, looking or Looking(), 120, 90, UNICODE)
    return [text(row) for row in rows]


# -- what it says ----------------------------------------------------------------------------------


def test_what_stands_and_what_the_whole_run_says_come_first() -> None:
    rows = shown(VIEWS["changing"])
    assert rows[0].split()[:3] == ["live", "■", "input-bound"]
    assert "64% of wall" in rows[0]
    assert "for 3m11s" in rows[0]
    assert rows[2].split()[:4] == ["whole", "run", "■", "input-bound"]
    assert "58% of wall · so far" in rows[2]


def test_each_claim_of_the_history_has_its_times_and_what_it_cost() -> None:
    rows = shown(VIEWS["changing"])
    (claim,) = [row for row in rows if "stands" in row]
    assert claim.split()[1:4] == ["stands", "1m01s", "3m11s"]
    assert "critical · high · 44% to 64% of wall" in claim
    (fine,) = [row for row in rows if "✓ healthy" in row]
    assert fine.split()[:2] == ["15s", "46s"]


def test_the_claim_that_is_looked_at_has_its_grounds_below() -> None:
    at_healthy = shown(VIEWS["changing"], Looking(15.2))
    assert any("No cause of lost time above 5%" in row for row in at_healthy)
    assert not any("idle cores" in row for row in at_healthy)
    newest = "\n".join(shown(VIEWS["changing"]))
    for words in ("idle cores", "171 ms", "train.py:41", "[--set num_workers=7]", "2.1x to 2.7x"):
        assert words in newest
    assert "also" in newest
    assert "eval-stall" in newest


def test_what_was_ruled_out_says_why_and_shares_equal_reasons() -> None:
    rows = shown(VIEWS["changing"])
    at = next(n for n, row in enumerate(rows) if "memory does not grow:" in row)
    assert "oom-risk, fragmentation, worker-memory-growth" in rows[at + 1]
    assert any("gpu-bound" in row and "the GPU is busy 34% of the time" in row for row in rows)
    assert any("host-sync-stall" in row and "no GPU event pairs" in row for row in rows)


def test_idle_time_that_was_not_measured_is_a_dash() -> None:
    rows = shown(VIEWS["changing"])
    (saves,) = [row for row in rows if " checkpoint  " in row and "2%" in row]
    assert saves.split()[-2:] == ["-", "2%"]
    assert any("the CPU is the device here" in row for row in shown(VIEWS["no_gpu"]))


def test_a_claim_of_which_no_numbers_are_kept_says_so() -> None:
    rows = shown(VIEWS["long"], Looking(4.0))
    assert any("checkpoint-stall" in row and row.startswith("▶") for row in rows)
    assert any("keeps what was claimed, not the numbers" in row for row in rows)
    assert any("18 so far" in row and "~ to the minute" in row for row in rows)


def test_a_place_in_the_history_stays_while_newer_claims_come() -> None:
    view = VIEWS["changing"]
    assert place_of(view, Looking()) == 3
    assert place_of(view, Looking(9.0)) == 1
    assert place_of(FindingsView(), Looking(9.0)) == -1


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "size", [(40, 4), (40, 9), (61, 15), (80, 20), (120, 36), (300, 96), (20, 3)]
)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_rows_fit_every_size_in_both_alphabets(
    view: str, size: tuple[int, int], glyphs: Any
) -> None:
    width, height = size
    for looking in (Looking(), Looking(0.0), Looking(None, 10_000)):
        rows, _ = findings_rows(VIEWS[view], looking, width, height, glyphs)
        assert len(rows) <= height + 4
        assert all(width_of(row) <= width + 2 for row in rows)


@pytest.mark.parametrize("width", range(60, 121))
def test_a_headline_keeps_apart_what_it_says(width: int) -> None:
    for view in VIEWS.values():
        rows, _ = findings_rows(view, Looking(), width, 30, UNICODE)
        for row in rows[:4]:
            text = "".join(span for span, _ in row)
            assert not re.search(r"\w(?:critical|warn|confidence) ", text), text


# -- what it is made from --------------------------------------------------------------------------


def asked(run_dir: Path, now_ns: int, reader: RunReader | None = None) -> Asked:
    run = json.loads((run_dir / "run.json").read_text())
    axis = Axis(now_ns - 60 * S, now_ns, 100)
    return Asked(reader or RunReader(run_dir), run, run_dir, View(page="findings"), axis, now_ns, 0)


def test_a_live_run_has_its_history_and_is_judged_whole_now_and_then(tmp_path: Path) -> None:
    run_json(tmp_path)
    end = write_store(tmp_path)
    findings = Findings(lambda: 0.0)
    first = findings.gather(asked(tmp_path, end))
    assert [(c.begin_s, c.end_s, c.status) for c in first.claims] == [
        (5.0, 20.0, "too-early"),
        (20.0, None, "verdict"),
    ]
    assert first.claims[-1].lost == (0.64, 0.64)
    assert first.claims[-1].diagnosis is not None
    assert first.claims[-1].diagnosis.verdict == STARVED
    assert first.whole is None  # the page comes first
    whole = None
    while whole is None:
        time.sleep(0.02)
        whole = findings.gather(asked(tmp_path, end)).whole
    assert whole.basis == "so far"
    assert whole.status in ("verdict", "abstained")


def test_diagnoses_that_come_later_are_added_to_the_history(tmp_path: Path) -> None:
    run_json(tmp_path)
    end = write_store(tmp_path)
    findings = Findings(lambda: 0.0)
    reader = RunReader(tmp_path)
    assert len(findings.gather(asked(tmp_path, end, reader)).claims) == 2
    with RunWriter(tmp_path / "run.sqlite") as writer:
        writer.add_finding(end + S, as_body(Diagnosis("healthy", True)))
        writer.commit()
    claims = findings.gather(asked(tmp_path, end + 2 * S, reader)).claims
    assert [claim.status for claim in claims] == ["too-early", "verdict", "healthy"]
    assert claims[1].end_s == 61.0
    # Back in a replay.
    assert len(findings.gather(asked(tmp_path, end, reader)).claims) == 2


def test_what_was_judged_after_the_end_is_of_the_whole_run(tmp_path: Path) -> None:
    run_json(tmp_path)
    end = write_store(tmp_path)
    exit_json(tmp_path, end)
    with RunWriter(tmp_path / "run.sqlite") as writer:
        writer.add_finding(end + S, as_body(Diagnosis("healthy", True, note="All is well.")))
        writer.commit()
    (tmp_path / "report.json").write_text(
        json.dumps({"status": "healthy", "gpu": {"exposed": {"data_wait": 0.25, "launch": None}}})
    )
    view = Findings(lambda: 0.0).gather(asked(tmp_path, end))
    assert view.over
    assert [claim.status for claim in view.claims] == ["too-early", "verdict"]
    assert view.whole is not None
    assert (view.whole.basis, view.whole.status) == ("at the run's end", "healthy")
    assert view.whole.summary == "All is well."
    assert [(i.label, i.whole) for i in view.idle] == [("data_wait", 0.25)]
    # The last moment of a replay lies before the end.
    assert Findings(lambda: 0.0).gather(asked(tmp_path, end - S)).over
    before = RunReader(tmp_path).as_of(end - S)
    assert not Findings(lambda: 0.0).gather(asked(tmp_path, end - S, before)).over


def test_in_the_middle_of_a_replay_the_reports_word_stands_for_the_whole_run(
    tmp_path: Path,
) -> None:
    run_json(tmp_path)
    end = write_store(tmp_path)
    exit_json(tmp_path, end)
    verdict = {"id": "input-bound", "severity": "warn", "confidence": "low", "lost_share": 0.5}
    (tmp_path / "report.json").write_text(json.dumps({"status": "verdict", "verdict": verdict}))
    middle = START + 10 * S
    reader = RunReader(tmp_path)
    view = Findings(lambda: 0.0).gather(asked(tmp_path, middle, reader.as_of(middle)))
    assert [claim.status for claim in view.claims] == ["too-early"]
    assert view.whole is not None
    assert (view.whole.id, view.whole.lost) == ("input-bound", 0.5)
    assert of_report({"status": 3}) is None


def seen(t_s: float, status: str, *, note: bool = False, id: str = "") -> Seen:
    key = (status, id, "")
    return Seen(int(t_s * S), key, stored=not note, text=b"" if note else b"{}")


def test_what_is_kept_of_a_claim_that_stands_for_a_day_is_a_row_a_minute_and_one_text() -> None:
    kept: list[Seen] = []
    for i in range(6 * 60 * 24):
        lost = 0.1 + 0.01 * (i % 30)
        one = Seen(i * 10 * S, ("verdict", "x", ""), lost=(lost, lost), stored=True, text=b"{}")
        _add(kept, one)
    assert len(kept) == 24 * 60 + 1  # and the one it began with
    assert [one.t_ns for one in kept if one.text] == [kept[-1].t_ns]
    assert len({id(one.key) for one in kept}) == 1
    (claim,) = claims_of(kept, 0, 24 * 3600 * S, lambda _: None)
    assert claim.lost == pytest.approx((0.1, 0.39))
    _add(kept, Seen(10**15, ("healthy", "", ""), stored=True, text=b"{}"))
    assert [bool(one.text) for one in kept[-2:]] == [True, True]  # how each of them ended


def test_old_changes_are_known_to_the_minute_unless_they_were_noted() -> None:
    stored = [seen(60, "healthy"), seen(120, "verdict", id="x"), seen(4_000, "healthy")]
    now = 4_100 * S

    def made(found: list[Seen]) -> list[tuple[float, bool]]:
        return [(c.begin_s, c.coarse) for c in claims_of(found, 0, now, lambda _: None)]

    assert made(stored) == [(60.0, True), (120.0, True), (4_000.0, False)]
    noted = [seen(8, "healthy", note=True), seen(77.5, "verdict", note=True, id="x")]
    noted.append(seen(3_999.5, "healthy", note=True))
    assert made([*stored, *noted]) == [(8.0, False), (77.5, False), (3_999.5, False)]
    assert 4_100 * S - 120 * S > KEEP_NS


def test_a_claim_too_short_to_be_kept_is_in_the_history_by_its_note() -> None:
    stored = [seen(60, "healthy"), seen(120, "healthy")]
    noted = [seen(70, "verdict", note=True, id="x"), seen(75, "healthy", note=True)]
    claims = claims_of([*stored, *noted], 0, 130 * S, lambda _: None)
    assert [(c.status, c.begin_s, c.end_s) for c in claims] == [
        ("healthy", 60.0, 70.0),
        ("verdict", 70.0, 75.0),
        ("healthy", 75.0, None),
    ]
    assert claims[1].diagnosis is None


def test_the_supervisor_notes_a_claim_when_it_changes_and_not_its_numbers() -> None:
    claims = Claims()
    starved = Diagnosis("verdict", False, STARVED)
    assert claims.news(Diagnosis("too-early", None, note="1 of 20")) == {"status": "too-early"}
    assert claims.news(Diagnosis("too-early", None, note="2 of 20")) is None
    assert claims.news(starved) == {
        "status": "verdict",
        "id": "input-bound",
        "refined": "prep-stall",
        "severity": "critical",
        "confidence": "high",
    }
    assert claims.news(starved) is None


def test_idle_time_of_a_window_is_of_the_steps_that_measured_it() -> None:
    def rollup(exposed: dict[str, tuple[int, int]] | None) -> StepRollup:
        return StepRollup(0, 1, 1, 0, 0, S, S, S, S, {}, exposed, 1, None, None, 0, 0, 0)

    found = window_idle(
        [rollup({"data_wait": (S, 2 * S)}), rollup(None), rollup({"data_wait": (0, 2 * S)})]
    )
    assert found == {"data_wait": 0.25}


# -- keys ------------------------------------------------------------------------------------------


async def test_keys_lead_through_the_history_and_its_grounds() -> None:
    app = app_of("starved", source=FindingsSource("starved", "changing"))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("8")
        page = app.front
        assert isinstance(page, FindingsPage)
        await until(pilot, lambda: page.snapshot is not None)
        await pilot.press("pagedown")
        assert page._board.top > 0
        await pilot.press("down", "down")
        assert page.looking == Looking(9.0)
        assert any("12 of 20 steps seen" in line for line in lines(app))
        await pilot.press(*["down"] * 5)
        assert page.looking == Looking(0.4)
        await pilot.press(*["up"] * 9)
        assert page.looking == Looking()
        await pilot.press("g")
        assert isinstance(app.front, LinesPage)


async def test_e_opens_the_newest_claim() -> None:
    app = app_of("starved", source=FindingsSource("starved", "changing"))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("e")
        page = app.front
        assert isinstance(page, FindingsPage)
        await until(pilot, lambda: page.snapshot is not None)
        await pilot.press("down", "escape")
        assert app.front.NAME == "overview"
        await pilot.press("e")
        assert page.looking == Looking()
        assert any("idle cores" in line for line in lines(app))


# -- pictures --------------------------------------------------------------------------------------

PICTURES = [
    *(("starved", "changing", size) for size in SIZES),
    ("starved", "long", "120x40"),
    ("ended", "ended", "80x24"),
    ("healthy", "healthy", "80x24"),
    ("no_gpu", "no_gpu", "80x24"),
    ("abstained", "abstained", "80x24"),
    ("starting", "nothing", "80x24"),
]


@pytest.mark.parametrize(("state", "view", "size"), PICTURES)
def test_findings_look_as_agreed(state: str, view: str, size: str, snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("8")
        await until(pilot, lambda: pilot.app.front.snapshot is not None)
        await pilot.pause()

    app = app_of(state, source=FindingsSource(state, view))
    assert snap_compare(app, terminal_size=SIZES[size], run_before=open_it)


def test_findings_in_plain_ascii_look_as_agreed(snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("8")
        await until(pilot, lambda: pilot.app.front.snapshot is not None)
        await pilot.pause()

    app = app_of("starved", ascii=True, source=FindingsSource("starved", "changing"))
    assert snap_compare(app, terminal_size=SIZES["80x24"], run_before=open_it)
