"""A page for each diagnosis, made from its rule file."""

from __future__ import annotations

import pathlib
import re
from dataclasses import replace

import pytest

from gputop_train.diagnose import pages
from gputop_train.diagnose.not_judged import NOT_JUDGED, NotJudged
from gputop_train.diagnose.rules import all_rules
from gputop_train.diagnose.rules.base import Page, Rule, Threshold

PAGE = Page(
    number=2,
    title="Loading in the training process",
    meaning="Batches are made where the model trains. It stands still meanwhile.",
    looks_at=("the wait in `next()`",),
    thresholds=(Threshold("wait | exposed", ">= 5%", "TensorFlow"),),
    mistaken_for=("a data set in memory: no wait",),
    mend=("more workers", "num_workers=4", "fewer transforms"),
    test="replay one batch",
    gain="T / (T - E)",
)
RULE = Rule("a-cause", 30, parent="a-cost", page=PAGE)


#: Other words with hyphens that pages set as code.
NAMES: frozenset[str] = frozenset()


def test_a_page_says_all_a_rule_file_holds():
    text = pages.page_text(RULE, PAGE)
    for said in (
        "# `a-cause`: Loading in the training process",
        PAGE.meaning,
        "- the wait in `next()`",
        "| wait \\| exposed | >= 5% | TensorFlow |",
        "- a data set in memory: no wait",
        "1. More workers.\n2. num_workers=4.\n3. Fewer transforms.\n",
        "Replay one batch.",
        "T / (T - E)",
        "*Family: input pipeline; closer cause of [`a-cost`](a-cost.md)*",
    ):
        assert said in text


def test_other_diagnoses_are_linked():
    page = replace(PAGE, mistaken_for=("prep-stall, `gc-pause`: a warm-up, not pre-prep-stall",))
    text = pages.page_text(RULE, page)
    first, second = "[`prep-stall`](prep-stall.md)", "[`gc-pause`](gc-pause.md)"
    assert f"- {first}, {second}: a warm-up, not pre-prep-stall\n" in text
    told = "\n".join(pages.plain_text(RULE, page))
    assert "- prep-stall, gc-pause: a warm-up" in told and ".md" not in told


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
    text = pages.page_text(rule, page)
    assert "catalogue" not in text and "[S]" not in text and "[D]" not in text
    assert page.title and page.meaning and page.test and page.gain
    assert sum(page.number in numbers for numbers in pages.FAMILIES.values()) == 1


#: The ids the diagnoses were collected under; "memory-capped" shares its number with "oom-risk".
CATALOGUE = [
    "input-bound",
    "main-process-loading",
    "prep-stall",
    "fetch-stall",
    "page-cache-thrashing",
    "cold-cache-first-epoch",
    "bursty-prefetch",
    "cpu-oversubscription",
    "worker-respawn",
    "slow-worker",
    "loader-ipc-overhead",
    "host-memory-pressure",
    "pageable-h2d",
    "unoverlapped-h2d",
    "pcie-link-degraded",
    "pcie-bandwidth-bound",
    "device-roundtrip",
    "host-sync-stall",
    "launch-bound",
    "host-compute",
    "gc-pause",
    "recompilation",
    "cudnn-benchmark-thrash",
    "small-batch",
    "checkpoint-stall",
    "eval-stall",
    "logging-stall",
    "long-initialization",
    "warm-up",
    "idle-allocation",
    "memory-leak",
    "fragmentation",
    "allocator-retry-stall",
    "empty-cache-in-loop",
    "oom-risk",
    "gpu-bound",
    "no-tensor-cores",
    "memory-bandwidth-bound",
    "misleading-utilization",
    "clock-throttling",
    "gpu-contention",
    "dataparallel-used",
    "idle-gpu",
    "comm-bound",
    "straggler-rank",
    "cpu-affinity",
    "slow-collate",
    "idle-workers",
    "worker-memory-growth",
    "optimizer-overhead",
    "cpu-training",
    "cpu-only-build",
    "anomaly-mode",
    "pin-memory-thread",
    "shm-too-small",
    "startup-scan",
]


def test_every_id_of_the_catalogue_is_judged_or_said_not_to_be():
    assert len(CATALOGUE) == 56
    rules = {rule.id: rule for rule in all_rules()}
    known = {id_: rule.page.number for id_, rule in rules.items() if rule.page is not None}
    known |= {entry.id: entry.number for entry in NOT_JUDGED}
    assert known == {id_: n for n, id_ in enumerate(CATALOGUE, 1)} | {
        "memory-capped": 35,
        "cpu-contention": 20,
    }


def test_every_rule_has_a_page_and_every_link_leads_to_one():
    assert [rule.id for rule in all_rules() if rule.page is None] == []
    made = pages.pages()
    for name, text in made.items():
        targets = re.findall(r"\]\((?!\.\.|https?:)([^)#]+)\)", text)
        assert [t for t in targets if t not in made] == [], name
        # What a page says of another diagnosis is said by its id.
        named = set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", text))
        assert named <= set(CATALOGUE) | {"memory-capped", "cpu-contention"} | NAMES, (name, named)


def test_nothing_is_both_judged_and_not():
    judged = {rule.id for rule in all_rules()}
    assert not judged & {entry.id for entry in NOT_JUDGED}


def test_the_pages_in_docs_are_those_of_the_rules():
    folder = pathlib.Path(__file__).resolve().parents[2] / "docs" / "diagnoses"
    kept = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.md")}
    made = pages.pages()
    again = "run: python -m gputop_train.diagnose.pages docs/diagnoses"
    assert [name for name in sorted(made | kept) if made.get(name) != kept.get(name)] == [], again


def test_what_is_not_judged_is_in_the_index_with_its_reason(monkeypatch):
    entry = NotJudged(9, "a-cause", "A cause", "takes a | signal", "look at x")
    monkeypatch.setattr(pages, "NOT_JUDGED", (entry,))
    assert "| `a-cause` | A cause | takes a \\| signal | look at x |" in pages.index_text([])
