"""The load's own file: one line of JSON for each answer, appended as it arrives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from testkit.load.commands import Command, LoadOutcome

ANSWER: Final = "answer"
DUPLICATE: Final = "duplicate"


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """An acknowledged request: what was asked, under which number, and what came back.

    Times are of the monotonic clock, in nanoseconds: when the first copy was sent, and when the
    answer arrived. `digest` covers the bytes of the answer.
    """

    session: int
    number: int
    commands: tuple[Command, ...]
    first_revision: int
    outcomes: tuple[LoadOutcome, ...]
    digest: str
    sends: int
    sent_ns: int
    answered_ns: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The answer to a copy of a request that was sent after the request had been answered."""

    session: int
    number: int
    digest: str


Record = LoadAnswer | Duplicate


class RecordFile:
    """An append-only file of records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def __enter__(self) -> RecordFile:
        """Return the file."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._file.close()

    def append(self, record: Record) -> None:
        """Append a record and hand it to the kernel: a crash of the load loses none."""
        self._file.write(json.dumps(_to_json(record), separators=(",", ":")) + "\n")
        self._file.flush()


def read_records(path: Path) -> list[Record]:
    """Return all records of a file. Raises ValueError with the line that is none."""
    with path.open(encoding="utf-8") as file:
        return list(_parsed(path, file))


def _parsed(path: Path, lines: Iterable[str]) -> Iterable[Record]:
    for line_number, line in enumerate(lines, start=1):
        try:
            yield _from_json(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}:{line_number} is no record: {error}") from error


def _to_json(record: Record) -> dict[str, Any]:
    if isinstance(record, Duplicate):
        fields = (DUPLICATE, record.session, record.number, record.digest)
        return dict(zip(("event", "session", "number", "digest"), fields, strict=True))
    return {
        "event": ANSWER,
        "session": record.session,
        "number": record.number,
        "commands": [command.to_json() for command in record.commands],
        "revision": record.first_revision,
        "outcomes": [[outcome.reason, outcome.entity_id] for outcome in record.outcomes],
        "digest": record.digest,
        "sends": record.sends,
        "sent_ns": record.sent_ns,
        "answered_ns": record.answered_ns,
    }


def _from_json(fields: dict[str, Any]) -> Record:
    if fields["event"] == DUPLICATE:
        return Duplicate(fields["session"], fields["number"], fields["digest"])
    if fields["event"] != ANSWER:
        raise ValueError(f"event {fields['event']!r} is neither {ANSWER} nor {DUPLICATE}")
    return LoadAnswer(
        session=fields["session"],
        number=fields["number"],
        commands=tuple(map(Command.from_json, fields["commands"])),
        first_revision=fields["revision"],
        outcomes=tuple(LoadOutcome(*outcome) for outcome in fields["outcomes"]),
        digest=fields["digest"],
        sends=fields["sends"],
        sent_ns=fields["sent_ns"],
        answered_ns=fields["answered_ns"],
    )
