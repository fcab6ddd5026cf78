"""``sync_every`` in real scripts, with CUDA stood in for: what each read gives, and what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gpu_standin import CUDA
from tests.probe_support import deploy, run

TRAINING = (
    CUDA
    + """
import json
torch.Tensor.is_cuda = property(lambda self: getattr(self, "_on_card", False))
waits = []
torch.cuda.synchronize = lambda *a: waits.append(a)

def card(value):
    made = torch.tensor(value)
    made._on_card = True
    return made

class Meter:
    total = 0.0
    def update(self, value):
        self.total += value

m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 1e-4)
meter, x = Meter(), torch.ones(2, 4)
seen = {name: [] for name in ("item", "float", "list", "copy", "to", "tested", "steers", "twice")}

def train(n):
    for step in range(1, n + 1):
        loss = m(x).square().mean()
        loss.backward(); o.step(); o.zero_grad()
        value = card(float(step))
        seen["item"].append(value.item())
        seen["float"].append(float(value))
        seen["list"].append(card([step, 0]).tolist())
        copy = card([float(step)]).cpu()
        seen["copy"].append(copy.clone())
        copy.fill_(-1)  # what a script does to its copy is not to come back
        seen["to"].append(card(step).to("cpu"))
        meter.update(value.item())
        if value.item() > 3.0:
            seen["tested"].append(step)
        steered = int(value)
        seen["steers"].append("x" if steered % 2 else "y")
        seen["twice"].append((value.item(), card(step).item()))
        assert f"{value}" == str(float(step)) or "tensor" in f"{value}"  # a library's read
        exec(unreadable, {"value": value})
        torch.cuda.synchronize()

N, unreadable = 11, compile("print(value.item())", "gone.py", "exec")
train(N)
from _gputop_probe.state import S
told = S.trial.report() if S.trial else None
seen["copy"] = [t.tolist() for t in seen["copy"]]
seen["to"] = [[type(t).__name__, int(t.numpy())] for t in seen["to"]]
print(json.dumps({"seen": seen, "waits": len(waits), "meter": meter.total, "trial": told,
                  "errors": S.errors, "types": sorted({str(type(v)) for v in seen["item"]})}))
"""
)
PLAIN = """
import json, torch
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.01)
for _ in range(4):
    m(torch.ones(2, 4)).mean().backward(); o.step(); o.zero_grad(); m.weight.sum().item()
from _gputop_probe.state import S
print(json.dumps(S.trial.report()["what_if"]))
"""


def said_by(tmp_path: Path, text: str, *what_if: dict[str, Any]) -> Any:
    script = tmp_path / "script.py"
    script.write_text(text)
    config = {"warmup": 2, "steps": 8, "scratch": str(tmp_path), "guard": "overlay", "seed": 0}
    placed = deploy(tmp_path, trial={**config, "what_if": list(what_if)})
    done = run(script, env=placed.env())
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


def at(text: str) -> str:
    line = next(n for n, line in enumerate(TRAINING.splitlines(), 1) if text in line)
    return f"script.py:{line}"


def test_reads_that_only_tell_are_real_every_nth_time_and_others_always(tmp_path: Path) -> None:
    said = said_by(tmp_path, TRAINING, {"key": "sync_every", "value": 5})
    assert said["errors"] == []
    seen, held = said["seen"], [1.0] * 5 + [6.0] * 5 + [11.0]
    assert seen["item"] == held and said["types"] == ["<class 'float'>"]
    assert seen["float"] == held
    assert seen["list"] == [[int(v), 0] for v in held]
    assert seen["copy"] == [[v] for v in held]
    assert seen["to"] == [["Tensor", int(v)] for v in held]
    assert said["meter"] == sum(held)
    assert seen["twice"] == [[v, int(v)] for v in held]
    assert seen["tested"] == list(range(4, 12))  # steers: never left out
    assert seen["steers"] == ["x", "y"] * 5 + ["x"]
    rows = {row["place"]: row for row in said["trial"]["what_if"]}
    place = at('seen["item"].append')
    assert rows[place]["status"] == "applied" and rows[place]["count"] == 8
    assert rows[place]["why"] == ".item() is real 1 time in 5"
    tested = rows[at("if value.item() > 3.0")]
    assert tested["status"] == "refused" and "decides a test in line" in tested["why"]
    steered = rows[at("steered = int(value)")]
    assert steered["status"] == "refused" and steered["why"].startswith("int() is made as ever")
    assert rows["gone.py:1"]["status"] == "refused"
    assert rows["gone.py:1"]["why"].endswith("the source of gone.py cannot be read")
    assert said["waits"] == 3  # of 11 by torch.cuda.synchronize()


def test_a_leg_without_it_reads_as_ever(tmp_path: Path) -> None:
    said = said_by(tmp_path, TRAINING)
    assert said["seen"]["item"] == [float(n) for n in range(1, 12)]
    assert said["waits"] == 11 and said["trial"]["what_if"] == []


def test_without_a_gpu_it_has_no_effect_and_says_so(tmp_path: Path) -> None:
    (row,) = said_by(tmp_path, PLAIN, {"key": "sync_every", "value": 5})
    assert (row["status"], row["count"]) == ("no effect", 0)
    assert row["why"] == "no GPU was used, so there was no read to leave out"
