"""What people see: the encoding of the script's output, the locale, and the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gputop_train.doctor.facts import Facts
from gputop_train.doctor.findings import Check, Level
from gputop_train.doctor.words import shown

#: What must work, and what the screen is made for (docs/screen.md).
SMALL = (80, 24)


def checks(facts: Facts) -> Iterator[Check]:
    """Judge them."""
    yield from _encoding(facts)
    yield _screen(facts)


def locale_of(environ: Mapping[str, str]) -> str:
    """The locale of characters: the first of these variables that says something (locale(7))."""
    return next((v for n in ("LC_ALL", "LC_CTYPE", "LANG") if (v := environ.get(n))), "")


def _encoding(facts: Facts) -> Iterator[Check]:
    about = facts.interpreter.about
    encoding = about.facts.get("encoding") if about else None
    locale = locale_of(facts.environ)
    values = {"encoding": encoding, "locale": locale, "ours_is_utf8": facts.terminal.utf8}
    title = "text"
    if encoding and not str(encoding).replace("-", "").startswith("utf8"):
        yield Check(
            "encoding",
            title,
            "warn",
            f"The script's output is encoded as {shown(str(encoding))}: printing any other "
            "character ends it with UnicodeEncodeError.",
            "export LC_ALL=C.UTF-8, or PYTHONUTF8=1.",
            values,
        )
    elif locale.split(".")[0] in ("C", "POSIX", "") and "." not in locale:
        how = shown(locale) or "not set"
        yield Check(
            "encoding",
            title,
            "note",
            f"The locale is {how}: Python writes UTF-8 all the same, other programs ASCII, and "
            "lines and bars may look wrong in a terminal that goes by it.",
            "export LC_ALL=C.UTF-8, or use --ascii.",
            values,
        )
    elif encoding:
        yield Check("encoding", title, "ok", f"{encoding}, locale {shown(locale)}", None, values)
    else:
        found = "The encoding of the script's output is not known: no Python told it."
        yield Check("encoding", title, "unchecked", found, None, values)


def _screen(facts: Facts) -> Check:
    terminal, environ = facts.terminal, facts.environ
    values = {
        "is_terminal": terminal.is_terminal,
        "TERM": environ.get("TERM"),
        "COLORTERM": environ.get("COLORTERM"),
        "NO_COLOR": bool(environ.get("NO_COLOR")),
        "columns": terminal.columns if terminal.is_terminal else None,
        "rows": terminal.rows if terminal.is_terminal else None,
        "over_ssh": terminal.over_ssh,
        "multiplexer": _multiplexer(environ),
    }

    def check(level: Level, found: str, remedy: str | None = None) -> Check:
        return Check("terminal", "terminal", level, found, remedy, values)

    if not terminal.is_terminal:
        return check(
            "unchecked",
            "The screen was not checked: this is not a terminal.",
        )
    if terminal.reason is not None:
        return check(
            "warn",
            f"There is no screen here: {shown(terminal.reason)}; plain lines are printed instead.",
            "Set TERM as your terminal is (such as xterm-256color), or enlarge its window.",
        )
    columns, rows = terminal.columns or 0, terminal.rows or 0
    size = f"{columns}x{rows}"
    if columns < SMALL[0] or rows < SMALL[1]:
        return check(
            "note",
            f"The terminal is {size}: below 80x24 the screen leaves things out.",
            "Enlarge the window.",
        )
    parts = [size, shown(environ.get("TERM", "")), _multiplexer(environ) or ""]
    parts += ["over SSH" if terminal.over_ssh else "", "no colour" if values["NO_COLOR"] else ""]
    return check("ok", ", ".join(part for part in parts if part))


def _multiplexer(environ: Mapping[str, str]) -> str | None:
    return "tmux" if environ.get("TMUX") else "screen" if environ.get("STY") else None
