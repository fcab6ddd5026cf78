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
        "front, screen or `attach` put another in its place; else `report` makes the report",
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
DISK, SLOW = "faults/test_full_disk.py", "faults/test_slow_files.py"
DAMAGE, FLOODS = "faults/test_corruption.py", "faults/test_output_floods.py"

#: Files, disks and output.
FILES: tuple[Fault, ...] = (
    Fault(
        "disk full for a while",
        "as without us",
        "nothing: what was measured waits in memory, at most 200,000 rows, more is counted",
        "The disk was full for N s; what was measured meanwhile is kept as far as memory allowed.",
        (f"{DISK}::test_a_disk_that_is_full_for_a_while_costs_nothing",),
    ),
    Fault(
        "disk full to the end",
        "as without us",
        "nothing once there is room: the rings stay until the report was made",
        "The report could not be kept in DIR, whose disk is full or cannot be written. Once it "
        "can, ask again with: gputop-train report RUN. It says: the disk was full at the end, so "
        "its last N s were not recorded",
        (f"{DISK}::test_a_disk_that_is_full_to_the_end_costs_a_while_of_the_record_and_says_so",),
    ),
    Fault(
        "disk full: what the script prints itself",
        "its own print fails, as with `cmd >file`",
        "what it could not print",
        "The disk of DIR is full, so a print of the script may have failed and ended it. Free some "
        "space there, or name another directory with --run-root.",
        (
            f"{DISK}::test_what_the_script_prints_itself_fails_as_into_any_file_on_a_full_disk",
            "integration/test_launch_failures.py"
            "::test_a_disk_that_fills_up_during_training_cannot_lose_the_exit_code",
        ),
    ),
    Fault(
        "disk full: ring",
        "as without us",
        "the whole record",
        "the probe could not open its ring (No space left on device)",
        (f"{DISK}::test_a_disk_full_under_the_ring_leaves_training_unmeasured_and_says_so",),
    ),
    Fault(
        "disk full: reports, comparisons, config, pictures",
        "not touched",
        "the file that was asked for; an older one of its name stays whole",
        "FILE cannot be written: No space left on device",
        (
            f"{DISK}::test_every_file_a_command_writes_says_that_the_disk_is_full_and_leaves_no_half",
        ),
    ),
    Fault(
        "disk full at the start, in a run root that was named",
        "not started",
        "",
        "The run could not be set up in DIR: No space left on device. Free some space there, or "
        "name another directory with --run-root; the script was not started.",
        (
            "integration/test_launch_failures.py"
            "::test_a_full_disk_at_the_start_is_said_and_the_script_is_not_started",
            "integration/test_launch_failures.py"
            "::test_a_run_root_we_may_not_write_names_the_way_out",
        ),
    ),
    Fault(
        "home full or read-only",
        "as without us",
        "nothing",
        "DIR cannot be written: Read-only file system. This run is kept in /var/tmp/...; find it "
        "again with: gputop-train runs --run-root /var/tmp/...",
        (f"{SLOW}::test_a_home_that_takes_no_run_is_said_and_the_run_kept_elsewhere",),
    ),
    Fault(
        "limit on the size of files",
        "as without us, below the limit for what it prints itself",
        "the whole record, or what did not fit",
        "the probe could not open its ring (File too large)",
        (
            f"{DISK}::test_a_limit_on_the_size_of_files_is_met_as_a_full_disk_is",
            "faults/test_probe_faults.py::test_a_file_limit_under_way_fails_only_the_ring",
        ),
    ),
    Fault(
        "files damaged at random",
        "not touched: it is over",
        "what was struck; a report is made anew from the store",
        "The store PATH is damaged (WHY). The run's output.log and report.json beside it are "
        "still good to read.",
        (
            f"{DAMAGE}::test_whatever_is_damaged_every_reader_gives_data_or_a_sentence",
            f"{DAMAGE}::test_four_hundred_damages_give_data_or_a_sentence",
        ),
    ),
    Fault(
        "ring damaged under way",
        "as without us",
        "what was read along with it, counted",
        "About N records of rank R were left out: something else than the probe wrote into its "
        "ring.",
        (
            f"{DAMAGE}::test_training_whose_record_is_damaged_under_way_is_the_same_to_a_bit[ring-*]",
        ),
    ),
    Fault(
        "store damaged under way",
        "as without us",
        "the store, put aside; a new one is begun where another supervisor comes",
        "The store PATH is damaged (WHY).",
        (
            f"{DAMAGE}::test_training_whose_record_is_damaged_under_way_is_the_same_to_a_bit"
            "[store-*]",
        ),
    ),
    Fault(
        "floods of output",
        "as without us",
        "nothing below 256 MB; of more the oldest, counted",
        "",
        (FLOODS,),
    ),
    Fault(
        "names that are no UTF-8",
        "as without us",
        "nothing; the bytes are shown as escapes",
        "",
        (
            f"{FLOODS}::test_a_run_whose_names_are_no_utf_8_is_recorded",
            "unit/test_store_codec.py::test_names_that_are_no_utf_8_are_kept_as_escapes",
        ),
    ),
    Fault(
        "slow file system",
        "as without us",
        "nothing",
        "",
        (f"{SLOW}::test_training_in_a_slow_home_is_the_same_to_a_bit",),
    ),
    Fault(
        "file system that hangs",
        "goes on until it prints, as with `cmd >file` there; hears signals",
        "what the ring had no room for, counted",
        "",
        (
            f"{SLOW}::test_a_script_goes_on_and_hears_signals_while_its_run_directory_hangs",
            f"{SLOW}::test_training_in_a_home_that_hangs_for_a_while_is_the_same_to_a_bit",
        ),
    ),
    Fault(
        "store locked by another machine",
        "as without us",
        "nothing: the report waits ten minutes for the lock",
        "The report is not ready after 10 s. Look again with: gputop-train report RUN",
        (
            f"{SLOW}::test_a_store_that_another_machine_holds_locked_costs_a_wait_for_the_report"
            "_alone",
        ),
    ),
    Fault(
        "home of several machines",
        "not touched from another one",
        "nothing: its report is made where it runs",
        "The run RUN is on HOST, and its report is made there.",
        ("unit/test_runs.py::test_a_run_that_lives_elsewhere_is_never_ended_from_here",),
    ),
)


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
