"""The loops of docs/coverage.md that need nothing but torch: counted right, and named right."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coverage.watched import Watched, read
from tests.launching import World, world
from tests.probe_support import deploy

LOOPS = Path(__file__).with_name("loops.py")

#: Loops whose data wait is in the training thread, one batch or more of it a step.
PLANTED = {
    "plain": 1, "accumulation": 4, "gan": 1, "lbfgs_closure": 1, "autograd_grad": 1,
    "manual_update": 1, "functional_loop": 1, "skipped_scaler_steps": 1, "optimizer_in_backward": 1,
    "several_optimizers_of_one_step": 1, "iterable_dataset": 1, "interleaved_loaders": 2,
    "in_a_thread": 1, "two_models_in_turn": 1, "generator_driven": 1, "compiled_optimizer_step": 1,
    "compiled_model": 1, "data_parallel": 1,
}  # fmt: skip
#: Loops without a DataLoader of the training thread's: only the stack sampler sees the wait.
SAMPLED = (
    "calls_get_batch", "get_batch_and_optimizer_in_backward", "waits_on_a_queue", "reads_a_memmap",
)  # fmt: skip
WORKERS = ("fork_workers", "spawn_workers", "forkserver_workers")
INTERRUPTED = (
    "train_and_validation", "saves_after_its_last_step", "evaluates_after_its_last_step",
)  # fmt: skip
LATE = ("get_batch_without_optimizer",)
THREADS = ("threads_in_turn", "threads_at_once", "asyncio_loop")
ALL = (*PLANTED, *SAMPLED, *WORKERS, *INTERRUPTED, *LATE, *THREADS)
#: Run unwatched too, without the waits.
UNDISTURBED = (
    "plain", "accumulation", "lbfgs_closure", "functional_loop", "skipped_scaler_steps",
    "calls_get_batch", "train_and_validation", "in_a_thread", "compiled_optimizer_step",
    "asyncio_loop",
)  # fmt: skip


class Seen:
    """What every loop did by its own account, what we read of it, and what it does unwatched."""

    def __init__(self, place: Path) -> None:
        deployed = deploy(place)
        self._own = _run(place / "watched", deployed.env(), ALL)
        self._bare = _run(place / "bare", None, (*UNDISTURBED, "--no-waits"))
        self._read = read(deployed.rings)
        self.pids = {told["pid"] for told in self._own.values()}

    def __call__(self, name: str) -> tuple[dict[str, object], Watched]:
        return self._own[name], self._read[self._own[name]["pid"]]

    def bare(self, name: str) -> dict[str, object]:
        return self._bare[name]

    @property
    def processes(self) -> set[int]:
        return set(self._read)


def _run(out: Path, env: dict[str, str] | None, names: tuple[str, ...]) -> dict[str, dict]:
    out.mkdir()
    done = subprocess.run(
        [sys.executable, str(LOOPS), str(out), *names],
        env=env, capture_output=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr.decode()
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


#: Two dozen trainings: more than a test's usual time where other programs take the cores.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return Seen(tmp_path_factory.mktemp("loops"))


@pytest.mark.parametrize("name", ALL)
def test_each_step_is_counted_once_and_the_batches_of_it_are_kept_together(seen, name):
    own, read_ = seen(name)
    assert len(read_.steps) == own["steps"]
    assert (read_.lost, read_.bad, read_.finished) == (0, 0, True)
    if "micro" in own:
        assert {step.micro for step in read_.steps} == {own["micro"]}
    if "samples" in own:
        # The first step of a forked process is armed by its own first backward: its batch is not
        # counted.
        assert {step.samples for step in read_.steps[1:]} == {own["samples"]}


@pytest.mark.parametrize("name", PLANTED)
def test_the_wait_for_data_is_as_long_as_the_loop_itself_says(seen, name):
    own, read_ = seen(name)
    waited = sum(own["waits"][PLANTED[name] :])
    # 50 ms: what a crowded machine adds between the loop's clock and ours, over all its waits.
    assert read_.seconds("data_wait") == pytest.approx(waited, rel=0.1, abs=0.05)


@pytest.mark.parametrize("name", SAMPLED)
def test_without_a_loader_the_sampler_names_the_line_that_waits(seen, name):
    own, read_ = seen(name)
    assert read_.most_sampled("data_wait") == (LOOPS.name, own["data_line"])
    wall = sum(step.wall_ns for step in read_.steps[1:]) / 1e9
    waited = sum(own["waits"][1 : own["steps"]])
    # Some forty samples: a standard error of 8 points, and steps that differ where others take cores.
    assert read_.share("data_wait") == pytest.approx(waited / wall, abs=0.3)


def test_without_an_optimizer_the_loop_is_found_by_what_else_runs(seen):
    """Degraded: for about the first second it is not known, and the wait is in ``other``."""
    own, read_ = seen("get_batch_without_optimizer")
    assert read_.most_sampled("data_wait") == (LOOPS.name, own["data_line"])


@pytest.mark.parametrize("name", ["plain", "accumulation", "iterable_dataset", *WORKERS])
def test_the_loader_is_known_by_the_line_that_made_it(seen, name):
    own, read_ = seen(name)
    row = read_.loaders()[own["loader"]]
    assert row["feeds_training"] and row["epochs"] == 1
    assert row["num_workers"] == own.get("workers", 0)


@pytest.mark.parametrize("name", ["autograd_grad", "manual_update", "functional_loop"])
def test_a_loader_feeds_training_where_no_optimizer_shows_itself(seen, name):
    assert [row["feeds_training"] for row in seen(name)[1].snapshot["loaders"]] == [True]


@pytest.mark.parametrize("name", WORKERS)
def test_a_wait_for_workers_is_a_wait_for_data(seen, name):
    assert seen(name)[1].share("data_wait", first=2) > 0.4


def test_a_background_loader_is_no_loader_of_the_training_thread(seen):
    (row,) = seen("waits_on_a_queue")[1].snapshot["loaders"]
    assert (row["batches"], row["epochs"], row["feeds_training"]) == (0, 0, False)


def test_validation_is_told_from_training(seen):
    own, read_ = seen("train_and_validation")
    evaluations = [i for i in read_.intervals if i.label == "eval"]
    assert len(evaluations) == own["evals"]
    assert read_.share("eval") > 0.2
    assert own["eval_line"] in [row[3] for row in read_.snapshot["sites"] if row[1] == "eval"]


def test_what_comes_after_the_last_step_is_told(seen):
    own, read_ = seen("saves_after_its_last_step")
    (save,) = [i for i in read_.intervals if i.label == "checkpoint"]
    assert read_.site_line(save.site_id) == own["save_line"]
    assert read_.tail["checkpoint"] > 0.1e9
    assert seen("evaluates_after_its_last_step")[1].tail["eval"] > 0.1e9


def test_a_wait_inside_await_is_counted_as_other(seen):
    """Degraded: the loop's frame is not on the stack while its coroutine sleeps."""
    own, read_ = seen("asyncio_loop")
    assert read_.seconds("other") == pytest.approx(sum(own["waits"][1:]), rel=0.25)
    assert (
        read_.share("data_wait") < 0.05
    )  # a sample may fall into the call that makes the coroutine


@pytest.mark.parametrize("name", UNDISTURBED)
def test_the_random_streams_are_left_as_they_are(seen, name):
    assert seen(name)[0]["random"] == seen.bare(name)["random"]


def test_workers_and_launchers_have_no_ring(seen):
    assert seen.processes == seen.pids


# -- processes, prompts, the whole product -----------------------------------------------------------


@pytest.fixture(scope="module")
def trainers(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[tuple[int, Watched | None]]]:
    """Kind of process -> steps it made, and what was read of it."""
    place = tmp_path_factory.mktemp("processes")
    deployed = deploy(place)
    out = place / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, str(LOOPS.with_name("processes.py")), str(out)],
        env=deployed.env(), capture_output=True, timeout=500, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    read_ = read(deployed.rings)
    found: dict[str, list[tuple[int, Watched | None]]] = {}
    for path in out.iterdir():
        kind, _, pid = path.name.rpartition("-")
        found.setdefault(kind, []).append((int(path.read_text()), read_.pop(int(pid), None)))
    assert not read_, "a process that does not train has a ring"
    return found


@pytest.mark.parametrize("kind", ["spawn", "fork", "forkserver", "pool", "parent"])
def test_a_trainer_in_a_process_of_any_kind_is_read_to_its_last_step(trainers, kind):
    assert len(trainers[kind]) == (2 if kind == "fork" else 1)
    for steps, read_ in trainers[kind]:
        assert read_ is not None
        assert (len(read_.steps), read_.finished, read_.lost, read_.bad) == (steps, True, 0, 0)


def test_a_child_that_leaves_by_os_exit_may_lose_its_last_moments(trainers):
    """Degraded: nothing of ours runs in ``os._exit``, so what the helper had not yet drained goes."""
    ((steps, read_),) = trainers["bare-fork"]
    assert read_ is None or (len(read_.steps) <= steps and not read_.finished)


def test_a_forked_child_that_does_not_train_has_no_ring(trainers):
    assert trainers["evaluates"] == [(0, None)]


def test_idle_between_two_cells_is_no_step(tmp_path):
    deployed = deploy(tmp_path)
    cell = f"exec(open({str(LOOPS.with_name('prompt.py'))!r}).read()); print('done')\n"
    with subprocess.Popen(
        [sys.executable, "-i", "-q"], env=deployed.env(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as prompt:  # fmt: skip
        assert prompt.stdin is not None and prompt.stdout is not None
        for idle_s in (4.0, 0.0):
            prompt.stdin.write(cell)
            prompt.stdin.flush()
            assert prompt.stdout.readline() == "done\n"
            time.sleep(idle_s)
        prompt.stdin.close()
    (read_,) = read(deployed.rings).values()
    assert len(read_.steps) == 40
    assert max(step.wall_ns for step in read_.steps) < 2e9
    assert read_.steps[20].t0_ns - read_.steps[19].t1_ns > 3e9


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def test_a_queue_fed_by_a_thread_is_diagnosed_under_python_c(here):
    here.environ["PYTHONPATH"] = str(LOOPS.parent)
    code = (
        "import loops, torch; torch.set_num_threads(1); "
        "[print(loops.waits_on_a_queue()['data_line']) for _ in range(3)]"
    )
    done = here.run("--no-tui", "--json", "report.json", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads((here.place / "report.json").read_bytes())
    assert (report["status"], report["steps"]["count"]) == ("verdict", 120)
    assert report["verdict"]["id"] == "input-bound"
    line = int(done.stdout.splitlines()[0])
    assert [(Path(w["file"]).name, w["line"]) for w in report["verdict"]["where"]][:1] == [
        (LOOPS.name, line)
    ]
    # So short a run may have too few memory readings for a trend.
    assert {row["id"] for row in report["abstained"]} <= {"memory-leak"}
