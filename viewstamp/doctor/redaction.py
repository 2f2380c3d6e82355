"""Takes secrets out of texts: the values that are known, and all that look like one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

REDACTED: Final = "[redacted]"
# Shorter values would be found in innocent words.
SECRET_CHARACTERS_MIN: Final = 6
_END_OF_KEY: Final = "-----END [A-Z ]*PRIVATE KEY-----"
# A key whose name says that its value is secret, and what stands between both.
# The spaces are counted: any number of them at two places would take a square of steps.
_NAMED: Final = (
    r"(?i)(?:password|passwd|passphrase|secret|token|api_key)"
    r"\\{0,4}[\"']?\s{0,4}[:=]\s{0,4}[\[(]?\s{0,4}"
)
_SHAPES: Final = (
    # A block of PEM, also as one line with `\n` in it; and what is left of one that is cut off.
    re.compile(rf"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:{_END_OF_KEY}|\Z)"),
    re.compile(rf"\A[A-Za-z0-9+/=\s\\]*{_END_OF_KEY}"),
    re.compile(r"\bvsa\d\.[A-Za-z0-9_.-]+"),  # access tokens
    re.compile(r"\bvspat_[a-z2-7]+"),  # personal access tokens
    re.compile(r"(?<=//)[^/\s\"']+(?=@)"),  # user and password of a URL
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]+"),
    re.compile(r"(?i)authorization[\"']?\s*[:=]\s*[\"']?basic\s+(?P<value>[A-Za-z0-9+/=]+)"),
    re.compile(_NAMED + r"\\{0,4}\"(?P<value>(?:[^\"\\\n]|\\.)+)"),
    re.compile(_NAMED + r"'(?P<value>[^'\n]+)"),
    re.compile(_NAMED + r"(?P<value>(?!\[redacted\])[^\s\"',}\]]+)"),
)
# Digits of a cluster key; digests of snapshots have as many, so those keep their names.
_KEY: Final = re.compile(r"(?i)(key[\"']?\s*[:=]\s*[\"']?)[0-9a-f]{64}\b")


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that takes these secrets, and what looks like one, out of a text.

    What it returns is valid Unicode: names of files need not be.
    """
    written = {each for secret in secrets for each in _spellings(secret)}
    known = sorted((s for s in written if len(s) >= SECRET_CHARACTERS_MIN), key=len, reverse=True)
    exact = re.compile("|".join(map(re.escape, known))) if known else None

    def redacted(text: str) -> str:
        if exact is not None:
            text = exact.sub(REDACTED, text)
        for shape in _SHAPES:
            text = shape.sub(_replaced, text)
        return _KEY.sub(rf"\1{REDACTED}", text).encode("utf-8", "backslashreplace").decode()

    return redacted


def redacted_values(value: Any, redact: Callable[[str], str]) -> Any:
    """Return a JSON value with every text in it redacted, keys included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(key)): redacted_values(each, redact) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_values(each, redact) for each in value]
    return value


def _spellings(secret: str) -> set[str]:
    """Return a secret as it is, as JSON has it, and as a URL has it."""
    escaped = {json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)}
    return {secret, quote(secret, safe="", errors="replace"), *escaped}


def _replaced(found: re.Match[str]) -> str:
    named = found.groupdict()
    if "value" not in named:
        return REDACTED
    return found[0][: -len(named["value"])] + REDACTED
