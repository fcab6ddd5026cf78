"""The clipboard of the terminal a person sits at, through whatever lies between. Pure.

OSC 52 (``ESC ] 52 ; c ; base64 BEL``, xterm's control sequences) sets it from any machine, over
SSH too. tmux takes it with ``set-clipboard on`` and by default drops it; but it hands on what is
wrapped for it where ``allow-passthrough`` is on (before tmux 3.3: always). GNU screen knows no
OSC 52 and hands on what is wrapped, in pieces. So inside of either the wrapped form is sent as
well; what is not taken is dropped without a trace.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import NamedTuple

from gputop_train.report.format import safe

#: What common terminals still take; a larger text is in the file alone.
MOST_BYTES = 64 * 1024
#: Of one string in GNU screen (``MAXSTR`` of its ansi.c is 768 at the least).
_SCREEN_PIECE = 512


class Copy(NamedTuple):
    """Something to be copied.

    Attributes:
        what: What it is, in a word.
        text: What goes to the clipboard and into the file.
        name: The file's name.
    """

    what: str
    text: str
    name: str


def harmless(text: str) -> str:
    """Text of which nothing acts where it is pasted; line ends stay.

    A recording may come from anyone, and an escape sequence ends what a shell takes for pasted.
    """
    return "\n".join(map(safe, text.split("\n")))


def wrapped(text: str, environ: Mapping[str, str] | None = None) -> str:
    """What to send besides OSC 52 itself: it again, wrapped for what lies between; mostly nothing.

    Args:
        text: For the clipboard.
        environ: The environment.
    """
    env = os.environ if environ is None else environ
    plain = f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"
    if env.get("TMUX"):
        doubled = plain.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{doubled}\x1b\\"
    if env.get("STY"):
        pieces = (plain[at : at + _SCREEN_PIECE] for at in range(0, len(plain), _SCREEN_PIECE))
        return "".join(f"\x1bP{piece}\x1b\\" for piece in pieces)
    return ""
