"""Whoever chose the names, the texts and the numbers of a run: none of them reaches a terminal as a
command, a page as markup, or our own stack."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from gputop_train import cli
from gputop_train.launch.guard import Guard
from gputop_train.launch.runs import list_runs, runs_table
from gputop_train.launch.streams import Voice
from gputop_train.report import compare_text
from gputop_train.report.format import safe
from tests.security.hostile import (
    CATEGORIES,
    EVIL,
    disturbing,
    make_run,
    recording,
    tainted,
    tainted_report,
)

REPORTS = ([], ["--ascii"], ["--lines"], ["--memory"], ["--diff"], ["--json", "-"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hostile runs, one without a report of its own, and a recording and a report of them."""
    made = tmp_path_factory.mktemp("hostile")
    run = make_run(made / "runs" / "3f2a91")
    make_run(made / "runs" / "aaaa11", report=False)
    recording(run, made / f"z{EVIL.replace('/', '')}.zip").rename(made / "evil.zip")
    (made / "r.json").write_bytes((run / "report.json").read_bytes())
    return made


def said(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str]:
    """What a command line prints on a terminal, whose colours click and Rich leave in."""
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    shown = capfd.readouterr()
    code = ended.value.code
    return code if isinstance(code, int) else 0, shown.out + shown.err


def test_the_evil_text_has_one_of_every_kind_of_harm() -> None:
    assert disturbing(EVIL) >= set("\x1b\x07\x08\x7f\r\x90\x9b\x9c\x9d\u202e\u2066\u200f\u2028")
    assert not disturbing(safe(EVIL))
    assert safe("größe 数 a  b") == "größe 数 a  b"
    assert not [c for c in map(chr, range(0x3000)) if disturbing(c) & set(safe(c))]
    assert CATEGORIES


@pytest.mark.parametrize("run", ["3f2a91", "aaaa11", "evil.zip"])
@pytest.mark.parametrize("options", REPORTS, ids=" ".join)
def test_a_report_of_a_hostile_run_or_recording_is_text(
    place: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    run: str,
    options: list[str],
) -> None:
    named = str(place / run) if run.endswith(".zip") else run
    root = ["--run-root", str(place / "runs")]
    code, shown = said(capfd, monkeypatch, "report", named, *options, *root)
    assert code == 0 and shown
    assert not disturbing(shown)


@pytest.mark.parametrize("options", [[], ["--ascii"], ["--json"]], ids=" ".join)
def test_the_list_of_hostile_runs_is_text_and_no_markup(
    place: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
) -> None:
    root = ["--run-root", str(place / "runs")]
    code, shown = said(capfd, monkeypatch, "runs", *options, *root)
    assert code == 0
    assert not disturbing(shown)
    assert "3f2a91" in shown


def test_brackets_of_a_command_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    run = tmp_path / "3f2a91"
    run.mkdir()
    command = ["python", "train.py", "data=[/data/a,/data/b]", "[link=file:///x]y[/link]", "[red]"]
    (run / "run.json").write_text(json.dumps({"id": "3f2a91", "command": command, "name": "[b]"}))
    console = Console(width=200, record=True, force_terminal=True)
    console.print(runs_table(list_runs(tmp_path)))
    shown = console.export_text(styles=True)
    assert " ".join(command[1:]) in shown and "3f2a91 [b]" in shown
    assert "\x1b]8;" not in shown


@pytest.mark.parametrize(
    "words",
    [
        ["3f2a91", "aaaa11"],
        ["3f2a91", "r.json", "--ascii"],
        ["evil.zip", "r.json"],
        ["3f2a91", "aaaa11", "--json", "-"],
        ["3f2a91", "evil.zip", "--markdown", "-"],
    ],
    ids=" ".join,
)
def test_a_comparison_of_hostile_runs_is_text(
    place: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    named = [str(place / word) if "." in word else word for word in words]
    root = ["--run-root", str(place / "runs")]
    code, shown = said(capfd, monkeypatch, "compare", *named, *root)
    assert code == 0
    assert not disturbing(shown)
    if "--markdown" in words:  # every mark of the text itself is one that our table needs
        assert not re.search(r"(?<!\\)[<>`]|(?<!\\)\[(?!\d)", shown)


def test_what_is_escaped_for_markdown_is_no_html_link_or_cell() -> None:
    found = compare_text.escaped(EVIL)
    assert not re.search(r"(?<!\\)[<>`\[\]|*_]", found)
    assert "\n" not in found and not disturbing(found)


def test_errors_quote_the_names_of_others_as_text(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ["--run-root", str(place / "runs")]
    for words in (
        ["attach", f"no{EVIL}", *root],
        ["report", f"no{EVIL}", *root],
        ["report", f"{place}/{EVIL.replace('/', '')}.zip", *root],
        ["compare", "3f2a91", f"{place}/{EVIL.replace('/', '')}.json", *root],
        ["explain", EVIL],
        ["--set", f"num_workers={EVIL}", "train.py"],
    ):
        code, shown = said(capfd, monkeypatch, *words)
        assert code in (1, 2), shown
        assert shown.startswith("gputop-train: ")
        assert not disturbing(shown)


def test_our_own_lines_and_our_own_log_say_nothing_to_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Voice().say(EVIL)
    Voice().lines([EVIL, " two  spaces"])
    Guard(lambda *_: None).log(EVIL)
    shown = capfd.readouterr().err
    assert shown.count("[red]r[/red]") == 3 and " two  spaces" in shown
    assert not disturbing(shown)


def test_a_trial_of_hostile_words_is_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"change": "x", "marks": ["m"], "step_ms": 3.0, "verdict": "faster"}
    body = {
        "id": "t1", "state": "done", "now": "n", "command": ["python", "t.py"], "table": [row],
        "candidates": [{"sentence": "s"}], "sentences": ["s"], "stop_hint": "h", "host": "h",
    }  # fmt: skip
    trial = tmp_path / "trials" / "t1"
    trial.mkdir(parents=True, mode=0o700)
    (trial / "trial.json").write_text(json.dumps(tainted(body) | {"schema": 1, "id": "t1"}))
    root = ["--run-root", str(tmp_path)]
    code, shown = said(capfd, monkeypatch, "attach", "t1", "--no-tui", *root)
    assert code == 0 and shown.count("owned") >= 5
    assert not disturbing(shown)


def test_a_tainted_report_is_tainted_in_every_text(place: Path) -> None:
    report = json.loads((place / "r.json").read_bytes())
    assert json.dumps(report).count("owned") > 30
    assert tainted_report({"status": "healthy", "note": "n"})["note"] != "n"
