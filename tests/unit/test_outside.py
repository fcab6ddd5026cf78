"""What is made of stacks that were read from outside, and what is never claimed from them."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from gputop_train.collect import nvml_session
from gputop_train.launch import identity
from gputop_train.launch.outside import judging, listing, spying, stacks, target
from gputop_train.launch.outside.around import Surroundings
from gputop_train.launch.outside.observed import Card, Observed, Worker, loader_built
from gputop_train.launch.outside.spying import Frame, Refused, Thread
from gputop_train.launch.outside.stacks import Place, Sight
from tests.nvml_replay import Card as FakeCard
from tests.nvml_replay import FakeNvml

TORCH = "/env/lib/python3.10/site-packages/torch"
MAIN = Thread("7", "MainThread", True)
SCRIPT = """\
import torch
def validate(model): return model(1)
def train(loader, model):
    for batch in tqdm(loader):
        loss = model(batch)
        loss.backward()
        optimizer.step()
loader = make_loader(4)
train(loader, model)
validate(model)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def stack(script, *calls):
    """``train:6`` is a call of the script's; anything else a file of torch and a function."""
    frames = [Frame(script, "<module>", 9)]
    for call in calls:
        file, _, rest = call.partition("|")
        if rest:
            frames.append(Frame(f"{TORCH}/{file}", rest, 1))
        else:
            function, line = call.split(":")
            frames.append(Frame(script, function, int(line)))
    return MAIN, tuple(frames)


def seen_in(script):
    """One sample of each part of a step, of an evaluation and of a wait, in Python 3.10."""
    call = "nn/modules/module.py|_call_impl"
    return {
        "backward": stack(
            script, "train:6", "_tensor.py|backward", "autograd/__init__.py|backward"
        ),
        "optimizer": stack(script, "train:7", "optim/sgd.py|step"),
        "forward": stack(script, "train:5", call),
        "data_wait": stack(script, "train:4", "utils/data/dataloader.py|__next__"),
        "eval": stack(script, "validate:2", call),
        "checkpoint": stack(script, "validate:2", "serialization.py|save"),
    }


def test_stacks_are_classed_as_the_probe_classes_frames(script):
    parts = seen_in(script)
    sights = stacks.Classifier(on_gpu=False).look(Counter(parts.values()))
    assert [s.label for s in sights] == list(parts)
    assert sights[list(parts).index("eval")].place.line == 9
    waiting = sights[list(parts).index("data_wait")]
    assert waiting.by_loader and not waiting.in_process
    assert waiting.loop is not None and waiting.loop.line == 4
    assert waiting.loop.text == "for batch in tqdm(loader):"


def test_a_loop_that_is_only_ever_seen_waiting_is_known_by_its_loader(script):
    (only,) = stacks.Classifier(on_gpu=False).look({seen_in(script)["data_wait"]: 9})
    assert only.label == "data_wait" and only.loop is not None and only.loop.line == 4


def test_an_optimizer_that_is_built_and_modules_that_load_are_no_training(script):
    building = stack(script, "train:5", "optim/sgd.py|__init__", "optim/optimizer.py|_hook")
    assert stacks.phase_of(building[1]) is None
    assert stacks.training_thread({building: 3}) is None
    assert stacks.starts_up((Frame("<frozen importlib._bootstrap>", "_find_and_load", 1),))


def test_the_thread_that_trains_is_the_one_looked_at(script):
    _, frames = seen_in(script)["backward"]
    other = Thread("9", "trainer", False)
    idle = (MAIN, (Frame(script, "<module>", 1),))
    assert stacks.training_thread({idle: 9, (other, frames): 1}) == other


def test_a_text_of_py_spys_is_read_and_what_is_no_stack_left_out():
    text = (
        "thread (7): MainThread;<module> (/a b/t (1).py:3);C.__next__ (x.py:4) 2\n"
        "thread (0x7F1): loader;run (threading.py:9);native (<string>) 1\n"
        "thread (7): MainThread;odd;path.py:3) 1\n"
        "nonsense\n"
    )
    found = spying.parse(text, 7)
    assert found == {
        (MAIN, (Frame("/a b/t (1).py", "<module>", 3), Frame("x.py", "__next__", 4))): 2,
        (
            Thread("0x7F1", "loader", False),
            (Frame("threading.py", "run", 9), Frame("<string>", "native", 0)),
        ): 1,
    }


def test_a_loader_is_found_where_its_file_says_plainly_what_it_is(script, tmp_path):
    built = loader_built(Place(script, 4, "train", ""))
    assert built is not None and (built.line, built.text) == (8, "make_loader(...)")
    twice = tmp_path / "twice.py"
    twice.write_text("a = f()\na = g()\nfor x in a: pass\n")
    assert loader_built(Place(str(twice), 3, "<module>", "")) is None
    assert loader_built(Place(str(tmp_path / "gone.py"), 1, "f", "")) is None


def observed(script, labels, *, util=None, workers=(), on_gpu=False, in_process=0, pieces=5):
    seen = Observed(on_gpu=on_gpu)
    place = Place(script, 4, "train", "for batch in tqdm(loader):")
    for _ in range(pieces):
        seen.add([Sight(k, n, place, place, False, False) for k, n in labels.items()], 0)
    seen.by_loader = seen.labels["data_wait"]
    seen.in_process = in_process * pieces
    seen.workers = workers
    seen.seconds = 2.0 * pieces
    if util is not None:
        seen.cards = (Card("GPU-1", "H200", util, 5, 10, False),)
    return seen


def test_on_a_cpu_the_whole_wait_is_lost_and_confidence_is_never_high(script):
    found = judging.judge(observed(script, {"data_wait": 30, "backward": 30}, in_process=30))
    assert found.verdict is not None and found.healthy is False
    assert (found.verdict.refined, found.verdict.lost_share) == ("main-process-loading", 0.5)
    assert (found.verdict.severity, found.verdict.confidence) == ("critical", "medium")
    assert found.verdict.where[0].line == 8


def test_busy_workers_are_what_a_wait_is_for(script):
    workers = (Worker(1, 0.98, 0.0, 0.0), Worker(2, 0.97, 0.0, 0.0))
    found = judging.judge(observed(script, {"data_wait": 30, "forward": 30}, workers=workers))
    assert found.verdict is not None and found.verdict.refined == "prep-stall"
    idle = tuple(Worker(w.pid, 0.2, 0.9, 5e7) for w in workers)
    found = judging.judge(observed(script, {"data_wait": 30, "forward": 30}, workers=idle))
    assert found.verdict is not None and found.verdict.refined is None
    assert "waiting for storage" in found.verdict.advice[0].text
    hidden = observed(script, {"data_wait": 1, "forward": 60}, workers=idle)
    hidden.cores_free = 0.1
    assert "no core of the machine is idle" in judging.judge(hidden).abstained[0].missing
    crowded = observed(script, {"data_wait": 30, "forward": 30}, workers=idle)
    crowded.cores_free = 0.1
    found = judging.judge(crowded)
    assert found.verdict is not None and "other programs" in found.verdict.advice[0].text


def test_workers_that_have_the_cores_training_wants_are_what_is_bound(script):
    workers = (Worker(1, 0.5, 0.0, 0.0), Worker(2, 0.63, 0.0, 0.0))
    seen = observed(script, {"data_wait": 1, "forward": 60}, workers=workers)
    seen.trainer_cpu, seen.trainer_denied, seen.cores, seen.cores_free = 0.85, 0.56, 2, 0.02
    found = judging.judge(seen).verdict
    assert found is not None and (found.id, found.refined) == ("input-bound", None)
    assert found.lost_share == pytest.approx(0.56 / 1.41)
    assert "takes 1.1 of the 2 cores" in found.summary and found.where[0].line == 8
    # Other programs have the cores, training gets those it wants, or nobody knows: nothing said.
    for name, value in (("cores", 8), ("trainer_denied", 0.05), ("trainer_denied", None)):
        other = observed(script, {"data_wait": 1, "forward": 60}, workers=workers)
        other.trainer_cpu, other.trainer_denied, other.cores = 0.85, 0.56, 2
        other.cores_free = 0.02
        setattr(other, name, value)
        assert judging.judge(other).verdict is None, name


def place_at(script):
    return Place(script, 5, "train", "loss = model(batch)")


def test_compiling_while_steps_go_on_is_recompilation_and_a_first_compilation_is_none(script):
    first, again = Observed(on_gpu=False), Observed(on_gpu=False)
    place = place_at(script)
    compiles = Sight("compile", 20, place, place, False, False)
    steps = [Sight(k, 10, place, place, False, False) for k in ("backward", "optimizer")]
    for _ in range(6):  # a long compilation, a step, an evaluation's, and steps
        first.add([compiles], 0)
    for piece in ([compiles, *steps], steps, [compiles], [compiles, *steps], steps, steps):
        first.add(piece, 0)
    for _ in range(6):
        again.add([compiles, *steps], 0)
    assert all(f.id != "recompilation" for f in [judging.judge(first).verdict] if f is not None)
    found = judging.judge(again).verdict
    assert found is not None and found.id == "recompilation" and found.where[0].line == 5
    assert found.lost_share == pytest.approx(0.5)


def test_stacks_written_down_by_autograd_are_anomaly_detection(script):
    place = place_at(script)
    seen = Observed(on_gpu=False)
    for _ in range(5):
        seen.add([Sight("forward", 2, place, place, False, False, True)], 0)
        seen.add([Sight("backward", 60, place, place, False, False)], 0)
    found = judging.judge(seen).verdict
    assert found is not None and (found.id, found.severity) == ("anomaly-mode", "warn")
    assert found.gain is None and found.lost_share == pytest.approx(10 / 310)
    once = Observed(on_gpu=False)
    for i in range(5):
        once.add([Sight("backward", 60, place, place, False, False, i == 0)], 0)
    assert judging.judge(once).verdict is None


def test_the_compilers_own_traces_are_no_anomaly_detection():
    train = Frame("/home/x/t.py", "train", 9)
    step = Frame("/v/torch/optim/optimizer.py", "wrapper", 5)
    back = Frame("/v/torch/autograd/graph.py", "_engine_run_backward", 5)
    dynamo = Frame("/v/torch/_dynamo/convert_frame.py", "compile", 5)
    write = Frame("/v/torch/fx/traceback.py", "format_stack", 5)
    parts = {
        (MAIN, (train, step)): 5,
        (MAIN, (train, back)): 5,
        (MAIN, (train, write)): 1,
        (MAIN, (train, dynamo, write)): 1,
    }
    found = stacks.Classifier(on_gpu=False).look(parts)
    assert sorted(sight.traced for sight in found) == [False, False, False, True]


def test_beside_a_gpu_only_what_it_cannot_have_worked_through_is_lost(script):
    parts = {"data_wait": 64, "forward": 36}
    found = judging.judge(observed(script, parts, util=34.0, on_gpu=True))
    assert found.verdict is not None and found.verdict.lost_share == pytest.approx(0.30)
    assert "at least 30%" in found.verdict.summary
    for util in (95.0, None):
        found = judging.judge(observed(script, parts, util=util, on_gpu=True))
        assert (found.status, found.healthy) == ("abstained", None)
        assert {a.id for a in found.abstained} == {"input-bound", "launch-bound"}


def test_reads_block_only_where_there_is_a_gpu(script):
    parts = {"sync": 60, "forward": 40}
    assert judging.judge(observed(script, parts)).verdict is None
    found = judging.judge(observed(script, parts, util=20.0, on_gpu=True)).verdict
    assert found is not None and (found.id, found.confidence) == ("host-sync-stall", "low")


def test_one_save_is_no_pattern(script):
    seen = observed(script, {"forward": 40})
    place = Place(script, 7, "train", "torch.save(...)")
    seen.add([Sight("checkpoint", 40, place, None, False, False)], 0)
    found = judging.judge(seen)
    assert found.verdict is None
    assert [a.id for a in found.abstained] == ["checkpoint-stall"]


def test_nothing_is_healthy_from_outside_and_little_is_too_early(script):
    found = judging.judge(observed(script, {"forward": 50, "backward": 50}))
    assert (found.status, found.healthy, found.verdict) == ("abstained", None, None)
    assert judging.judge(observed(script, {"forward": 5})).status == "too-early"
    assert judging.judge(Observed(on_gpu=False)).status == "no-steps"


def test_code_that_may_be_a_loss_is_not_judged_on_a_cpu(script):
    def with_code(function, text):
        seen = observed(script, {"forward": 30})
        place = Place(script, 3, function, text)
        seen.add([Sight("other", 150, place, None, False, False)], 0)
        return judging.judge(seen)

    assert with_code("contrastive_loss", "x = a - b").verdict is None
    found = with_code("update_metrics", "h = np.histogram(x)").verdict
    assert found is not None and found.id == "host-compute"


@pytest.mark.parametrize(
    ("scope", "container", "capable", "owner", "words"),
    [
        (0, False, False, 4242, ("belongs to #4242", "sudo -u #4242")),
        (1, False, False, 7, ("its parents only", "sysctl kernel.yama.ptrace_scope=0", "sudo ")),
        (2, False, False, 7, ("root only", "sudo ")),
        (3, False, True, 7, ("ptrace_scope=3", "gputop-train train.py")),
        (0, True, False, 7, ("--cap-add SYS_PTRACE", "attach from the host")),
        (0, False, False, 7, ("changed user", "sudo ")),
        (None, True, True, 7, ("seccomp=unconfined",)),
    ],
)
def test_each_way_of_being_shielded_has_its_own_words(
    monkeypatch, scope, container, capable, owner, words
):
    # Yama and seccomp cannot be had here: what the kernel says of them stands in.
    monkeypatch.setattr(target, "read_int", lambda path: scope)
    monkeypatch.setattr(target, "_in_container", lambda: container)
    monkeypatch.setattr(target, "_has_capability", lambda: capable)
    monkeypatch.setattr(target, "owner_of", lambda pid: owner)
    monkeypatch.setattr(target.os, "geteuid", lambda: 7)
    said = target.why_not(99)
    assert all(word in said for word in words), said


def test_what_py_spy_says_is_put_into_words():
    told = spying._in_words("Error: Failed to find python version from target process\n", 3)
    assert "does not know the interpreter" in told and "gputop-train train.py" in told
    assert "gputop-train attach" in spying._in_words("Error: something odd.\n", 3)


def test_without_py_spy_the_command_that_installs_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(spying.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="pip install"):
        spying.find()


def test_the_cards_of_a_process_are_read_with_what_it_holds_of_them(monkeypatch):
    pid = os.getpid()
    monkeypatch.setattr(nvml_session, "in_initial_pid_namespace", lambda: True)
    monkeypatch.setattr(listing, "in_initial_pid_namespace", lambda: True)
    nvml = FakeNvml(FakeCard(processes=[(pid, 5_000_000_000), (1, 7_000_000_000)]))
    me = identity.identify(pid)
    assert me is not None
    around = Surroundings(target.Target(me, ("python",), (3, 11), True, True), nvml)
    try:
        deadline = time.monotonic() + 60
        while not (cards := around.cards()) or cards[0].memory_ours is None:
            assert time.monotonic() < deadline
            around.look()
            time.sleep(0.05)
    finally:
        around.close()
    (card,) = cards
    assert (card.name, card.memory_ours, card.shared) == ("NVIDIA H200", 5_000_000_000, True)
    assert around.trainer().cpu is not None and around.cores_free() is not None
    assert listing._cards(nvml)[pid] == "0 (5.0 GB)"


def test_a_process_without_a_gpu_asks_no_driver():
    me = identity.identify(os.getpid())
    assert me is not None
    around = Surroundings(target.Target(me, ("python",), (3, 11), True, False))
    around.look()
    assert around.cards() == () and around.workers() == ()
    assert set(around.missing) == {"nvml"}
