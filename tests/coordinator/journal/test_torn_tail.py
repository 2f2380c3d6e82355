"""A member's torn tail and its damaged records are told apart, whatever the disk does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.journal import Journal, Recovery
from testkit.journal_builders import chain, create, filled, place, reopen
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from viewstamp.format.prepare import SealedPrepare
from viewstamp.format.record import FRAME_BYTES, SECTOR_BYTES, UNIT_BYTES

HEADER_BYTES = 128
DENSE = bytes(range(1, 256)) * 30
# One unit, two, one with blank units between, one that needs the next segment, and so on.
BODIES = {
    1: b"short",
    2: DENSE[:600],
    3: DENSE[:300] + bytes(3 * UNIT_BYTES + 4) + DENSE[:40],
    4: DENSE[: 2 * SECTOR_BYTES],
    5: b"",
    6: DENSE[:5000],
    7: b"x",
    8: DENSE[:700],
}
MEMBER: Any = {"replica_count": 3}


def unwritten(before: MemoryStorage, after: MemoryStorage) -> dict[str, bytes]:
    """Return the files of `after` as they were before; new segments are blank but for a header."""
    old = before.snapshot()
    return {
        path: old.get(path, content[:SECTOR_BYTES].ljust(len(content), b"\0"))
        for path, content in after.snapshot().items()
    }


def units_written(before: MemoryStorage, after: MemoryStorage) -> list[tuple[str, int]]:
    """Return every unit that differs between two states of a disk."""
    old, new = unwritten(before, after), after.snapshot()
    return [
        (path, at)
        for path in new
        for at in range(0, len(new[path]), UNIT_BYTES)
        if old[path][at : at + UNIT_BYTES] != new[path][at : at + UNIT_BYTES]
    ]


def torn(before: MemoryStorage, after: MemoryStorage, kept: set[tuple[str, int]]) -> MemoryStorage:
    """Return the disk before a write, with those units of it that were written all the same."""
    storage, new = after.copy(), after.snapshot()
    for path, content in unwritten(before, after).items():
        mixed = bytearray(content)
        for at in (at for of, at in kept if of == path):
            mixed[at : at + UNIT_BYTES] = new[path][at : at + UNIT_BYTES]
        storage.replace(path, bytes(mixed))
    return storage


def member(acknowledged: list[list[SealedPrepare]]) -> tuple[MemoryStorage, Journal]:
    """A member's journal that holds these groups."""
    storage = MemoryStorage()
    journal = create(storage, **MEMBER)
    for group in acknowledged:
        journal.append(group)
    return storage, journal


def expect_prefix(
    storage: MemoryStorage, acknowledged: list[SealedPrepare], attempted: list[SealedPrepare]
) -> Recovery:
    """Check that all acknowledged entries and a prefix of the rest are there, and no loss
    reported."""
    commit_max = len(acknowledged)
    journal, recovery = reopen(storage, **MEMBER, commit_max=commit_max)
    held = list(entries(journal, 1))
    assert held == (acknowledged + attempted)[: len(held)]
    assert len(held) >= len(acknowledged)
    assert recovery.head == (held[-1].header if held else None)
    assert (recovery.faults, recovery.holes, recovery.head_uncertain) == ((), (), False)
    journal.close()
    again = reopen(storage, **MEMBER, commit_max=commit_max)
    assert (again[1].head, again[1].cut) == (recovery.head, None)
    following = chain(1, after=held[-1] if held else None, view=7)
    again[0].append(following)
    again[0].close()
    journal, last = reopen(storage, **MEMBER)
    assert (list(entries(journal, 1)), last.faults) == (held + following, ())
    journal.close()
    return recovery


def group_of_two() -> Iterator[
    tuple[MemoryStorage, MemoryStorage, list[SealedPrepare], list[SealedPrepare]]
]:
    """The disk before and after writing a group of two records of three units each."""
    prepares = chain(3, commit=2, bodies={2: DENSE[:900], 3: DENSE[:900]})
    storage, journal = member([prepares[:1]])
    journal.close()
    before = storage.copy()
    journal, _ = reopen(storage, **MEMBER)
    journal.append(prepares[1:])
    journal.close()
    yield before, storage, prepares[:1], prepares[1:]


def test_every_way_to_lose_units_of_a_group_leaves_a_prefix() -> None:
    """Of all 64 subsets of the six units only a whole record is kept, and only behind its parent.

    The second record says that the first is committed. Other replicas may know that already, and it
    says nothing about this disk.
    """
    for before, after, acknowledged, attempted in group_of_two():
        written = units_written(before, after)
        assert len(written) == 6
        for kept in itertools.product((False, True), repeat=6):
            chosen = {unit for unit, keep in zip(written, kept, strict=True) if keep}
            recovery = expect_prefix(torn(before, after, chosen), acknowledged, attempted)
            whole = 2 if all(kept) else int(all(kept[:3]))
            assert recovery.head is not None
            assert recovery.head.op == 1 + whole
            assert (recovery.cut is None) == (
                all(kept) or not any(kept) or kept == (*[True] * 3, *[False] * 3)
            )


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(st.integers(min_value=1, max_value=4), min_size=1, max_size=3),
    order=st.permutations(range(1, 9)),
    data=st.data(),
)
def test_whatever_units_a_crash_keeps_a_prefix_is_left(
    sizes: list[int], order: list[int], data: st.DataObject
) -> None:
    """Groups of records of all shapes, over segments, are cut correctly when the last group is
    torn in any way."""
    count = sum(sizes)
    bodies = {op: BODIES[order[op % 8]] for op in range(1, count + 1)}
    prepares = chain(count, commit=count, bodies=bodies)
    start, groups = 0, []
    for size in sizes:
        groups.append(prepares[start : start + size])
        start += size
    storage, journal = member(groups[:-1])
    journal.close()
    before = storage.copy()
    journal, _ = reopen(storage, **MEMBER)
    journal.append(groups[-1])
    written = units_written(before, storage)
    kept = data.draw(st.sets(st.sampled_from(written)))
    acknowledged = prepares[: count - sizes[-1]]
    expect_prefix(torn(before, storage, kept), acknowledged, groups[-1])


def test_records_with_thin_units_may_hide_a_tear() -> None:
    """A kept unit of few bytes stands for one that was lost: at this limit the tear is a fault."""
    prepares = chain(2, bodies={2: DENSE[:300] + bytes(UNIT_BYTES) + b"\1\1" + DENSE[:512]})
    storage, journal = member([prepares[:1]])
    journal.append(prepares[1:])
    journal.close()
    path, offset = place(1)
    content = bytearray(storage.content(path))
    lost = offset + 2 * UNIT_BYTES
    content[lost : lost + UNIT_BYTES] = bytes(UNIT_BYTES)
    storage.replace(path, bytes(content))

    _, recovery = reopen(storage, **MEMBER)

    assert [fault.op for fault in recovery.faults] == [2]
    assert recovery.cut is None


# --- Rot ---


def synced() -> tuple[MemoryStorage, list[SealedPrepare]]:
    """A member's journal of several acknowledged groups that no superblock knows of."""
    prepares = chain(6, bodies={op: BODIES[op] for op in (1, 2, 3, 6)})
    storage = MemoryStorage()
    filled(storage, [prepares[:2], prepares[2:3], prepares[3:]], **MEMBER)
    return storage, prepares


def record_bytes_of(storage: MemoryStorage) -> list[tuple[str, int]]:
    """Every byte of every sector of a record, blank padding included."""
    return [
        (path, at)
        for path, content in storage.snapshot().items()
        for sector in range(SECTOR_BYTES, len(content), SECTOR_BYTES)
        if any(content[sector : sector + SECTOR_BYTES])
        for at in range(sector, sector + SECTOR_BYTES)
        if content[at] or at % 61 == 0 or at % UNIT_BYTES < 2
    ]


@pytest.mark.long
def test_no_flipped_byte_of_a_synced_record_is_taken_for_a_tear() -> None:
    """Any changed byte makes the record a fault, and the disk stays as it is.

    Entries before one of unknown op count as missing, too: it may have replaced them.
    """
    storage, prepares = synced()
    pristine = storage.snapshot()
    positions = record_bytes_of(storage)
    assert len(positions) > 8_000
    for index, (path, at) in enumerate(positions):
        mask = (0xFF, pristine[path][at] or 1, 1 << at % 8)[index % 3]
        storage.flip(path, at, mask)
        rotten = storage.snapshot()
        journal, recovery = reopen(storage, **MEMBER)
        assert recovery.cut is None, (path, at)
        assert len(recovery.faults) == 1, (path, at)
        assert storage.snapshot() == rotten
        (fault,) = recovery.faults
        held = {op for op in range(1, 7) if journal.read(op) is not None}
        assert all(journal.read(op) == prepares[op - 1] for op in held)
        assert set(recovery.holes) | held >= set(range(1, 6))
        if fault.op is None:
            assert recovery.head_uncertain
        else:
            assert recovery.holes == (fault.op,)
            assert len(held) == 5
        journal.close()
        storage.replace(path, pristine[path])


@pytest.mark.parametrize("within", [30, FRAME_BYTES + HEADER_BYTES + 3])
def test_rot_before_a_tear_is_not_cut_with_it(within: int) -> None:
    """When the last acknowledged record decays and the one after it tears, there is a fault, and
    a cut behind it."""
    prepares = chain(3, bodies={2: DENSE[:700], 3: DENSE[:700]})
    storage, journal = member([prepares[:1], prepares[1:2]])
    journal.append(prepares[2:])
    journal.close()
    path, offset = place(1)
    torn_at = place(2)[1]
    content = bytearray(storage.content(path))
    content[torn_at : torn_at + UNIT_BYTES] = bytes(UNIT_BYTES)
    content[offset + within] ^= 0xFF
    storage.replace(path, bytes(content))
    rotten = storage.content(path)[offset : offset + SECTOR_BYTES]

    journal, recovery = reopen(storage, **MEMBER)

    assert storage.content(path)[offset : offset + SECTOR_BYTES] == rotten
    (fault,) = recovery.faults
    assert fault.first_sequence == 2
    if fault.op == 2:
        assert recovery.cut is not None
        assert (recovery.cut.path, recovery.cut.offset) == (path, torn_at)
        assert recovery.holes == (2,)
    else:
        assert recovery.head_uncertain
    journal.close()
    assert reopen(storage, **MEMBER)[1].faults[0].first_sequence == 2


@pytest.mark.parametrize(("commit_max", "is_cut"), [(1, True), (2, False)])
def test_a_tail_that_the_superblock_knows_is_never_cut(commit_max: int, is_cut: bool) -> None:
    """A tail that the superblock knows was durable once: its loss is a fault, and no tear."""
    prepares = chain(2, bodies={2: DENSE[:700]})
    storage, journal = member([prepares[:1]])
    journal.append(prepares[1:])
    journal.close()
    path, offset = place(1)
    content = bytearray(storage.content(path))
    content[offset + UNIT_BYTES : offset + 2 * UNIT_BYTES] = bytes(UNIT_BYTES)
    storage.replace(path, bytes(content))

    _, recovery = reopen(storage, **MEMBER, commit_max=commit_max)

    assert (recovery.cut is not None) == is_cut
    assert recovery.holes == (() if is_cut else (2,))


def test_a_repair_that_tore_leaves_the_old_fault_alone() -> None:
    """A damaged op is written again and that write tears: the fault stays, and the next repair
    works."""
    prepares = chain(3, bodies={2: DENSE[:700]})
    storage, journal = member([prepares[:2], prepares[2:]])
    journal.close()
    path, offset = place(1)
    storage.flip(path, offset + 300)
    journal, recovery = reopen(storage, **MEMBER, commit_max=3)
    assert recovery.holes == (2,)
    before = storage.copy()
    journal.append([prepares[1]])
    journal.close()
    for kept in units_written(before, storage):
        half = torn(before, storage, {kept})
        journal, recovery = reopen(half, **MEMBER, commit_max=3)
        assert (recovery.holes, [f.op for f in recovery.faults]) == ((2,), [2])
        assert recovery.cut is not None
        journal.append([prepares[1]])
        journal.close()
        journal, recovery = reopen(half, **MEMBER, commit_max=3)
        assert recovery.faults == ()
        assert list(entries(journal, 1)) == prepares
        journal.close()
