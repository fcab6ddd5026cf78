"""Changes of single lines of code: what changes, and that nothing else does."""

from __future__ import annotations

import ast
import pathlib
import textwrap

import pytest

from gputop_train.edits import changes, loaders
from gputop_train.edits.errors import EditError
from gputop_train.edits.parsing import parse
from gputop_train.edits.splice import add_keywords, apply

IMPORTS = "import torch\nfrom torch.utils.data import DataLoader\n"


def code(text):
    return IMPORTS + textwrap.dedent(text)


def set_loader(text, settings, line=3, command=()):
    source = parse(code(text))
    return apply(source, loaders.change(source, line, settings, command)).removeprefix(IMPORTS)


def changed(text, change, *arguments):
    source = parse(code(text))
    made = change(source, *arguments)
    return apply(source, made[1] if isinstance(made, tuple) else made).removeprefix(IMPORTS)


@pytest.mark.parametrize(
    ("before", "settings", "after"),
    [
        # absent: added behind the last argument, in the layout that is there
        ("x = DataLoader(ds)\n", {"num_workers": 4}, "x = DataLoader(ds, num_workers=4)\n"),
        ("x = DataLoader(ds,)\n", {"num_workers": 4}, "x = DataLoader(ds, num_workers=4,)\n"),
        (
            "x = DataLoader(ds, shuffle=True)  # why\n",
            {"num_workers": 4, "persistent_workers": True},
            "x = DataLoader(ds, shuffle=True, num_workers=4, persistent_workers=True)  # why\n",
        ),
        (
            "x = DataLoader(\n    ds,\n    batch_size=4,  # small\n)\n",
            {"num_workers": 4},
            "x = DataLoader(\n    ds,\n    batch_size=4,  # small\n    num_workers=4,\n)\n",
        ),
        (
            "x = DataLoader(\n    ds,\n    batch_size=4  # (small)\n)\n",
            {"num_workers": 4, "pin_memory": True},
            "x = DataLoader(\n    ds,\n    batch_size=4,  # (small)\n    num_workers=4,\n"
            "    pin_memory=True\n)\n",
        ),
        (
            "x = DataLoader(\n    ds,\n    batch_size=4\n)\n",
            {"num_workers": 4},
            "x = DataLoader(\n    ds,\n    batch_size=4,\n    num_workers=4\n)\n",
        ),
        (
            "x = DataLoader(ds,\n               batch_size=4)\n",
            {"num_workers": 4},
            "x = DataLoader(ds,\n               batch_size=4, num_workers=4)\n",
        ),
        (
            "x = (DataLoader)((ds), (batch))\n",
            {"num_workers": 4},
            "x = (DataLoader)((ds), (batch), num_workers=4)\n",
        ),
        # there: changed, by name or in its place
        (
            "x = DataLoader(ds, num_workers = 1 ,pin_memory=False)\n",
            {"num_workers": 6, "pin_memory": True},
            "x = DataLoader(ds, num_workers = 6 ,pin_memory=True)\n",
        ),
        (
            "x = DataLoader(ds, 64, True, None, None, 2)\n",
            {"num_workers": 6},
            "x = DataLoader(ds, 64, True, None, None, 6)\n",
        ),
        (
            "x = DataLoader(ds, prefetch_factor=2, num_workers=1)\n",
            {"prefetch_factor": 8},
            "x = DataLoader(ds, prefetch_factor=8, num_workers=1)\n",
        ),
        # what torch refuses without workers goes with them
        (
            "x = DataLoader(ds, num_workers=2, persistent_workers=True, prefetch_factor=4)\n",
            {"num_workers": 0},
            "x = DataLoader(ds, num_workers=0, persistent_workers=False, prefetch_factor=None)\n",
        ),
        (
            "x = DataLoader(ds, **more, num_workers=2)\n",
            {"num_workers": 4},
            "x = DataLoader(ds, **more, num_workers=4)\n",
        ),
        # a constant that is used nowhere else
        (
            "x = DataLoader(ds, num_workers=WORKERS)\nWORKERS = 2  # of 8\n",
            {"num_workers": 4},
            "x = DataLoader(ds, num_workers=WORKERS)\nWORKERS = 4  # of 8\n",
        ),
    ],
)
def test_a_loader_gets_its_keywords_and_nothing_else_moves(before, settings, after):
    assert set_loader(before, settings) == after


def test_a_keyword_that_would_make_a_line_too_long_gets_its_own():
    before = f"x = DataLoader(dataset_{'y' * 60}, batch_size=128)\n"
    after = set_loader(before, {"num_workers": 4})
    assert after == before[:-2] + ",\n               num_workers=4)\n"


def test_line_ends_tabs_and_everything_else_stay():
    before = "x = DataLoader(\r\n\tds,\r\n\tbatch_size=4,\r\n)\r\n\x0c\r\ny = '\u2028'\r\n"
    source = parse(before)
    after = apply(source, loaders.change(source, 1, {"num_workers": 4}))
    assert after == before.replace("size=4,\r\n", "size=4,\r\n\tnum_workers=4,\r\n")


ARGPARSE = """\
x = DataLoader(ds, num_workers=args.workers)
parser.add_argument("-w", "--workers", type=int, default=0, help="of the loader")
"""


def test_a_flags_default_is_changed_where_it_is_given():
    after = set_loader(ARGPARSE, {"num_workers": 6}, command=["python", "train.py", "--lr", "1"])
    assert after == ARGPARSE.replace("default=0", "default=6")


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        (ARGPARSE.replace(", default=0", ""), {"num_workers": 6}, "run it with --workers 6"),
        (
            'x = DataLoader(ds, pin_memory=args.pin)\np.add_argument("--pin", '
            'action="store_true")\n',
            {"pin_memory": True},
            "run it with --pin.",
        ),
        ("x = DataLoader(ds, num_workers=args.workers)\n", {"num_workers": 6}, "set workers to 6"),
        (
            "x = DataLoader(ds, num_workers=N)\nN = 2\nprint(N)\n",
            {"num_workers": 6},
            "num_workers is N at line 4 (now 2), which is read in 2 places: set it to 6",
        ),
        (
            "x = DataLoader(ds, num_workers=os.cpu_count() // 2)\n",
            {"num_workers": 6},
            "num_workers is `os.cpu_count() // 2` there",
        ),
        ("x = DataLoader(ds, **more)\n", {"num_workers": 6}, "from **more: set num_workers=6"),
        ("x = DataLoader(*more)\n", {"num_workers": 6}, "*arguments"),
        ("x = make_loader(ds)\n", {"num_workers": 6}, "No DataLoader(...) is written at line 3"),
        ("x = DataLoader(a), DataLoader(b)\n", {"num_workers": 6}, "builds 2 loaders"),
        ("x = DataLoader(ds)\n", {"persistent_workers": True}, "needs num_workers of at least 1"),
        (
            "x = DataLoader(ds, num_workers=0)\n",
            {"prefetch_factor": 4},
            "needs num_workers of at least 1",
        ),
        ("x = DataLoader(ds, num_workers=4)\n", {"num_workers": 4}, "says so already"),
        ("x = DataLoader(  # nothing\n)\n", {"num_workers": 4}, "by hand"),
    ],
)
def test_what_is_no_local_change_says_what_to_set_instead(text, settings, said):
    with pytest.raises(EditError) as problem:
        set_loader(text, settings)
    assert said in str(problem.value)


@pytest.mark.parametrize("workers", [0, None])
def test_workers_that_an_expression_may_leave_out_take_no_keyword_that_needs_them(workers):
    source = parse(code(ARGPARSE))
    wanted = {"persistent_workers": True}
    with pytest.raises(EditError, match="needs num_workers"):
        loaders.change(source, 3, wanted, workers=workers)
    assert "persistent_workers=True" in apply(source, loaders.change(source, 3, wanted, workers=2))


def test_a_flag_given_on_the_command_line_is_not_changed_in_the_file():
    for given in (["--workers", "0"], ["--workers=0"], ["--work", "0"], ["-j", "0"], ["-j0"]):
        with pytest.raises(EditError, match=r"run it with --workers 6"):
            text = ARGPARSE.replace('"-w"', '"-j"')
            set_loader(text, {"num_workers": 6}, command=["train.py", *given])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = x.to(device)\n", "x = x.to(device, non_blocking=True)\n"),
        ("x = x.cuda()\n", "x = x.cuda(non_blocking=True)\n"),
        (
            "x, y = x.to(d), y.to(device=d, non_blocking=False)\n",
            "x, y = x.to(d, non_blocking=True), y.to(device=d, non_blocking=True)\n",
        ),
        # casts, and what goes to the host, stay
        (
            "x, y, z = x.to(d), y.to(torch.float16), z.to('cpu')\n",
            "x, y, z = x.to(d, non_blocking=True), y.to(torch.float16), z.to('cpu')\n",
        ),
    ],
)
def test_copies_to_the_device_do_not_block(before, after):
    assert changed(before, changes.non_blocking, 3) == after


@pytest.mark.parametrize(
    "text", ["x = x.to('cpu')\n", "x = x.to(d, non_blocking=True)\n", "x = x.float()\n"]
)
def test_other_copies_stay_as_they_are(text):
    with pytest.raises(EditError):
        changed(text, changes.non_blocking, 3)


@pytest.mark.parametrize(
    ("before", "flag", "after"),
    [
        (
            "o = torch.optim.AdamW(p, lr=1)\n",
            "fused",
            "o = torch.optim.AdamW(p, lr=1, fused=True)\n",
        ),
        (
            "o = torch.optim.Adam(p, fused=False)\n",
            "fused",
            "o = torch.optim.Adam(p, fused=True)\n",
        ),
        (
            "o = torch.optim.Adam(p, foreach=True)\n",
            "fused",
            "o = torch.optim.Adam(p, fused=True)\n",
        ),
        (
            "o = torch.optim.RMSprop(p, foreach=False)\n",
            "foreach",
            "o = torch.optim.RMSprop(p, foreach=True)\n",
        ),
        (
            "from torch import optim\no = optim.SGD(p)\n",
            "fused",
            "from torch import optim\no = optim.SGD(p, fused=True)\n",
        ),
    ],
)
def test_the_one_optimizer_gets_its_flag(before, flag, after):
    assert changed(before, changes.optimizer_flag, flag, "2.13.0") == after


@pytest.mark.parametrize(
    ("text", "torch", "said"),
    [
        ("o = torch.optim.RMSprop(p)\n", "2.13.0", "no fused version"),
        ("o = torch.optim.SGD(p)\n", "2.1.2+cu121", "from torch 2.3"),
        ("o = Lion(p)\n", "2.13.0", "No torch.optim one"),
        ("a = torch.optim.SGD(p)\nb = torch.optim.SGD(q)\n", "2.13.0", "2 optimizers"),
        ("o = torch.optim.Adam(p, **kw)\n", "2.13.0", "from elsewhere"),
        ("o = torch.optim.Adam(p, fused=args.fused)\n", "2.13.0", "fused is `args.fused`"),
        ("o = torch.optim.Adam(p, differentiable=True)\n", "2.13.0", "differentiable"),
    ],
)
def test_an_optimizer_without_the_flag_is_left_alone(text, torch, said):
    with pytest.raises(EditError, match=said):
        changed(text, changes.optimizer_flag, "fused", torch)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = 1\ntorch.autograd.set_detect_anomaly(True)  # to see\nb = 2\n", "a = 1\nb = 2\n"),
        ("if a:\n    torch.autograd.set_detect_anomaly(True)\n", "if a:\n    pass\n"),
        ("if a: torch.autograd.set_detect_anomaly(True)\n", "if a: pass\n"),
        ("a = 1; torch.autograd.set_detect_anomaly(True)\n", "a = 1; pass\n"),
        (
            "with torch.autograd.detect_anomaly(), open(f) as g:  # why\n    run()\n    # end\n",
            "with torch.autograd.set_detect_anomaly(False), open(f) as g:  # why\n"
            "    run()\n    # end\n",
        ),
        (
            "with torch.autograd.set_detect_anomaly(True):\n    run()\n",
            "with torch.autograd.set_detect_anomaly(False):\n    run()\n",
        ),
    ],
)
def test_anomaly_detection_goes(before, after):
    assert changed(before, changes.without_anomaly) == after


def test_anomaly_detection_by_a_flag_names_the_flag():
    with pytest.raises(EditError, match=r"`args.debug` at line 3"):
        changed("torch.autograd.set_detect_anomaly(args.debug)\n", changes.without_anomaly)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("for x in y:\n    run()\n    torch.cuda.empty_cache()\n", "for x in y:\n    run()\n"),
        (
            "for x in y:\n    # a\n\n    torch.cuda.empty_cache()\n",
            "for x in y:\n    # a\n\n    pass\n",
        ),
    ],
)
def test_empty_cache_goes(before, after):
    line = 2 + before[: before.index("torch.cuda")].count("\n") + 1
    assert changed(before, changes.without, line, "torch.cuda.empty_cache") == after


@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.empty_cache(), check()\n",
        "check() or torch.cuda.empty_cache()\n",
        "held = torch.cuda.empty_cache()\n",
    ],
)
def test_what_stands_beside_a_call_is_not_taken_out_with_it(text):
    with pytest.raises(EditError, match="No statement"):
        changed(text, changes.without, 3, "torch.cuda.empty_cache")


SAVES = """\
def save(model):
    torch.save(model, "x")

for step, x in enumerate(y):
    if step % log_every == 0:
        print(x)
    if (step + 1) % 30 == 0 and rank == 0:
        save(model)
        torch.save(model, "y")
"""


@pytest.mark.parametrize("line", [4, 11])
def test_what_comes_too_often_comes_less_often_where_an_if_counts_the_steps(line):
    after = changed(SAVES, changes.rarer, line, 30, 900)
    assert after == SAVES.replace("% 30", "% 900")


def test_how_often_is_changed_where_it_is_given():
    text = SAVES.replace("% 30", "% args.save_every")
    flag = 'parser.add_argument("--save-every", type=int, default=30)\n'
    after = changed(flag + text, changes.rarer, 5, 30, 900)
    assert after == flag.replace("30", "900") + text
    with pytest.raises(EditError, match=r"How often it comes .* run it with --save-every 900"):
        changed(flag + text, changes.rarer, 5, 30, 900, ["train.py", "--save-every=30"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SAVES, 6),  # the loop itself, under no if
        (SAVES.replace("% 30", "% 120"), 11),  # counts something else: micro-batches
        (SAVES + "    if step % 30 == 0:\n        save(ema)\n", 4),  # two of them
        ("for epoch in range(9):\n    torch.save(model, 'x')\n", 4),
    ],
)
def test_where_no_single_if_says_how_often_nothing_is_changed(text, line):
    with pytest.raises(EditError, match=r"No single `if` .* says every 30 steps"):
        changed(text, changes.rarer, line, 30, 900)


def test_arrays_are_written_without_compression():
    before = "np.savez_compressed(\n    file, a=a)\n"
    assert changed(before, changes.uncompressed, 3) == before.replace("_compressed", "")
    with pytest.raises(EditError):
        changed("np.savez(file)\n", changes.uncompressed, 3)


@pytest.mark.parametrize(
    "more",
    [
        "print(start.elapsed_time(end))\n",
        "s = torch.cuda.Stream()\n",
        'y = x.to("cpu", non_blocking=True)\n',
        "host.copy_(x, non_blocking=True)\n",
    ],
)
def test_a_synchronize_that_something_may_wait_for_stays(more):
    text = "for x in y:\n    run()\n    torch.cuda.synchronize()\n"
    name = "torch.cuda.synchronize"
    assert changed(text, changes.without, 5, name) == text[: text.index("    torch")]
    fine = "    x = x.to(device, non_blocking=True)\n"
    assert changed(text + fine, changes.without, 5, name).endswith("run()\n" + fine)
    with pytest.raises(EditError, match="may rely on it"):
        changed(text + more, changes.without, 5, name)


def test_compile_takes_dynamic_shapes():
    assert (
        changed("m = torch.compile(m)\n", changes.dynamic) == "m = torch.compile(m, dynamic=True)\n"
    )
    before = "m = torch.compile(m, dynamic=False)\n"
    assert changed(before, changes.dynamic) == "m = torch.compile(m, dynamic=True)\n"


def test_matmul_precision_comes_behind_the_imports():
    source = parse('"""A."""\nimport torch as t\n\nimport os\n\nx = 1\nimport json\n')
    line, splices = changes.matmul_precision(source)
    after = apply(source, splices)
    assert after == (
        '"""A."""\nimport torch as t\n\nimport os\n\nt.set_float32_matmul_precision("high")\n'
        "\nx = 1\nimport json\n"
    )
    assert after.split("\n")[line - 1] == 't.set_float32_matmul_precision("high")'
    ended = parse("import torch")
    assert apply(ended, changes.matmul_precision(ended)[1]).endswith('precision("high")\n')
    there = "torch.set_float32_matmul_precision('highest')\n"
    assert changed(there, changes.matmul_precision) == there.replace("'highest'", '"high"')


LOOP = """\
for x in y:
    loss = f(x)
    loss.backward()
    {}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("total += loss", "total += loss.detach()"),
        ("losses.append(loss)", "losses.append(loss.detach())"),
        ("self.losses.append(loss)", "self.losses.append(loss.detach())"),
    ],
)
def test_a_statistic_that_keeps_its_graph_is_detached(before, after):
    assert changed(LOOP.format(before), changes.detached) == LOOP.format(after)


@pytest.mark.parametrize(
    "text",
    [
        LOOP.format("total += loss.item()"),
        LOOP.format("total += loss\n    other.append(loss)"),
        LOOP.format("total += loss") + "total.backward()\n",
        LOOP.format("total += loss").replace("backward()", "backward(retain_graph=True)"),
        "for x in y:\n    loss = f(x)\n    total += loss\ntotal.backward()\n",
        "loss.backward()\nfor x in y:\n    total += loss\n",
    ],
)
def test_where_it_is_not_certain_nothing_is_detached(text):
    with pytest.raises(EditError, match=r"No single place|retains graphs"):
        changed(text, changes.detached)


@pytest.mark.parametrize("text", ["x = (\n", "def f(:\n", "x = " + "(" * 3000 + ")" * 3000])
def test_what_is_not_python_is_refused_in_a_sentence(text):
    with pytest.raises(EditError):
        parse(text)


ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = [
    ROOT / "demos/starved.py",
    ROOT / "demos/launch_bound.py",
    *(ROOT / "tests/harmless_scripts").glob("*.py"),
]


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda f: f.name)
def test_a_keyword_added_to_any_call_of_a_script_is_all_that_changes(file):
    source = parse(file.read_text(encoding="utf-8"))
    before = ast.dump(ast.parse(source.text))
    calls = [c for c in source.calls if not any(a.star for a in c.arguments)]
    made = 0
    for call in calls[:: max(1, len(calls) // 6)]:
        try:
            after = apply(source, add_keywords(source, call, {"new_one": 1, "new_two": True}))
        except EditError as problem:
            # ``f(x for x in y, a=1)`` is no Python, nor is a line break in a plain f-string.
            assert "would not be valid" in str(problem)
            continue
        tree = ast.parse(after)
        added = [k for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg in NEW]
        assert {k.arg for k in added} == NEW and len(added) == 2
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                node.keywords = [k for k in node.keywords if k not in added]
        assert ast.dump(tree) == before
        made += 1
    assert made or not calls


NEW = {"new_one", "new_two"}
