"""The superblock of a data directory, read and told in words; a start alone repairs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.superblock import (
    COPIES,
    COPY_BYTES,
    NOT_ADMITTED,
    SuperblockCopy,
    SuperblockState,
    decode_copy,
    newest_agreed,
)
from viewstamp.journals.journal_errors import NewerJournal
from viewstamp.views import view_words

SUPERBLOCK_FILE: Final = "superblock"


@dataclass(frozen=True, slots=True)
class SuperblockReading:
    """What the copies hold. `copies` has None for each damaged one; empty without a superblock.

    `chosen` is the newest state on which two copies agree, from which a start would go on.
    """

    path: Path
    copies: tuple[SuperblockCopy | None, ...]
    chosen: SuperblockCopy | None

    @property
    def state(self) -> SuperblockState | None:
        """The state that is in force, None if there is none."""
        return None if self.chosen is None else self.chosen.state

    @property
    def damaged_copies(self) -> tuple[int, ...]:
        """The numbers of the copies that do not verify."""
        return tuple(number for number, copy in enumerate(self.copies) if copy is None)


def read_superblock(data: Path) -> SuperblockReading:
    """Read the superblock of a data directory. Raises NewerJournal, OSError."""
    path = data / SUPERBLOCK_FILE
    try:
        with path.open("rb") as file:
            content = file.read(COPIES * COPY_BYTES)
    except FileNotFoundError:
        return SuperblockReading(path, (), None)
    copies = tuple(_copy(path, content, number) for number in range(COPIES))
    return SuperblockReading(path, copies, newest_agreed(copies))


def _copy(path: Path, content: bytes, number: int) -> SuperblockCopy | None:
    sector = content[number * COPY_BYTES : (number + 1) * COPY_BYTES]
    try:
        return decode_copy(sector, number)
    except FormatVersionError as error:
        raise NewerJournal(f"{path}: {error}", "use the build that wrote it") from error
    except FormatError:
        return None


def superblock_words(reading: SuperblockReading) -> Iterator[str]:
    """Yield sentences on a superblock: who the replica is, and what it must never forget."""
    if not reading.copies:
        yield "there is no superblock: the replica was never founded, or it was lost"
        return
    agreeing = reading.copies.count(reading.chosen) if reading.chosen else 0
    yield f"{agreeing} of {COPIES} copies agree{_deviating(reading)}"
    if reading.chosen is None:
        yield f"no two copies agree: a start refuses {reading.path}"
        return
    state = reading.chosen.state
    role = "a standby beside" if state.is_standby else "one of"
    yield f"replica {state.replica_id}, {role} {state.voter_count} voters"
    yield f"cluster {state.cluster_id.hex()}"
    yield _view_words(state)
    yield _vote_words(state)
    yield f"committed at least up to op {state.commit_max}"
    yield _generation_words(state)
    if state.journal_sequence:
        yield f"record {state.journal_sequence} of the journal was durable"
    if state.damaged_start:
        yield f"the start of superblock {state.damaged_start} found the journal's end damaged"
    yield f"written {reading.chosen.sequence} times"


def _deviating(reading: SuperblockReading) -> str:
    parts = [
        "damaged" if copy is None else f"of write {copy.sequence}"
        for copy in reading.copies
        if copy is None or copy != reading.chosen
    ]
    return f"; the others are {', '.join(parts)}" if parts else ""


def _view_words(state: SuperblockState) -> str:
    view = view_words(state.view)
    if state.view == state.log_view:
        return f"in view {view}, with the log of this view"
    before = view_words(state.log_view)
    return f"in view {view}, with the log of view {before}: a view change is under way"


def _vote_words(state: SuperblockState) -> str:
    if state.is_standby:
        return "never votes"
    if state.voting_view == NOT_ADMITTED:
        return "does not vote: it lost its disk, and is not admitted yet"
    if state.voting_view:
        since = view_words(state.voting_view)
        return f"votes from view {since} on: it was added, or lost its disk before"
    return "votes in every view"


def _generation_words(state: SuperblockState) -> str:
    if state.generation:
        return f"restarts from snapshot {state.generation}"
    return "restarts from the empty state: no snapshot yet"
