"""The entries of a surviving replica's journal, in order, whatever order they were written in."""

from __future__ import annotations

from pathlib import Path

import pytest

from past.founding.log_places import LogPlaces
from testkit.journal_builders import append_unchecked, chain, create, filled, prepare
from testkit.memory_storage import MemoryStorage
from tests.viewstamp.journals.dumped_journals import dump
from viewstamp.journals.log_reading import read_log

MEMBERS = 3


def places_of(storage: MemoryStorage, path: Path, from_op: int = 1) -> LogPlaces:
    """Return where the entries of a disk in memory lie."""
    return LogPlaces(read_log(dump(storage, path)).survey, from_op)


def test_an_entry_that_was_written_again_has_its_place(tmp_path: Path) -> None:
    """A repaired entry lies behind later ones, over two segments, and is read in its turn."""
    storage, entries = MemoryStorage(), chain(7)
    journal = create(storage, replica_count=MEMBERS)
    journal.append(entries)
    append_unchecked(journal, [entries[2]])
    journal.close()
    places = places_of(storage, tmp_path)
    assert list(places.entries(1)) == entries
    assert list(places.entries(4)) == entries[3:]
    assert places.missing_behind(0, 7) == []


def test_a_replaced_entry_is_not_read(tmp_path: Path) -> None:
    """Entries that a view change took out of the log are gone, also where it put no others."""
    storage, entries = MemoryStorage(), chain(3)
    journal = create(storage, replica_count=MEMBERS)
    journal.append(entries)
    journal.discard_after(1)
    other = prepare(2, entries[0].checksum, view=2, body=b"another")
    journal.append([other])
    journal.close()
    assert list(places_of(storage, tmp_path).entries(1)) == [entries[0], other]


@pytest.mark.parametrize(
    ("op", "committed", "missing"),
    [
        (0, 0, []),
        (0, 3, []),
        (3, 3, []),
        (0, 5, [(4, 5)]),
        (3, 4, [(4, 4)]),
    ],
)
def test_what_is_known_to_be_committed_is_missed(
    tmp_path: Path, op: int, committed: int, missing: list[tuple[int, int]]
) -> None:
    """A log that ends before what is known to be committed lacks the entries between."""
    storage = MemoryStorage()
    filled(storage, [chain(3)], replica_count=MEMBERS)
    assert places_of(storage, tmp_path, op + 1).missing_behind(op, committed) == missing


def test_a_hole_is_missed(tmp_path: Path) -> None:
    """Entries behind a hole are not read, and the hole is named."""
    storage, entries = MemoryStorage(), chain(5)
    journal = create(storage, replica_count=MEMBERS)
    append_unchecked(journal, [*entries[:2], *entries[3:]])
    journal.close()
    places = places_of(storage, tmp_path)
    assert list(places.entries(1)) == entries[:2]
    assert places.missing_behind(0, 5) == [(3, 3)]
