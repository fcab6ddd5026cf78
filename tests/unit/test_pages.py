"""A page for each diagnosis, made from its rule file."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gputop_train.diagnose import pages
from gputop_train.diagnose.not_judged import NOT_JUDGED
from gputop_train.diagnose.rules import all_rules
from gputop_train.diagnose.rules.base import Page, Rule, Threshold

PAGE = Page(
    number=2,
    title="Loading in the training process",
    meaning="Batches are made where the model trains. It stands still meanwhile.",
    looks_at=("the wait in `next()`",),
    thresholds=(Threshold("wait | exposed", ">= 5%", "TensorFlow"),),
    mistaken_for=("a data set in memory: no wait",),
    mend=("workers", "fewer transforms"),
    test="replay one batch",
    gain="T / (T - E)",
)
RULE = Rule("a-cause", 30, parent="a-cost", page=PAGE)


def test_a_page_says_all_a_rule_file_holds():
    text = pages.page_text(RULE, PAGE)
    for said in (
        "# `a-cause`: Loading in the training process",
        PAGE.meaning,
        "- the wait in `next()`",
        "| wait \\| exposed | >= 5% | TensorFlow |",
        "- a data set in memory: no wait",
        "1. workers\n2. fewer transforms\n",
        "Replay one batch.",
        "T / (T - E)",
        "*Family: input pipeline; closer cause of [`a-cost`](a-cost.md)*",
    ):
        assert said in text


def test_a_terminal_gets_the_page_without_markup_for_browsers():
    text = "\n".join(pages.plain_text(RULE, PAGE))
    assert text.startswith("# a-cause: Loading") and "<!--" not in text and "`" not in text


def test_the_index_puts_a_closer_cause_below_its_parent():
    parent = replace(RULE, id="a-cost", parent="", page=replace(PAGE, number=5))
    later = replace(RULE, id="b-cost", parent="", page=replace(PAGE, number=3))
    rules = [(r, r.page) for r in (RULE, later, parent)]
    text = pages.index_text(rules)
    assert re.findall(r"\| \[`([\w-]+)`\]", text) == ["b-cost", "a-cost", "a-cause"]


def test_writing_removes_pages_of_rules_that_are_gone_and_nobody_elses(tmp_path):
    (tmp_path / "gone.md").write_text(pages.page_text(RULE, PAGE))
    (tmp_path / "own.md").write_text("mine")
    changed = pages.write(tmp_path)
    assert "gone.md" in changed and (tmp_path / "own.md").read_text() == "mine"
    assert (tmp_path / pages.INDEX).is_file()
    assert pages.write(tmp_path) == []


@pytest.mark.parametrize("rule", [r for r in all_rules() if r.page], ids=lambda r: r.id)
def test_a_rules_page_is_whole(rule):
    page = rule.page
    assert page.thresholds and all(t.what and t.value and t.source for t in page.thresholds)
    assert page.looks_at and page.mistaken_for and page.mend
    assert page.title and page.meaning and page.test and page.gain
    assert sum(page.number in numbers for numbers in pages.FAMILIES.values()) == 1


def test_nothing_is_both_judged_and_not():
    judged = {rule.id for rule in all_rules()}
    assert not judged & {entry.id for entry in NOT_JUDGED}
