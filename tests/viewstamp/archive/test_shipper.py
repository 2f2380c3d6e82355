"""Shipping the log: nothing twice, nothing that is not committed, and whatever ends a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.journal_builders import append_unchecked, chain, prepare
from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import (
    KEY,
    ShippedReplica,
    archived,
    newest_of,
    verified,
)
from viewstamp.archive.archive_errors import (
    OtherHistory,
    ShipperInUse,
    StoreUnfit,
    StoreUnreachable,
)
from viewstamp.archive.archive_objects import archive_name
from viewstamp.archive.committed_chain import CommittedChain, CommittedHead, EntryPlace
from viewstamp.archive.journal_tail import JournalTail
from viewstamp.archive.sealing import ArchiveKey
from viewstamp.archive.segment_spool import SegmentSpool

STEPS_MAX = 60


def test_what_is_committed_is_shipped(tmp_path: Path) -> None:
    """The entries that later ones prove are in the archive, the last one is not, and none twice."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    entries = replica.append(8)
    report = replica.ship(store)
    assert (report.archived_op, report.committed_op, report.gaps) == (7, 7, 0)
    assert archived(store) == entries[:7]
    assert replica.ship(store).shipped_pieces == 0
    replica.append(2)
    assert replica.ship(store).archived_op == 9
    assert archived(store) == replica.entries[:9]
    assert verified(store).is_whole


def test_a_replica_says_more_than_its_log(tmp_path: Path) -> None:
    """The last entry is shipped if the replica says that this one is committed, and no other."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    last = replica.append(4)[-1]
    assert replica.ship(store, told=CommittedHead(4, b"x" * 16)).archived_op == 3
    assert replica.ship(store, told=CommittedHead(4, last.checksum)).archived_op == 4


def test_a_lone_replica_knows_by_its_superblock(tmp_path: Path) -> None:
    """What a single replica noted as committed at its stop is shipped to the end."""
    replica = ShippedReplica(tmp_path / "data", replica_count=1)
    store = MemoryStore()
    replica.append(5)
    replica.change(commit_max=5)
    assert replica.ship(store).archived_op == 5


def test_what_a_view_discarded_is_never_shipped(tmp_path: Path) -> None:
    """Of two entries of one op the one is shipped that committed entries follow."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    kept = replica.append(3)
    lost = chain(3, after=kept[-1], commit=2)
    replica.journal.append(lost)
    replica.journal.discard_after(3)
    replica.append(3, view=4)
    replica.ship(store)
    assert archived(store) == replica.entries[:5]
    assert not {each.checksum for each in lost} & {each.checksum for each in archived(store)}


@pytest.mark.parametrize("keys", [(), (KEY,)])
@pytest.mark.parametrize("fails_after", [False, True])
def test_a_round_that_ends_anywhere_is_gone_on_with(
    tmp_path: Path, fails_after: bool, keys: tuple[ArchiveKey, ...]
) -> None:
    """Wherever the store fails, also behind its work, another shipper completes the archive."""
    replica = ShippedReplica(tmp_path / "data", options={"piece_bytes": 600})
    entries = replica.append(6)
    failed = 0
    for step in range(1, STEPS_MAX):
        store = MemoryStore(fails_at=step, fails_after=fails_after)
        try:
            replica.ship(store, keys)
        except StoreUnreachable:
            failed += 1
        store.fails_at = 0
        replica.append(0)
        replica.ship(store, keys)
        assert archived(store, keys) == entries[:5]
        assert verified(store, keys).is_whole
    assert 8 < failed < STEPS_MAX - 1


def test_a_store_that_loses_what_it_took_is_found_out(tmp_path: Path) -> None:
    """No manifest names a piece that the store accepted and does not have."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore(loses=("log/",))
    replica.append(3)
    with pytest.raises(StoreUnreachable, match=r"took .* and has nothing"):
        replica.ship(store)
    assert not store.named("manifests/0")


def test_a_store_that_overwrites_is_refused(tmp_path: Path) -> None:
    """A store that ignores conditions would lose manifests of one of two shippers."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore(overwrites=True)
    replica.append(3)
    with pytest.raises(StoreUnfit, match="ignores If-None-Match"):
        replica.ship(store)


def test_two_shippers_ship_one_log(tmp_path: Path) -> None:
    """An old and a new primary take turns as they like, and the archive has each entry once."""
    store = MemoryStore()
    old = ShippedReplica(tmp_path / "old", replica_id=0)
    new = ShippedReplica(tmp_path / "new", replica_id=1, view=1)
    with old.shipper(store) as first, new.shipper(store) as second:
        for _ in range(4):
            new.take(old.append(2))
            for shipper in (first, second, second, first):
                shipper.round()
    assert archived(store) == old.entries[:7]
    manifest = newest_of(store)
    assert [part.first_op for part in manifest.parts[1:]] == [
        part.last_op + 1 for part in manifest.parts[:-1]
    ]
    assert verified(store).is_whole


def test_a_manifest_is_never_written_twice(tmp_path: Path) -> None:
    """A shipper that knows less than another one takes nothing back of what that one wrote."""
    store = MemoryStore()
    ahead = ShippedReplica(tmp_path / "ahead", replica_id=0)
    behind = ShippedReplica(tmp_path / "behind", replica_id=1, view=1)
    behind.take(ahead.append(6)[:1])
    with behind.shipper(store) as shipper:
        shipper.round()
        ahead.ship(store)
        written = store.objects_by_name[archive_name(1)]
        behind.take(ahead.entries[1:4])
        assert shipper.round().archived_op == 5
    assert store.objects_by_name[archive_name(1)] == written
    assert newest_of(store).last_op == 5


def test_a_shipper_that_slept_writes_nothing_old(tmp_path: Path) -> None:
    """A manifest whose number is free again, because older ones are deleted, is taken back."""
    store = MemoryStore()
    old = ShippedReplica(tmp_path / "old", replica_id=0)
    new = ShippedReplica(tmp_path / "new", replica_id=1, view=1)
    new.take(old.append(3))
    with old.shipper(store) as sleeper:
        sleeper.round()
        with new.shipper(store) as shipper:
            for _ in range(70):
                new.append(1)
                shipper.round()
        old.take(new.entries[3:20])
        assert sleeper.round().archived_op == 72
    assert archive_name(2) not in store.objects_by_name
    assert archived(store) == new.entries[:72]
    assert newest_of(store).number == 71


def test_a_backup_waits_and_takes_over(tmp_path: Path) -> None:
    """A replica that does not lead ships once nobody did for a while, and reports that it waits."""
    store = MemoryStore()
    backup = ShippedReplica(tmp_path / "data", replica_id=1, view=0)
    backup.append(4)
    with backup.shipper(store) as shipper:
        waiting = shipper.round()
        assert (waiting.is_shipping, waiting.archived_op, waiting.lag_ops) == (False, 0, 3)
        backup.clock.ms += 59_999
        assert not shipper.round().is_shipping
        backup.clock.ms += 1
        assert shipper.round().archived_op == 3
        backup.append(1)
        backup.clock.ms += 99_000
        assert not shipper.round().is_shipping


def test_pieces_are_cut_by_size_and_age(tmp_path: Path) -> None:
    """A piece is shipped when it is full, or when its oldest entry has waited; lag is told."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    replica.options = {"piece_bytes": 400, "piece_age_ms": 10_000}
    replica.append(7)
    with replica.shipper(store) as shipper:
        report = shipper.round()
        assert 0 < report.archived_op < 6
        replica.clock.ms += 9_000
        assert (shipper.round().lag_ms, shipper.round().shipped_pieces) == (9_000, 0)
        replica.clock.ms += 1_000
        report = shipper.round()
        assert (report.archived_op, report.lag_ms) == (6, 0)


def test_segments_that_the_replica_drops_are_kept(tmp_path: Path) -> None:
    """What was not shipped survives in the spool, and goes from there once it was."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    replica.options = {"piece_age_ms": 10_000}
    entries = replica.append(10)
    with replica.shipper(store) as shipper:
        assert shipper.round().archived_op == 0
        replica.drop_segments(2)
        replica.clock.ms += 10_000
        assert shipper.round().archived_op == 9
    assert archived(store) == entries[:9]
    assert (
        len([path for path in (tmp_path / "data/archive-spool").iterdir() if path.suffix == ""]) < 6
    )


def test_a_backup_keeps_no_log_that_others_shipped(tmp_path: Path) -> None:
    """What the archive has from the primary leaves the spool of a backup, too."""
    store = MemoryStore()
    primary = ShippedReplica(tmp_path / "primary")
    backup = ShippedReplica(tmp_path / "backup", replica_id=1)
    backup.take(primary.append(12))
    with backup.shipper(store) as shipper:
        shipper.round()
        backup.drop_segments(3)
        kept = [path.name for path in (backup.data / "archive-spool").glob("0*")]
        assert f"{1:016d}" in kept
        primary.ship(store)
        backup.clock.ms += 15_000
        assert shipper.round().archived_op == 11
    kept = [path.name for path in (backup.data / "archive-spool").glob("0*")]
    assert min(kept) > f"{3:016d}"


def test_what_was_lost_before_it_was_shipped_is_a_gap(tmp_path: Path) -> None:
    """Beyond the bound of the spool the replica goes on, and the archive says what it lacks."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    replica.options = {"spool_bytes_max": 0}
    replica.append(4)
    with replica.shipper(store) as shipper:
        assert shipper.round().archived_op == 3
    replica.append(10)
    replica.drop_segments(3)
    assert replica.ship(store).waits_for == "entry 9, which is missing"
    assert newest_of(store).last_op == 3


def test_a_hole_that_repair_fills_is_waited_for(tmp_path: Path) -> None:
    """An entry that is missing is shipped when the replica has got it again, in its place."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    entries = [prepare(1, bytes(16))]
    for op in range(2, 8):
        entries.append(prepare(op, entries[-1].checksum, commit=op - 1))
    append_unchecked(replica.journal, [*entries[:2], *entries[3:]])
    with replica.shipper(store) as shipper:
        report = shipper.round()
        assert (report.archived_op, report.waits_for) == (1, "entry 3, which is missing")
        append_unchecked(replica.journal, [entries[2]])
        assert shipper.round().archived_op == 6
    assert archived(store) == entries[:6]


def test_an_archive_of_another_log_is_refused(tmp_path: Path) -> None:
    """Neither another cluster's archive nor a log that forked from it is mixed with this one."""
    store = MemoryStore()
    first = ShippedReplica(tmp_path / "first")
    first.append(4)
    first.ship(store)
    forked = ShippedReplica(tmp_path / "forked")
    forked.append(6, view=9)
    with pytest.raises(OtherHistory, match=r"entry 3 is .* here and .* in the archive"):
        forked.ship(store)
    stranger = ShippedReplica(tmp_path / "stranger", cluster_id=b"y" * 16)
    with pytest.raises(OtherHistory, match="is the archive of cluster"):
        stranger.ship(store)


def test_one_shipper_for_a_directory(tmp_path: Path) -> None:
    """A second shipper of a data directory is refused while the first one runs."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    replica.append(1)
    with replica.shipper(store), pytest.raises(ShipperInUse, match="another process ships"):
        replica.shipper(store)


class WrittenMeanwhile(CommittedChain):
    """A chain that has the replica go on writing while its journal is read."""

    replica: ShippedReplica

    def add(self, place: EntryPlace) -> None:
        """Take an entry; at the second one the replica fills the segment, and begins the next."""
        super().add(place)
        if place.op == len(self.replica.entries) == 2:
            self.replica.append(3)


def test_a_segment_is_read_to_its_end(tmp_path: Path) -> None:
    """What the replica writes while a segment is read is not passed over for the next segment."""
    chain = WrittenMeanwhile()
    chain.replica = ShippedReplica(tmp_path / "data")
    chain.replica.append(2)
    spool = SegmentSpool(chain.replica.data)
    tail = JournalTail(spool)
    for _ in range(2):
        assert tail.read_into(chain)
    spool.close()
    assert len(chain) == 5
    assert [place.op for place in chain.proved().entries] == [1, 2, 3, 4]


def test_a_late_listing_hides_no_manifest(tmp_path: Path) -> None:
    """A manifest that no listing has yet is found by its name, and not written once more."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    replica.append(3)
    replica.ship(store)
    replica.append(2)
    replica.ship(store)
    store.unlisted = tuple(store.named("manifests/0")[1:])
    replica.append(2)
    replica.ship(store)
    assert newest_of(store).number == 3
    assert archived(store) == replica.entries[:6]
