"""JSON documents one after the other, however they are laid out.

Between two documents may stand white space, commas, the record separator of RFC 7464, or nothing.
An array stands for the documents in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

BETWEEN: Final = re.compile("[ \t\r\n,\x1e\ufeff]*")
# Behind something broken, a line that begins like this may be the next document.
BEGINNING: Final = re.compile(r"\n(?=[\[{])")
# So many broken documents of one text are told apart; what follows them is one more.
BROKEN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class BrokenDocument:
    """Text that is no JSON: it is cut, or it is something else."""

    text: str


def documents(text: str) -> Iterator[Any]:
    """Yield each document of a text, and a BrokenDocument for each part that is none."""
    decoder = json.JSONDecoder()
    broken = 0
    at = _after(text, 0)
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            broken += 1
            found = BEGINNING.search(text, at + 1) if broken < BROKEN_MAX else None
            end = found.end() if found else len(text)
            yield BrokenDocument(text[at:end])
        else:
            yield from value if isinstance(value, list) else [value]
        at = _after(text, end)


def _after(text: str, at: int) -> int:
    """Return where the next document begins."""
    found = BETWEEN.match(text, at)
    assert found is not None, "the pattern matches nothing, too"
    return found.end()
