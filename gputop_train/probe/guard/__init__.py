"""Legs of a trial only: no file that was there before is changed, nothing is uploaded.

``install`` runs at the start of every interpreter of a leg, before the script. Where an overlay
keeps changes apart, only the uploads are stopped; where it cannot, an audit hook looks at every
call that could change a file and ends the leg before the first that would.
"""

from __future__ import annotations

import os

#: The leg's scratch, and how files are kept; set by the launch.
SCRATCH = "GPUTOP_TRAIN_SCRATCH"
GUARD = "GPUTOP_TRAIN_GUARD"


def install() -> None:
    """Place what this leg asks for. A guard that cannot be placed ends the process."""
    scratch = os.environ.get(SCRATCH)
    if not scratch:
        return
    if os.environ.get(GUARD) == "refuse":
        try:
            from . import savers, watching

            watching.install(scratch)
            savers.install()
        except BaseException:
            os._exit(97)
    try:
        from . import uploads

        uploads.install(scratch)
    except Exception:
        pass
