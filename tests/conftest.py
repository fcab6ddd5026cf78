"""Start every test session with a terminal's signals, however the runner itself was started.

A shell without job control starts background commands with SIGINT and SIGQUIT ignored, and that is
inherited, as is nohup's SIGHUP: scripts under test would take no notice, rightly, and wait in vain.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# pytest-xdist sets them for its workers, and every program under test would go by them.
os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)
# Nor by what the person at the keyboard keeps for their own runs.
os.environ["GPUTOP_CONFIG"] = ""
# More processes train than there are cores: a thread of torch's that waits by spinning keeps a core
# from those that work (six times the processor time of a small step on a machine full of others).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# The same examples every time: a failure that comes once in a hundred runs says nothing about the
# change under test. HYPOTHESIS_PROFILE=explore draws new ones.
settings.register_profile("steady", derandomize=True)
settings.register_profile("explore", max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
