"""What a process of the run costs, measured on real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from gputop_train.collect.procfs import read_int, read_text
from gputop_train.collect.procs import (
    ProcessCollector,
    ProcStat,
    Reading,
    Traffic,
    assign_roles,
    children_of_session,
    descendants,
    in_session,
    parse_cpus_allowed,
    parse_io,
    parse_kib,
    parse_run_delay,
    parse_stat,
    process_table,
    rates_between,
)
from gputop_train.collect.uss import MAX_RSS_BYTES, UssReader, parse_uss

MIB = 1 << 20


class Child:
    """A Python process that runs one statement at a time when told to, and says what it gave."""

    _LOOP = (
        "import sys, os, time, json\n"
        "for line in sys.stdin:\n"
        "    answer = None\n"
        "    scope = globals()\n"
        "    exec(json.loads(line), scope)\n"
        "    print(json.dumps(scope.get('answer')), flush=True)\n"
    )

    def __init__(self, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self.pid = self.process.pid

    def do(self, code):
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def child():
    child = Child()
    child.do("pass")  # started, its modules loaded
    yield child
    child.process.kill()
    child.process.communicate()


@pytest.fixture
def collector():
    collector = ProcessCollector()
    yield collector
    collector.close()


def sample(collector, child, role="worker"):
    now_ns = time.monotonic_ns()
    (taken,) = collector.sample(now_ns, {child.pid: role})
    return taken


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


# -- on real processes


def test_cpu_is_the_time_burnt_over_the_time_passed(collector, child):
    first = sample(collector, child)
    burnt_s = child.do(
        "b = time.process_time()\n"
        "while time.process_time() - b < 0.4: pass\n"
        "answer = time.process_time() - b"
    )
    second = sample(collector, child)
    assert first.cpu is None
    used_s = second.cpu * (second.t_ns - first.t_ns) / 1e9
    assert used_s == pytest.approx(burnt_s, abs=0.05)


def test_a_process_that_waits_uses_no_cpu(collector, child):
    sample(collector, child)
    child.do("time.sleep(0.3)")
    assert sample(collector, child).cpu < 0.3


def test_private_memory_shows_in_rss_and_in_rss_anon(collector, child):
    before = sample(collector, child)
    child.do("keep = bytearray(b'x' * (64 << 20))")
    after = sample(collector, child)
    assert after.rss - before.rss > 60 * MIB
    assert after.rss_anon - before.rss_anon > 60 * MIB


def test_uss_leaves_out_what_a_forked_worker_shares(collector, child):
    child.do("keep = bytearray(b'x' * (64 << 20))")
    worker = child.do("answer = os.fork()\nif answer == 0:\n    time.sleep(60)")
    try:
        samples = []

        def measured() -> bool:
            samples[:] = collector.sample(time.monotonic_ns(), {worker: "worker"})
            return samples[0].uss is not None

        assert wait_for(measured)
        assert samples[0].rss > 64 * MIB
        assert samples[0].uss < 16 * MIB
    finally:
        os.kill(worker, signal.SIGKILL)


def test_the_trainers_memory_lock_is_left_alone(collector, child):
    for _ in range(5):
        assert sample(collector, child, role="trainer").uss is None
        time.sleep(0.02)
    assert collector._uss._thread is None


def storage_backed(directory):
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip("needs a directory on a disk")


def test_bytes_written_and_read_are_those_of_storage(collector, child, tmp_path):
    storage_backed(tmp_path)
    path = tmp_path / "data"
    first = sample(collector, child)
    child.do(
        f"fd = os.open({str(path)!r}, os.O_CREAT | os.O_RDWR)\n"
        "os.write(fd, b'x' * (8 << 20))\n"
        "os.fsync(fd)\n"
        "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)"
    )
    second = sample(collector, child)
    child.do("os.lseek(fd, 0, 0)\nos.read(fd, 8 << 20)")
    third = sample(collector, child)
    # The kernel may reclaim cached pages at any time: of some re-reads one is served whole from
    # the cache. Were cache hits counted, every one of them would show its 8 MiB.
    from_storage = []
    for _ in range(10):
        child.do("os.lseek(fd, 0, 0)\nos.read(fd, 8 << 20)")
        from_storage.append(sample(collector, child).read_bytes_per_s)
    assert (
        second.write_bytes_per_s * (second.t_ns - first.t_ns) / 1e9 >= 8 * MIB - 1
    )  # a rate is a float
    assert (
        third.read_bytes_per_s * (third.t_ns - second.t_ns) / 1e9 >= 8 * MIB - 1
    )  # a rate is a float
    assert 0 in from_storage  # the page cache served it


def test_another_users_file_traffic_is_not_measured_and_said(child):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(out)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            collector = ProcessCollector()
            collector.sample(1_000_000_000, {child.pid: "worker"})
            (taken,) = collector.sample(2_000_000_000, {child.pid: "worker"})
            answer = [taken.cpu, taken.rss, taken.read_bytes_per_s, collector.missing]
            os.write(into, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    cpu, rss, read_rate, missing = json.loads(text)
    assert read_rate is None
    assert "same user" in missing["proc_io"]
    assert cpu is not None
    assert rss > 0


def test_a_process_that_ended_leaves_no_sample(collector, child):
    sample(collector, child)
    child.process.kill()
    child.process.communicate()
    assert collector.sample(time.monotonic_ns(), {child.pid: "worker"}) == []


def test_a_zombie_is_shown_as_one_and_blames_nobody(collector, child):
    os.kill(child.pid, signal.SIGKILL)
    assert wait_for(lambda: sample(collector, child).state == "Z")
    assert collector.missing == {}


def test_role_and_rank_are_those_given(collector, child):
    (taken,) = collector.sample(1, {child.pid: "trainer"}, {child.pid: 3})
    assert (taken.role, taken.rank, taken.pid) == ("trainer", 3, child.pid)


def test_a_trainers_main_thread_is_told_apart_from_its_others(collector, child):
    sample(collector, child, "trainer")
    child.do(
        "import hashlib, threading\n"
        "block = b'x' * (1 << 26)\n"  # hashing lets go of the interpreter's lock
        "other = threading.Thread(target=lambda: [hashlib.sha256(block) for _ in range(8)])\n"
        "other.start(); other.join()"
    )
    taken = sample(collector, child, "trainer")
    assert taken.main_cpu < 0.5 * taken.cpu
    assert sample(collector, child, "worker").main_cpu is None


def test_children_are_found_in_the_session_and_beyond_it():
    leader = Child(start_new_session=True)
    try:
        worker, stray = leader.do(
            "import subprocess, sys\n"
            "nap = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
            "kids = [subprocess.Popen(nap), subprocess.Popen(nap, start_new_session=True)]\n"
            "answer = [k.pid for k in kids]"
        )
        assert children_of_session(leader.pid) == {leader.pid, worker, stray}
        table = process_table()
        assert in_session(table, leader.pid) == {leader.pid, worker}
        assert descendants(table, [leader.pid]) == {worker, stray}
        assert leader.pid in descendants(table, [os.getpid()])
        assert descendants(table, [worker]) == set()
    finally:
        leader.do("for k in kids: k.kill(); k.wait()")
        leader.process.kill()
        leader.process.communicate()


def test_a_process_kept_from_its_core_shows_how_long_it_waited(collector, child):
    """Two busy processes on one CPU: each gets about half of it and is ready for the rest."""
    cpu = min(os.sched_getaffinity(0))
    child.do(f"os.sched_setaffinity(0, {{{cpu}}})")
    busy = "while True: pass"
    rival = subprocess.Popen(["taskset", "-c", str(cpu), sys.executable, "-c", busy])
    try:
        before = sample(collector, child)
        child.do("b = time.monotonic()\nwhile time.monotonic() - b < 1.5: pass")
        taken = sample(collector, child)
    finally:
        rival.kill()
        rival.wait()
    assert before.cpus_allowed == taken.cpus_allowed == 1
    assert taken.threads == 1
    if taken.run_delay is None:
        assert "run_delay" in collector.missing
    else:
        assert taken.run_delay > 0.1


def test_reads_the_page_cache_serves_show_in_rchar_alone(collector, child, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"x" * (8 << 20))
    child.do(f"fd = os.open({str(path)!r}, os.O_RDONLY)\nwhile os.read(fd, 1 << 20): pass")
    sample(collector, child)
    first = sample(collector, child)
    child.do("os.lseek(fd, 0, 0)\nwhile os.read(fd, 1 << 20): pass")
    second = sample(collector, child)
    elapsed_s = (second.t_ns - first.t_ns) / 1e9
    assert second.rchar_per_s * elapsed_s >= 8 * MIB - 1
    assert second.reads_per_s * elapsed_s >= 8
    assert second.major_faults_per_s >= 0


# -- pure


STAT = (
    "4242 (pt_data (w) 0) S 4200 4199 4198 0 -1 4194560 9000 0 0 0 250 50 0 0 20 0 5 0 "
    "987654 5000000 2560 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)


def test_a_name_with_blanks_and_parentheses_does_not_shift_the_fields():
    page = os.sysconf("SC_PAGE_SIZE")
    assert parse_stat(STAT) == ProcStat(
        pid=4242,
        state="S",
        ppid=4200,
        session=4198,
        cpu_ticks=300,
        start_ticks=987654,
        rss=2560 * page,
        sys_ticks=50,
        major_faults=0,
        threads=5,
    )


@pytest.mark.parametrize("text", [None, "", "4242", "4242 (python) S 1 2", "x (y) " + "z " * 40])
def test_a_malformed_stat_line_is_no_process(text):
    assert parse_stat(text) is None


def test_a_pid_given_to_another_process_makes_no_rates():
    stat = parse_stat(STAT)
    before = Reading(1_000_000_000, stat, Traffic(0, 0, 0, 0))
    same = Reading(2_000_000_000, replace(stat, cpu_ticks=350), Traffic(4096, 0, 9000, 30))
    assert rates_between(before, same).cpu == pytest.approx(50 / os.sysconf("SC_CLK_TCK"))
    assert rates_between(before, same).read_bytes_per_s == 4096
    assert rates_between(before, same).rchar_per_s == 9000
    assert rates_between(before, same).reads_per_s == 30
    other = Reading(
        2_000_000_000, replace(stat, start_ticks=999999, cpu_ticks=900), Traffic(1 << 30, 0, 0, 0)
    )
    assert rates_between(before, other) == rates_between(None, other)
    assert rates_between(before, other).cpu is None


def test_traffic_withheld_once_leaves_the_cpu_rate():
    stat = parse_stat(STAT)
    rates = rates_between(Reading(0, stat, Traffic(0, 0, 0, 0)), Reading(1_000_000_000, stat, None))
    assert (rates.cpu, rates.read_bytes_per_s) == (0.0, None)


def test_kib_lines_are_bytes_and_only_whole_keys_match():
    status = "Name:\tpython\nVmRSS:\t  2048 kB\nRssAnon:\t    1024 kB\nRssFile:\t 0 kB\n"
    assert parse_kib(status, "RssAnon") == 1024 * 1024
    assert parse_kib(status, "Name") is None
    assert parse_kib(status, "Rss") is None
    assert parse_kib(None, "RssAnon") is None


def test_io_counts_storage_not_calls():
    text = "rchar: 900\nwchar: 800\nsyscr: 7\nsyscw: 6\nread_bytes: 4096\nwrite_bytes: 8192\n"
    assert parse_io(text) == Traffic(4096, 8192, 900, 7)
    assert parse_io("rchar: 900\n") is None
    assert parse_io(None) is None


def test_the_time_a_thread_was_ready_and_did_not_run():
    assert parse_run_delay("123456 7890 12\n") == 7890
    # A kernel without the account, a file that is not there, and one that is no such file.
    for text in ("0 0 0\n", None, "", "1 2", "a b c"):
        assert parse_run_delay(text) is None
    stat = parse_stat(STAT)
    waits = rates_between(
        Reading(0, stat, None, 5_000_000), Reading(2_000_000_000, stat, None, 505_000_000)
    )
    assert waits.run_delay == 0.25
    unknown = rates_between(Reading(0, stat, None, None), Reading(2_000_000_000, stat, None, 9))
    assert unknown.run_delay is None


def test_system_time_and_major_faults_are_rates_of_their_own():
    stat = parse_stat(STAT)
    later = replace(stat, cpu_ticks=400, sys_ticks=75, major_faults=30)
    rates = rates_between(Reading(0, stat), Reading(10_000_000_000, later))
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert (rates.cpu, rates.cpu_sys) == pytest.approx((10 * tick_s, 2.5 * tick_s))
    assert rates.major_faults_per_s == 3.0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Cpus_allowed:\tf\nCpus_allowed_list:\t0-3\nMems_allowed:\t1\n", 4),
        ("Name:\tx\nCpus_allowed_list:\t0,2,8-11\n", 6),
        ("Name:\tx\nCpus_allowed_list:\t\n", None),
        ("Name:\tx\n", None),
        (None, None),
    ],
)
def test_cpus_a_process_may_use(text, count):
    assert parse_cpus_allowed(text) == count


def test_uss_is_the_sum_of_private_pages():
    rollup = (
        "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 90000 kB\nPss: 50000 kB\n"
        "Shared_Clean: 40000 kB\nPrivate_Clean: 100 kB\nPrivate_Dirty: 2000 kB\n"
        "Private_Hugetlb: 4 kB\n"
    )
    assert parse_uss(rollup) == 2104 * 1024
    assert parse_uss("") is None
    assert parse_uss(None) is None


def test_processes_share_the_uss_readings_and_big_ones_get_none():
    reader = UssReader()
    stat = parse_stat(read_text("/proc/self/stat"))
    big = replace(stat, pid=1, start_ticks=1, rss=MAX_RSS_BYTES + 1)
    seen: list[tuple[int, int]] = []

    def read_once(now_ns: int) -> bool:
        reader.ask(now_ns, [stat, big])
        seen.extend(reader.collect())
        return bool(seen)

    assert wait_for(lambda: read_once(10**12))
    assert seen == [(stat.pid, stat.start_ticks)]
    reader.ask(10**12 + 5 * 10**9, [stat, big])  # 5 s later nobody is due
    assert reader._pending is None
    reader.ask(10**12 + 3600 * 10**9, [stat, big])
    assert reader._pending == (stat.pid, stat.start_ticks)
    reader.close()


def test_roles_follow_the_ring_and_the_loader():
    assert assign_roles([1, 2, 3], trainers={1}, workers={2}) == {
        1: "trainer",
        2: "worker",
        3: "other",
    }


def test_a_file_that_is_absent_or_refused_reads_as_none(tmp_path):
    assert read_text(str(tmp_path / "absent")) is None
    assert read_text(str(tmp_path)) is None
    (tmp_path / "word").write_text("max\n")
    assert read_int(str(tmp_path / "word")) is None
    (tmp_path / "number").write_text("12\n")
    assert read_int(str(tmp_path / "number")) == 12


def test_a_file_longer_than_a_page_is_read_whole(tmp_path):
    (tmp_path / "long").write_text("x" * 300_000)
    assert len(read_text(str(tmp_path / "long"))) == 300_000
