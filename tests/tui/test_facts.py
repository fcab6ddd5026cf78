"""What the card makes of a finding: whole facts, nothing said twice, no number lost for good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_train.model import Advice, Diagnosis, Evidence, Finding, Gain, Where
from gputop_train.tui.facts import brief, card_facts, evidence_text, pack, without_exponents
from gputop_train.tui.paint import ASCII, UNICODE
from gputop_train.tui.widgets.finding_words import grounds
from gputop_train.tui.widgets.verdict import card_rows

from .fakes import STARVED, starved
from .test_widgets import read, view

SAVES = Finding(
    id="checkpoint-stall",
    summary="Saving checkpoints takes 76% of the time: 2.08 s each, every 20 steps.",
    severity="critical",
    confidence="high",
    lost_share=0.76,
    evidence=(
        Evidence("saving", 0.764, "of wall"),
        Evidence("saves", 9.0, ""),
        Evidence("one save, mean", 2080.0, "ms"),
        Evidence("steps between saves", 20.0, ""),
        Evidence("step without it, mean", 30.6, "ms"),
        Evidence("one save, size", 1840.0, "MB"),
        Evidence("something a later rule measures", 3.0, "of 4"),
    ),
    where=(Where("/project/demos/checkpointing.py", 68, "torch.save(state, unfinished)"),),
    advice=(
        Advice("Save less often (checkpointing.py:68): every 20 steps costs 2.08 s each."),
        Advice("torch.compile(model) in place of a loop."),
    ),
    gain=Gain(4.23, (4.2, 4.23), "n = 20 steps; from every 10000 steps up to no saving at all"),
)


def test_the_card_leaves_out_what_its_sentence_says_and_keeps_what_it_does_not_know() -> None:
    assert card_facts(SAVES) == [
        "9 saves",
        "a step without it 30.6 ms on average",
        "1.84 GB a save",
        "something a later rule measures 3 of 4",
    ]


def test_the_evidence_view_has_every_number_all_the_same() -> None:
    text = read(grounds(Diagnosis("verdict", False, SAVES), 60, UNICODE))
    for wanted in ("saving 76% of wall", "one save, mean 2.08 s", "steps between saves 20"):
        assert wanted in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_no_reason_is_ever_cut_in_two(width: int) -> None:
    snap = replace(starved(view(width)), diagnosis=Diagnosis("verdict", False, SAVES))
    text = read(card_rows(snap, width, 10, UNICODE))
    whys = [row for row in text.split("\n") if "9 saves" in row]
    assert len(whys) == 1
    assert "…" not in whys[0]


def test_a_second_cause_comes_before_a_second_remedy() -> None:
    also = replace(STARVED, summary="The GPU waits for data in 14% of every step.", lost_share=0.14)
    snap = replace(starved(view()), diagnosis=Diagnosis("verdict", False, SAVES, (also,)))
    text = read(card_rows(snap, 120, 7, UNICODE))
    assert "also" in text
    assert "14% of every step · train.py:41" in text
    assert "torch.compile" not in text


def test_code_keeps_its_spelling_at_the_beginning_of_a_line() -> None:
    snap = replace(starved(view()), diagnosis=Diagnosis("verdict", False, SAVES))
    assert "then   torch.compile(model)" in read(card_rows(snap, 120, 12, UNICODE))


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Evidence("a", 2080.0, "ms"), "a 2.08 s"),
        (Evidence("a", 44_000.0, "kB a step"), "a 44 MB a step"),
        (Evidence("a", 40_700.0, "MB"), "a 40.7 GB"),
        (Evidence("a", 0.98, "of wall (GPU event pairs)"), "a 98% of wall (GPU event pairs)"),
        (Evidence("a", 1020.0, "a step"), "a 1,020 a step"),
        (Evidence("a", 1.0, "cores"), "a 1 core"),
        (Evidence("a", None, "cores"), "a: not measured"),
        (Evidence("a", float("nan"), "ms"), "a: not measured"),
        (Evidence("a", float("inf"), "kB"), "a: not measured"),
        (Evidence("a", True), "a True"),
        (Evidence("basis", "rss-anon"), "basis rss-anon"),
    ],
)
def test_numbers_come_in_the_unit_that_suits_them(item: Evidence, text: str) -> None:
    assert evidence_text(item) == text


def test_parts_that_do_not_fit_are_left_out_whole() -> None:
    parts = ["one fact", "another fact", "a third"]
    assert pack(parts, " · ", 40, 1, UNICODE) == ["one fact · another fact · a third"]
    assert pack(parts, " · ", 24, 1, UNICODE) == ["one fact · another fact"]
    assert pack(parts, " · ", 20, 1, UNICODE) == ["one fact"]
    assert pack(parts, " · ", 20, 2, UNICODE) == ["one fact", "another fact"]
    assert pack(parts, " · ", 40, 0, UNICODE) == []
    assert pack([], " · ", 40, 3, UNICODE) == []


def test_a_sentence_that_is_too_long_ends_after_a_clause() -> None:
    text = "Save less often (train.py:68): every 20 steps costs 2.08 s each; or do it elsewhere."
    assert brief(text, 200, 1, UNICODE) == [text]
    assert brief(text, 70, 1, UNICODE) == [
        "Save less often (train.py:68): every 20 steps costs 2.08 s each…"
    ]
    assert brief(text, 40, 1, ASCII) == ["Save less often (train.py:68)~"]
    assert brief("word " * 20, 12, 1, UNICODE) == ["word word w…"]
    assert brief(text, 40, 0, UNICODE) == []


def test_old_exponents_are_written_out() -> None:
    assert without_exponents("43%: 1.02e+03 a step, 2e-05 s") == "43%: 1,020 a step, 2e-05 s"
