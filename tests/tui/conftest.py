"""The screen's tests see no terminal settings of whoever runs them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def neutral_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "SSH_TTY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
