"""The host as the run may use it: measured here, and parsed from texts of other machines."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop_train.collect.cgroup import (
    CgroupLimits,
    group_directories,
    parse_cpu_max,
    parse_keys,
    read_limits,
)
from gputop_train.collect.host import (
    HostCollector,
    cores_between,
    parse_cpu_times,
    parse_psi,
    swap_in_rate,
)

SECOND_NS = 1_000_000_000


@pytest.fixture
def collector():
    collector = HostCollector(lambda: {os.getpid(): "trainer"})
    yield collector
    collector.close()


# -- on this machine


def test_a_record_a_second_however_often_it_is_asked(collector):
    begin_ns = time.monotonic_ns()
    batches = [collector.sample(begin_ns + tick * SECOND_NS // 4) for tick in range(13)]
    times = [s.t_ns - begin_ns for b in batches for s in b.host]
    assert times == [0, SECOND_NS, 2 * SECOND_NS, 3 * SECOND_NS]
    assert [p.pid for b in batches for p in b.procs] == [os.getpid()] * 4


def test_busy_cores_hold_at_least_what_we_burn_ourselves():
    collector = HostCollector(lambda: {os.getpid(): "trainer"}, period_ns=0)
    (first,) = collector.sample(time.monotonic_ns()).host
    began_s = time.process_time()
    while time.process_time() - began_s < 0.7:
        pass
    burnt_s = time.process_time() - began_s
    (second,) = collector.sample(time.monotonic_ns()).host
    collector.close()
    assert (first.cpu_busy, first.iowait) == (None, None)
    assert second.cpu_busy * (second.t_ns - first.t_ns) / 1e9 > 0.8 * burnt_s
    assert second.cpu_busy <= second.cpus_total
    assert second.iowait >= 0


def test_memory_and_shared_memory_are_those_of_the_machine(collector):
    block = Path("/dev/shm") / f"gputop-test-{os.getpid()}"
    try:
        block.write_bytes(b"x" * (16 << 20))
        (host,) = collector.sample(time.monotonic_ns()).host
    finally:
        block.unlink()
    assert (16 << 20) <= host.shm_used <= host.shm_total
    meminfo = Path("/proc/meminfo").read_text().split()
    assert host.mem_total == int(meminfo[meminfo.index("MemTotal:") + 1]) * 1024
    assert 0 < host.mem_available <= host.mem_total


def test_allowed_cpus_are_the_trainers_not_ours():
    trainer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, time\n"
            "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
            "print(flush=True)\ntime.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    collector = HostCollector(lambda: {trainer.pid: "trainer", os.getpid(): "other"})
    try:
        trainer.stdout.readline()
        (host,) = collector.sample(time.monotonic_ns()).host
        assert host.cpus_allowed == 1
    finally:
        collector.close()
        trainer.kill()
        trainer.communicate()


def test_a_trainer_that_ended_leaves_the_rest_of_the_record():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    collector = HostCollector(lambda: {ended.pid: "trainer"})
    batch = collector.sample(time.monotonic_ns())
    collector.close()
    assert batch.procs == ()
    assert batch.host[0].cpus_allowed is None
    assert batch.host[0].mem_total > 0


def test_pids_that_cannot_be_had_are_named_and_the_next_second_is_tried():
    answers = [RuntimeError("gone"), {os.getpid(): "trainer"}]

    def pids():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    collector = HostCollector(pids)
    assert collector.sample(0).host == ()
    assert "gone" in collector.missing["host"]
    assert len(collector.sample(SECOND_NS).host) == 1
    assert "host" not in collector.missing
    collector.close()


# -- /proc texts


def stat_text(user, idle, iowait, guest=0, cpus=2):
    lines = [f"cpu  {user} 0 100 {idle} {iowait} 0 0 0 {guest} 0"]
    lines += [f"cpu{n} 1 1 1 1 1 1 1 1 1 1" for n in range(cpus)]
    return "\n".join([*lines, "intr 12345", "ctxt 99", "btime 1790000000"])


def test_cores_are_shares_of_all_ticks_times_the_cpus():
    before = parse_cpu_times(stat_text(user=1000, idle=5000, iowait=100))
    now = parse_cpu_times(stat_text(user=1150, idle=5030, iowait=120))
    assert cores_between(before, now) == pytest.approx((1.5, 0.2))


def test_guest_time_is_not_counted_twice():
    before = parse_cpu_times(stat_text(user=1000, idle=5000, iowait=0, guest=0))
    now = parse_cpu_times(stat_text(user=1100, idle=5100, iowait=0, guest=100))
    assert cores_between(before, now) == pytest.approx((1.0, 0.0))


def test_iowait_that_runs_backwards_is_none_of_it():
    before = parse_cpu_times(stat_text(user=1000, idle=5000, iowait=100))
    now = parse_cpu_times(stat_text(user=1100, idle=5100, iowait=90))
    busy, iowait = cores_between(before, now)
    assert iowait == 0
    assert 0 < busy <= 2


def test_a_sandbox_that_counts_no_ticks_measures_nothing():
    still = parse_cpu_times(stat_text(user=0, idle=0, iowait=0))
    assert cores_between(still, still) is None
    assert cores_between(None, still) is None
    assert parse_cpu_times("intr 5\n") is None
    assert parse_cpu_times(None) is None


def test_pressure_is_some_of_the_last_ten_seconds():
    text = (
        "some avg10=12.34 avg60=2.09 avg300=0.61 total=4698402\n"
        "full avg10=1.00 avg60=0.00 avg300=0.00 total=0\n"
    )
    assert parse_psi(text) == 12.34
    assert parse_psi("full avg10=1.00\n") is None
    assert parse_psi(None) is None


def test_swap_in_is_bytes_a_second():
    page = os.sysconf("SC_PAGE_SIZE")
    assert swap_in_rate((0, 1000), (2 * SECOND_NS, 1512)) == 256 * page
    assert swap_in_rate((0, 1000), (SECOND_NS, 1000)) == 0
    assert swap_in_rate(None, (0, 5)) is None
    assert swap_in_rate((0, 5), None) is None


# -- control groups


V2 = "29 23 0:26 {root} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "3{n} 23 0:3{n} {root} {point}/{name} rw,nosuid - cgroup cgroup rw,{name}\n"
NOISE = "22 1 8:1 / / rw,relatime - ext4 /dev/vda1 rw\nshort line\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def v2(tmp_path, root="/"):
    return NOISE + V2.format(root=root, point=tmp_path)


def v1(tmp_path, root="/"):
    return NOISE + "".join(
        V1.format(n=n, root=root, point=tmp_path, name=name)
        for n, name in enumerate(["cpu,cpuacct", "memory"])
    )


def test_the_tightest_limit_of_all_ancestors_counts_in_v2(tmp_path):
    job = tmp_path / "slurm" / "job_7" / "step_0"
    write(job / "cpu.max", "max 100000\n")
    write(job.parent / "cpu.max", "350000 100000\n")
    write(job.parent.parent / "cpu.max", "1600000 100000\n")
    write(job / "memory.max", "max\n")
    write(job.parent / "memory.max", "8589934592\n")
    write(job.parent / "memory.current", "6442450944\n")
    write(job.parent / "memory.stat", "anon 1\nfile 2\ninactive_file 2147483648\n")
    limits = read_limits("0::/slurm/job_7/step_0\n", v2(tmp_path))
    assert limits == CgroupLimits(cpu_quota=3.5, mem_limit=8 << 30, mem_used=4 << 30)


def test_v1_keeps_its_controllers_apart(tmp_path):
    write(tmp_path / "cpu,cpuacct" / "docker" / "ab" / "cpu.cfs_quota_us", "150000\n")
    write(tmp_path / "cpu,cpuacct" / "docker" / "ab" / "cpu.cfs_period_us", "100000\n")
    memory = tmp_path / "memory" / "docker" / "ab"
    write(memory / "memory.limit_in_bytes", "4294967296\n")
    write(memory / "memory.usage_in_bytes", "3221225472\n")
    write(memory / "memory.stat", "cache 5\ntotal_inactive_file 1073741824\n")
    cgroup = "5:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/x\n"
    limits = read_limits(cgroup, v1(tmp_path))
    assert limits == CgroupLimits(cpu_quota=1.5, mem_limit=4 << 30, mem_used=2 << 30)


def test_unlimited_is_none_in_both_versions(tmp_path):
    write(tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu,cpuacct" / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    assert read_limits("5:memory:/\n3:cpu,cpuacct:/\n", v1(tmp_path)) == CgroupLimits()
    write(tmp_path / "two" / "cpu.max", "max 100000\n")
    write(tmp_path / "two" / "memory.max", "max\n")
    assert read_limits("0::/two\n", v2(tmp_path)) == CgroupLimits()


def test_inside_a_container_the_mounted_part_of_the_tree_is_read(tmp_path):
    write(tmp_path / "cpu.max", "200000 100000\n")
    mounted = v2(tmp_path, root="/kubepods/pod1/ab")
    assert read_limits("0::/kubepods/pod1/ab\n", mounted).cpu_quota == 2
    assert read_limits("0::/\n", v2(tmp_path)).cpu_quota == 2
    assert read_limits("0::/../../elsewhere\n", v2(tmp_path)).cpu_quota == 2


def test_limits_of_unseen_ancestors_are_in_v1s_hierarchical_limit(tmp_path):
    write(tmp_path / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path / "memory" / "memory.usage_in_bytes", "100\n")
    write(
        tmp_path / "memory" / "memory.stat",
        "hierarchical_memory_limit 2147483648\ntotal_inactive_file 0\n",
    )
    limits = read_limits("5:memory:/docker/ab\n", v1(tmp_path, root="/docker/ab"))
    assert limits.mem_limit == 2 << 30


def test_both_versions_at_once_are_both_read(tmp_path):
    write(tmp_path / "cpu,cpuacct" / "a" / "cpu.cfs_quota_us", "400000\n")
    write(tmp_path / "cpu,cpuacct" / "a" / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "unified" / "a" / "cpu.max", "300000 100000\n")
    mounts = v1(tmp_path) + V2.format(root="/", point=tmp_path / "unified")
    assert read_limits("3:cpu,cpuacct:/a\n0::/a\n", mounts).cpu_quota == 3


def test_a_mount_point_with_a_blank_is_found(tmp_path):
    point = tmp_path / "my groups"
    write(point / "cpu.max", "100000 100000\n")
    mounts = V2.format(root="/", point=str(point).replace(" ", "\\040"))
    assert read_limits("0::/\n", mounts).cpu_quota == 1


def test_directories_go_from_the_group_upwards(tmp_path):
    assert group_directories("0::/a/b\n", v2(tmp_path), "cpu") == [
        (f"{tmp_path}/a/b", True),
        (f"{tmp_path}/a", True),
        (f"{tmp_path}", True),
    ]


@pytest.mark.parametrize(
    ("cgroup", "mountinfo"), [(None, "x"), ("0::/\n", None), ("", ""), ("rubbish", "rubbish - x")]
)
def test_no_control_groups_mean_no_known_limit(cgroup, mountinfo):
    assert read_limits(cgroup, mountinfo) == CgroupLimits()


@pytest.mark.parametrize(
    ("text", "cores"),
    [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("5 0", None), (None, None)],
)
def test_cpu_max_in_cores(text, cores):
    assert parse_cpu_max(text) == cores


def test_keys_that_are_no_numbers_are_skipped():
    assert parse_keys("a 1\nb x\nc\nd 2 3\ne -4\n") == {"a": 1, "e": -4}


def test_many_processes_are_read_less_often(monkeypatch):
    collector = HostCollector(lambda: {os.getpid(): "trainer"})
    monkeypatch.setattr(collector._processes, "sample", lambda *_: [object()] * 150)
    times = [tick for tick in range(13) if collector.sample(tick * SECOND_NS).host]
    collector.close()
    assert times == [0, 3, 6, 9, 12]
