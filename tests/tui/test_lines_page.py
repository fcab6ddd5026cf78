"""The lines page: what it says of a line, how it folds, where its keys lead, how it looks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gputop_train.model import Fetch, Interval, Loader, Site, Where
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter
from gputop_train.tui.gather import lines as gathering
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.code import MAX_BYTES, Sources, in_folder, judged, place_of, read_text
from gputop_train.tui.gather.moving import located, shifted, squeezed
from gputop_train.tui.paint import ASCII, UNICODE, Row, fit, width_of
from gputop_train.tui.screens.lines import LinesPage
from gputop_train.tui.screens.settings import Settings
from gputop_train.tui.snapshot import Axis, View
from gputop_train.tui.views.lines import HOST_CODE, LOADER, WORKERS, Line, LinesView, Part
from gputop_train.tui.widgets.folding import entries
from gputop_train.tui.widgets.line_words import part_text, share_text, time_text
from gputop_train.tui.widgets.listing import Looking, by_cost, first_row, listing_rows

from . import made_lines
from .driving import app_of, lines, settle, until
from .fakes import RUN
from .made_lines import LINES, TRAIN, VIEWS, LinesSource, number
from .made_run import START, STEP_NS, S, steps

SIZES = {"120x40": (120, 40), "80x24": (80, 24), "40x12": (40, 12), "200x60": (200, 60)}


def shown(view: LinesView, looking: Looking, width: int = 120, height: int = 70) -> list[str]:
    rows, _ = listing_rows(view, looking, width, height, UNICODE)
    return [text(row) for row in rows]


def text(row: Row) -> str:
    return "".join(span for span, _ in row)


# -- what it says ----------------------------------------------------------------------------------


def test_a_line_shows_its_share_its_time_and_what_it_goes_to() -> None:
    rows = shown(VIEWS["whole"], Looking())
    (backward,) = [row for row in rows if "loss.backward()" in row]
    assert "~17%" in backward
    assert "46.0 ms" in backward
    assert "backward" in backward.split("loss.backward()")[0]
    (copy,) = [row for row in rows if "images = images.cuda()" in row]
    assert "1.9%" in copy
    assert "~" not in copy


def test_what_a_loader_makes_training_wait_is_in_brackets_and_in_no_sum() -> None:
    rows = shown(VIEWS["whole"], Looking())
    (loader,) = [row for row in rows if "loader = DataLoader" in row]
    assert loader.split()[1:4] == ["(64%)", "(171", "ms)"]
    assert rows[0].split()[:2] == ["train.py", "93%"]
    assert any("counted at the lines that wait" in row for row in rows)


def test_a_wide_terminal_has_calls_sizes_and_rates_of_copies() -> None:
    rows = shown(VIEWS["whole"], Looking(TRAIN, number("images.cuda()")), 200)
    (copy,) = [row for row in rows if "images = images.cuda()" in row]
    for words in ("1.0", "5.1 ms", "38.5 MB", "7.6 GB/s"):
        assert words in copy
    assert any("38.5 MB each pageable · 7.6 GB/s" in row for row in rows)
    assert "1 in 200" in next(row for row in rows if "torch.save" in row)


def test_a_lower_bound_is_never_shown_as_an_upper_one() -> None:
    part = Part("h2d", 0.001, 0.0001, at_least=True, calls=0.1)
    assert share_text(part.share, at_least=True) == "-"
    assert time_text(part.ms, at_least=True) == "-"
    assert part_text(part).startswith("not measured: only calls over 20 us")
    assert part_text(replace(part, ms=2.0, share=0.1)).startswith("≥2.0 ms a step, ≥10% of wall")


def test_columns_without_a_value_are_left_out() -> None:
    heads = shown(VIEWS["no_gpu"], Looking(), 200)[1]
    assert heads.split() == ["of", "wall", "a", "step", "goes", "to", "line"]


def test_a_kind_that_was_not_measured_is_said_to_be_so() -> None:
    assert any("no CUDA device is in use" in row for row in shown(VIEWS["no_gpu"], Looking()))


def test_a_line_that_is_not_found_any_more_is_told_apart_with_the_number_it_had() -> None:
    rows = shown(VIEWS["changed"], Looking())
    assert "9 moved and 1 not found any more" in rows[1]
    at = next(n for n, row in enumerate(rows) if "not found any more, with" in row)
    assert rows[at + 1].split()[-2:] == [str(number("loss.backward()")), "loss.backward()"]
    (edited,) = [row for row in rows if "scale(loss).backward()" in row]
    assert "ms" not in edited
    (copy,) = [row for row in rows if "images = images.cuda()" in row]
    assert f" {number('images = images.cuda()') + 2} " in copy
    assert any(f"line {number('= DataLoader')} in the run" in row for row in rows)
    assert "rank 0 of 2" in rows[0]


def test_stretches_without_costs_are_folded_and_heads_of_functions_kept() -> None:
    (file, _) = VIEWS["whole"].files
    rows = entries(file, unfolded=False)
    numbers = [row.number for row in rows if not row.folded]
    assert number("def main") in numbers
    assert number("def save") in numbers
    assert number("held_out =") not in numbers
    assert sum(row.folded or 1 for row in rows) == len(LINES)
    assert [row.number for row in entries(file, unfolded=True)] == list(range(1, len(LINES) + 1))


def test_without_the_file_lines_stand_under_their_functions() -> None:
    rows = shown(VIEWS["recorded"], Looking())
    assert "is not on this machine" in rows[1]
    at = next(n for n, row in enumerate(rows) if "in accuracy" in row)
    assert ".item()" in rows[at + 1]


def test_the_order_of_costs_goes_over_all_files() -> None:
    order = by_cost(VIEWS["whole"])
    assert order[0] == (TRAIN, number("for images, labels"))
    assert order[1] == (TRAIN, number("loss.backward()"))
    assert (made_lines.DATA, 31) in order


@pytest.mark.parametrize(("here", "top", "begins"), [(0, 50, 0), (50, 0, 44), (99, 0, 90)])
def test_the_cursor_is_kept_in_sight(here: int, top: int, begins: int) -> None:
    assert first_row(top, here, 100, 10) == begins


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "size", [(40, 4), (40, 9), (61, 15), (80, 20), (120, 36), (300, 96), (12, 3)]
)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_rows_fit_every_size_in_both_alphabets(
    view: str, size: tuple[int, int], glyphs: Any
) -> None:
    width, height = size
    for unfolded in (False, True):
        rows, _ = listing_rows(VIEWS[view], Looking(unfolded=unfolded), width, height, glyphs)
        assert len(rows) <= height + 3
        for row in rows[:height]:
            if row:
                assert width_of(row) <= max(width, 14)


# -- what it is made from --------------------------------------------------------------------------


def site(kind: str, line: int, call: str, **more: Any) -> Site:
    return Site(0, more.pop("id", line), kind, "train.py", line, "main", call, **more)


def made_store(path: Path, sites: list[Site], **more: Any) -> RunReader:
    end = START + 10 * S
    with RunWriter(path / "run.sqlite") as writer:
        writer.add_steps(steps(10 * S // STEP_NS))
        writer.put_sites(sites, end)
        writer.put_loaders(more.get("loaders", []), end)
        writer.add_intervals(more.get("intervals", []))
        writer.put_probe_state(0, {"hooks": {"sync": True, "h2d": True, "save": True}}, end)
        if "finding" in more:
            body = {"status": "verdict", "healthy": False, "verdict": more["finding"]}
            writer.add_finding(end, body)
        writer.commit()
    return RunReader(path)


def gathered(reader: RunReader, folder: Path, **run: Any) -> LinesView:
    about = {"cwd": str(folder), "script": "train.py", "started_wall_ns": 1 << 62, **run}
    view = View(page="lines")
    asked = Asked(reader, about, folder, view, Axis(0, 1, 1), START + 10 * S, 0)
    return gathering.gather(asked, Sources(lambda: 0.0))


def test_hooked_lines_keep_their_time_and_sampled_ones_take_their_part(tmp_path: Path) -> None:
    reader = made_store(
        tmp_path,
        [
            site("sync", 5, "loss.item()", count=100, total_ns=S, seen=50),
            site("sample", 5, "loss.item()", id=50, label="sync", count=30),
            site("sample", 7, "loss.backward()", label="backward", count=60),
            site("sample", 8, "work(x)", label="host_compute", count=10),
            site("sample", 9, "rare()", label="forward", count=1),
        ],
    )
    view = gathered(reader, tmp_path)
    assert (view.steps, view.wall_s) == (100, 10.0)
    read, backward, work = view.files[0].lines
    (part,) = read.parts
    assert (part.kind, part.share, part.ms, part.calls) == ("sync", 0.1, 10.0, 1.0)
    assert part.estimated
    assert backward.share == pytest.approx(60 / 101)
    assert work.parts[0].kind == HOST_CODE
    assert view.files[0].share == pytest.approx(0.1 + 70 / 101)


def test_copies_say_what_they_moved_and_how_fast(tmp_path: Path) -> None:
    moved = site(
        "h2d",
        6,
        "x.cuda()",
        count=100,
        total_ns=S,
        bytes=400_000_000,
        unpinned_bytes=400_000_000,
        seen=100,
        pairs=10,
        pair_ns=4_000_000,
        pair_bytes=40_000_000,
    )
    (line,) = gathered(made_store(tmp_path, [moved]), tmp_path).files[0].lines
    (part,) = line.parts
    assert (part.bytes_each, part.memory, part.gb_per_s) == (4_000_000, "pageable", 10.0)
    assert not part.estimated


def test_loaders_evaluations_and_items_count_at_other_lines(tmp_path: Path) -> None:
    loader = Loader(
        0, 1, "train.py", 3, "DataLoader(data)", "Data", 2, 8, False, False, 2, False,
        batches=100, wait_ns=5 * S, feeds_training=True,
        fetch=(Fetch(0, 1, 100, 3 * S, S, 0, 800),), source=Where("data.py", 12, "Data.__getitem__"),
    )  # fmt: skip
    whole = Interval(0, "eval", START + 2 * S, START + 3 * S, site_id=4)
    reader = made_store(
        tmp_path, [site("eval", 4, "model.eval()")], loaders=[loader], intervals=[whole]
    )
    files = {file.name: file for file in gathered(reader, tmp_path).files}
    built, evaluated = files["train.py"].lines
    assert (built.parts[0].kind, built.parts[0].share, built.share) == (LOADER, 0.5, None)
    assert (evaluated.parts[0].kind, evaluated.parts[0].ms) == ("eval", 10.0)
    assert evaluated.share is None
    (made,) = files["data.py"].lines
    assert made.parts == (Part(WORKERS, 2.5, calls=800, workers=2),)


def test_the_verdict_marks_its_lines_even_those_without_costs(tmp_path: Path) -> None:
    finding = {
        "id": "input-bound", "summary": "", "severity": "warn", "confidence": "high",
        "lost_share": 0.5, "where": [{"file": "train.py", "line": 3, "what": "DataLoader(data)"}],
    }  # fmt: skip
    view = gathered(made_store(tmp_path, [], finding=finding), tmp_path)
    assert view.verdict == ("train.py", 3)
    assert [(line.number, line.mark) for line in view.files[0].lines] == [(3, "verdict")]


def test_a_lower_bound_gives_way_to_what_the_sampler_saw() -> None:
    found: Any = gathering.defaultdict(gathering.Found)
    sites = [
        site("sync", 5, "loss.item()", count=10, total_ns=S),
        site("sample", 5, "loss.item()", id=50, label="sync", count=60),
        site("sample", 7, "loss.backward()", label="backward", count=40),
    ]
    gathering.add_sites(found, sites, gathering.Span(100, 10 * S), counted=False)
    (part,) = found["train.py", 5].parts
    assert (part.share, part.calls, part.estimated, part.at_least) == (0.6, None, True, False)


def test_before_the_first_step_nothing_is_said_of_lines(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run.sqlite") as writer:
        writer.put_probe_state(0, {}, START)
        writer.commit()
    reader = RunReader(tmp_path)
    asked = Asked(reader, {}, tmp_path, View(page="lines"), Axis(0, 1, 1), START)
    assert "No training step" in gathering.gather(asked, Sources(lambda: 0.0)).why


# -- the source ------------------------------------------------------------------------------------


def recorded(number: int, code: str) -> Line:
    return Line(number, code, parts=(Part("backward", 1.0, 0.1),))


def test_a_file_that_reads_as_recorded_needs_no_word(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a = 1\nfor i in range(3):\n    loss.backward()\n")
    told = [recorded(3, "loss.backward()")]
    found, placed = judged("train.py", read_text(path), told, 1 << 62)
    assert (found.note, found.same) == ("", True)
    assert found.lines[2] == "    loss.backward()"
    assert placed == tuple(told)


def test_lines_of_an_edited_file_are_shown_where_they_are_now(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    told = [
        recorded(2, "x = images.cuda()"),
        recorded(3, "loss.backward()"),
        recorded(4, "optimizer.step()"),
        Line(5, "save(model)", mark="verdict"),
    ]
    path.write_text("import torch\n" * 7 + "x = images.cuda()\nloss.backward()\nstep(optimizer)\n")
    found, placed = judged("train.py", read_text(path), told, 1)
    assert found.note == (
        "train.py was changed after this run began: of 3 costly lines 2 moved and "
        "1 not found any more."
    )
    assert [(line.number, line.was, line.recorded) for line in placed] == [
        (8, 2, 2),
        (9, 3, 3),
        (11, 5, 5),
        (-4, 4, 4),
    ]
    path.write_text("#\nx = images.cuda()\nloss.backward()\noptimizer.step()\n#\n#\n")
    same, placed = judged("train.py", read_text(path), told, 1)
    assert same.note == (
        "train.py was changed after this run began; its costly lines read as they did."
    )
    assert placed == tuple(told)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a()\nb(1)\nc()", {1: 1, 2: 2}),
        ("#\n#\na()\nb(1)", {1: 3, 2: 4}),  # near, and then by the same shift
        ("#\n" * 9 + "a()\nb(1)", {1: None, 2: None}),  # too short to be known far away
        ("b(1)\n" + "#\n" * 3 + "a()", {1: None, 2: 1}),  # order is kept
        ("a()\nb(1,\n  2)", {1: 1, 2: None}),
        ("", {1: None, 2: None}),
    ],
)
def test_lines_are_found_near_where_they_should_be_or_not_at_all(
    text: str, found: dict[int, int | None]
) -> None:
    assert located(squeezed(text.split("\n")), [(1, "a()"), (2, "b(1)")]) == found


def test_code_that_occurs_once_is_found_anywhere_and_else_nowhere() -> None:
    far = squeezed(["#"] * 50 + ["loss.backward()"])
    assert located(far, [(3, "loss.backward()")]) == {3: 51}
    assert located((*far, "loss.backward()"), [(3, "loss.backward()")]) == {3: None}


@pytest.mark.parametrize(
    ("number", "now"), [(1, 1), (5, 5), (15, 18), (25, None), (31, 30), (12, 15)]
)
def test_a_line_without_code_moves_with_those_around_it(number: int, now: int | None) -> None:
    assert shifted(number, {5: 5, 10: 13, 20: 23, 30: 29}) == (None if number == 8 else now)
    assert shifted(8, {5: 5, 10: 13}) is None
    assert shifted(8, {}) == 8


def test_another_file_of_that_name_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("nothing = of_the_kind\n" * 9)
    told = [recorded(2, "optimizer.step()"), recorded(7, "loss.backward()")]
    for started, what in ((1 << 62, "is not the file this run had"), (1, "was changed after")):
        found, placed = judged("train.py", read_text(path), told, started)
        assert found.lines == ()
        assert what in found.note
        assert placed == tuple(told)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a = 1\0", "is not text"),
        (b"a = '\xff'\n", "is not text in the encoding it names"),
        (b"# coding: klingon\n", "is not text in the encoding it names"),
        (b"#" * (MAX_BYTES + 1), "is larger than 1 MB"),
    ],
)
def test_what_cannot_be_shown_is_said_why(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    read = read_text(path)
    assert read.lines == ()
    assert why in read.why
    assert "as they were recorded" in judged("train.py", read, [], None)[0].note


def test_a_named_encoding_tabs_and_other_line_ends_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"# coding: latin-1\r\nname = '\xe9\x0c'\r\n\tdeep()\r\n")
    lines = read_text(path).lines
    assert lines[1].startswith("name = 'é")
    assert lines[2] == "    deep()"


def test_pipes_and_files_that_are_gone_block_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "not a regular file" in read_text(tmp_path / "pipe.py").why
    assert "is not on this machine" in read_text(tmp_path / "gone.py").why
    assert "cannot be read" in read_text(tmp_path).why


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("<stdin>", "is no file"),
        ("/tmp/ipykernel_12/345.py", "is no file"),
        ("/etc/shadow", "is no Python file"),
        ("/home/me/train", Path("/home/me/train")),
        ("sub/data.py", Path("/work/sub/data.py")),
    ],
)
def test_only_python_files_and_the_script_are_opened(file: str, found: Any) -> None:
    place = place_of(file, "/work", "/home/me/train")
    assert place == found if isinstance(found, Path) else found in str(place)


def test_a_file_is_looked_at_again_after_some_seconds_and_read_when_it_changed(
    tmp_path: Path,
) -> None:
    now = [0.0]
    sources = Sources(lambda: now[0])
    path = tmp_path / "train.py"
    path.write_text("a = 1\n")
    first = sources.read(path)
    path.write_text("a = 2222\n")
    assert sources.read(path) is first
    now[0] = 6.0
    assert sources.read(path).lines[0] == "a = 2222"
    path.unlink()
    now[0] = 12.0
    assert sources.read(path).lines == ()


def test_a_checkout_of_the_same_project_lends_its_text_where_every_line_reads_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = made_store(tmp_path, [site("sync", 2, "loss.item()", count=9, total_ns=S, seen=9)])
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    away = {"cwd": "/not/here", "started_wall_ns": 1}
    assert "is not on this machine" in gathered(reader, tmp_path, **away).files[0].source.note
    (tmp_path / "sub" / "train.py").write_text("import torch\nprint(loss.item())\n")
    source = gathered(reader, tmp_path, **away).files[0].source
    assert source.lines[1] == "print(loss.item())"
    assert "as it is in this folder" in source.note
    (tmp_path / "sub" / "train.py").write_text("import torch\nprint(loss)\n")
    source = gathered(reader, tmp_path, **away).files[0].source
    assert source.lines == ()
    assert "is not on this machine" in source.note


def test_no_path_leads_out_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert in_folder("/work/sub/data.py", "/work") == tmp_path / "sub/data.py"
    assert in_folder("data.py", "/work") == tmp_path / "data.py"
    assert in_folder("/work/../etc/data.py", "/work") is None
    assert in_folder("/lib/data.py", "/work") is None
    assert in_folder("/work/secret.key", "/work") is None
    assert in_folder("data.py", "") is None
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert in_folder("data.py", "/work") is None


def test_what_a_hostile_store_names_is_survived(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x" * 5_000 + "\nloss.backward()\n")
    sites = [
        Site(0, n, "sample", file, line, "main", "\x1b[31m(" + "y" * 300, "forward", 9)
        for n, (file, line) in enumerate(
            [
                ("a\0b.py", 3),
                ("train.py", 10**9),
                ("train.py", 0),
                ("train.py", -4),
                ("", 1),
                ("/dev/zero.py", 1),
            ],
            1,
        )
    ]
    view = gathered(made_store(tmp_path, sites), tmp_path)
    assert all(line.number for file in view.files for line in file.lines)
    for file in view.files:
        for unfolded in (False, True):
            looking = Looking(file.path, 0, unfolded)
            for row in listing_rows(view, looking, 80, 24, UNICODE)[0]:
                fit(row, 80, UNICODE)
            assert len(entries(file, unfolded=unfolded)) < 20


# -- keys ------------------------------------------------------------------------------------------


async def test_keys_lead_from_line_to_line_and_file_to_file() -> None:
    app = app_of("starved", source=LinesSource("starved", "whole"))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("3")
        page = app.front
        assert isinstance(page, LinesPage)
        await until(pilot, lambda: page.snapshot is not None)
        verdict = number("= DataLoader")
        assert page.looking.at == verdict
        await pilot.press("n")
        assert page.looking.at == number("for images, labels")
        assert any("1 of 11 lines, the costliest first" in line for line in lines(app))
        await pilot.press("n")
        assert page.looking.at == number("loss.backward()")
        await pilot.press("N", "N")
        assert page.looking.at != number("loss.backward()")
        await pilot.press("g")
        assert (page.looking.file, page.looking.at) == (TRAIN, verdict)
        await pilot.press("down", "down", "k")
        assert page.looking.at == verdict + 1
        await pilot.press("right_square_bracket")
        assert page.looking.file == made_lines.DATA
        assert any("pictures.py is not on this machine" in line for line in lines(app))
        await pilot.press("left_square_bracket", "f")
        assert page.looking.unfolded
        await pilot.press(*["pageup"] * 9)
        assert page.looking.at == 1
        assert any("import argparse" in line for line in lines(app))


async def test_g_on_the_overview_opens_the_lines_at_the_verdicts_line() -> None:
    app = app_of("starved", source=LinesSource("starved", "whole"))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("3")
        page = app.front
        assert isinstance(page, LinesPage)
        await until(pilot, lambda: page.snapshot is not None)
        await pilot.press("n", "1", "g")
        assert app.front is page
        await until(pilot, lambda: page.looking.at == number("= DataLoader"))


async def test_g_means_nothing_over_the_settings() -> None:
    app = app_of("starved", source=LinesSource("starved", "whole"), run=RUN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("t", "g", "e")
        assert app.front.NAME == "overview"
        assert isinstance(app.screen, Settings)


async def test_a_verdict_without_a_line_is_said_to_have_none() -> None:
    app = app_of("healthy", source=LinesSource("healthy", "no_gpu"))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("g")
        await until(
            pilot, lambda: any("The verdict points at no line" in line for line in lines(app))
        )


# -- pictures --------------------------------------------------------------------------------------

PICTURES = [
    *(("starved", "whole", size) for size in SIZES),
    ("replay", "recorded", "120x40"),
    ("replay", "recorded", "80x24"),
    ("starved", "changed", "80x24"),
    ("no_gpu", "no_gpu", "80x24"),
    ("starting", "nothing", "80x24"),
]


@pytest.mark.parametrize(("state", "view", "size"), PICTURES)
def test_lines_look_as_agreed(state: str, view: str, size: str, snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.front.snapshot is not None)
        await pilot.pause()

    app = app_of(state, source=LinesSource(state, view))
    assert snap_compare(app, terminal_size=SIZES[size], run_before=open_it)


def test_lines_in_plain_ascii_look_as_agreed(snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("3", "n")
        await until(pilot, lambda: pilot.app.front.snapshot is not None)
        await pilot.pause()

    app = app_of("starved", ascii=True, source=LinesSource("starved", "whole"))
    assert snap_compare(app, terminal_size=SIZES["80x24"], run_before=open_it)
