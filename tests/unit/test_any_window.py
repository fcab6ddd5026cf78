"""Windows made at random, wrong ones among them: the engine always answers, and never nonsense."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from synthetic_windows import HOOKS, UUID, loader, make_steps, probe, site, window

from gputop_train.diagnose import evidence
from gputop_train.diagnose.engine import FAILED, diagnose
from gputop_train.diagnose.evidence import totals_of
from gputop_train.diagnose.regimes import regimes, stretch
from gputop_train.model import (
    EXPOSED_LABELS,
    LABELS,
    Fetch,
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    ProcSample,
)
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

KINDS = ("sync", "h2d", "save", "data", "eval", "logging", "sample", "loader", "nograd", "backward")
WINDOWS = 240


class Random:
    """Values of all sizes, ``None`` among them; the same seed gives the same ones."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def chance(self, p=0.5):
        return bool(self.rng.random() < p)

    def maybe(self, value, p=0.7):
        return value if self.chance(p) else None

    def size(self, low=1e-3, high=1e3):
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def count(self, high):
        return int(self.rng.integers(0, high + 1))

    def some(self, values, least=0):
        picked = [v for v in values if self.chance(0.4)]
        return picked if len(picked) >= least else list(values)[:least]


def any_steps(r):
    usual = {label: r.size(0.01, 60) for label in r.some(LABELS, least=1)}
    later = {label: r.size(0.01, 60) for label in r.some(LABELS)}
    every, spike = 2 + r.count(60), r.some(("checkpoint", "eval", "logging", "gc", "data_wait"))
    count = r.count(400)
    change = r.count(400) if r.chance(0.3) else count

    def extra(i):
        more = dict(later) if i >= change else {}
        if i % every == 0:
            more |= {label: more.get(label, 0) + 300.0 for label in spike}
        noise = max(0.0, 1 + 0.5 * r.rng.normal())
        return {label: ms * noise for label, ms in more.items()}

    return make_steps(
        count,
        usual,
        extra=extra,
        exposed={k: r.size(0.01, 90) for k in r.some(EXPOSED_LABELS)} if r.chance() else None,
        dry=r.maybe(float(r.rng.random())),
        syncs=r.count(50),
    )


def any_loader(r, number):
    workers = r.count(9)
    return loader(
        id=number,
        num_workers=workers,
        batch_size=r.maybe(r.count(512)),
        pin_memory=r.chance(),
        persistent_workers=r.chance(),
        prefetch_factor=r.maybe(r.count(8)),
        iterable=r.chance(0.3),
        length=r.maybe(r.count(500)),
        batches=r.count(500),
        wait_ns=int(r.size(1, 1e10)),
        feeds_training=r.chance(0.7),
        epochs=r.count(5),
        dataset_length=r.maybe(r.count(100_000)),
        context=r.maybe("fork"),
        in_order=r.maybe(r.chance()),
        starts=r.count(5),
        start_ns=int(r.size(1, 1e10)),
        first_waits=r.count(5),
        first_wait_ns=int(r.size(1, 1e10)),
        fetch=tuple(
            Fetch(
                w,
                r.maybe(20 + w),
                r.count(100),
                int(r.size(1, 1e10)),
                int(r.size(1, 1e10)),
                int(r.size(1, 1e9)),
                r.count(5000),
                r.count(4),
            )
            for w in range(-1, workers)
        )
        if r.chance()
        else (),
    )


def any_proc(r, t_ns):
    optional = {
        name: r.maybe(r.size(1e-3, 1e9))
        for name in ("read_bytes_per_s", "write_bytes_per_s", "rchar_per_s", "reads_per_s")
    } | {name: r.maybe(r.size(1e-3, 9)) for name in ("cpu", "cpu_sys", "run_delay")}
    sizes = {name: r.maybe(int(r.size(1, 1e11))) for name in ("rss", "rss_anon", "uss")}
    return ProcSample(
        t_ns,
        10 + r.count(12),
        ("trainer", "worker", "other")[r.count(2)],
        state=r.maybe("RSD"[r.count(2)]),
        cpus_allowed=r.maybe(1 + r.count(15)),
        threads=r.maybe(1 + r.count(99)),
        major_faults_per_s=r.maybe(r.size()),
        **optional,
        **sizes,
    )


def any_site(r, number):
    return site(
        KINDS[r.count(len(KINDS) - 1)],
        number,
        label=r.maybe(LABELS[r.count(len(LABELS) - 1)]),
        count=r.count(1000),
        total_ns=int(r.size(1, 1e11)),
        bytes=r.maybe(int(r.size(1, 1e10))),
        unpinned_bytes=r.maybe(int(r.size(1, 1e10))),
        seen=r.maybe(r.count(1000)),
        pairs=r.maybe(r.count(100)),
        pair_ns=r.maybe(int(r.size(1, 1e10))),
        pair_bytes=r.maybe(int(r.size(1, 1e10))),
        after_ns=r.maybe(int(r.size(1, 1e10))),
    )


def any_window(seed):
    r = Random(seed)
    steps = any_steps(r)
    on_gpu = r.chance(0.6)
    begin, end = (steps[0].t0_ns, steps[-1].t1_ns) if steps else (0, 1_000_000_000)
    times = [begin + (end - begin) * k // 20 for k in range(20)]
    state = probe(
        on_gpu,
        without=r.some(HOOKS) if r.chance(0.3) else (),
        flags={"anomaly": r.chance(0.1), "threads": r.count(20)},
        dynamo={"recompiles": r.maybe(r.count(12)), "unique_graphs": r.count(12)},
        optimizers=[{"name": "AdamW", "fused": r.maybe(r.chance()), "foreach": r.chance()}],
    )
    made = window(
        steps,
        on_gpu=on_gpu,
        util=[float(v) for v in r.rng.uniform(0, 100, r.count(300))],
        cores=r.maybe(1 + r.count(63)),
        depths=[r.count(8) for _ in range(r.count(60))],
        memory=[r.size(1e6, 1e11) for _ in range(r.count(300))],
        loaders=tuple(any_loader(r, n) for n in range(r.count(3))),
        sites=tuple(any_site(r, n) for n in range(r.count(12))),
        intervals=tuple(
            Interval(0, label, s.t0_ns, s.t0_ns + ns, r.maybe(r.count(12)), r.maybe(r.count(10**9)))
            for s in steps
            for label, ns in s.labels.items()
            if label in ("checkpoint", "eval", "gc", "compile", "logging") and ns and r.chance(0.8)
        ),
        probe=state if r.chance(0.95) else {},
        final=r.chance(),
    )
    gpu = tuple(
        GpuSample(
            t,
            UUID,
            memory_used=r.maybe(int(r.size(1, 1e11))),
            memory_total=r.maybe(int(r.size(1e9, 1e11))),
            memory_ours=r.maybe(int(r.size(1, 1e11))),
            foreign_processes=r.maybe(r.count(2)),
            power_w=r.maybe(r.size(1, 700)),
            power_limit_w=r.maybe(700.0),
            sm_clock_mhz=r.maybe(r.count(2000)),
            sm_clock_max_mhz=r.maybe(2000),
            throttle_reasons=r.maybe(1 << r.count(9)),
        )
        for t in times
    )
    gpm = tuple(GpmSample(t, UUID, *(r.maybe(r.size(0.1, 99)) for _ in range(5))) for t in times)
    host = tuple(
        HostSample(
            t,
            cpu_busy=r.maybe(r.size(0.1, 64)),
            iowait=r.maybe(r.size(0.1, 64)),
            cpus_total=r.maybe(64),
            cpus_allowed=r.maybe(1 + r.count(63)),
            mem_available=r.maybe(int(r.size(1, 1e11))),
            mem_total=r.maybe(int(r.size(1, 1e11))),
            swap_in_bytes_per_s=r.maybe(r.size(1, 1e9)),
            shm_used=r.maybe(int(r.size(1, 1e11))),
            shm_total=r.maybe(int(r.size(1, 1e11))),
            psi_memory=r.maybe(r.size(0.1, 99)),
        )
        for t in times
    )
    half = len(steps) // 2
    made = replace(
        made,
        gpu=gpu if r.chance() else (),
        gpm=gpm if r.chance() else (),
        host=host if r.chance() else (),
        procs=tuple(any_proc(r, t) for t in times for _ in range(r.count(6))),
        halves=(totals_of(steps[:half]), totals_of(steps[half:])) if half else None,
        early=stretch(steps[: len(steps) // 3]),
        late=stretch(steps[-(len(steps) // 3) :] if len(steps) > 2 else []),
        missing={"gpu_events": "GPU events are off"} if r.chance(0.2) else {},
        cut_short=r.chance(0.1),
    )
    begins = regimes(steps)
    known = [stretch(steps[a:b]) for a, b in pairwise([*begins, len(steps)])]
    newest = None
    if len(begins) > 1 and made.final:
        rest = steps[begins[-1] :]
        newest = replace(
            made, steps=tuple(rest), totals=totals_of(rest), t0_ns=rest[0].t0_ns, halves=None
        )
    return replace(made, regimes=tuple(k for k in known if k is not None), newest=newest)


def finite(value):
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(finite(v) for v in value.values())
    return all(finite(v) for v in value) if isinstance(value, list) else True


@pytest.mark.parametrize("part", range(8))
def test_any_window_gets_a_valid_answer(part):
    statuses = set()
    for seed in range(part, WINDOWS, 8):
        made = any_window(seed)
        try:
            found = diagnose(made)
        except Exception as problem:
            raise AssertionError(f"window {seed} raises") from problem
        body = msgspec.to_builtins(found)
        assert finite(body), seed
        json.dumps(body, allow_nan=False)
        causes = [f for f in (found.verdict, *found.also) if f is not None]
        assert (found.verdict is not None) == (found.status == "verdict"), seed
        assert found.healthy == {"verdict": False, "healthy": True}.get(found.status), seed
        assert all(0 <= f.lost_share <= 1 for f in causes), seed
        assert sum(f.lost_share for f in causes) <= 1 + 1e-9, seed
        assert len(found.also) <= 2, seed
        assert len({f.id for f in causes}) == len(causes), seed
        named = {f.id for f in causes}
        assert not named & {a.id for a in found.ruled_out}, seed
        for cause in causes:
            assert cause.where or cause.where_missing, (seed, cause.id)
            assert cause.summary and cause.evidence, (seed, cause.id)
            assert len(cause.advice) <= 3, (seed, cause.id)
            if cause.gain is not None and cause.gain.ceiling is not None:
                assert cause.gain.ceiling >= 1, (seed, cause.id)
        assert not [a for a in found.abstained if a.missing.startswith(FAILED)], seed
        if found.status == "abstained":
            assert found.abstained, seed
            assert all(a.missing for a in found.abstained), seed
        statuses.add(found.status)
    assert {"verdict", "abstained"} <= statuses


def test_the_same_window_made_twice_gets_the_same_answer():
    for seed in range(0, WINDOWS, 40):
        assert diagnose(any_window(seed)) == diagnose(any_window(seed))


@pytest.mark.parametrize("seed", range(12))
def test_any_store_gets_a_valid_answer_live_and_at_the_end(tmp_path, seed):
    made = any_window(1000 + seed)
    r = Random(seed)
    path = tmp_path / "run.sqlite"
    with RunWriter(path, **({"keep_ns": 5 * 10**9, "keep_steps": 20} if r.chance() else {})) as to:
        to.add_steps(made.steps)
        to.add_intervals(made.intervals)
        end = made.t1_ns
        to.put_loaders(made.loaders, end)
        to.put_sites(made.sites, end)
        to.put_probe_state(0, {**made.probe}, end)
        to.add_host(made.host)
        to.add_procs({(p.t_ns, p.pid): p for p in made.procs}.values())
        to.add_util({u.t_ns: u for u in made.util}.values())
        to.add_gpu(made.gpu)
        to.add_gpm(made.gpm)
        to.add_memory({m.t_ns: m for m in made.memory}.values())
        to.commit()
        if r.chance():
            to.prune(end)
            to.commit()
    with RunReader(path) as reader:
        for final in (True, False):
            window = evidence.build(reader, final=final)
            found = diagnose(window)
            assert found == diagnose(evidence.build(reader, final=final))
            assert window.totals.steps <= window.steps_seen == len(made.steps)
            assert sum(one.steps for one in window.regimes) >= window.totals.steps
            assert finite(msgspec.to_builtins(found))
            assert not [a for a in found.abstained if a.missing.startswith(FAILED)]
            if window.newest is not None:
                assert window.newest.t1_ns == window.t1_ns
                assert window.newest.totals.steps < window.totals.steps
            if window.halves is not None:
                assert sum(half.steps for half in window.halves) == window.totals.steps
