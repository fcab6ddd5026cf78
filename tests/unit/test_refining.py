"""From a cost to its closer cause: who is asked, who is believed, and what is taken over."""

from __future__ import annotations

import pytest
from synthetic_windows import make_steps, window

from gputop_train.diagnose import refining
from gputop_train.diagnose.refining import refine
from gputop_train.diagnose.rules.base import Refinement, Rule, RuledOut
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Where

WINDOW = window(make_steps(100, {"data_wait": 5, "forward": 5}))
PLACE = Where("/home/ann/train.py", 41, "DataLoader(...)")
PARENT = Finding(
    "input-bound",
    "Training waits.",
    "critical",
    "high",
    0.5,
    evidence=(Evidence("wait", 5, "ms"),),
    where=(PLACE,),
    advice=(Advice("parent's"),),
    gain=Gain(2.0, None, "T / (T - E)"),
)


@pytest.fixture
def asked(monkeypatch):
    """Puts closer causes in the place of the real ones; they answer in this order."""

    def put(*answers):
        rules = [
            Rule(f"r{k}", 301 + k, parent="input-bound", refine=lambda w, f, a=answer: a)
            for k, answer in enumerate(answers)
        ]
        monkeypatch.setattr(refining, "refinements", lambda parent: tuple(rules))

    return put


def test_the_first_that_covers_four_fifths_is_named_and_none_is_asked_after_it(asked):
    asked(
        RuledOut("a", "not it"),
        Refinement("b", 0.79, "B."),
        Abstention("c", "its signal"),
        Refinement("d", 0.80, "D."),
        Refinement("e", 1.0, "E."),
    )
    found, unnamed = refine(WINDOW, PARENT)
    assert found.refined == "d"
    assert found.summary == "Training waits. D."
    assert [u.id for u in unnamed] == ["a", "r1", "c"]
    assert "79%" in unnamed[1].why


def test_one_that_fails_says_so_and_the_next_is_asked(monkeypatch):
    def broken(window, finding):
        raise KeyError("depth")

    rules = (
        Rule("r0", 301, parent="input-bound", refine=broken),
        Rule("r1", 302, parent="input-bound", refine=lambda w, f: Refinement("d", 1.0, "D.")),
    )
    monkeypatch.setattr(refining, "refinements", lambda parent: rules)
    found, said = refine(WINDOW, PARENT)
    assert found.refined == "d"
    assert [(s.id, s.missing) for s in said] == [("r0", "its rule failed (KeyError: 'depth')")]


def test_without_a_closer_cause_the_parent_stands(asked):
    asked(RuledOut("a", "not it"))
    assert refine(WINDOW, PARENT)[0] == PARENT


def test_what_a_closer_cause_leaves_open_stays_the_parents(asked):
    asked(Refinement("d", 1.0, "D.", evidence=(Evidence("own", 1),)))
    found, _ = refine(WINDOW, PARENT)
    assert found.evidence == (Evidence("own", 1), *PARENT.evidence)
    assert (found.where, found.advice, found.gain) == (PARENT.where, PARENT.advice, PARENT.gain)
    assert (found.severity, found.lost_share) == ("critical", 0.5)


def test_a_closer_cause_may_give_its_own_place_advice_and_gain(asked):
    gain = Gain(2.0, (1.2, 1.8), "rates")
    asked(Refinement("d", 1.0, "D.", where=(), where_missing="none", advice=(), gain=gain))
    found, _ = refine(WINDOW, PARENT)
    assert (found.where, found.where_missing, found.advice, found.gain) == ((), "none", (), gain)


def test_a_closer_cause_is_never_more_certain_than_its_parent(asked):
    asked(Refinement("d", 1.0, "D.", confidence="medium"))
    assert refine(WINDOW, PARENT)[0].confidence == "medium"
    asked(Refinement("d", 1.0, "D."))
    weak = Finding("input-bound", "Training waits.", "warn", "low", 0.5)
    assert refine(WINDOW, weak)[0].confidence == "low"


def test_a_cause_that_ends_by_itself_is_information(asked):
    asked(Refinement("cold-cache-first-epoch", 1.0, "Cold.", severity="info"))
    assert refine(WINDOW, PARENT)[0].severity == "info"
