"""Memory of the host: pressure, workers that grow, and /dev/shm, each beside its look-alikes."""

from __future__ import annotations

import pytest
from synthetic_windows import loader, make_steps, window

from gputop_train.diagnose.rules import (
    host_memory_pressure,
    shm_too_small,
    worker_memory_growth,
)
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding, HostSample, ProcSample, Where

STEPS = make_steps(100, {"forward": 10})
S = 1_000_000_000
GB, MB = 10**9, 10**6
WORKERS = loader(num_workers=4, prefetch_factor=2, source=Where("/home/ann/data.py", 12, "get"))


def host(count=10, **fields):
    values = {"mem_total": 64 * GB, "mem_available": 32 * GB, "swap_in_bytes_per_s": 0.0}
    return tuple(HostSample(k * S, **(values | fields)) for k in range(count))


def faulting(rate):
    return tuple(ProcSample(k * S, 20, "worker", major_faults_per_s=rate) for k in range(3))


# --- host-memory-pressure ------------------------------------------------------------------------


def test_sustained_swap_in_by_our_processes_is_a_warning():
    found = host_memory_pressure.judge(
        window(STEPS, host=host(swap_in_bytes_per_s=8e6), procs=faulting(400.0), loaders=(WORKERS,))
    )
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence, found.lost_share) == ("warn", "high", 0.0)
    assert "8 MB/s" in found.summary
    assert found.advice[0].setting == {"num_workers": 2}


def test_swapping_of_another_program_is_not_ours():
    found = host_memory_pressure.judge(
        window(STEPS, host=host(swap_in_bytes_per_s=8e6), procs=faulting(0.0))
    )
    assert isinstance(found, RuledOut)


def test_a_single_second_of_swapping_is_not_sustained():
    once = (*host(4), *host(2, swap_in_bytes_per_s=8e6), *host(4))
    assert isinstance(host_memory_pressure.judge(window(STEPS, host=once)), RuledOut)


@pytest.mark.parametrize(("pressure", "severity"), [(None, "info"), (0.5, "info"), (40.0, "warn")])
def test_little_memory_left_is_a_warning_only_under_pressure(pressure, severity):
    found = host_memory_pressure.judge(
        window(STEPS, host=host(mem_available=1 * GB, psi_memory=pressure))
    )
    assert isinstance(found, Finding)
    assert found.severity == severity


def test_a_container_at_its_limit_has_no_memory_however_much_the_machine_has():
    found = host_memory_pressure.judge(
        window(STEPS, host=host(mem_limit=8 * GB, mem_limit_used=int(7.9 * GB)))
    )
    assert isinstance(found, Finding)


def test_a_page_cache_that_fills_memory_is_no_pressure():
    # "Available" counts what the cache would give up; hardly any memory is free here.
    found = host_memory_pressure.judge(window(STEPS, host=host(mem_available=30 * GB)))
    assert isinstance(found, RuledOut)


def test_without_readings_memory_is_abstained_from():
    assert isinstance(host_memory_pressure.judge(window(STEPS, host=())), Abstention)


# --- worker-memory-growth ------------------------------------------------------------------------


def grown(uss, *, anon=None, mapped=None, workers=4, readings=8, loaders=None):
    """Workers read in turn, one every two seconds; sizes in bytes by reading 0..readings-1."""
    rows = [
        ProcSample(
            (k * workers + w) * 2 * S,
            20 + w,
            "worker",
            cpu=0.5,
            uss=int(uss(k)),
            rss_anon=int(anon(k)) if anon else int(700 * MB),
            rss=int((anon(k) if anon else 700 * MB) + (mapped(k) if mapped else 150 * MB)),
        )
        for k in range(readings)
        for w in range(workers)
    ]
    return worker_memory_growth.judge(
        window(STEPS, procs=tuple(rows), loaders=loaders or (WORKERS,))
    )


def test_pages_copied_since_the_fork_are_named_although_rss_is_flat():
    found = grown(lambda k: (20 + 30 * k) * MB)
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("warn", "high")
    assert "numpy or Arrow" in found.advice[0].text
    assert "840 MB" in found.summary
    assert [w.line for w in found.where] == [12, 41]


def test_half_a_minute_of_two_workers_is_enough_readings_and_less_is_not():
    def steep(k):
        return (20 + 90 * k) * MB

    assert isinstance(grown(steep, workers=2, readings=3), Finding)
    assert isinstance(grown(steep, workers=2, readings=2), RuledOut)


def test_a_start_that_flattens_is_no_growth():
    assert isinstance(grown(lambda k: (20 + 200 * min(k, 2)) * MB), RuledOut)


def test_a_few_megabytes_do_not_matter():
    assert isinstance(grown(lambda k: (20 + k) * MB), RuledOut)


def test_pages_of_memory_mapped_files_are_given_back():
    found = grown(lambda k: (20 + 60 * k) * MB, mapped=lambda k: (150 + 60 * k) * MB)
    assert isinstance(found, RuledOut)


def test_a_cache_that_fills_in_the_first_epoch_is_waited_for():
    def allocating(**changes):
        ld = loader(num_workers=4, **changes)
        return grown(
            lambda k: (20 + 60 * k) * MB, anon=lambda k: (100 + 60 * k) * MB, loaders=(ld,)
        )

    assert isinstance(allocating(epochs=1), RuledOut)
    later = allocating(epochs=3)
    assert isinstance(later, Finding)
    assert "they allocate it" in later.summary


def test_without_uss_growth_is_abstained_from():
    seen = window(STEPS, workers=(0.5, 0.5), loaders=(WORKERS,))
    assert isinstance(worker_memory_growth.judge(seen), Abstention)


def test_a_loop_without_workers_has_none_that_grow():
    assert isinstance(grown(lambda k: 90 * k * MB, loaders=(loader(),)), RuledOut)


# --- shm-too-small -------------------------------------------------------------------------------


def test_a_full_shm_is_named_with_its_size_and_what_to_pass():
    found = shm_too_small.judge(
        window(STEPS, host=host(shm_used=62 * MB, shm_total=64 * MB), loaders=(WORKERS,))
    )
    assert isinstance(found, Finding)
    assert "97% full" in found.summary
    assert "--shm-size=1g" in found.advice[0].text
    assert "8 batches in flight" in found.advice[0].text


@pytest.mark.parametrize(
    ("used", "loaders"), [(30 * MB, (WORKERS,)), (62 * MB, (loader(),)), (62 * MB, ())]
)
def test_room_enough_or_no_workers_need_no_larger_shm(used, loaders):
    seen = window(STEPS, host=host(shm_used=used, shm_total=64 * MB), loaders=loaders)
    assert isinstance(shm_too_small.judge(seen), RuledOut)


def test_without_readings_shm_is_abstained_from():
    assert isinstance(shm_too_small.judge(window(STEPS, loaders=(WORKERS,))), Abstention)
