"""What is wrong with a document that somebody wrote, by file and line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from viewstamp.names import CONTROL_CHARACTERS

# Complaints about one document that are told at a time.
COMPLAINTS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong at one place of a document, and what would be right.

    `path` is the place as in `streams[2].topics[0].partitions`; `line` counts from 1, 0 for none.
    """

    file: str
    line: int
    path: str
    text: str

    def __str__(self) -> str:
        """Return the complaint in one line, as compilers write them."""
        line = f":{self.line}" if self.line else ""
        path = f"{self.path}: " if self.path else ""
        # A terminal acts on control characters, which a key may have.
        return CONTROL_CHARACTERS.sub("?", f"{self.file}{line}: {path}{self.text}")


class DocumentError(Exception):
    """A document that cannot be read; `complaints` name each place."""

    def __init__(self, complaints: Sequence[Complaint]) -> None:
        self.complaints = tuple(complaints)
        told = [str(each) for each in self.complaints[:COMPLAINTS_MAX]]
        if len(self.complaints) > COMPLAINTS_MAX:
            told.append(f"and {len(self.complaints) - COMPLAINTS_MAX} more")
        super().__init__("\n".join(told))
