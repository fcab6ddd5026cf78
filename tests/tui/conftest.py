"""The screen's tests see no terminal settings of whoever runs them."""

from __future__ import annotations

import pytest

from gputop_train.tui import pages
from gputop_train.tui.paging import PagedApp


@pytest.fixture(autouse=True)
def neutral_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "SSH_TTY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def every_page_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures name all pages there will be, so that a new page changes only its own pictures."""
    names = tuple((pages.key_of(name), name) for name in pages.NAMES)
    monkeypatch.setattr(PagedApp, "page_names", names)
