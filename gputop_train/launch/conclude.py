"""The end of a run: last data in, final verdict, report, store brought home, traces removed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train import paths
from gputop_train.launch import host_oom, housekeeping, identity, runfile, verdicts
from gputop_train.launch.feeds import RankState
from gputop_train.launch.locking import AlreadyWatched, take_lock
from gputop_train.launch.noring import explain_afterwards
from gputop_train.launch.pipeline import Pipeline, known_ranks
from gputop_train.launch.runs import is_elsewhere, store_path, where_is
from gputop_train.store.errors import StoreBusy, StoreError, StoreFull
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

#: How long the end of a run waits for a store that another program holds locked. Nothing but the
#: report waits for us, and what is only in memory would be lost.
LAST_COMMIT_S = 600.0
#: Rings, those that are just being made, and the control socket.
_OF_A_RING_DIR = re.compile(r"\d+-\d+\.ring(\.tmp\d+)?|control\.sock")
_LAST_COMMIT_PAUSE_S = 0.5


class ConcludeError(Exception):
    """No report can be made; the message says what happened and what to do."""


class CannotWrite(ConcludeError):
    """The disk is full or the run's directory cannot be written; what is there can be read."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What came of a run's end: the report, or why there is none."""

    report: dict[str, Any] | None
    problem: str | None = None


def open_pipeline(run_dir: Path, run: Mapping[str, Any], sid: int | None) -> Pipeline:
    """Open the store, new or continued, and everything that feeds it.

    Args:
        run_dir: The run's directory.
        run: ``run.json``.
        sid: The run's session, ``None`` when it has ended and nothing is to be sampled.

    Raises:
        StoreError: There can be no store here.
    """
    store = store_path(run_dir, run)
    known, damaged = _earlier(store)
    writer = RunWriter(store)
    pipeline = Pipeline(_ring_dir(run) or run_dir / "no-rings", sid, writer, known or {})
    child = identity.recorded_child(run)
    if sid is not None and child is not None:
        pipeline.memory_kills = host_oom.KillCount.of(child.pid)
    writer.set_meta("run", dict(run))
    if damaged is not None:
        pipeline.note("store-damaged", {"text": damaged})
    if known is not None:
        text = "The supervisor was replaced; what happened in between comes from the probe's ring."
        pipeline.note("supervisor-replaced", {"text": text, "pid": os.getpid()})
    return pipeline


def conclude(run_dir: Path, run: Mapping[str, Any], pipeline: Pipeline) -> Conclusion:
    """Drain, judge, report and clean up. The store's writer is closed afterwards. Never raises."""
    guard = pipeline.guard
    store = store_path(run_dir, run)
    report, problem = None, None
    try:
        pipeline.finish(time.monotonic_ns())
        if pipeline.feeds.ever == 0:
            text, blocked = explain_afterwards(run_dir / "probe")
            pipeline.note("no-probe-after", {"text": text, "blocked": blocked})
        report = guard.run("report", lambda: _report(run_dir, run, pipeline, store))
    except StoreFull as error:
        problem = str(error)
    if report is None and problem is None:
        problem = "The report could not be made; see supervisor.log in the run's directory."
    guard.retry_now("store")
    with contextlib.suppress(StoreFull):
        guard.run("store", pipeline.writer.close)
    guard.run("store copy", lambda: _bring_home(store, run_dir))
    if report is not None:  # else the rings are still good for one: `finalize` reads them again
        guard.run("ring directory", lambda: remove_ring_dir(run))
    guard.run("housekeeping", lambda: _prune(run_dir.parent, run))
    return Conclusion(report, problem)


def _prune(root: Path, run: Mapping[str, Any]) -> None:
    keep = (run.get("options") or {}).get("keep") or {}
    housekeeping.prune(
        root,
        keep_runs=keep.get("runs", housekeeping.KEEP_RUNS),
        keep_bytes=int(keep.get("gb", housekeeping.KEEP_BYTES / 10**9) * 10**9),
    )


def _report(
    run_dir: Path, run: Mapping[str, Any], pipeline: Pipeline, store: Path
) -> dict[str, Any]:
    ended = runfile.read_exit(run_dir)
    known = ended is not None and ended.reason is None
    status = ended.status if ended is not None and known else None
    pipeline.writer.set_meta("exit_code", status)
    killed = host_oom.explain(pipeline.memory_kills, status)
    if killed is not None:
        pipeline.note("host-oom", {"text": killed})
    judged = verdicts.judge_run(store, final=True, unsaved=_commit_all(pipeline))
    # Stored before the report is written: the screen shows it even where the disk takes no more.
    pipeline.writer.add_finding(time.monotonic_ns(), verdicts.as_body(judged[1]))
    exit_ = runfile.read_json(run_dir / "exit.json")
    report = verdicts.build_report(store, run, exit_, judged)
    verdicts.write_json(run_dir / "report.json", report)
    return report


def _commit_all(pipeline: Pipeline) -> str | None:
    """Commit the last data; why some of it could not be, if so: a verdict without it would lie."""
    deadline = time.monotonic() + LAST_COMMIT_S
    while True:
        pipeline.guard.retry_now("store")
        pipeline.commit(time.monotonic_ns())
        if not pipeline.writer.waiting_rows:
            return None
        if pipeline.is_full:  # the report would not fit either; it is worth no long wait
            return "the disk was full at the end, so the last steps were not recorded"
        try:
            pipeline.writer.commit()
        except (StoreBusy, StoreFull):
            pass
        except StoreError:  # damaged: it will not come free
            return "the store could not be written at the end, so the last steps were not recorded"
        if time.monotonic() >= deadline:
            return "another program held the store locked, so the last steps were not recorded"
        time.sleep(_LAST_COMMIT_PAUSE_S)


def finalize(run_dir: str | os.PathLike[str], *, wait_s: float = 10.0) -> dict[str, Any]:
    """Make the report of an ended run in this process, when its supervisor died before it could.

    Args:
        run_dir: The run's directory.
        wait_s: How long to wait for a supervisor that is just concluding.

    Returns:
        The report; the one that exists, if there is one.

    Raises:
        ConcludeError: The run is still going on, or nothing was recorded.
    """
    directory = Path(run_dir)
    run = runfile.read_json(directory / "run.json")
    if run is None:
        raise ConcludeError(f"{directory} holds no run. Name one that `gputop-train runs` lists.")
    if directory.stat().st_uid != os.geteuid():  # root too: links in it would be its owner's
        raise ConcludeError(
            f"{directory} belongs to another user, who alone can have its report made. "
            "Ask for a recording of it, or for its report."
        )
    _refuse_elsewhere(directory, run)
    lock, report = _lock_or_report(directory, wait_s)
    if lock is None:
        if report is not None:
            return report
        raise ConcludeError(
            f"The supervisor of {directory.name} is still at work. Try again in a moment."
        )
    try:
        report = runfile.read_report(directory)
        if report is not None:
            return report
        child = identity.recorded_child(run)
        if child is not None and identity.is_alive(child):
            raise ConcludeError(
                f"The run {directory.name} is still going on. Join it with "
                f"`{paths.come_back('attach', directory)}`."
            )
        _witness_lost_exit(directory)
        with _own_log(directory):
            try:
                conclusion = conclude(directory, run, open_pipeline(directory, run, None))
            except StoreError as error:
                raise CannotWrite(str(error)) from error
    finally:
        os.close(lock)
    if conclusion.report is None:
        raise CannotWrite(conclusion.problem or "The report could not be made.")
    return conclusion.report


def report_anyway(run_dir: str | os.PathLike[str], *, wait_s: float = 10.0) -> dict[str, Any]:
    """The report of an ended run; made for the reader alone where it cannot be written.

    Args:
        run_dir: The run's directory.
        wait_s: As in `finalize`.

    Raises:
        ConcludeError: As in `finalize`.
    """
    try:
        return finalize(run_dir, wait_s=wait_s)
    except CannotWrite as problem:
        directory = Path(run_dir)
        run = runfile.read_json(directory / "run.json") or {}
        store = store_path(directory, run)
        exit_ = runfile.read_json(directory / "exit.json")
        try:
            unsaved = None
            if isinstance(problem.__cause__, StoreFull):
                unsaved = "the disk was full at the end" + _missing_at_the_end(store, exit_)
            return verdicts.build_report(
                store, run, exit_, verdicts.judge_run(store, final=True, unsaved=unsaved)
            )
        except StoreError:
            raise problem from None


def _missing_at_the_end(store: Path, exit_: Mapping[str, Any] | None) -> str:
    """How much of a run its store lacks: from the last step that is in it to the script's end."""
    ended_ns = (exit_ or {}).get("ended_mono_ns")
    with RunReader(store) as reader:
        ends = [steps[-1].t1_ns for rank in reader.ranks() if (steps := reader.steps_tail(1, rank))]
    if not ends or not isinstance(ended_ns, int):
        return ", so the last steps were not recorded"
    return f", so its last {(ended_ns - max(ends)) / 1e9:.1f} s were not recorded"


@contextlib.contextmanager
def _own_log(run_dir: Path) -> Iterator[None]:
    """What a supervisor would write to its log goes there, not to the terminal of who asks."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        log = os.open(run_dir / "supervisor.log", flags, 0o600)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    with (
        open(log, "w", encoding="utf-8", errors="backslashreplace") as stream,  # noqa: PTH123
        contextlib.redirect_stderr(stream),
    ):
        yield


def _refuse_elsewhere(run_dir: Path, run: Mapping[str, Any]) -> None:
    """Leave a run alone whose processes or whose store cannot be seen from here.

    A lock says nothing on a file system that does not pass it on to other machines, and a dead PID
    may be alive there: a report made here would end a living run's record.
    """
    if not is_elsewhere(run_dir, run):
        return
    ended = (run_dir / "exit.json").exists()
    if (ended and store_path(run_dir, run).exists()) or (run_dir / "report.json").exists():
        return
    host = run.get("host")
    where = where_is(host if isinstance(host, str) else None)
    raise ConcludeError(
        f"The run {run_dir.name} is {where}, and its report is made there. Ask for it there with "
        f"`{paths.come_back('report', run_dir)}`, or wait for its end."
    )


def remove_ring_dir(run: Mapping[str, Any]) -> None:
    """Remove what a run left in shared memory: only files of kinds we make, never a tree."""
    directory = _ring_dir(run)
    if directory is None or not paths.is_private_dir(directory):
        return
    # OSError: gone already, or something else lies there and the directory stays.
    with contextlib.suppress(OSError):
        for entry in directory.iterdir():
            if _OF_A_RING_DIR.fullmatch(entry.name):
                entry.unlink(missing_ok=True)
        directory.rmdir()


def _ring_dir(run: Mapping[str, Any]) -> Path | None:
    """Where a run's rings are, by ``run.json``: believed only if it is called as the run is.

    A run directory may come from anyone, and elsewhere the rings are another run's: those of a
    process that ended are removed once they were read.
    """
    named = Path(str(run.get("ring_dir")))
    return named if named.name == run.get("id") else None


def _earlier(store: Path) -> tuple[dict[int, RankState] | None, str | None]:
    """What an earlier supervisor left, and what had to be put aside because it was unreadable."""
    if not store.exists():
        return None, None
    try:
        with RunReader(store) as reader:
            return known_ranks(reader), None
    except StoreBusy:  # locked is not damaged: it stays where it is
        raise
    except StoreError as error:
        if store.stat().st_size == 0:  # created, and killed before it got any further
            return {}, None
        aside = store.with_name(f"{store.name}.damaged-{time.time_ns()}")
        store.rename(aside)
        for suffix in ("-wal", "-shm"):
            store.with_name(store.name + suffix).unlink(missing_ok=True)
        return {}, f"{error} It was put aside as {aside.name} and a new one begun."


def _lock_or_report(run_dir: Path, wait_s: float) -> tuple[int | None, dict[str, Any] | None]:
    deadline = time.monotonic() + wait_s
    while (lock := _try_lock(run_dir)) is None:
        report = runfile.read_report(run_dir)
        if report is not None or time.monotonic() >= deadline:
            return None, report
        time.sleep(0.1)
    return lock, None


def _try_lock(run_dir: Path) -> int | None:
    try:
        return take_lock(run_dir)
    except AlreadyWatched:
        return None
    except OSError as error:
        raise CannotWrite(
            f"{run_dir} cannot be written ({error.strerror}). Check its owner and free space."
        ) from error


def _witness_lost_exit(run_dir: Path) -> None:
    if runfile.read_exit(run_dir) is None:
        reason = "Nobody was left to see how the script ended."
        runfile.write_exit(run_dir, runfile.Exit(None, reason=reason))


def _bring_home(store: Path, run_dir: Path) -> None:
    """Copy a store kept on local disk into the run directory, whole or not at all."""
    home = run_dir / "run.sqlite"
    if store == home or not store.exists():
        return
    temporary = run_dir / f".run.sqlite.{os.getpid()}"
    try:
        shutil.copyfile(store, temporary)
        temporary.chmod(0o600)
        temporary.replace(home)
    finally:
        temporary.unlink(missing_ok=True)
    for suffix in ("", "-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # shared with nobody, but perhaps not empty
        store.parent.rmdir()
