"""Facts about what shows the screen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from gputop_train.doctor.facts import Terminal
from gputop_train.launch.streams import speaks_utf8
from gputop_train.tui.terminal import LOCAL_HZ, can_run, repaint_hz


def gather(environ: Mapping[str, str]) -> Terminal:
    """Ask the terminal module what the screen would find."""
    try:
        is_terminal = os.isatty(0) and os.isatty(1)
    except OSError:
        is_terminal = False
    columns, rows = shutil.get_terminal_size((0, 0))
    return Terminal(
        is_terminal=is_terminal,
        reason=can_run(environ),
        columns=columns or None,
        rows=rows or None,
        utf8=speaks_utf8(),
        over_ssh=repaint_hz(environ) < LOCAL_HZ,
    )
