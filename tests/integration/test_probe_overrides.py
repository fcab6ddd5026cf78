"""``--set``: what is applied, what is refused and why, in real scripts that train and evaluate."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.launch.options import parse_settings
from tests.probe_support import deploy, run

#: What every script starts with; it prints what it saw of itself as one line of JSON.
PRELUDE = """
import copy, io, json, sys, threading
import torch, torch.utils.checkpoint
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from torch.utils.data import TensorDataset, get_worker_info

DATA = TensorDataset(torch.randn(64, 8))
saw = {}

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(32, 8))

def trainer(optimizer=torch.optim.AdamW, **options):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    return model, optimizer(model.parameters(), 1e-3, **options)

def fit(model, optimizer, loader, steps=99):
    batches = []
    for step, batch in enumerate(loader):
        x = batch[0] if isinstance(batch, (list, tuple)) else batch
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
        batches.append(len(x))
        if step + 1 == steps:
            break
    return batches

def about(loader):
    names = ("num_workers", "batch_size", "prefetch_factor", "persistent_workers", "timeout")
    return [getattr(loader, name) for name in names]
"""


@dataclass(frozen=True)
class Outcome:
    """What a script saw of itself, and what the probe told of its settings."""

    saw: dict[str, Any]
    rows: list[dict[str, Any]]
    loaders: list[dict[str, Any]]
    text: str

    def line(self, mark: str) -> str:
        lines = self.text.splitlines()
        (number,) = [n for n, line in enumerate(lines, 1) if mark in line]
        return f"script.py:{number}"

    def told(self, key: str, mark: str | None = None) -> list[tuple[str, str]]:
        """Status and reason of a setting, where a loader was built or of the whole process."""
        place = None if mark is None else self.line(mark)
        rows = [row for row in self.rows if row["key"] == key and row["loader"] == place]
        return [(row["status"], row["why"]) for row in rows]

    def status(self, key: str, mark: str | None = None) -> str | None:
        found = self.told(key, mark)
        return found[0][0] if found else None


def outcome(tmp_path: Path, body: str, *settings: str) -> Outcome:
    text = PRELUDE + textwrap.dedent(body)
    script = tmp_path / "script.py"
    script.write_text(text)
    places = [setting.replace("LINE", str(line_of(text, "# named"))) for setting in settings]
    asked = [{"key": s.key, "value": s.value, "loader": s.loader} for s in parse_settings(places)]
    deployed = deploy(tmp_path, overrides=asked)
    result = run(script, env=deployed.env())
    assert result.returncode == 0, result.stderr.decode()
    with Ring.open(deployed.ring_files()[0]) as ring:
        snapshot = ring.snapshot()
    assert snapshot is not None and snapshot["errors"] == []
    saw = json.loads(result.stdout.decode().splitlines()[-1])
    return Outcome(saw, snapshot["overrides"], snapshot["loaders"], text)


def line_of(text: str, mark: str) -> int:
    return next((n for n, line in enumerate(text.splitlines(), 1) if mark in line), 0)


PLAIN = """
    if __name__ == "__main__":
        valid = DataLoader(DATA, batch_size=8)  # valid
        train = DataLoader(DATA, batch_size=8, shuffle=True)  # train
        after = DataLoader(DATA, batch_size=4, shuffle=True)  # after
        stream = DataLoader(Stream(), batch_size=8)  # stream
        own = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False))  # own
        held = DataLoader(DATA, batch_size=8)  # held
        saw["length"] = len(train)
        model, optimizer = trainer()
        dtypes = set()
        def see(module, given, output):
            dtypes.add(str(output.dtype))
        handle = model[0].register_forward_hook(see)
        model.eval()
        with torch.no_grad():
            saw["valid"] = [len(x) for (x,) in valid]
        model.train()
        saw["batches"] = fit(model, optimizer, train)
        with torch.no_grad():
            saw["after"] = [len(x) for (x,) in after]
        saw["stream"] = fit(model, optimizer, stream)
        saw["own"] = fit(model, optimizer, own, steps=2)
        model.eval()
        for (x,) in held:  # as Hugging Face evaluates: gradients go off within the loop only
            with torch.no_grad():
                model(x)
        model.train()
        fit(model, optimizer, train)
        handle.remove()
        output = model(x)
        again = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        again.sum().backward()
        saw["traced"] = str(torch.jit.trace(model, x).graph).count("aten::to")
        try:
            model(torch.ones(3, 5))
        except RuntimeError as error:
            saw["own error"] = [str(error)[:4], error.__context__ is None]
        torch.save(model, io.BytesIO())
        twin = copy.deepcopy(model)
        saw["same"] = [type(model).__name__, "_compiled_call_impl" in vars(twin), str(output.dtype)]
        saw["about"] = {n: about(eval(n)) for n in ("train", "valid", "after", "stream", "own", "held")}
        saw["fused"], saw["dtypes"] = optimizer.param_groups[0]["fused"], sorted(dtypes)
        saw["threads"] = torch.get_num_threads()
        print(json.dumps(saw))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return outcome(
        tmp_path_factory.mktemp("plain"),
        PLAIN,
        *("num_workers=1", "batch_size=16", "prefetch_factor=3", "persistent_workers=true"),
        *("pin_memory=true", "fused=true", "bf16=true", "omp_threads=1", "tf32=true"),
        *("cudnn_benchmark=true", "expandable_segments=true", "non_blocking=true"),
    )


def test_the_loader_that_feeds_the_training_gets_the_settings(plain: Outcome) -> None:
    assert plain.saw["about"]["train"][:4] == [1, 16, 3, True]
    assert (plain.saw["length"], plain.saw["batches"]) == (4, [16] * 4)
    for key in ("num_workers", "batch_size", "prefetch_factor", "persistent_workers"):
        assert plain.told(key, "# train") == [("applied", "")]
    (row,) = [r for r in plain.loaders if plain.line("# train").endswith(f":{r['line']}")]
    assert (row["num_workers"], row["batch_size"], row["length"]) == (1, 16, 4)
    assert row["override"]["num_workers"] == 1


@pytest.mark.parametrize("mark", ["valid", "after", "held"])
def test_loaders_that_evaluate_stay_as_they_are(plain: Outcome, mark: str) -> None:
    size = 4 if mark == "after" else 8
    assert plain.saw["about"][mark] == [0, size, None, False, 0]
    assert plain.saw["valid"] == [8] * 8 and plain.saw["after"] == [4] * 16
    for key in ("num_workers", "batch_size"):
        ((status, why),) = plain.told(key, f"# {mark}")
        assert status == "refused" and "evaluation" in why


def test_a_stream_gets_no_workers_and_what_needs_them_is_refused_there(plain: Outcome) -> None:
    assert plain.saw["about"]["stream"][0] == 0
    assert sum(plain.saw["stream"]) == 32
    ((status, why),) = plain.told("num_workers", "# stream")
    assert status == "refused" and "every sample once per worker" in why
    ((status, why),) = plain.told("prefetch_factor", "# stream")
    assert status == "refused" and "num_workers" in why


def test_a_loader_with_batches_of_its_own_keeps_them(plain: Outcome) -> None:
    assert plain.saw["own"] == [4, 4]
    ((status, why),) = plain.told("batch_size", "# own")
    assert status == "refused" and "sampler of its own" in why
    assert plain.status("num_workers", "# own") == "applied"


def test_bfloat16_is_used_within_the_forward_and_the_output_is_float32(plain: Outcome) -> None:
    assert plain.told("bf16") == [("applied", "")]
    assert "torch.bfloat16" in plain.saw["dtypes"]
    assert plain.saw["same"] == ["Sequential", False, "torch.float32"]


def test_what_is_traced_and_what_fails_is_the_scripts_own(plain: Outcome) -> None:
    assert plain.saw["traced"] == 0
    assert plain.saw["own error"] == ["mat1", True]


def test_the_optimizer_is_a_fused_one(plain: Outcome) -> None:
    assert (plain.saw["fused"], plain.told("fused")) == (True, [("applied", "")])


def test_threads_are_as_asked(plain: Outcome) -> None:
    assert (plain.saw["threads"], plain.told("omp_threads")) == (1, [("applied", "")])


@pytest.mark.parametrize(
    ("key", "word"),
    [("tf32", "GPU"), ("cudnn_benchmark", "GPU"), ("expandable_segments", "GPU")],
)
def test_what_is_of_a_gpu_has_no_effect_on_a_cpu(plain: Outcome, key: str, word: str) -> None:
    ((status, why),) = plain.told(key)
    assert status == "no effect" and word in why
    assert plain.told("non_blocking") == []


ODD = """
    def build(data, **options):
        return DataLoader(data, **options)  # helper

    class Endless(DataLoader):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)  # endless
            self.batches = super().__iter__()
        def __iter__(self):
            yield next(self.batches)

    class OnlyHere(torch.utils.data.Dataset):
        def __len__(self):
            return 16
        def __getitem__(self, index):
            if get_worker_info() is not None:
                raise RuntimeError("opened by another process")
            return torch.ones(8)

    class Refuses(torch.nn.Module):
        def __init__(self, inner):
            super().__init__(); self.inner = inner
        def forward(self, x):
            y = self.inner(x)
            if y.dtype == torch.bfloat16:
                raise TypeError("no kernel for bfloat16")
            return y

    if __name__ == "__main__":
        model, optimizer = trainer(torch.optim.Adam, foreach=True)
        wrapped = Refuses(model)
        fed, kept = build(DATA, batch_size=8), build(DATA, batch_size=8, num_workers=1, timeout=60)
        val_endless = Endless(DATA, batch_size=8)
        here = DataLoader(OnlyHere(), batch_size=4, shuffle=True)  # here
        teacher = torch.nn.Linear(8, 8).eval()  # stays so: not what is trained
        saw["asked"] = len(fed)
        saw["in order"] = fit(wrapped, optimizer, fed)
        saw["kept"] = fit(wrapped, optimizer, kept)
        saw["here"] = fit(wrapped, optimizer, here)
        fit(wrapped, optimizer, val_endless)
        del val_endless
        saw["about"] = {n: about(eval(n)) for n in ("fed", "kept", "here")}
        saw["fused"] = optimizer.param_groups[0]["fused"]
        print(json.dumps(saw))
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    settings = ("num_workers=2", "batch_size=16", "fused=true", "bf16=true")
    return outcome(tmp_path_factory.mktemp("odd"), ODD, *settings)


def test_a_loader_that_trains_in_order_is_found_too(odd: Outcome) -> None:
    assert odd.saw["about"]["fed"][0] == odd.saw["about"]["kept"][0] == 2
    assert odd.saw["about"]["kept"][4] == 60
    assert odd.told("num_workers", "# helper")[0][0] == "applied"


def test_a_length_that_was_asked_for_stays_true(odd: Outcome) -> None:
    assert odd.saw["in order"] == [8] * odd.saw["asked"]
    assert odd.saw["kept"] == [16] * 4


def test_a_loader_read_within_its_own_constructor_is_judged_by_its_order(odd: Outcome) -> None:
    ((status, why),) = odd.told("num_workers", "# endless")
    assert status == "refused" and "in order" in why


def test_workers_that_cannot_read_the_data_are_taken_back(odd: Outcome) -> None:
    assert (sum(odd.saw["here"]), odd.saw["about"]["here"][0]) == (16, 0)
    ((status, why),) = odd.told("num_workers", "# here")
    assert status == "refused" and "opened by another process" in why


def test_an_optimizer_built_for_other_kernels_keeps_them(odd: Outcome) -> None:
    assert odd.saw["fused"] is None
    ((status, why),) = odd.told("fused")
    assert status == "refused" and "foreach=True" in why


def test_a_forward_that_fails_in_bfloat16_goes_on_in_float32(odd: Outcome) -> None:
    ((status, why),) = odd.told("bf16")
    assert status == "refused" and "no kernel for bfloat16" in why


NAMED = """
    class Locked(torch.utils.data.Dataset):
        def __init__(self):
            self.lock = threading.Lock()
        def __len__(self):
            return 16
        def __getitem__(self, index):
            return torch.ones(8)

    if __name__ == "__main__":
        first = DataLoader(DATA, batch_size=8, shuffle=True)  # first
        second = DataLoader(DATA, batch_size=8)  # named
        spawned = DataLoader(Locked(), batch_size=8)  # spawned
        saw["second"] = about(second)
        model, optimizer = trainer(torch.optim.SGD)
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        torch.set_num_threads(2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fit(model, optimizer, first, steps=2)
        with torch.no_grad():
            list(second)
        torch.multiprocessing.set_start_method("spawn", force=True)
        fit(model, optimizer, spawned)
        saw["about"] = {n: about(eval(n)) for n in ("first", "second", "spawned")}
        print(json.dumps(saw))
"""


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return outcome(
        tmp_path_factory.mktemp("named"),
        NAMED,
        *("num_workers@script.py:LINE=1", "num_workers=2", "batch_size@script.py:1=4"),
        *("prefetch_factor@script.py:LINE=5", "bf16=true", "omp_threads=1", "fused=false"),
    )


def test_a_named_loader_gets_its_own_value_at_once(named: Outcome) -> None:
    assert named.saw["second"][:3] == [1, 8, 5]
    assert named.saw["about"]["second"][0] == 1
    rows = [row for row in named.rows if row["loader"] == named.line("# named")]
    assert {row["value"] for row in rows} == {1, 5}
    assert {row["named"] for row in rows} == {named.line("# named")}
    assert named.saw["about"]["first"][0] == 2


def test_a_line_that_builds_no_loader_has_no_row(named: Outcome) -> None:
    assert [row for row in named.rows if row["key"] == "batch_size"] == []


def test_what_cannot_be_sent_to_a_spawned_worker_is_refused(named: Outcome) -> None:
    assert named.saw["about"]["spawned"][0] == 0
    ((status, why),) = named.told("num_workers", "# spawned")
    assert status == "refused" and "spawn" in why and "lock" in why


def test_a_script_with_an_autocast_of_its_own_keeps_it(named: Outcome) -> None:
    ((status, why),) = named.told("bf16")
    assert status == "refused" and "autocast" in why


def test_threads_the_script_sets_itself_are_told(named: Outcome) -> None:
    ((status, why),) = named.told("omp_threads")
    assert status == "refused" and "2 threads itself" in why


def test_a_setting_that_changes_nothing_says_so(named: Outcome) -> None:
    ((status, why),) = named.told("fused")
    assert status == "no effect" and "as it is" in why


COMPILED = """
    import functools
    built = []
    def backend(graph, inputs):
        if len(built) == FAIL:
            raise RuntimeError("cannot be built")
        built.append(1)
        return graph.forward
    torch.compile = functools.partial(torch.compile, backend=backend)

    if __name__ == "__main__":
        loader = DataLoader(DATA, batch_size=8, shuffle=True)
        model, optimizer = trainer()
        before = id(model), sorted(model.state_dict())
        fit(model, optimizer, loader)
        model.eval()
        with torch.no_grad():
            model(torch.ones(4, 8))
        saw["built"] = len(built)
        saw["same"] = before == (id(model), sorted(model.state_dict()))
        torch.save(model, io.BytesIO())
        print(json.dumps(saw))
"""


def test_a_module_is_compiled_in_place_for_its_training_forward(tmp_path: Path) -> None:
    found = outcome(tmp_path, COMPILED.replace("FAIL", "9"), "compile=true", "bf16=true")
    assert found.saw == {"built": 1, "same": True}
    assert found.told("compile") == found.told("bf16") == [("applied", "")]


def test_a_module_that_cannot_be_compiled_runs_as_it_did(tmp_path: Path) -> None:
    found = outcome(tmp_path, COMPILED.replace("FAIL", "0"), "compile=true")
    assert found.saw == {"built": 0, "same": True}
    ((status, why),) = found.told("compile")
    assert status == "refused" and "cannot be built" in why
