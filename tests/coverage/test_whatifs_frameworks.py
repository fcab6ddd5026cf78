"""What-ifs in the loops of frameworks, each as a leg of a trial. By hand: ``pytest -m frameworks``.

Needs ``pip install -e '.[test,frameworks]'``. The loops are those of ``framework_loops.py`` and some
more here; each has to end as it does without us.
"""

from __future__ import annotations

import importlib.util
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.probe_support import deploy, run

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

HERE = Path(__file__).resolve().parent
KEPT = 8
#: With a learning rate that lets nothing diverge, and ended as a trial would where a stream, its
#: length unknown, has no end any more.
AROUND = """
import json, runpy, sys
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

class Enough(BaseException):
    pass

steps = [0]

def count(*_):
    steps[0] += 1
    if steps[0] == 100:
        raise Enough

begin = torch.optim.SGD.__init__
torch.optim.SGD.__init__ = lambda self, params, lr: begin(self, params, lr=1e-9)
register_optimizer_step_post_hook(count)
script, name, out = sys.argv[1:4]
sys.argv = [script, name, out]
try:
    runpy.run_path(script, run_name="__main__")
except Enough:
    pass
from _gputop_probe.state import S
with open(out + "/told.json", "w") as stream:
    json.dump({"trial": S.trial.report(), "errors": S.errors}, stream)
"""
OWN = {
    "tqdm": """
        import torch
        from tqdm import tqdm
        from torch import nn

        def batches(count):
            for number in range(count):
                yield torch.full((4, 8), float(number))

        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        seen = []
        for epoch in range(3):
            for step, x in enumerate(tqdm(batches(10), total=10)):
                seen.append(float(x[0, 0]))
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert len(seen) == 30 and len(set(seen[10:])) == 8, seen
        """,
    "datasets": """
        import torch
        from datasets import Dataset
        from torch import nn
        from torch.utils.data import DataLoader

        rows = Dataset.from_dict({"x": [[float(n)] * 8 for n in range(400)]})
        loader = DataLoader(rows.to_iterable_dataset().with_format("torch"), batch_size=4)
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        seen = []
        for step, batch in zip(range(60), loader):
            seen.append(float(batch["x"][0, 0]))
            model(batch["x"]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(seen) == 60 and len(set(seen[-40:])) == 8, seen
        """,
}
#: Loop -> the distribution it needs, and the what-ifs that find something in it.
LOOPS = {
    "stateful_dataloader": ("torchdata", {"replay_batch"}),
    "webdataset": ("webdataset", {"replay_batch"}),
    "transformers_trainer": ("transformers", {"replay_batch", "no_eval", "skip_checkpoint"}),
    "accelerate": ("accelerate", {"replay_batch", "skip_checkpoint"}),
    "lightning": ("lightning", {"replay_batch", "no_eval", "skip_checkpoint"}),
    "tqdm": ("tqdm", {"replay_batch"}),
    "datasets": ("datasets", {"replay_batch"}),
    "trl_sft": ("trl", {"replay_batch"}),
    "deepspeed": ("deepspeed", {"replay_batch"}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_ifs_find_what_a_framework_does_and_it_ends_as_ever(tmp_path: Path, name: str) -> None:
    needs, finds = LOOPS[name]
    if importlib.util.find_spec(needs) is None:
        pytest.fail(f"{needs} is not installed: pip install -e '.[test,frameworks]'")
    script = HERE / "framework_loops.py"
    if name in OWN:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(OWN[name]))
    for place in ("scratch", "out"):
        (tmp_path / place).mkdir()
    keys: dict[str, Any] = {"replay_batch": KEPT, "no_eval": True, "skip_checkpoint": True}
    placed = deploy(
        tmp_path,
        trial={
            **{"warmup": KEPT + 4, "steps": 30, "guard": "overlay", "seed": 0},
            "scratch": str(tmp_path / "scratch"),
            "what_if": [{"key": key, "value": value} for key, value in keys.items()],
        },
    )
    (tmp_path / "around.py").write_text(AROUND)
    done = run(
        tmp_path / "around.py",
        *(str(script), name, str(tmp_path / "out")),
        env=placed.env(HF_HUB_OFFLINE="1"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    told = json.loads((tmp_path / "out" / "told.json").read_text())
    assert told["errors"] == []
    rows = told["trial"]["what_if"]
    applied = {row["key"] for row in rows if row["status"] == "applied" and row["count"] > 0}
    assert applied == finds, rows
    assert not [row for row in rows if row["status"] == "inconclusive"], rows
