"""Become the command of a trial's leg, inside a world of its own; run by ``python -I -S``.

The shim executes this in place of the command, so that the command keeps the process the shim waits
for. Arguments: the plan (JSON, see ``world.enter``), a descriptor for what went wrong, the
executable and its ``argv``. The descriptor ends without a word once the command runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main(plan_path: str, told: int, executable: str, argv: list[str]) -> int:
    """Return only if the command could not be started."""
    # Python ignores these two in itself, and ignored signals stay ignored across an exec.
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(told, False)
    try:
        from gputop_train.launch.diversion.layers import WorldProblem
        from gputop_train.launch.diversion.world import enter

        with open(plan_path, encoding="utf-8", errors="surrogateescape") as stream:  # noqa: PTH123
            plan = json.load(stream)
        try:
            world = enter(plan, argv)
        except WorldProblem as problem:
            return _tell(told, {"world": str(problem)}, 125)
        with open(plan["result"], "w", encoding="utf-8") as stream:  # noqa: PTH123
            json.dump(world, stream)
    except Exception as error:
        return _tell(told, {"world": f"{type(error).__name__}: {error}"}, 125)
    try:
        os.execve(executable, argv, os.environ)
    except OSError as error:
        return _tell(told, {"exec": error.errno}, 127)


def _tell(told: int, what: dict[str, object], code: int) -> int:
    os.write(told, json.dumps(what).encode())
    return code


if __name__ == "__main__":
    here = os.path.abspath(__file__)  # noqa: PTH100
    for _ in range(4):
        here = os.path.dirname(here)  # noqa: PTH120
    sys.path.append(here)
    os._exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
