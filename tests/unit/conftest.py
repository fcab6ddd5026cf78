"""Every finding that a rule makes in any test of this folder must give advice that reads well."""

from __future__ import annotations

import sys

import pytest
from reading import faults

from gputop_train.diagnose.rules.base import Refinement
from gputop_train.model import Finding


@pytest.fixture(autouse=True)
def advice_reads_well(monkeypatch):
    wrong: list[str] = []
    for record in (Finding, Refinement):
        _watch(record, wrong, monkeypatch)
    yield
    assert wrong == []


def _watch(record, wrong, monkeypatch):
    made = record.__init__

    def make(self, *args, **kwargs):
        made(self, *args, **kwargs)
        maker = sys._getframe(1).f_globals.get("__name__", "")
        if maker.startswith("gputop_train.diagnose.rules."):
            wrong.extend(f"{self.id}: {fault}" for fault in faults(self.advice or ()))

    monkeypatch.setattr(record, "__init__", make)
