"""The fault matrix: what can go wrong around a run, and what then becomes of training and record.

Each fault is a row here and a test that shows it. ``benchmarks/fault_matrix.py`` runs the tests,
the long ones included, and writes the table; `told` is how a test that does more than one round
says what each of them lost and what was said of it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

#: Where rounds are written down, a JSON object a line; unset in an ordinary test run.
OUTCOMES = "GPUTOP_FAULT_OUTCOMES"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row.

    Attributes:
        name: As in the table; unique.
        training: What becomes of training.
        lost: What of the record is lost, and where the loss is counted.
        said: What the person is told, and where.
        tests: What pytest is to run, relative to ``tests/``: files or node ids; ``[x-*]`` stands for
            the parameters that begin so.
    """

    name: str
    training: str
    lost: str
    said: str
    tests: tuple[str, ...]


KILLED = "faults/test_kills.py::test_killed_at_a_random_moment"
KILLED_TOGETHER = (
    "faults/test_kills.py::test_supervisors_and_screens_may_all_be_killed_under_one_training"
)
MANY = "faults/test_processes.py"

#: Processes and signals.
PROCESSES: tuple[Fault, ...] = (
    Fault(
        "kill -9: supervisor",
        "as without us",
        "nothing: the ring keeps minutes, and whoever comes next reads it on",
        "`supervisor-replaced`; the report is made by the front or by `report` if nobody else did",
        ("faults/test_kills.py::test_supervisors_killed_at_random_moments", KILLED_TOGETHER),
    ),
    Fault(
        "kill -9: screen",
        "as without us",
        "nothing",
        "`attach` finds the run again",
        ("faults/test_kills.py::test_screens_killed_at_random_moments", KILLED_TOGETHER),
    ),
    Fault(
        "kill -9: training process",
        "ends, with exit code 137 as it would",
        "what its probe had not written yet, a fifth of a second at most",
        "killed by SIGKILL (137)",
        (f"{KILLED}[trainer-*]",),
    ),
    Fault(
        "kill -9: loader worker",
        "torch's own RuntimeError, as it would",
        "nothing",
        "the script's own traceback",
        (f"{KILLED}[worker-*]",),
    ),
    Fault(
        "kill -9: shim",
        "as without us",
        "the exit code: `null` in report and `exit.json`",
        "The script's exit code is unknown. The process that waits for the script (the shim) ended "
        "before it.",
        (f"{KILLED}[shim-*]",),
    ),
    Fault(
        "SIGHUP: terminal closed",
        "as without us",
        "nothing",
        "nothing, for nobody is there; `attach` finds the run again",
        ("faults/test_signals.py::test_a_terminal_that_hangs_up",),
    ),
    Fault(
        "SIGSTOP: supervisor for a minute",
        "as without us",
        "records the ring had no room for, counted with the steps that went with them",
        "`lost` in the summary, `words-lost` on the screen; The report is not ready after 10 s.",
        (
            "faults/test_signals.py::test_a_supervisor_stopped_for_a_minute_at_full_speed",
            "faults/test_signals.py::test_a_stopped_supervisor_stops_nothing_and_what_it_missed_is_counted",
        ),
    ),
    Fault(
        "SIGSTOP: screen for a minute",
        "as without us",
        "nothing: it reads the store like anybody else",
        "it goes on where the run is",
        ("faults/test_signals.py::test_a_screen_stopped_for_a_minute",),
    ),
    Fault(
        "no descriptors: script",
        "as without us",
        "the whole record",
        "the probe could not open its ring (Too many open files). The script itself was at its "
        "limit: raise it (ulimit -a).",
        (
            f"{MANY}::test_a_script_that_has_no_descriptors_left",
            "faults/test_probe_faults.py::test_no_file_descriptor_left_costs_only_the_ring",
        ),
    ),
    Fault(
        "no descriptors: supervisor, for a while",
        "as without us",
        "nothing once it has some again",
        "the supervisor has no file descriptors (ulimit -n) left",
        (f"{MANY}::test_a_supervisor_that_runs_out_of_descriptors_goes_on_once_it_has_some",),
    ),
    Fault(
        "no descriptors: supervisor, for good",
        "as without us",
        "nothing: another process makes the report",
        "The supervisor of this run is gone; its report is built from what it recorded.",
        (f"{MANY}::test_a_supervisor_that_never_gets_its_descriptors_back",),
    ),
    Fault(
        "1,000 steps a second and more",
        "as without us",
        "nothing, or counted",
        "",
        (f"{MANY}::test_a_thousand_steps_a_second",),
    ),
    Fault("64 loader workers", "as without us", "nothing", "", (f"{MANY}::test_64_workers",)),
    Fault("8 ranks", "as without us", "nothing", "", (f"{MANY}::test_8_ranks",)),
    Fault(
        "PID reuse",
        "no stranger is signalled or taken for the run",
        "the exit code, where everybody who could have seen it was killed",
        "The run is not alive on this machine, so there is nothing to stop.",
        (f"{MANY}::test_a_pid_that_is_somebody_elses_by_now_is_neither_believed_nor_signalled",),
    ),
    Fault(
        "two supervisors on one run",
        "as without us",
        "nothing: each step is stored once",
        "",
        (
            f"{MANY}::test_two_supervisors_on_one_run_record_each_step_once",
            "integration/test_supervisor.py::test_a_second_supervisor_leaves_the_first_alone",
        ),
    ),
    Fault(
        "wall clock jumps",
        "as without us",
        "nothing: what is measured goes by the monotonic clock",
        "",
        (f"{MANY}::test_a_wall_clock_that_jumps",),
    ),
)
#: Files, disks and output.
FILES: tuple[Fault, ...] = ()


def faults() -> tuple[Fault, ...]:
    """All rows."""
    return PROCESSES + FILES


def told(name: str, *, lost: str = "nothing", said: str = "", detail: str = "") -> None:
    """Write down a round that did no harm; one that did fails its test instead.

    Args:
        name: The fault.
        lost: What was lost, as the product counted it.
        said: The product's own sentence.
        detail: Anything worth a look later.
    """
    place = os.environ.get(OUTCOMES)
    if place:
        line = json.dumps({"fault": name, "lost": lost, "said": said, "detail": detail})
        with open(place, "a") as file:
            file.write(line + "\n")
