"""From a verdict to another run by keys alone: a real script, on a real terminal."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.launch import identity
from tests.terminal.screen_pty import Terminal

MAIN = "from gputop_train.cli import main; main()"

#: Sleeps where others compute, so that nothing here depends on how fast a machine is.
SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4)

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Slow(), batch_size=4, shuffle=True)
for epoch in range(10_000):
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text(SCRIPT)
    yield tmp_path
    for run_json in (tmp_path / "kept").glob("*/run.json"):
        child = identity.recorded_child(json.loads(run_json.read_bytes()))
        if child is not None and identity.is_alive(child):
            identity.send_group(child, signal.SIGKILL)


def runs(place: Path) -> list[dict[str, object]]:
    """``run.json`` of every run, the oldest first."""
    found = [json.loads(path.read_bytes()) for path in (place / "kept").glob("*/run.json")]
    return sorted(found, key=lambda run: run["started_wall_ns"])


def joined(text: str) -> str:
    return "".join(text.split())


@pytest.mark.slow
def test_a_setting_is_changed_the_run_stopped_and_run_again_and_both_compared(place: Path) -> None:
    command = ["--run-root", str(place / "kept"), str(place / "train.py")]
    with Terminal(MAIN, *command, env={"XDG_STATE_HOME": str(place / "state")}) as screen:
        screen.wait_for(lambda text: "samples/s" in text.split("\n")[0], "steps")
        screen.type("t")
        screen.wait_for("feeds training")
        screen.type("2\r")
        screen.wait_for("1 changed")
        # The command may be broken anywhere: the test's own paths are long.
        screen.wait_for(lambda text: "--setnum_workers=2" in joined(text), "the command")
        screen.type("r")
        screen.wait_for("Run the script again with num_workers=2?")
        screen.type("s")
        screen.wait_for("compared with")
        screen.wait_for(lambda text: "num_workers=2" in text.split("\n")[0], "the override")
        screen.wait_for(lambda text: "samples/s" in text.split("\n")[0], "steps of the second run")
        first, second = runs(place)
        assert second["overrides"] == {"num_workers": 2}
        assert second["changes_results"] == ["num_workers"]
        assert second["compared_with"] == first["id"]
        assert first["overrides"] == {}
        # Its worker processes show, with their load or still without: the override is in force.
        screen.wait_for(lambda text: "2 workers" in text or " w1 " in text, "two workers")
        screen.type("c")
        screen.wait_for(lambda text: "mark two" in text and str(first["id"]) in text, "the list")
        screen.type("\r")
        screen.wait_for("host time a step")
        screen.wait_for(f"{first['id']} with {second['id']}")
        screen.wait_for(lambda text: "num_workers=2(appliedat" in joined(text), "what was applied")
        screen.type("\x1b")
        screen.wait_for("live")
        screen.type("q")
        screen.wait_for("still running")
        screen.type("s")
        screen.wait_exit()
        assert screen.restored()
    assert f"to compare with {first['id']}" in screen.raw.decode(errors="replace")
