"""The campaigns that were run: a line each in a file that is kept, so that they add up over time.

A campaign of thousands of seeds takes hours, and the code changes from week to week. Each line says
which code its seeds ran, and only seeds of one code are one campaign.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

_CODE_CHARACTERS: Final = 12
_MS_PER_MINUTE: Final = 60_000
_S_PER_MINUTE: Final = 60
_HEAD: Final = (
    "day", "code", "seeds", "failed", "virtual time", "processor time", "calls answered", "faults"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """What consecutive seeds came to, with one code on one day."""

    day: str
    code: str
    first: int
    count: int
    failed: int
    virtual_ms: int
    took_s: float
    """Processor time."""
    answered: int
    faults: int

    @property
    def last(self) -> int:
        """The number of the last seed."""
        return self.first + self.count - 1


def short(code: str) -> str:
    """Return what an entry has of a fingerprint."""
    return code[:_CODE_CHARACTERS]


def load(path: Path) -> list[Entry]:
    """Return the campaigns of a file; none if there is no file."""
    if not path.exists():
        return []
    return [Entry(**json.loads(line)) for line in path.read_text().splitlines()]


def record(path: Path, entry: Entry) -> None:
    """Add a campaign, in the place of one that it continues."""
    entries = [kept for kept in load(path) if not _continues(entry, kept)]
    entries.append(entry)
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in entries))


def _continues(entry: Entry, kept: Entry) -> bool:
    """Whether an entry has all seeds of one that was kept, of the same code."""
    has_all = entry.first <= kept.first and kept.last <= entry.last
    return entry.code == kept.code and has_all


def rows(entries: Sequence[Entry]) -> Iterable[Sequence[str]]:
    """Return the rows of a table: its head, the campaigns, and what they add up to."""
    yield _HEAD
    for each in entries:
        yield _row((each.day, each.code, f"{each.first:,} to {each.last:,}"), (each,))
    yield _row(("all", "", f"{sum(each.count for each in entries):,}"), entries)


def _row(begin: Sequence[str], entries: Sequence[Entry]) -> Sequence[str]:
    return (
        *begin,
        f"{sum(each.failed for each in entries):,}",
        f"{sum(each.virtual_ms for each in entries) / _MS_PER_MINUTE:,.0f} min",
        f"{sum(each.took_s for each in entries) / _S_PER_MINUTE:,.0f} min",
        f"{sum(each.answered for each in entries):,}",
        f"{sum(each.faults for each in entries):,}",
    )
