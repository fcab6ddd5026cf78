"""Words of others, made fit to be shown: one line, no control codes, no secrets."""

from __future__ import annotations

import signal

from gputop_train.launch.secrets import mask_text
from gputop_train.report import format as fmt

_LONGEST = 240


def last_line(text: str) -> str:
    """The last line that says something, which is where Python puts the reason."""
    lines = [line for line in text.splitlines() if line.strip()]
    return shown(lines[-1]) if lines else ""


def reason_line(text: str) -> str:
    """The line of a warning that says what it is, else the last one."""
    lines = [line for line in text.splitlines() if "Warning:" in line]
    return shown(lines[-1].partition("Warning:")[2]) if lines else last_line(text)


def shown(text: str) -> str:
    """``text`` on one line, without control codes, secrets and a final stop."""
    line = fmt.printable(mask_text(text)).strip().rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def signal_name(number: int) -> str:
    """``SIGSEGV``; the number for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
