"""The same store gives the same verdict: in any process, whatever its hashes are seeded with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RECORDINGS = sorted((Path(__file__).parents[2] / "demos" / "recordings").glob("*.zip"))
JUDGE = """
import json, sys
from pathlib import Path
from gputop_train.launch.verdicts import as_body, judge_run

told = {}
for store in sys.argv[1:]:
    for final in (True, False):
        told[f"{store} {final}"] = as_body(judge_run(Path(store), final=final)[1])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """What two processes with different hash seeds say of every recording, final and live."""
    folder = tmp_path_factory.mktemp("recordings")
    stores = []
    for recording in RECORDINGS:
        with zipfile.ZipFile(recording) as archive:
            archive.extract("run.sqlite", folder / recording.stem)
        stores.append(str(folder / recording.stem / "run.sqlite"))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", JUDGE, *order],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, order in (("1", stores), ("4242", stores[::-1]))
    ]
    texts = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    return [json.loads(text) for text in texts]


def test_every_recording_gets_the_same_judgement_in_two_processes(judged):
    first, second = judged
    assert first == second
    assert len(first) == 2 * len(RECORDINGS) >= 14


def test_every_recording_gets_the_verdict_it_was_made_for(judged):
    expected = {
        "checkpointing": ["checkpoint-stall"],
        "erratic": ["eval-stall", "checkpoint-stall"],
        "healthy": [],
        "launch_bound": ["launch-bound"],
        "leaking": ["memory-leak"],
        "starved": ["input-bound"],
        "syncing": ["host-sync-stall"],
    }
    assert {recording.stem for recording in RECORDINGS} == set(expected)
    for key, found in judged[0].items():
        causes = [found["verdict"], *found["also"]]
        named = [c["id"] for c in causes if c is not None and c["severity"] != "info"]
        wanted = expected[Path(key.split()[0]).parent.name]
        # The Python around a blocking read is a cause beside it.
        assert named[: len(wanted)] == wanted, key
        assert not named or wanted, key
