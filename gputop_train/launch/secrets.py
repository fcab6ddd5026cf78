"""Mask secrets in a command line, or a line of code, before it is written down or shown.

Rather one value too many than one too few: what is masked is only missing from ``run.json``, the
screen and reports; the script gets its arguments untouched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

MASK = "***"

#: A name is about a secret when one of its words is, or ends in, one of these.
_SECRET_ENDINGS = ("token", "password", "passwd", "passphrase", "secret", "apikey", "credential")
_SECRET_WORDS = {
    "key", "keys", "pwd", "pat", "auth", "authorization", "bearer", "credentials", "secrets",
    "passcode", "sas", "accesskey", "secretkey", "privatekey",
}  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAME_VALUE = re.compile(r"(?s)(-{0,2}[+~]{0,2}[A-Za-z_][\w.@/:-]*)=(.*)")
_NESTING_MAX = 4
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
# Each begins where a word begins, or a long argument would be scanned from every letter of it.
_URL_USER = re.compile(
    r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s@]+(?:@[^/?#\s@]+)*@"
)
_URL_QUERY = re.compile(r"([?&;])([^=&;#\s]+)=([^&;#\s]+)")
_HEADER = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}")
_INLINE = re.compile(r"""(?<![\w-])(["']?)([A-Za-z_][\w-]*)\1(\s*:\s*)(["'])((?:\\.|(?!\4).)*)\4""")
#: A literal given by name, as in ``login(token="...")`` or ``api_key = "..."``.
_LITERAL = re.compile(
    r"""(?<![\w.-])([A-Za-z_][\w.]*)(\s*=\s*[rbfuRBFU]{0,2})(["'])((?:\\.|(?!\3).)*)(?:\3|\Z)"""
)
#: Tokens that name their issuer, in their published formats.
_ISSUED = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-[A-Za-z0-9_-]{20,}|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,})"
)


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Return ``arguments`` with the values of secrets replaced by ``***``.

    Masked are: ``--api-key=v`` and ``--api-key v``, ``WANDB_API_KEY=v``, ``logger.token=v``,
    credentials and secret parameters of URLs, authorization headers, quoted JSON members, and
    tokens whose format names their issuer.
    """
    masked: list[str] = []
    value_is_secret = False
    for argument in arguments:
        # A value that starts with a dash would not be taken for a value by argument parsers either.
        if value_is_secret and not argument.startswith("-"):
            masked.append(MASK)
            value_is_secret = False
            continue
        value_is_secret = bool(_FLAG.fullmatch(argument)) and is_secret_name(argument)
        masked.append(mask_text(argument))
    return masked


def mask_text(text: str) -> str:
    """Return one argument with the secrets inside it replaced by ``***``."""
    return _mask_named(_mask_within(text))


@lru_cache(maxsize=4096)
def mask_code(text: str) -> str:
    """Return a line of code with the secrets written into it replaced by ``***``.

    ``key=loss`` names a variable and stays; ``token="abc"`` is one. A literal that the recorded
    line ends in counts to its end.
    """
    text = _LITERAL.sub(
        lambda m: f"{m[1]}{m[2]}{m[3]}{MASK}{m[3]}" if is_secret_name(m[1]) else m[0], text
    )
    return _mask_within(text)


def mask_told(value: Any) -> Any:
    """Return what a process told of itself (JSON) with every text in it masked as code is."""
    if isinstance(value, str):
        return mask_code(value)
    if isinstance(value, dict):
        return {key: mask_told(item) for key, item in value.items()}
    return [mask_told(item) for item in value] if isinstance(value, list) else value


def _mask_within(text: str) -> str:
    text = _URL_USER.sub(rf"\1{MASK}@", text)
    text = _URL_QUERY.sub(
        lambda m: f"{m[1]}{m[2]}={MASK}" if is_secret_name(m[2]) or m[2] == "sig" else m[0], text
    )
    text = _INLINE.sub(
        lambda m: f"{m[1]}{m[2]}{m[1]}{m[3]}{m[4]}{MASK}{m[4]}" if is_secret_name(m[2]) else m[0],
        text,
    )
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    return _ISSUED.sub(MASK, text)


def _mask_named(text: str) -> str:
    """Mask the value of ``NAME=value``, also inside ``--env=NAME=value``."""
    known = ""
    for _ in range(_NESTING_MAX):
        named = _NAME_VALUE.fullmatch(text)
        if named is None:
            break
        name, value = named.groups()
        if value and is_secret_name(name):
            return f"{known}{name}={MASK}"
        known, text = f"{known}{name}=", value
    return known + text


def is_secret_name(name: str) -> bool:
    """Return whether the value of an option or variable called ``name`` is to be masked.

    ``tokenizer`` and ``max-tokens`` are ordinary training words and stay readable.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words)
