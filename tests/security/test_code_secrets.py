"""A token written into the script's code is in the person's file alone: not in a store, a report, a
recording or on a screen that shows the line."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from gputop_train.launch.outside import stacks
from gputop_train.launch.outside.spying import Frame
from gputop_train.launch.pipeline import Pipeline
from gputop_train.launch.secrets import MASK, mask_code
from gputop_train.probe.ring import RingWriter, start_ticks
from gputop_train.store.writer import RunWriter
from gputop_train.trial.measure import last_error, tail

SECRET = "s3cr3tvalue"


@pytest.mark.parametrize(
    "line",
    [
        f'login(token="{SECRET}")',
        f"api_key = '{SECRET}'",
        f'model.push_to_hub("me/x", use_auth_token=r"{SECRET}", private=True)',
        f'torch.save(m, "https://user:{SECRET}@host/x")',
        f'requests.get(u, headers={{"Authorization": "Bearer {SECRET}"}})',
        f'os.environ["X"], WANDB_API_KEY="{SECRET}"',
        f'save(x, secret_key="{SECRET}',  # cut at 160 characters
        f"open('https://h/x?sig={SECRET}')",
    ],
)
def test_a_secret_in_a_line_of_code_is_masked(line: str) -> None:
    told = mask_code(line)
    assert SECRET not in told
    assert MASK in told


@pytest.mark.parametrize(
    "line",
    [
        "loss.item()",
        "key=batch[0]",
        "token_loss = criterion(out, target)",
        'tokens = tokenizer("a b", padding="max_length")',
        "DataLoader(train_set, batch_size=32, num_workers=4, collate_fn=pad)",
        'sorted(rows, key=lambda r: r["loss"])',
        'out = model(input_ids=ids, attention_mask="eager")',
        'x = d["key"]',
    ],
)
def test_ordinary_code_stays_as_it_is(line: str) -> None:
    assert mask_code(line) == line


@pytest.mark.parametrize("unit", ["x=", 'a="', "a='\\", "token=", "a.b=", '"""', "é="])
def test_long_lines_of_any_make_come_through(unit: str) -> None:
    assert mask_code(unit * 20_000)


def test_no_token_of_the_code_reaches_the_store(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    rings.mkdir(mode=0o700)
    pid = os.getpid()
    ring = RingWriter(
        str(rings / f"{pid}-{start_ticks(pid)}.ring"), pid=pid, start_ticks=start_ticks(pid),
        rank=-1, local_rank=-1, wall_ns=time.time_ns(), mono_ns=time.monotonic_ns(),
    )  # fmt: skip
    call = f'save_pretrained("out", token="{SECRET}")'
    snapshot = {
        "t_ns": time.monotonic_ns(),
        "sites": [[1, "save", "t.py", 7, "main", call, None]],
        "site_stats": {"1": [1, 1, 1, 0]},
        "loaders": [
            {"id": 1, "file": "t.py", "line": 3, "call": f"D(password='{SECRET}')", "dataset": "D",
             "num_workers": 0, "batch_size": 1},
        ],
        "oom": {"count": 1, "stack": [{"file": "t.py", "line": 1, "call": call}]},
        "errors": [f"no route to https://me:{SECRET}@host/"],
    }  # fmt: skip
    ring.snapshot(json.dumps(snapshot).encode())
    ring.close()
    store = tmp_path / "run.sqlite"
    writer = RunWriter(store)
    pipeline = Pipeline(rings, None, writer, {})
    pipeline.tick(time.monotonic_ns())
    pipeline.finish(time.monotonic_ns())
    writer.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("run.sqlite*"))
    assert b"save_pretrained" in kept, "nothing was stored"
    assert kept.count(MASK.encode()) >= 4
    assert SECRET.encode() not in kept


def test_the_error_a_trial_quotes_of_a_log_holds_no_token(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        f'  File "t.py", line 3, in <module>\n    login(token="{SECRET}")\n'
        f"OSError: no route to https://me:{SECRET}@host/\x1b[2J\n"
    )
    assert last_error(log) == f"OSError: no route to https://{MASK}@host/"
    assert SECRET not in " ".join(tail(log, 9))


@pytest.mark.parametrize("kind", ["pipe", "device", "hole"])
def test_a_process_seen_from_outside_cannot_have_odd_files_read_as_its_source(
    tmp_path: Path, kind: str
) -> None:
    """It says what its files are called, and whoever looks would open them."""
    file = tmp_path / "train.py"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with file.open("wb") as hole:
            hole.truncate(1 << 40)
    classifier = stacks.Classifier(on_gpu=False)
    code = classifier._code(Frame(str(file), "main", 3))
    assert stacks.sites.source(code, -1, 3) == ""
    assert sys.getsizeof(stacks.linecache.cache[str(file)]) < 1000
