"""The overhead benchmark: its arithmetic on known series, its parts, and a short run of each mode."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from overhead_bench import (  # noqa: E402
    calibrate,
    parts,
    results,
    singles,
    stats,
    table,
    toggle,
    tools,
)

#: Ours: a toggle replaces the clock of a helper's module, and the one here is such a module.
monotonic, sleep = time.monotonic, time.sleep

MACHINE = {
    "device": "cuda",
    "card": "NVIDIA H200",
    "driver": "580.1",
    "torch": "2.11.0",
    "python": "3.12.3",
    "cpus": 8,
    "commit": "0123456789ab",
}


def benchmark(*arguments):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "overhead.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def series(ratio, count, *, seed, noise=0.003, burst=0.0):
    """Quads of a machine that drifts by 30%; ``burst`` strikes one B block in four."""
    rng = random.Random(seed)
    found = []
    for index in range(count):
        base = 2e-3 * (1 + 0.3 * math.sin(index / 5))
        drift = rng.uniform(-0.01, 0.01)
        blocks = [base * (1 + drift * at + rng.gauss(0, noise)) for at in (-1.5, -0.5, 0.5, 1.5)]
        struck = [blocks[i] * (ratio + burst * (rng.random() < 0.25)) for i in (1, 2)]
        found.append(stats.Quad((blocks[0], blocks[3]), (struck[0], struck[1])))
    return found


@pytest.mark.parametrize("ratio", [1.0, 1.004, 1.02])
def test_a_known_ratio_is_found_on_a_machine_that_drifts(ratio):
    found = stats.compare(series(ratio, 60, seed=1), series(1.0, 60, seed=2))
    assert found["ratio"].low <= ratio <= found["ratio"].high
    assert found["null"].low <= 1.0 <= found["null"].high
    assert found["difference"].low <= ratio - 1 <= found["difference"].high
    assert found["difference"].width < 0.005


def test_bursts_that_strike_a_quarter_of_the_blocks_are_not_hidden():
    found = stats.compare(series(1.0, 400, seed=3, burst=0.02), series(1.0, 400, seed=4))
    assert found["ratio"].value == pytest.approx(1.005, abs=0.0007)
    assert found["ratio"].low > 1.0


def test_a_disturbed_quad_weighs_less_whichever_side_was_struck():
    quiet = stats.Quad((2.0, 2.02), (2.0, 2.03))
    struck_plain = stats.Quad((2.0, 3.0), (2.0, 2.0))
    struck_other = stats.Quad((2.0, 2.0), (3.0, 2.0))
    assert quiet.weight == 1.0
    assert struck_plain.weight == pytest.approx(struck_other.weight)
    assert struck_plain.weight < 0.05
    # A ratio far from 1 is no disturbance.
    assert stats.Quad((2.0, 2.0), (3.0, 3.0)).weight == 1.0


def test_stopping_early_looks_at_the_width_and_not_at_the_verdict():
    for ratio in (1.0, 1.5):
        narrow = series(ratio, 30, seed=5, noise=0.001), series(1.0, 30, seed=6, noise=0.001)
        wide = series(ratio, 30, seed=5, noise=0.02), series(1.0, 30, seed=6, noise=0.02)
        assert stats.narrow_enough(*narrow, width=0.004, least=12)
        assert not stats.narrow_enough(*wide, width=0.004, least=12)
        assert not stats.narrow_enough(*narrow, width=0.004, least=31)


@pytest.mark.parametrize(
    ("step_ms", "low", "high", "said"),
    [
        (2.0, 0.001, 0.009, "pass"),
        (2.0, 0.011, 0.02, "fail"),
        (2.0, 0.001, 0.02, "inconclusive"),
        (2.0, -0.05, 0.009, "inconclusive"),
        (1.0, 0.001, 0.014, "pass"),
        (0.5, 0.001, 0.014, "no bar"),
    ],
)
def test_the_verdict_follows_the_upper_bound(step_ms, low, high, said):
    difference = stats.Interval((low + high) / 2, low, high)
    assert stats.verdict(difference, stats.bar(step_ms)) == said
    unsure = said if said == "no bar" else "inconclusive"
    assert stats.verdict(difference, stats.bar(step_ms), worth=2.0) == unsure


def test_whole_runs_are_compared_by_pairs():
    ratio = stats.paired([(2.0, 2.02), (3.0, 3.03), (4.0, 4.04)])
    assert ratio.value == pytest.approx(1.01)
    assert ratio.low == pytest.approx(1.01)
    assert stats.paired([(2.0, 2.02)]) is None


def test_calibration_meets_the_wanted_step_though_the_cost_is_not_proportional():
    def machine(settings):
        return 0.8 + 0.031 * settings["batch"]

    found = calibrate.calibrate(10.0, {"device": "cpu"}, machine)
    assert machine(found) == pytest.approx(10.0, rel=calibrate.TOLERANCE)
    assert found["calibrated_ms"] == machine(found)


# -- parts -----------------------------------------------------------------------------------------


def full_plan():
    return parts.plan(sizes=parts.SIZES_MS, inprocess_s=75.0, peers=(4, 60.0), busy=(4, 38.0))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_parts_hold_every_item_exactly_once(count):
    items = full_plan()
    dealt = [item for number in range(1, count + 1) for item in parts.part(items, number, count)]
    assert len(dealt) == len(items)
    assert set(dealt) == set(items)


def test_parts_are_balanced_and_the_same_every_time():
    items = full_plan()
    loads = [sum(i.estimate_s for i in parts.part(items, n, 4)) for n in (1, 2, 3, 4)]
    assert max(loads) - min(loads) <= max(item.estimate_s for item in items)
    assert parts.part(items, 2, 4) == parts.part(full_plan(), 2, 4)


def test_the_parts_of_a_gpu_session_stay_under_nine_minutes():
    # docs/overhead.md: --peers --seconds 45 --rounds 4 --warm-s 1.5 --loop-s 2, in four parts.
    round_s = 5 * (1.5 + 2 + 7)
    items = parts.plan(sizes=parts.SIZES_MS, inprocess_s=60.0, peers=(4, round_s), busy=None)
    for number in (1, 2, 3, 4):
        assert sum(i.estimate_s for i in parts.part(items, number, 4)) < parts.PART_LIMIT_S - 60


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_part_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"i/n|no part"):
        parts.parse_part(text)


# -- merging ---------------------------------------------------------------------------------------


def result_file(folder, name, runs=(), **changed):
    body = {"schema": 1, "machine": {**MACHINE, **changed}, "command": f"python {name}"}
    body.update(started="2026-11-29T10:00:00Z", runs=list(runs))
    path = folder / f"{name}.json"
    path.write_text(json.dumps(body))
    return path


def inprocess_run(ratio=1.004):
    rows = [
        {"kind": kind, "steps": 50, "a": q.a, "b": q.b}
        for kind, r in (("real", ratio), ("null", 1.0))
        for q in series(r, 30, seed=7)
    ]
    run = {"kind": "inprocess", "step_ms": 2.0, "round": 0, "item": False, "series": "s"}
    return {**run, "load": 0.2, "quads": rows, "probe": {"cost": {"total_ns": 4000, "steps": 1}}}


def peer_run(tool, number, mean_ms, **more):
    run = {"kind": "peers", "step_ms": 2.0, "round": number, "item": False, "series": "s"}
    run.update(tool=tool, mean_ms=mean_ms, median_ms=mean_ms, steps=100, wall_s=5.0, **more)
    return run


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("device", "cpu", "devices"),
        ("card", "NVIDIA A100", "cards"),
        ("driver", "570.2", "driver versions"),
        ("torch", "2.12.0", "torch versions"),
        ("python", "3.11.1", "Python versions"),
        ("commit", "0123456789ab-dirty-12345678", "commits"),
    ],
)
def test_results_that_do_not_belong_together_are_refused(tmp_path, key, value, said):
    one = result_file(tmp_path, "one", [inprocess_run()])
    other = result_file(tmp_path, "other", [inprocess_run()], **{key: value})
    done = benchmark("merge", one, other)
    assert done.returncode == 2
    assert f"from different {said}" in done.stderr
    assert value in done.stderr
    assert done.stdout == ""


def test_every_run_is_in_the_table_failed_and_repeated_ones_too(tmp_path):
    failed = {"kind": "inprocess", "step_ms": 2.0, "round": 0, "item": False, "error": "it broke"}
    one = result_file(tmp_path, "one", [inprocess_run(), failed])
    other = result_file(tmp_path, "other", [inprocess_run(1.03)])
    done = benchmark("merge", one, other, "--to", tmp_path / "table.md")
    assert done.returncode == 0
    text = (tmp_path / "table.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| 2 ms")]
    assert len(rows) == 4
    assert "| pass |" in rows[0]
    assert "it broke" in rows[1]
    assert "| fail |" in rows[2]
    assert "all 2 runs" in rows[3]
    assert "| 60 + 60 (60 + 60) |" in rows[3]
    assert "0.20%" in rows[0]


def test_each_peer_is_set_against_us_and_a_missing_one_is_named():
    runs = [
        peer_run(tool, n, base * (1 + n / 10))
        for n in (1, 2, 3)
        for tool, base in (("plain", 2.0), ("gputop-train", 2.01), ("TraceML", 2.2))
    ]
    runs += [{**peer_run("gpuprof", 1, 0), "error": "not installed (pip install gpuprof)"}]
    for run in runs:
        if "error" in run:
            del run["mean_ms"], run["median_ms"]
    body = {"machine": MACHINE, "command": "c", "started": "2026-11-29T10:00:00Z", "runs": runs}
    text = table.markdown([body])
    (traceml,) = [line for line in text.splitlines() if line.startswith("| 2 ms | TraceML |")]
    assert "ahead: 0.9136" in traceml
    assert "gputop-train is behind: none, at no size." in text
    (gpuprof,) = [line for line in text.splitlines() if line.startswith("| 2 ms | gpuprof |")]
    assert "0, 1 failed | not installed" in gpuprof


def test_where_we_are_behind_the_table_says_so():
    runs = [
        peer_run(tool, n, base * (1 + n / 10))
        for n in (1, 2, 3)
        for tool, base in (("plain", 2.0), ("gputop-train", 2.2), ("TraceML", 2.1))
    ]
    body = {"machine": MACHINE, "command": "c", "started": "2026-11-29T10:00:00Z", "runs": runs}
    assert "gputop-train is behind: TraceML at 2 ms." in table.markdown([body])


def test_the_commit_tells_a_changed_tree_and_a_copy_without_git(tmp_path):
    def git(*arguments):
        name = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    source = tmp_path / "gputop_train" / "a.py"
    source.parent.mkdir()
    (tmp_path / "benchmarks").mkdir()
    source.write_text("1")
    copy = results.commit(tmp_path)
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    clean = results.commit(tmp_path)
    source.write_text("2")
    dirty = results.commit(tmp_path)
    source.write_text("3")
    assert copy.startswith("tree-")
    assert len(clean) == 12
    assert dirty.startswith(f"{clean}-dirty-")
    assert results.commit(tmp_path) != dirty
    assert results.commit(tmp_path, named=clean).startswith(f"{clean}-tree-")
    assert results.commit(tmp_path, named=clean) != f"{clean}-{copy}"


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(results.MixedResults, match="not a result"):
        results.load([tmp_path / "x.json"])


# -- real runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", tools.ALL.values(), ids=lambda tool: tool.name)
def test_the_edits_of_every_tool_fit_the_loop(tool, tmp_path):
    text = tool.script(tmp_path).read_text()
    compile(text, "loop.py", "exec")
    assert (text == tools.LOOP.read_text()) == (tool in (tools.PLAIN, tools.WATCHED))


def test_a_process_without_the_probe_is_told_so():
    with pytest.raises(toggle.NothingToToggle, match="not in this process"):
        toggle.Toggle()


class Worker:
    """A helper thread as the probe's is: it sleeps on a lock and acts when its clock says so."""

    def __init__(self):
        self._running = threading.Lock()
        self._running.acquire()
        self.wakes = self.acts = 0

    def run(self):
        due = 0.0
        while not self._running.acquire(True, 0.001):
            self.wakes += 1
            if time.monotonic() >= due:
                due = time.monotonic() + 0.001
                self.acts += 1


def eventually(condition):
    until = monotonic() + 60
    while not condition():
        assert monotonic() < until
        sleep(0.001)


def test_a_held_helper_does_nothing_and_its_clock_stands_still(monkeypatch):
    monkeypatch.setitem(globals(), "time", time)
    worker = Worker()
    hold = toggle.HelperHold(worker)
    thread = threading.Thread(target=worker.run)
    thread.start()
    eventually(lambda: worker.acts > 3)
    before = hold.clock()
    hold.hold()
    acts = worker.acts
    held_from = monotonic()
    eventually(lambda: hold.at_rest)
    wakes = worker.wakes
    sleep(0.05)
    # It may have been in the middle of one act; its last wake-up found nothing due.
    assert worker.acts <= acts + 1
    assert worker.wakes == wakes
    held_s = monotonic() - held_from
    hold.release()
    assert hold.clock() >= before
    assert monotonic() - hold.clock() >= held_s
    eventually(lambda: worker.acts > acts + 3)
    worker._running.release()
    thread.join(60)
    assert not thread.is_alive()


def test_time_stamps_of_the_probe_are_moved_and_nothing_else_is(monkeypatch):
    module = types.ModuleType("_gputop_probe.stand_in")
    held = type("Held", (), {"__module__": module.__name__})()
    now = time.monotonic_ns()
    held.due_ns, held.cost_ns, held.steps = now + 250_000_000, 12_345_678, 7
    slotted = type(
        "Slotted", (), {"__module__": module.__name__, "__slots__": ("at_ns", "unset")}
    )()
    slotted.at_ns = now - 9
    module.held, module.due_ns, module.reads, module.slotted = held, [now - 5], 3, slotted
    monkeypatch.setitem(sys.modules, module.__name__, module)
    toggle._move_time_stamps(1000)
    assert (held.due_ns, module.due_ns) == (now + 250_001_000, [now + 995])
    assert (held.cost_ns, held.steps, module.reads) == (12_345_678, 7, 3)
    assert slotted.at_ns == now + 991


def only_result(folder):
    (file,) = folder.glob("*.json")
    return json.loads(file.read_text())


@pytest.mark.benchmark
def test_a_short_run_in_process_switches_the_probe_and_proves_it(tmp_path):
    done = benchmark("--steps-ms", 2, "--seconds", 4, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = only_result(tmp_path)["runs"]
    assert {row["kind"] for row in run["quads"]} == {"real", "null"}
    # Raised inside, were a word written in a plain block or none in a watched one.
    assert run["words_a_watched_step"] > 0.5
    assert "torch.autograd._engine_run_backward" in run["switched"]
    assert "_BaseDataLoaderIter.__next__" in run["switched"]
    assert run["probe"]["errors"] == []
    assert "| 2 ms |" in done.stdout


@pytest.mark.benchmark
def test_a_short_run_of_whole_processes_measures_us_and_names_peers_it_lacks(tmp_path):
    chosen = ("gputop-train", "TraceML", "gpuprof")
    absent = {t for t in chosen[1:] if importlib.util.find_spec(tools.ALL[t].module) is None}
    if len(absent) < 2:
        pytest.skip("the peers are installed here: the benchmark itself runs them")
    short = ("--rounds", 1, "--warm-s", 0.2, "--loop-s", 0.3, "--steps-ms", 2)
    options = ("--no-inprocess", "--peers", "--tools", *chosen)
    done = benchmark(*options, *short, "--out", tmp_path)
    runs = {run["tool"]: run for run in only_result(tmp_path)["runs"]}
    assert set(runs) == {"plain", *chosen}
    assert {name for name, run in runs.items() if "not installed" in run.get("error", "")} == absent
    assert done.returncode == 1
    for name in ("plain", "gputop-train"):
        assert runs[name]["steps"] > 10, runs[name]
        assert runs[name]["mean_ms"] > 0


def short_blocks(count, *, seed, unrecorded, recorded):
    """Quads of a host that changes speed by 30% from quad to quad."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        base = 1e-3 * rng.uniform(1.0, 1.3)

        def steps(many, factor, base=base):
            return tuple(base * factor * (1 + rng.expovariate(20)) for _ in range(many))

        other = {"unrecorded": steps(36, unrecorded)}
        if rng.random() < 0.2:
            other["recorded"] = steps(4, recorded)
        found.append(singles.Quad(steps(40, 1.0), other))
    return found


@pytest.mark.benchmark
def test_short_blocks_find_what_each_kind_of_step_costs_on_a_host_that_changes_speed():
    real = short_blocks(600, seed=1, unrecorded=1.004, recorded=1.10)
    null = short_blocks(400, seed=2, unrecorded=1.0, recorded=1.0)
    natural = {"unrecorded": 0.95, "recorded": 0.05, "events": 0.0}
    found = singles.overhead(real, null, singles.Wakes((1.02, 1.04) * 50, 0.05), natural)
    assert found["recorded"].value == pytest.approx(0.10, abs=0.01)
    assert found["unrecorded"].value == pytest.approx(0.004, abs=0.002)
    assert found["helper"].value == pytest.approx(0.05 * 0.03)
    expected = 0.95 * 0.004 + 0.05 * 0.10 + 0.0015
    assert found["difference"].low < expected < found["difference"].high
    assert found["null"].low < 0 < found["null"].high
    assert "events" not in found


def test_a_step_the_helper_woke_up_in_is_compared_with_its_neighbours():
    times = [1.0] * 40
    times[10] = times[30] = 1.2
    ends = [sum(times[: i + 1]) for i in range(40)]
    wakes = [ends[9] + 0.3, ends[29] + 0.3, ends[0] - 0.1]  # the last has too few neighbours
    assert singles.beside(times, ends, wakes) == pytest.approx([1.2, 1.2])


@pytest.mark.benchmark
def test_a_run_by_steps_has_a_row_of_its_own(tmp_path):
    done = benchmark("--by-steps", "--steps-ms", 2, "--seconds", 4, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(next(tmp_path.glob("*.json")).read_text())["runs"]
    found = run["singles"]
    assert sum(found["natural"].values()) == pytest.approx(1)
    assert found["steps"]["unrecorded"] + found["steps"]["recorded"] > 20
    assert found["wakes"] > 0
    low, value, high = found["difference"][1], found["difference"][0], found["difference"][2]
    assert low <= value <= high
    assert "step by step" in done.stdout
