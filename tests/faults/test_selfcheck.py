"""A place of torch that is gone or changed costs its own hook, by name and in words."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gputop_train.collect.ring_reader import Ring
from gputop_train.probe import selfcheck
from tests.probe_support import deploy, run

torch = pytest.importorskip("torch")

PLACES = [
    (hook, name, names)
    for hook, places in selfcheck.POINTS.items()
    for names, _ in places
    for name in names.split("|")
]


class Without:
    """Something as it is, but for one attribute somewhere below it."""

    def __init__(self, real: Any, path: list[str]) -> None:
        self._real, self._path = real, path

    def __getattr__(self, name: str) -> Any:
        if name == self._path[0]:
            if len(self._path) == 1:
                raise AttributeError(name)
            return Without(getattr(self._real, name), self._path[1:])
        return getattr(self._real, name)


@pytest.fixture(autouse=True)
def with_dynamo() -> None:
    importlib.import_module("torch._dynamo")


def test_this_torch_has_every_place() -> None:
    assert {hook: selfcheck.trouble(hook) for hook in selfcheck.POINTS} == dict.fromkeys(
        selfcheck.POINTS
    )


@pytest.mark.parametrize(("hook", "place", "names"), PLACES)
def test_a_place_that_is_gone_is_named(
    hook: str, place: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names.split("|") if place == names.split("|")[0] else [place]:
        module, _, path = name.partition(":")
        hidden = Without(sys.modules[module], path.split("."))
        monkeypatch.setitem(sys.modules, module, hidden)  # type: ignore[arg-type]
    found = selfcheck.trouble(hook)
    if place != names.split("|")[0]:
        assert found is None  # the newer place is there, the older one is not needed
        return
    assert found is not None and place.replace(":", ".") in found
    # What stands in for the class has an __init__ of its own, with other arguments.
    assert ("changed the arguments" if path.endswith("__init__") else "has no") in found


def test_other_arguments_are_not_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(model: Any, deep: bool) -> Any:
        return model

    monkeypatch.setattr(torch.nn.Module, "eval", evaluate)
    assert "changed the arguments of torch.nn.Module.eval" in str(selfcheck.trouble("eval"))
    # Somebody else's wrapper takes whatever it is given: that is no change of torch's.
    monkeypatch.setattr(torch.nn.Module, "eval", lambda *args, **kwargs: None)
    assert selfcheck.trouble("eval") is None


GONE = """
import sys
if "_gputop_probe" in sys.modules:
    from _gputop_probe import selfcheck
    selfcheck.POINTS[{hook!r}] = (("torch.nn:Module.gone", None),)
import time
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
m = nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), 0.1)
for x in DataLoader([torch.ones(4)] * {steps}, 2):
    m(x).sum().backward(); o.step(); o.zero_grad(); time.sleep(0.02)
m.eval(); m.train(); torch.save(m.state_dict(), "/dev/null")
print(m.weight.sum().item().hex())
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[bytes]:
    """Without the probe there is no hook to lose: one run stands beside all."""
    script = tmp_path_factory.mktemp("bare") / "script.py"
    script.write_text(GONE.format(hook="none", steps=20))
    return run(script)


@pytest.mark.parametrize("hook", ["data", "backward", "eval"])
def test_training_goes_on_with_the_hooks_that_are_left(
    hook: str, tmp_path: Path, bare: subprocess.CompletedProcess[bytes]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(GONE.format(hook=hook, steps=20))
    deployed = deploy(tmp_path)
    watched = run(script, env=deployed.env())
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout)
    assert watched.stderr == bare.stderr == b""
    (file,) = deployed.ring_files()
    with Ring.open(file) as ring:
        snapshot = ring.snapshot()
    assert snapshot is not None and snapshot["errors"] == []
    told = snapshot["hooks"]
    assert "has no torch.nn.Module.gone" in told[hook]
    rest = {"data", "backward", "optimizer", "save", "eval", "gc"} - {hook}
    assert all(told[name] is True for name in rest)


def test_the_report_says_in_words_which_hook_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(GONE.format(hook="data", steps=300))
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "gputop_train", "--no-tui", "--json", str(report)]
    command += ["--run-root", str(tmp_path / "runs"), "--python", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(report.read_text())
    assert "hook:data" in told["run"]["signals_missing"]
    assert any("torch.nn.Module.gone" in row["missing"] for row in told["abstained"]), told
    assert told["healthy"] is not True
