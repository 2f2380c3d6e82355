"""Records that the disk wrote elsewhere: a restart never denies any entry that they held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.journal import Journal, Recovery
from coordinator.journal.misdirected_writes import LOST_BEFORE_MAX
from testkit.journal_builders import (
    JOURNAL_ID,
    RECORDS_PER_SEGMENT,
    SEGMENT_BYTES,
    chain,
    create,
    filled,
    place,
    reopen,
    segment,
)
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from testkit.world.disk import WorldDisk
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import (
    FRAME_BYTES,
    SECTOR_BYTES,
    UNIT_BYTES,
    Frame,
    RecordKind,
    decode_segment_header,
    encode_record,
)

MEMBER: Any = {"replica_count": 3}
PREPARE_HEADER_BYTES = 128
DENSE = bytes(range(1, 256)) * 40


def move(
    storage: MemoryStorage, origin: tuple[str, int], target: tuple[str, int], size: int
) -> None:
    """Act as a disk that wrote these bytes elsewhere: their own place keeps its old content."""
    path, offset = origin
    data = storage.content(path)[offset : offset + size]
    put(storage, origin, bytes(size))
    put(storage, target, data)


def put(storage: MemoryStorage, where: tuple[str, int], data: bytes) -> None:
    """Change bytes behind the journal's back."""
    path, offset = where
    content = bytearray(storage.content(path))
    content[offset : offset + len(data)] = data
    storage.replace(path, bytes(content))


def other_places(origin: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Every place in the first segments where a record of one sector may land, headers included."""
    for number in (1, 2, 3):
        for offset in range(0, SEGMENT_BYTES, SECTOR_BYTES):
            if (segment(number), offset) != origin:
                yield segment(number), offset


def expect_never_denied(recovery: Recovery, op: int) -> None:
    """Check that nothing was cut, and that the op is known to be lost, or possibly lost."""
    assert recovery.cut is None
    head_op = max((recovery.head.op if recovery.head else 0, *recovery.holes))
    assert op in recovery.holes or (recovery.head_uncertain and op > head_op)


def make_good(
    storage: MemoryStorage, prepares: list[SealedPrepare], following: list[SealedPrepare]
) -> None:
    """Write again the ops that are or may be missing, go on, and check that nothing is lost."""
    journal, _ = reopen(storage, **MEMBER)
    missing = set(journal.missing_ops)
    journal.append(
        [p for p in prepares if p.op in missing or p.op > max((journal.first_op, *held(journal)))]
    )
    journal.append(following)
    assert journal.mark_repaired()
    journal.close()
    journal, recovery = reopen(storage, **MEMBER)
    assert list(entries(journal, 1)) == prepares + following
    assert (recovery.faults, recovery.holes, recovery.head_uncertain) == ((), (), False)
    assert all(offset > 0 for _, offset in recovery.stray_sectors)
    journal.close()
    for number in (1, 2, 3):
        header = decode_segment_header(storage.content(segment(number))[:SECTOR_BYTES])
        assert header.segment == number


def held(journal: Journal) -> list[int]:
    """The ops that a journal holds."""
    head_op = journal.head.op if journal.head else 0
    return [header.op for header in journal.headers(1, head_op)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_the_last_record_is_missed_wherever_it_went(count: int) -> None:
    """A record lands on an older one, in blank space, or in another segment: each start reports
    the loss until all is written again."""
    origin = place(count - 1)
    for target in other_places(origin):
        storage = MemoryStorage()
        prepares = filled(storage, [[each] for each in chain(count)], **MEMBER)
        move(storage, origin, target, SECTOR_BYTES)

        for _ in range(2):
            journal, recovery = reopen(storage, **MEMBER)
            journal.close()
            expect_never_denied(recovery, count)

        make_good(storage, prepares, chain(1, after=prepares[-1]))


@pytest.mark.parametrize("unit", [1, 5, 7])
def test_the_last_record_is_missed_at_places_between_two_sectors(unit: int) -> None:
    """A disk addresses units of 512 bytes, so a record can land at any, even on a header."""
    origin = place(2)
    for path, sector in other_places(origin):
        storage = MemoryStorage()
        prepares = filled(storage, [[each] for each in chain(3)], **MEMBER)
        offset = sector + unit * UNIT_BYTES
        move(storage, origin, (path, offset), min(SECTOR_BYTES, SEGMENT_BYTES - offset))

        for _ in range(2):
            journal, recovery = reopen(storage, **MEMBER)
            journal.close()
            expect_never_denied(recovery, 3)

        make_good(storage, prepares, chain(1, after=prepares[-1]))


def test_a_header_is_written_anew_only_once_what_lies_on_it_tells_nothing_more() -> None:
    """A header stays overwritten while the record on it is the only trace of the last entry; the
    space behind is used."""
    storage = MemoryStorage()
    prepares = filled(storage, [[each] for each in chain(3)], **MEMBER)
    move(storage, place(2), (segment(2), 0), SECTOR_BYTES)
    misdirected = storage.content(segment(2))

    for _ in range(2):
        journal, recovery = reopen(storage, **MEMBER)
        journal.close()
        assert recovery.repaired_headers == ()
        assert storage.content(segment(2)) == misdirected

    make_good(storage, prepares, chain(1, after=prepares[-1]))
    assert any(storage.content(segment(2))[SECTOR_BYTES:])
    assert reopen(storage, **MEMBER)[1].repaired_headers == ()


@pytest.mark.parametrize("replica_count", [1, 3])
def test_a_copy_of_a_record_that_is_there_costs_only_the_header(replica_count: int) -> None:
    """A record written twice, once over a header, loses nothing; the header is restored at once."""
    storage = MemoryStorage()
    prepares = filled(storage, [[each] for each in chain(3)], replica_count=replica_count)
    path, offset = place(2)
    put(storage, (segment(2), 0), storage.content(path)[offset : offset + SECTOR_BYTES])

    journal, recovery = reopen(storage, replica_count=replica_count)

    assert (recovery.faults, recovery.cut, recovery.stray_sectors) == ((), None, ())
    assert recovery.repaired_headers == (segment(2),)
    assert list(entries(journal, 1)) == prepares


def test_a_torn_group_of_which_a_part_went_over_a_header_is_cut_for_good() -> None:
    """A torn group was never synced, so no loss is reported; the header it hit is restored."""
    storage = MemoryStorage()
    prepares = chain(3, bodies={2: DENSE[:900]})
    filled(storage, [prepares[:1], prepares[1:]], **MEMBER)
    put(storage, (place(1)[0], place(1)[1] + UNIT_BYTES), bytes(UNIT_BYTES))
    move(storage, place(2), (segment(2), 0), SECTOR_BYTES)

    journal, recovery = reopen(storage, **MEMBER)
    journal.close()
    assert recovery.cut is not None
    assert recovery.cut.op == 2
    assert recovery.repaired_headers == (segment(2),)

    journal, recovery = reopen(storage, **MEMBER)
    assert (recovery.faults, recovery.cut, recovery.repaired_headers) == ((), None, ())
    assert list(entries(journal, 1)) == prepares[:1]


def test_a_segment_that_alone_shows_a_loss_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that alone shows a loss stays, even if a snapshot covers its own records."""
    monkeypatch.setattr("coordinator.journal.journal.PREPARES_KEPT_MIN", 1)
    storage = MemoryStorage()
    filled(storage, [[each] for each in chain(7, commit=6)], **MEMBER)
    move(storage, place(6), (segment(1), 0), SECTOR_BYTES)

    journal, recovery = reopen(storage, **MEMBER)
    expect_never_denied(recovery, 7)
    assert recovery.head is not None
    assert recovery.head.op == 5
    assert journal.truncate_before(5) == 0
    journal.close()

    expect_never_denied(reopen(storage, **MEMBER)[1], 7)


@pytest.mark.parametrize("shift", [1, 2, 4])
def test_a_group_that_was_misdirected_as_a_whole_is_missed(shift: int) -> None:
    """No entry is denied, even if its record lies partly over its own place."""
    storage = MemoryStorage()
    prepares = chain(3)
    journal = create(storage, **MEMBER, segment_bytes=8 * SECTOR_BYTES)
    journal.append(prepares[:1])
    journal.append(prepares[1:])
    journal.close()
    origin = segment(1), 2 * SECTOR_BYTES
    move(storage, origin, (segment(1), (2 + shift) * SECTOR_BYTES), 2 * SECTOR_BYTES)

    _, recovery = reopen(storage, **MEMBER, segment_bytes=8 * SECTOR_BYTES)

    expect_never_denied(recovery, 2)
    assert recovery.faults[-1].last_sequence == 3


def test_a_group_over_two_segments_of_which_the_first_part_was_misdirected_is_kept() -> None:
    """A record in the second segment shows no tear, because both segments were synced."""
    storage = MemoryStorage()
    count = RECORDS_PER_SEGMENT + 1
    prepares = chain(count)
    journal = create(storage, **MEMBER)
    journal.append(prepares[: count - 2])
    journal.append(prepares[count - 2 :])
    journal.close()
    move(storage, place(count - 2), (segment(2), 3 * SECTOR_BYTES), SECTOR_BYTES)

    journal, recovery = reopen(storage, **MEMBER)

    assert (recovery.holes, recovery.head_uncertain) == ((count - 1,), False)
    assert journal.read(count) == prepares[-1]


def test_a_cut_that_was_misdirected_leaves_in_doubt_what_it_took_out() -> None:
    """A view began without these entries, and the superblock says that its log is here."""
    for target in other_places(place(3)):
        storage = MemoryStorage()
        prepares = chain(3)
        journal = create(storage, **MEMBER)
        for each in prepares:
            journal.append([each])
        journal.discard_after(1)
        journal.close()
        move(storage, place(3), target, SECTOR_BYTES)

        journal, recovery = reopen(storage, **MEMBER, commit_max=1)

        expect_never_denied(recovery, 3)
        assert 2 in recovery.holes
        assert (journal.header(2), journal.header(3)) == (None, None)


@pytest.mark.parametrize(("lost_count", "is_recognized"), [(8, True), (9, False)])
def test_a_record_is_recognized_behind_a_lost_pipeline(
    lost_count: int, is_recognized: bool
) -> None:
    """A record that went elsewhere is told by its place if no more were lost before it than are
    under way together."""
    assert LOST_BEFORE_MAX == 8
    storage = MemoryStorage()
    count = lost_count + 2
    filled(storage, [[each] for each in chain(count)], **MEMBER)
    target = segment(3), 2 * SECTOR_BYTES
    for index in range(1, lost_count + 1):
        put(storage, place(index), bytes(SECTOR_BYTES))
    move(storage, place(count - 1), target, SECTOR_BYTES)
    journal, recovery = reopen(storage, **MEMBER)
    journal.close()
    assert bool(recovery.faults) is is_recognized


def test_two_that_went_to_one_place_are_both_missed() -> None:
    """Of two records in one place only the second is visible, and reveals that the first is
    lost."""
    storage = MemoryStorage()
    prepares = filled(storage, [[each] for each in chain(5)], **MEMBER)
    target = segment(3), 2 * SECTOR_BYTES
    move(storage, place(3), target, SECTOR_BYTES)
    move(storage, place(4), target, SECTOR_BYTES)

    journal, recovery = reopen(storage, **MEMBER)
    journal.close()

    expect_never_denied(recovery, 4)
    assert recovery.faults[-1].last_sequence == 5
    make_good(storage, prepares, chain(1, after=prepares[-1]))


def test_a_tear_behind_one_that_was_misdirected_does_not_take_its_trace_away() -> None:
    """The cut of the torn tail blanks what lies behind, except the only trace of an entry."""
    storage = MemoryStorage()
    prepares = chain(3, bodies={3: DENSE[:900]})
    filled(storage, [[each] for each in prepares], **MEMBER)
    put(storage, (place(2)[0], place(2)[1] + UNIT_BYTES), bytes(UNIT_BYTES))
    move(storage, place(1), (segment(2), 2 * SECTOR_BYTES), SECTOR_BYTES)

    for _ in range(3):
        journal, recovery = reopen(storage, **MEMBER)
        journal.close()
        assert [fault.first_sequence for fault in recovery.faults][:1] == [2]
        head_op = max((1, *recovery.holes))
        assert 2 in recovery.holes or (recovery.head_uncertain and head_op < 2)


def test_what_one_that_was_misdirected_lies_on_is_no_tear() -> None:
    """The zeros behind its end lie on an acknowledged record, which it knew to be synced."""
    storage = MemoryStorage()
    prepares = chain(2, bodies={1: DENSE[: 2 * SECTOR_BYTES - FRAME_BYTES - PREPARE_HEADER_BYTES]})
    filled(storage, [[each] for each in prepares], **MEMBER)
    move(storage, place(2), (segment(1), 2 * SECTOR_BYTES), SECTOR_BYTES)

    _, recovery = reopen(storage, **MEMBER)

    expect_never_denied(recovery, 1)
    expect_never_denied(recovery, 2)


def test_zeros_of_a_cut_that_was_misdirected_cost_no_record() -> None:
    """Blanking a torn tail may hit the acknowledged record before it, which is written again."""
    storage = WorldDisk()
    prepares = filled(storage, [[each] for each in chain(3)], **MEMBER)
    put(storage, place(2), bytes(UNIT_BYTES))
    put(storage, (place(2)[0], place(2)[1] + UNIT_BYTES), b"the rest of what a crash tore")
    storage.sectors_misdirected = RECORDS_PER_SEGMENT

    for _ in range(2):
        journal, recovery = reopen(storage, **MEMBER)
        assert storage.sectors_misdirected == 0
        assert recovery.cut is not None
        assert recovery.cut.op == 3
        assert list(entries(journal, 1)) == prepares[:2]
        journal.close()
    assert reopen(storage, **MEMBER)[1].cut is None


def test_a_frame_in_a_payload_makes_no_tear_a_fault() -> None:
    """A client does not know the journal id, so no payload can keep a torn tail from being cut.

    Otherwise a power failure of all replicas could leave a cluster that never serves again.
    """
    for journal_id, is_cut in ((b"any other journal", True), (JOURNAL_ID, False)):
        storage = MemoryStorage()
        frame = Frame(RecordKind.CUT, 2, 1, 0, 0, bytes(16))
        fake = encode_record(
            frame, b"", journal_id=journal_id[:16], segment=1, offset=2 * SECTOR_BYTES
        )
        fill = DENSE[: SECTOR_BYTES - FRAME_BYTES - PREPARE_HEADER_BYTES]
        prepares = chain(2, bodies={2: fill + fake[:FRAME_BYTES] + DENSE[:600]})
        filled(storage, [[each] for each in prepares], **MEMBER)
        put(storage, place(1), bytes(UNIT_BYTES))

        _, recovery = reopen(storage, **MEMBER, commit_max=1)

        assert (recovery.cut is not None, recovery.faults == ()) == (is_cut, is_cut)
