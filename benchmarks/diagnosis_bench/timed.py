"""Run a script as ``python script`` would, and write how long its training loop took.

    python timed.py RESULT.json SCRIPT [ARGS...]

The loop is what lies between the ends of the first and the last ``optimizer.step()``: start-up and
the first step's warm-up are outside. One hook of torch's own reads the clock, nothing else is done.
"""

from __future__ import annotations

import atexit
import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Install the clock and become the script."""
    target, script, *arguments = sys.argv[1:]
    seen: dict[str, float] = {"calls": 0, "first": 0.0, "last": 0.0}

    def stepped(*_: Any) -> None:
        now = time.perf_counter()
        if not seen["calls"]:
            seen["first"] = now
        seen["last"] = now
        seen["calls"] += 1

    def write() -> None:
        body = {"calls": seen["calls"], "loop_s": seen["last"] - seen["first"]}
        Path(target).write_text(json.dumps(body))

    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(stepped)
    atexit.register(write)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
