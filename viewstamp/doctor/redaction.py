"""Takes secrets out of texts: the values that are known, and all that look like one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

REDACTED: Final = "[redacted]"
# Shorter values would be found in innocent words.
SECRET_CHARACTERS_MIN: Final = 6
_SHAPES: Final = (
    # A block of PEM, also as one line with `\n` in it; and the rest of one that is cut off.
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    ),
    re.compile(r"\bvsa\d\.[A-Za-z0-9_.-]+"),  # access tokens
    re.compile(r"\bvspat_[a-z2-7]+"),  # personal access tokens
    re.compile(r"(?<=//)[^/\s:@]+:[^/\s@]+(?=@)"),  # user and password of a URL
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]+"),
    # Value of a key whose name says that it is secret.
    re.compile(
        r"(?i)(?<![A-Za-z])(?:password|passwd|secret|access_token|api_key)"
        r"(?P<mark>[\"']?\s*[:=]\s*[\"']?)(?P<value>[^\s\"',}]+)"
    ),
)
# Digits of a cluster key; digests of snapshots have as many, so those keep their names.
_KEY: Final = re.compile(r"(?i)(key[\"']?\s*[:=]\s*[\"']?)[0-9a-f]{64}\b")


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that takes these secrets, and what looks like one, out of a text."""
    known = sorted((s for s in secrets if len(s) >= SECRET_CHARACTERS_MIN), key=len, reverse=True)
    exact = re.compile("|".join(map(re.escape, known))) if known else None

    def redacted(text: str) -> str:
        if exact is not None:
            text = exact.sub(REDACTED, text)
        for shape in _SHAPES:
            text = shape.sub(_replaced, text)
        return _KEY.sub(rf"\1{REDACTED}", text)

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


def _replaced(found: re.Match[str]) -> str:
    named = found.groupdict()
    if "value" not in named:
        return REDACTED
    return found[0][: -len(named["value"])] + REDACTED
