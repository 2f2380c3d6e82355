"""The journal in good times: append, read, rotate, reserve, truncate."""

from __future__ import annotations

import errno

import pytest

from coordinator.journal import (
    PREPARES_KEPT_MIN,
    SPARE_SEGMENTS,
    CorruptRecord,
    Journal,
    JournalExists,
    NoSpace,
)
from coordinator.journal.journal import SEGMENT_BYTES as DEFAULT_SEGMENT_BYTES
from testkit.journal_builders import (
    CLUSTER_ID,
    DIRECTORY,
    OTHER_CLUSTER_ID,
    SEGMENT_BYTES,
    append_unchecked,
    chain,
    create,
    filled,
    intact_records,
    place,
    prepare,
    reopen,
    segment,
)
from testkit.journal_reading import entries
from testkit.memory_storage import MemoryStorage
from viewstamp.format.prepare import NO_PARENT
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.limits import MIB, PIPELINE_PREPARES_MAX


def test_defaults_are_the_documented_ones() -> None:
    """Segments are 16 MiB, and truncation keeps two pipelines of prepares."""
    assert DEFAULT_SEGMENT_BYTES == 16 * MIB
    assert PREPARES_KEPT_MIN == 2 * PIPELINE_PREPARES_MAX


def test_a_new_journal_is_empty_and_zero_filled() -> None:
    """Creating gives one segment and three spares, all blank behind their headers."""
    storage = MemoryStorage()
    journal = create(storage)

    assert journal.head is None
    assert journal.first_op == 0
    assert journal.read(1) is None
    assert list(entries(journal, 1)) == []
    assert storage.paths() == [segment(number) for number in range(1, 2 + SPARE_SEGMENTS)]
    for path in storage.paths():
        assert not any(storage.content(path)[SECTOR_BYTES:])
        assert len(storage.content(path)) == SEGMENT_BYTES


def test_appended_prepares_are_read_back() -> None:
    """An appended prepare is found by op, as a header and in order, before and after a restart."""
    storage = MemoryStorage()
    journal = create(storage)
    prepares = chain(5)
    journal.append(prepares[:2])
    journal.append(prepares[2:])

    for opened in (journal, None):
        if opened is None:
            journal.close()
            opened, recovery = reopen(storage)
            assert recovery.head == prepares[-1].header
            assert (recovery.first_op, recovery.prepare_count) == (1, 5)
        assert [opened.read(p.op) for p in prepares] == prepares
        assert opened.head == prepares[-1].header
        assert opened.header(3) == prepares[2].header
        assert opened.headers(2, 9) == [p.header for p in prepares[1:]]
        assert list(entries(opened, 2)) == prepares[1:]
        assert list(entries(opened, 2, to_op=3)) == prepares[1:3]


def test_one_sync_per_group() -> None:
    """A group costs one write and one sync, however many prepares it has."""
    storage = MemoryStorage()
    journal = create(storage)
    storage.log.clear()

    journal.append(chain(3))

    assert storage.log == [f"write {segment(1)}", f"sync {segment(1)}"]


def test_rotation_touches_no_directory() -> None:
    """Moving on to the next segment costs a write and a sync, since spares have their names."""
    storage = MemoryStorage()
    journal = create(storage)
    storage.log.clear()

    journal.append(chain(4))

    assert storage.log == [
        f"write {segment(1)}",
        f"write {segment(2)}",
        f"sync {segment(1)}",
        f"sync {segment(2)}",
    ]


def test_records_tell_what_was_durable_before_their_group() -> None:
    """Sequences count records; durable_sequence is the last one of the group before."""
    storage = MemoryStorage()
    prepares = chain(3)
    filled(storage, [prepares[:1], prepares[1:]])

    frames = [record.frame for record in intact_records(storage.content(segment(1)), 1)]

    assert [frame.sequence for frame in frames] == [1, 2, 3]
    assert [frame.durable_sequence for frame in frames] == [0, 1, 1]


def test_sequences_go_on_after_a_restart() -> None:
    """A restart continues both counts where they were."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(1)])
    journal, _ = reopen(storage)
    journal.append(chain(1, after=prepares[-1]))

    frames = [record.frame for record in intact_records(storage.content(segment(1)), 1)]

    assert [(frame.sequence, frame.durable_sequence) for frame in frames] == [(1, 0), (2, 1)]


def test_a_record_never_crosses_segments() -> None:
    """A record that does not fit behind the last starts the next segment."""
    storage = MemoryStorage()
    large = bytes(2 * SECTOR_BYTES)
    prepares = filled(storage, [chain(2, bodies={1: b"small", 2: large})])
    assert not any(storage.content(segment(1))[2 * SECTOR_BYTES + 300 : 2 * SECTOR_BYTES])

    journal, _ = reopen(storage)

    assert journal.read(2) == prepares[1]
    assert len(intact_records(storage.content(segment(2)), 2)) == 1


def test_a_prepare_larger_than_a_segment_is_refused() -> None:
    """A prepare that can never be stored is the caller's error, and is refused before any write."""
    storage = MemoryStorage()
    journal = create(storage)
    before = storage.snapshot()
    with pytest.raises(ValueError, match="does not fit"):
        journal.append(chain(1, bodies={1: bytes(SEGMENT_BYTES)}))
    assert storage.snapshot() == before


def test_an_empty_group_is_nothing() -> None:
    """Appending no prepares writes nothing."""
    storage = MemoryStorage()
    journal = create(storage)
    storage.log.clear()
    journal.append([])
    assert storage.log == []


def test_a_single_replica_appends_in_one_chain_only() -> None:
    """Gaps, forks and repeats in the log of a single replica are refused before any write."""
    storage = MemoryStorage()
    journal = create(storage)
    prepares = chain(4)
    journal.append(prepares[:2])
    before = storage.snapshot()
    fork = prepare(3, bytes(range(16)))
    for group in ([prepares[3]], [prepares[1]], [fork], [prepares[2], fork]):
        with pytest.raises(ValueError, match="does not continue"):
            journal.append(group)
    assert storage.snapshot() == before
    journal.append(prepares[2:])


@pytest.mark.parametrize("replica_count", [1, 3])
def test_prepares_of_another_cluster_are_refused(replica_count: int) -> None:
    """A prepare of another cluster never reaches the disk."""
    journal = create(MemoryStorage(), replica_count=replica_count)
    with pytest.raises(ValueError, match="another cluster"):
        journal.append([prepare(1, NO_PARENT, cluster_id=OTHER_CLUSTER_ID)])


def test_the_higher_sequence_wins() -> None:
    """In a cluster a later record of an op replaces the earlier one, even after a restart."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    old, new = chain(3), chain(3, view=2, bodies={3: b"newer"})
    journal.append(old)
    append_unchecked(journal, new)
    assert journal.read(3) == new[2]
    journal.close()

    journal, recovery = reopen(storage, replica_count=3)

    assert list(entries(journal, 1)) == new
    assert recovery.faults == ()
    assert recovery.holes == ()


def test_discarded_ops_stay_discarded() -> None:
    """Ops that a view change replaced are gone at once and after a restart; new ones count."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    old = chain(4)
    journal.append(old)
    journal.discard_after(2)
    assert journal.head == old[1].header
    assert journal.read(3) is None
    journal.close()

    journal, recovery = reopen(storage, replica_count=3)
    assert recovery.head == old[1].header
    replacement = chain(1, after=old[1], view=2, bodies={3: b"newer"})
    journal.append(replacement)
    journal.close()

    journal, recovery = reopen(storage, replica_count=3)
    assert list(entries(journal, 1)) == [*old[:2], *replacement]
    journal.discard_after(0)
    assert journal.head is None


def test_a_single_replica_never_discards() -> None:
    """A single replica discards nothing, because everything in its journal is committed."""
    with pytest.raises(ValueError, match="single replica"):
        create(MemoryStorage()).discard_after(0)


def test_reading_verifies_every_time() -> None:
    """Damage after opening is found by the read that meets it, with file, offset and op."""
    storage = MemoryStorage()
    journal = create(storage)
    journal.append(chain(4))
    path, offset = place(3)
    storage.flip(path, offset + 200)

    with pytest.raises(CorruptRecord, match="op 4") as raised:
        journal.read(4)

    assert (raised.value.path, raised.value.offset, raised.value.op) == (path, offset, 4)
    assert journal.read(3) is not None


def test_reading_does_not_trust_the_index() -> None:
    """A valid record of another prepare in an op's place is corruption: the index is a hint."""
    storage, other = MemoryStorage(), MemoryStorage()
    journal = create(storage)
    journal.append(chain(1))
    filled(other, [chain(1, view=2)])
    file = storage.open(segment(1))
    file.write(0, other.content(segment(1)))
    with pytest.raises(CorruptRecord, match="another record"):
        journal.read(1)


# --- Space ---


def test_spares_are_prepared_ahead() -> None:
    """The caller restores the spares that rotation used up, and is told how many."""
    storage = MemoryStorage()
    journal = create(storage)
    assert journal.prepare_spares() == 0
    journal.append(chain(4))
    assert journal.space().spare_segments == SPARE_SEGMENTS - 1
    assert journal.prepare_spares() == 1
    assert journal.space().spare_segments == SPARE_SEGMENTS


def test_space_counts_spares_by_their_own_size() -> None:
    """Spares made under a smaller setting do not pass for larger ones."""
    storage = MemoryStorage()
    create(storage).close()
    journal, _ = reopen(storage, segment_bytes=4 * SEGMENT_BYTES)
    assert journal.space().free_bytes == 2 * 3 * SECTOR_BYTES


def test_space_leaves_out_the_reserve() -> None:
    """Free bytes are those that an ordinary append can use without asking the disk for more."""
    journal = create(MemoryStorage())
    usable = 3 * SECTOR_BYTES
    assert journal.space().free_bytes == usable + usable
    journal.append(chain(1))
    assert journal.space().free_bytes == usable + usable - SECTOR_BYTES
    assert journal.space().reserve_intact


def test_a_full_disk_stops_before_the_reserve() -> None:
    """Ordinary appends raise NoSpace with nothing written; the reserve takes snapshot commands."""
    storage = MemoryStorage(capacity_bytes=(1 + SPARE_SEGMENTS) * SEGMENT_BYTES)
    journal = create(storage)
    prepares = chain(12)
    journal.append(prepares[:6])
    before = storage.snapshot()
    with pytest.raises(NoSpace, match="free space"):
        journal.append([prepares[6]])
    with pytest.raises(NoSpace):
        journal.prepare_spares()
    assert storage.snapshot() == before
    assert journal.space() == journal.space().__class__(0, 2, True)

    journal.append(prepares[6:9], use_reserve=True)
    assert not journal.space().reserve_intact
    journal.append(prepares[9:12], use_reserve=True)
    with pytest.raises(NoSpace):
        journal.append(chain(1, after=prepares[11]), use_reserve=True)

    journal.close()
    journal, recovery = reopen(storage)
    assert recovery.prepare_count == 12
    storage.capacity_bytes *= 2
    journal.append(chain(1, after=prepares[11]))
    assert journal.space().reserve_intact


def test_running_out_while_making_a_spare_leaves_nothing() -> None:
    """ENOSPC in the middle of a new segment removes it and is no failure of the journal."""
    storage = FullAfterAsking()
    journal = create(storage)
    journal.append(chain(4))
    paths = storage.paths()
    storage.full = True
    with pytest.raises(NoSpace, match="No space left"):
        journal.prepare_spares()
    assert storage.paths() == paths
    journal.append(chain(1, after=chain(4)[-1]))


class FullAfterAsking(MemoryStorage):
    """Another process takes the space after it was asked for and before it is used."""

    full = False

    def grow(self, growth_bytes: int) -> None:
        """Refuse all growth while full."""
        if self.full and growth_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")


# --- Truncation ---


def test_truncation_drops_whole_segments_and_keeps_two_pipelines() -> None:
    """Truncation drops only segments without needed prepares, and never the last two pipelines."""
    storage = MemoryStorage()
    journal = create(storage)
    prepares = chain(30)
    for one in prepares:
        journal.append([one])

    full_bytes = journal.bytes_from(1)
    assert journal.truncate_before(5) == 1
    assert journal.first_op == 4
    assert 0 == journal.bytes_from(1 << 60) < journal.bytes_from(20) < journal.bytes_from(1)
    assert full_bytes - journal.bytes_from(1) == SEGMENT_BYTES
    assert journal.truncate_before(5) == 0
    assert journal.truncate_before(1 << 60) == 3
    assert journal.first_op == 13
    assert PREPARES_KEPT_MIN <= 30 - 13 + 1
    assert journal.read(12) is None
    journal.close()

    journal, recovery = reopen(storage, commit_max=30, replay_op=20)
    assert recovery.first_op == 13
    assert list(entries(journal, 13)) == prepares[12:]
    journal.append(chain(1, after=prepares[-1]))


def test_truncation_is_durable_segment_by_segment() -> None:
    """Each removal is synced before the next, or a crash could leave a hole in the numbers."""
    storage = MemoryStorage()
    journal = create(storage)
    for one in chain(30):
        journal.append([one])
    storage.log.clear()
    journal.truncate_before(8)
    assert storage.log == [
        f"unlink {segment(1)}",
        f"sync_directory {DIRECTORY}",
        f"unlink {segment(2)}",
        f"sync_directory {DIRECTORY}",
    ]


def test_dropped_segments_can_be_archived() -> None:
    """With an archive the dropped segments move there, unchanged."""
    storage = MemoryStorage()
    storage.make_directory("archive")
    create(storage).close()
    journal, _ = Journal.open(
        storage,
        DIRECTORY,
        cluster_id=CLUSTER_ID,
        replica_id=0,
        replica_count=1,
        commit_max=0,
        log_view=None,
        segment_bytes=SEGMENT_BYTES,
        archive="archive",
    )
    for one in chain(20):
        journal.append([one])
    content = storage.content(segment(1))
    journal.truncate_before(4)
    assert storage.content(f"archive/{segment(1).rpartition('/')[2]}") == content


def test_an_old_op_in_a_new_segment_keeps_it() -> None:
    """A repaired op counts where it lies: its segment stays while the op is needed."""
    storage = MemoryStorage()
    journal = create(storage, replica_count=3)
    prepares = chain(40)
    append_unchecked(journal, prepares[30:33])
    for one in prepares:
        journal.append([one])
    assert journal.truncate_before(20) == 0


# --- Creating ---


def test_creating_twice_never_destroys() -> None:
    """A journal with a record is never made anew; a blank one, left by a crash, is."""
    storage = MemoryStorage()
    journal = create(storage)
    journal.close()
    journal = create(storage)
    journal.append(chain(1))
    journal.close()
    before = storage.snapshot()
    with pytest.raises(JournalExists, match="records"):
        create(storage)
    assert storage.snapshot() == before
    assert reopen(storage)[1].prepare_count == 1


def test_segments_of_another_size_are_used_as_they_are() -> None:
    """Changing the segment size concerns new segments only; old ones keep theirs."""
    storage = MemoryStorage()
    prepares = filled(storage, [chain(2)])
    journal, _ = reopen(storage, segment_bytes=2 * SEGMENT_BYTES)
    large = chain(1, after=prepares[-1], bodies={3: bytes(SEGMENT_BYTES)})
    journal.append(large)
    assert journal.read(3) == large[0]
    journal.close()
    journal, _ = reopen(storage)
    assert list(entries(journal, 1)) == [*prepares, *large]
