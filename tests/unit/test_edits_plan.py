"""From a report's advice to diffs: which file, which line, and when rather not."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from synthetic_windows import loader

from gputop_train.edits import asks, loaders, plan
from gputop_train.launch.options import SETTINGS

SCRIPT = """\
import torch
from torch.utils.data import DataLoader

losses = []
opt = torch.optim.AdamW(net.parameters())
net = torch.compile(net, dynamic=False)
loader = DataLoader(
    ds,
    batch_size=64,
)
for x in loader:
    x = x.to("cuda")
    loss = net(x).mean()
    with torch.autograd.detect_anomaly():
        loss.backward()
    losses.append(loss)
    print(loss.item())
    torch.cuda.empty_cache()
"""
LOADER_CALL = "DataLoader( ds, batch_size=64, )"


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def advice(text, **setting):
    return {"text": text, "setting": setting or None}


def finding(*given, id="input-bound", refined=None, where=None, severity="warn"):
    found = {"id": id, "refined": refined, "where": where, "severity": severity}
    return found | {"advice": list(given)}


def place(file, line, what):
    return {"file": str(file), "line": line, "what": what}


def made(script, *findings, only=None, **changes):
    report = {
        "verdict": findings[0],
        "also": list(findings[1:]),
        "run": {"torch": "2.13.0"},
        "status": "verdict",
    }
    values = {
        "cwd": str(script.parent),
        "script": str(script),
        "command": ["python", "train.py"],
        "started_ns": time.time_ns() + 10**9,
        "loaders": (loader(file=str(script), line=7, call="DataLoader(ds, batch_size=64)"),),
    }
    return plan.make(report, plan.Run(**(values | changes)), only)


def added(proposal):
    lines = proposal.diff.splitlines()
    return [x[1:].strip() for x in lines if x.startswith("+") and not x.startswith("+++")]


def test_a_setting_goes_to_the_loader_that_feeds_training(script):
    found = made(script, finding(advice("num_workers 0 -> 4", num_workers=4)))
    assert [added(p) for p in found.proposals] == [["num_workers=4,"]]
    assert found.proposals[0].diff.startswith("--- a/train.py\n+++ b/train.py\n")
    assert found.base == script.parent
    assert script.read_text() == SCRIPT


def test_settings_of_several_pieces_of_advice_build_on_each_other(script):
    given = finding(
        advice("workers", num_workers=4),
        advice("keep them", persistent_workers=True),
        advice("pin", pin_memory=True),
    )
    found = made(script, given)
    assert [added(p) for p in found.proposals] == [
        ["num_workers=4,"],
        ["persistent_workers=True,"],
        ["pin_memory=True,"],
    ]
    alone = made(script, given, only=2)
    assert [p.number for p in alone.proposals] == [2] and alone.edited == ()
    assert "needs num_workers" in alone.proposals[0].why_not


def test_the_diffs_of_all_findings_make_one_patch(script):
    at = place(script, 12, 'x.to("cuda")')
    cache = place(script, 18, "torch.cuda.empty_cache()")
    found = made(
        script,
        finding(
            advice("precision: torch.set_float32_matmul_precision('high')"), id="no-tensor-cores"
        ),
        finding(
            advice("pin_memory=True and non_blocking=True", pin_memory=True),
            id="pageable-h2d",
            where=[at],
        ),
        finding(advice("AdamW(fused=True)"), id="launch-bound", refined="optimizer-overhead"),
        finding(advice("compile with dynamic=True"), id="recompilation"),
        finding(advice("remove detect_anomaly"), id="anomaly-mode"),
        finding(advice("remove empty_cache()"), id="empty-cache-in-loop", where=[cache]),
        finding(advice("store loss.item() or x.detach().cpu()"), id="memory-leak"),
    )
    assert [p.why_not for p in found.proposals] == [None] * 7
    precision, copies, fused, *others = (p.results for p in found.proposals)
    assert precision == "It changes what is computed, not only how fast."
    assert fused == "It changes the results of a seeded run."
    assert [copies, *others] == [None] * 5
    text = "".join(p.diff for p in found.proposals)
    done = subprocess.run(["git", "apply"], input=text.encode(), cwd=script.parent, check=False)
    assert done.returncode == 0
    assert script.read_text() == found.edited[0].text
    for line in (
        'torch.set_float32_matmul_precision("high")',
        "opt = torch.optim.AdamW(net.parameters(), fused=True)",
        "net = torch.compile(net, dynamic=True)",
        "    pin_memory=True,",
        '    x = x.to("cuda", non_blocking=True)',
        "    with torch.autograd.set_detect_anomaly(False):",
        "    losses.append(loss.detach())",
    ):
        assert f"\n{line}\n" in script.read_text()
    assert "empty_cache" not in script.read_text()


def test_the_diff_of_a_file_with_a_byte_order_mark_applies(script):
    script.write_bytes(b"\xef\xbb\xbf" + SCRIPT.encode())
    found = made(script, finding(advice("set_float32_matmul_precision"), id="no-tensor-cores"))
    diff = found.proposals[0].diff.encode()
    subprocess.run(["git", "apply"], input=diff, cwd=script.parent, check=True)
    assert script.read_bytes() == found.edited[0].original.encode(found.edited[0].text)


def test_what_stands_in_for_other_advice_waits_until_it_is_chosen(script):
    given = finding(
        advice("num_workers 0 -> 4", num_workers=4),
        advice("Or batch_size 64 -> 128", batch_size=128),
        advice("If it cannot be split: num_workers 4 -> 1", num_workers=1),
    )
    found = made(script, given)
    assert [bool(p.diff) for p in found.proposals] == [True, False, False]
    assert "--only 2" in found.proposals[1].why_not
    chosen = made(script, given, only=2)
    assert added(chosen.proposals[0]) == ["batch_size=128,"]
    assert "changes what is computed" in chosen.proposals[0].results
    workers = "It changes the results of a seeded run."
    assert [p.results for p in found.proposals] == [workers, None, None]


def test_edits_mark_the_settings_that_set_marks():
    marked = {key for key, (_, changes) in SETTINGS.items() if changes}
    assert marked & {*loaders.KEYS, "fused"} == asks.CHANGING | asks.RESEEDING


def test_information_is_no_reason_to_change_code(script):
    given = finding(
        advice('torch.set_float32_matmul_precision("high")'), id="gpu-bound", severity="info"
    )
    assert made(script, given).edited == ()
    assert made(script, given, only=1).edited


def test_advice_in_words_that_name_a_flag_for_something_else_changes_nothing(script):
    at = place(script, 12, 'x.to("cuda")')
    words = advice("Leave the GPU work: read with non_blocking=True into pinned memory.")
    assert made(script, finding(words, id="device-roundtrip", where=[at])).edited == ()
    scattered = advice("store loss.item(), plain numbers. A kept .detach() scatters the heap.")
    assert made(script, finding(scattered, id="memory-leak")).edited == ()


def test_an_order_nobody_needs_is_given_up_where_torch_does_it_right(script):
    given = finding(advice("in_order=False (train.py:7)"), refined="slow-worker")
    assert added(made(script, given).proposals[0]) == ["in_order=False,"]


def test_a_save_comes_less_often(script):
    script.write_text("for step in x:\n    if step % 30 == 0:\n        torch.save(m, f)\n")
    given = finding(
        advice("Save every 1,200 steps instead of every 30 (train.py:3): at 150 ms each"),
        id="checkpoint-stall",
        where=[place(script, 3, "torch.save(m, f)")],
    )
    assert added(made(script, given, loaders=()).proposals[0]) == ["if step % 1200 == 0:"]


def test_why_there_is_no_diff_fits_what_was_advised(script):
    def why(text, **more):
        return made(script, finding(advice(text), **more)).proposals[0].why_not

    assert "how often it comes" in why("Log every 20 steps (train.py:31): it costs 1.2 ms")
    assert "more than a change of one line" in why("give the arrays to a thread")


def test_calls_are_taken_out_where_the_advice_says(script):
    script.write_text(
        "import gc, torch\nfor x in y:\n    run()\n    torch.cuda.synchronize()\n"
        "    run()\n    gc.collect()\n    torch.cuda.synchronize()\n"
    )
    where = [place(script, n, "torch.cuda.synchronize()") for n in (4, 7)]
    waits = advice("Remove torch.cuda.synchronize() at train.py:7: 1 a step, 9 ms of 20 ms idle.")
    garbage = advice("Take gc.collect() out of the loop (train.py:6), or call it every 30 steps")
    found = made(
        script,
        finding(waits, id="host-sync-stall", where=where),
        finding(garbage, id="gc-pause", where=[place(script, 6, "gc.collect()")]),
        loaders=(),
    )
    taken = [[x for x in p.diff.splitlines() if x[:1] in "+-"][2:] for p in found.proposals]
    assert taken == [["-    torch.cuda.synchronize()"], ["-    gc.collect()"]]
    unplaced = finding(advice("Take gc.collect() out of the loop"), id="gc-pause")
    assert made(script, unplaced, loaders=()).edited


def test_a_loader_that_only_evaluates_is_changed_where_the_advice_names_it(script):
    val = loader(id=2, file=str(script), line=7, call="DataLoader(ds, ba", feeds_training=False)
    text = "its loader (train.py:7): num_workers 0 -> 2, persistent_workers=True."
    found = made(script, finding(advice(text), id="eval-stall"), loaders=(val,))
    assert added(found.proposals[0]) == ["num_workers=2,", "persistent_workers=True,"]


def test_ddp_stops_looking_for_unused_parameters(script):
    script.write_text(
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "net = DDP(net, find_unused_parameters=True)\n"
    )
    given = finding(advice("find_unused_parameters=True -> False: none was found"), id="comm-bound")
    found = made(script, given, loaders=())
    assert added(found.proposals[0]) == ["net = DDP(net, find_unused_parameters=False)"]


def test_a_read_in_every_step_is_no_local_change_and_says_why(script):
    found = made(script, finding(advice("Read every 50 steps"), id="host-sync-stall"))
    assert found.proposals[0].diff == "" and found.edited == ()
    assert "No diff: what reads the value decides" in found.proposals[0].why_not


def test_a_file_that_changed_since_the_run_is_refused(script):
    given = finding(advice("workers", num_workers=4))
    started = script.stat().st_mtime_ns
    assert made(script, given, started_ns=started).edited
    late = made(script, given, started_ns=started - 1)
    assert late.edited == () and "changed after this run began" in late.proposals[0].why_not
    unknown = made(script, given, started_ns=None)
    assert unknown.edited == ()


def test_a_file_that_apply_left_is_known(script):
    given = finding(advice("workers", num_workers=4))
    digest = made(script, given).edited[0].original.digest
    assert made(script, given, started_ns=1, ours={digest}).edited


def test_more_advice_finds_its_lines_in_a_file_that_apply_left(script):
    """The first change moved the lines, and another loader stands where this one was."""
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n\n"
        "val = DataLoader(a, batch_size=8)\nx = 1\ntrain = DataLoader(b, batch_size=8)\n"
        "gen = torch.optim.Adam(g)\n\ndisc = torch.optim.Adam(d)\n"
    )
    loaders = (loader(file=str(script), line=6, call="DataLoader(b, batch_size=8)"),)
    wanted = [finding(advice("set_float32_matmul_precision"), advice("workers", num_workers=4))]
    wanted.append(finding(advice("fused=True"), id="optimizer-overhead"))
    wanted[1]["where"] = [place(script, 9, "disc = torch.optim.Adam(d)")]
    (first,) = made(script, *wanted, only=1, loaders=loaders).edited
    script.write_text(first.text)
    left = {"started_ns": 1, "ours": {first.original.digest_of(first.text)}, "loaders": loaders}
    (again,) = made(script, *wanted, only=2, **left).proposals
    assert added(again) == ["train = DataLoader(b, batch_size=8, num_workers=4)"]
    (unsure,) = made(script, *wanted, only=3, **left).proposals
    assert unsure.diff == "" and "2 optimizers" in unsure.why_not

    script.write_text(first.text + "more = DataLoader(b, batch_size=8)\n")
    left["ours"] = {first.original.digest_of(script.read_text())}
    (twice,) = made(script, *wanted, only=2, **left).proposals
    assert twice.diff == "" and "in 2 places" in twice.why_not
    rarer = finding(advice("Save every 50 steps instead of every 5"), where=[place(script, 5, "f")])
    (moved,) = made(script, rarer, **left).proposals
    assert "line 5 may have moved" in moved.why_not


def test_a_line_that_holds_something_else_is_refused(script):
    other = loader(file=str(script), line=7, call="DataLoader(ds, batch_size=32)")
    found = made(script, finding(advice("workers", num_workers=4)), loaders=(other,))
    assert found.edited == () and "no longer holds" in found.proposals[0].why_not
    moved = place(script, 13, 'x.to("cuda")')
    found = made(script, finding(advice("non_blocking=True"), id="pageable-h2d", where=[moved]))
    assert found.edited == ()


def test_a_loader_is_chosen_by_place_then_by_name_then_by_what_it_feeds(script):
    train = loader(id=1, file=str(script), line=7, call="DataLoader(ds, batch_size=64)")
    val = loader(id=2, file=str(script), line=99, call="DataLoader(val)", feeds_training=False)
    more = loader(id=3, file=str(script), line=98, call="DataLoader(aux)")
    wanted = advice("workers", num_workers=4)
    both = made(script, finding(wanted), loaders=(train, val))
    assert both.edited
    unclear = made(script, finding(wanted), loaders=(train, more))
    assert unclear.proposals[0].why_not == "Several loaders feed training."
    where = [place(script, 7, LOADER_CALL)]
    assert made(script, finding(wanted, where=where), loaders=(train, more)).edited
    named = {"text": "workers", "setting": {"num_workers@train.py:7": 4}}
    assert made(script, finding(named), loaders=(train, more)).edited
    assert "No DataLoader" in made(script, finding(wanted), loaders=()).proposals[0].why_not


def test_relative_paths_and_files_elsewhere(script, tmp_path):
    given = finding(advice("workers", num_workers=4))
    relative = loader(file="train.py", line=7, call="DataLoader(ds, batch_size=64)")
    found = made(script, given, loaders=(relative,))
    assert found.edited[0].original.path == script
    away = made(script, given, cwd=str(tmp_path / "other"))
    assert away.base == script.parent and "--- a/train.py\n" in away.proposals[0].diff


def test_installed_code_and_absent_files_are_said_so(script):
    wanted = finding(advice("workers", num_workers=4))
    for file, said in (
        ("/x/site-packages/lib/data.py", "installed package"),
        ("/nowhere/train.py", "is not on this machine"),
        ("<stdin>", "is not a file"),
    ):
        found = made(script, wanted, loaders=(loader(file=file, line=7),))
        assert found.edited == () and said in found.proposals[0].why_not


def test_two_files_that_fit_are_left_to_a_person(script, tmp_path):
    other = tmp_path / "loop.py"
    other.write_text("import torch\nopt = torch.optim.AdamW(p)\n")
    where = [place(other, 2, "opt.step()")]
    fused = finding(advice("fused=True"), id="optimizer-overhead", where=where)
    found = made(script, fused)
    assert found.edited == () and "both have a place" in found.proposals[0].why_not


def test_a_healthy_run_has_nothing_to_change(script):
    found = plan.make({"verdict": None, "also": [], "run": {}}, plan.Run(None, None, (), None, ()))
    assert (found.proposals, found.edited) == ((), ())


def test_time_of_change_is_not_ours_to_forge(script):
    """A file put back with its old time, but with other text, is caught by its line."""
    times = script.stat()
    script.write_text(SCRIPT.replace("batch_size=64", "batch_size=8"))
    os.utime(script, ns=(times.st_atime_ns, times.st_mtime_ns))
    found = made(script, finding(advice("workers", num_workers=4)))
    assert found.edited == () and "no longer holds" in found.proposals[0].why_not
