"""The pages of docs/diagnoses, one a diagnosis, made from the rule files.

``python -m gputop_train.diagnose.pages docs/diagnoses`` writes them anew and removes pages of
rules that are gone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from gputop_train.diagnose.not_judged import NOT_JUDGED, NotJudged
from gputop_train.diagnose.rules import all_rules, refinements
from gputop_train.diagnose.rules.base import Page, Rule

#: Families of the catalogue, by the numbers of their diagnoses.
FAMILIES: Mapping[str, frozenset[int]] = {
    "Input pipeline": frozenset({*range(1, 13), 46, 47, 48, 49, 54, 55}),
    "Transfer": frozenset(range(13, 18)),
    "Host": frozenset({*range(18, 25), 50, 53}),
    "Interruptions and start": frozenset({*range(25, 31), 56}),
    "Memory": frozenset(range(31, 36)),
    "GPU": frozenset({*range(36, 42), 51, 52}),
    "Distributed": frozenset(range(42, 46)),
}
INDEX = "index.md"
_MADE = "<!-- Made by python -m gputop_train.diagnose.pages: change the rule file instead. -->"


def pages() -> dict[str, str]:
    """Every page by its file name, the index among them."""
    rules = documented()
    made = {f"{rule.id}.md": page_text(rule, page) for rule, page in rules}
    return made | {INDEX: index_text(rules)}


def documented() -> list[tuple[Rule, Page]]:
    """The rules that have a page, by number in the catalogue, then by id."""
    found = [(rule, rule.page) for rule in all_rules() if rule.page is not None]
    return sorted(found, key=lambda pair: (pair[1].number, pair[0].id))


def page_text(rule: Rule, page: Page) -> str:
    """One diagnosis as Markdown."""
    title = f"# `{rule.id}`: {page.title}"
    lines = [_MADE, title, "", _linked(page.meaning), "", _place(rule, page), ""]
    lines += ["## What we look at", "", *(f"- {_linked(signal)}" for signal in page.looks_at), ""]
    lines += ["## Thresholds", "", "| what | value | source |", "|---|---|---|"]
    lines += [
        f"| {_cell(t.what)} | {_cell(t.value)} | {_cell(t.source)} |" for t in page.thresholds
    ]
    lines += ["", "## Told apart from", ""]
    lines += [f"- {_linked(other)}" for other in page.mistaken_for]
    lines += ["", "## Mend", ""]
    lines += [f"{n}. {_linked(_sentence(step))}" for n, step in enumerate(page.mend, 1)]
    lines += ["", "## Causal test", "", _sentence(page.test), ""]
    lines += ["## Gain", "", _sentence(page.gain)]
    closer = refinements(rule.id)
    if closer:
        lines += ["", "## Closer causes, in the order they are asked", ""]
        lines += [f"- {_link(child)}" for child in closer]
    return "\n".join(lines) + "\n"


def plain_text(rule: Rule, page: Page) -> list[str]:
    """The same for a terminal: Markdown without what only a browser needs."""
    text = page_text(rule, page).removeprefix(_MADE).strip()
    return re.sub(r"\[([^\]]+)\]\([\w-]+\.md\)", r"\1", text).replace("`", "").splitlines()


def index_text(rules: Iterable[tuple[Rule, Page]]) -> str:
    """The index: a table a family, closer causes below their parents, then what is not judged."""
    known = list(rules)
    lines = [
        _MADE,
        "# Diagnoses",
        "",
        "One page a diagnosis: what is looked at, by which thresholds, and what it is told apart",
        "from. [../diagnoses.md](../diagnoses.md) says how one answer is made of them.",
    ]
    for family, numbers in FAMILIES.items():
        members = [(rule, page) for rule, page in known if page.number in numbers]
        if members:
            lines += ["", f"## {family}", "", "| id | what it is |", "|---|---|"]
            lines += [_row(rule, page) for rule, page in _by_parent(members)]
    if NOT_JUDGED:
        lines += ["", "## Not judged", "", "| id | what it is | why not | instead |"]
        lines += ["|---|---|---|---|", *(_unjudged_row(entry) for entry in NOT_JUDGED)]
    return "\n".join(lines) + "\n"


def _by_parent(members: list[tuple[Rule, Page]]) -> list[tuple[Rule, Page]]:
    """Rules of their own first, each followed by those of its closer causes that are here."""
    here = {rule.id for rule, _ in members}
    ordered: list[tuple[Rule, Page]] = []
    for rule, page in members:
        if rule.parent in here:
            continue
        ordered.append((rule, page))
        children = [pair for pair in members if pair[0].parent == rule.id]
        ordered += sorted(children, key=lambda pair: pair[0].gate)
    return ordered


def _row(rule: Rule, page: Page) -> str:
    closer = f" (closer cause of `{rule.parent}`)" if rule.parent else ""
    return f"| [`{rule.id}`]({rule.id}.md) | {_cell(page.title)}{closer} |"


def _unjudged_row(entry: NotJudged) -> str:
    cells = (f"`{entry.id}`", entry.title, entry.why, entry.instead)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _place(rule: Rule, page: Page) -> str:
    family = next((name for name, numbers in FAMILIES.items() if page.number in numbers), "")
    parts = [f"Family: {family.lower()}"] if family else []
    if rule.parent:
        parts.append(f"closer cause of [`{rule.parent}`]({rule.parent}.md)")
    return f"*{'; '.join(parts)}*" if parts else ""


def _linked(text: str) -> str:
    """Ids of other diagnoses as links to their pages."""
    ids = sorted((rule.id for rule in all_rules()), key=len, reverse=True)
    # "warm-up" is a word of its own and only meant where it is set as code.
    bare = "|".join(re.escape(id_) for id_ in ids if id_ != "warm-up")
    pattern = rf"`({'|'.join(map(re.escape, ids))})`|(?<![\w`/.\-])({bare})(?![\w`/\-])"
    return re.sub(pattern, lambda m: f"[`{m[1] or m[2]}`]({m[1] or m[2]}.md)", text)


def _link(rule: Rule) -> str:
    title = f": {rule.page.title}" if rule.page is not None else ""
    return f"[`{rule.id}`]({rule.id}.md){title}"


def _sentence(text: str) -> str:
    if re.match(r"[a-z]+(?=[ ,:;])", text):  # no name of code
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ")", "`")) else text + "."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write(folder: Path) -> list[str]:
    """Write every page into ``folder``; return the names of those that changed."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    changed = []
    for stale in folder.glob("*.md"):
        # Somebody's own page, or a folder named by mistake, is left alone.
        if stale.name not in made and stale.read_text(encoding="utf-8").startswith(_MADE):
            stale.unlink()
            changed.append(stale.name)
    for name, text in made.items():
        file = folder / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            changed.append(name)
    return sorted(changed)


if __name__ == "__main__":
    for name in write(Path(sys.argv[1])):
        print(name)
