"""What a shipper does when the store is away, and who ships."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from testkit.journal_builders import chain
from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import ShippedReplica, archived
from viewstamp.archive.archive_errors import StoreUnreachable
from viewstamp.archive.committed_chain import CommittedHead
from viewstamp.archive.lost_holes import LostHoles
from viewstamp.archive.shipping_loop import RoundTold, ship_rounds
from viewstamp.format.epoch_members import EPOCH_SHIFT, EpochMembers
from viewstamp.format.record import SECTOR_BYTES

FIRST_VIEW = 1 << EPOCH_SHIFT


@dataclass(slots=True)
class StoreWithoutManifests(MemoryStore):
    """A store that can write no manifest after the first ones."""

    manifests_max: int = 2

    def create(self, name: str, data: bytes) -> bool:
        """Store an object, or refuse."""
        if len(self.named("manifests/0")) >= self.manifests_max:
            raise StoreUnreachable(f"{name} cannot be written", "make room")
        return MemoryStore.create(self, name, data)


def test_segments_are_kept_from_the_start_while_the_store_is_away(tmp_path: Path) -> None:
    """A shipper that never reached the store loses no log that the replica drops meanwhile."""
    store, replica = MemoryStore(fails_at=1), ShippedReplica(tmp_path / "data")
    replica.append(9)
    with replica.shipper(store) as shipper:
        with pytest.raises(StoreUnreachable):
            shipper.round()
        replica.drop_segments(2)
        assert shipper.round().archived_op == 8
    assert archived(store) == replica.entries[:8]


def test_a_failed_round_tells_what_it_shipped(tmp_path: Path) -> None:
    """Bytes, pieces and the end of the archive are told of a round that failed in its midst."""
    store = StoreWithoutManifests()
    replica = ShippedReplica(tmp_path / "data", options={"piece_bytes": 1})
    replica.append(6)
    told: list[RoundTold] = []
    with replica.shipper(store) as shipper:
        ship_rounds(shipper, lambda: None, told.append, lambda _: len(told) == 2)
    assert [each.reason for each in told] == ["STORE_UNREACHABLE"] * 2
    assert [each.report.archived_op for each in told] == [2, 2]
    assert [each.report.shipped_pieces for each in told] == [3, 1]
    assert told[0].report.shipped_bytes > told[1].report.shipped_bytes > 0
    assert told[0].report.is_archive_known


def test_what_is_not_known_of_the_archive_is_told(tmp_path: Path) -> None:
    """Until a shipper has read where the archive is, its report says so."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore(fails_at=1)
    replica.append(2)
    told: list[RoundTold] = []
    with replica.shipper(store) as shipper:
        ship_rounds(shipper, lambda: None, told.append, lambda _: len(told) == 2)
    assert [each.report.is_archive_known for each in told] == [False, True]


@pytest.mark.parametrize("voters", [(0, 1, 3), (4, 2)])
def test_who_leads_follows_from_the_members_of_the_epoch(
    tmp_path: Path, voters: tuple[int, ...]
) -> None:
    """In each view of a later epoch the primary ships, and no other voter does."""
    members = EpochMembers(FIRST_VIEW, voters, began_op=1)
    for place in range(len(voters)):
        shipping = []
        for voter in voters:
            data, view = tmp_path / f"{place}-{voter}", FIRST_VIEW + place
            replica = ShippedReplica(data, replica_id=voter, view=view, members=members)
            replica.append(1)
            with replica.shipper(MemoryStore()) as shipper:
                shipping += [voter] if shipper.round().is_shipping else []
        assert shipping == [voters[place]]


def test_a_replica_that_is_no_longer_alone_may_have_discarded_entries(tmp_path: Path) -> None:
    """Founded alone and joined by others, its commit number proves no entry by the op alone."""
    store = MemoryStore()
    replica = ShippedReplica(tmp_path / "data", replica_count=1, segment_bytes=12 * SECTOR_BYTES)
    replica.append(5)
    discarded = chain(1, after=replica.entries[-1], commit=5, view=1)
    replica.journal.append(discarded)
    members = EpochMembers(FIRST_VIEW, (0, 1, 2), began_op=1)
    replica.change(members=members, view=FIRST_VIEW, log_view=FIRST_VIEW, commit_max=6)
    assert replica.ship(store).archived_op == 5
    assert archived(store) == replica.entries


def test_a_hole_is_lost_only_after_others_had_time(tmp_path: Path) -> None:
    """A missing entry is waited for from when it was missed, each one anew."""
    holes = LostHoles()
    asked = [(5, 0), (5, 99), (5, 100), (9, 150), (9, 249), (9, 250)]
    found = [holes.has_waited(op, now_ms, 100) for op, now_ms in asked]
    assert found == [False, False, True, False, False, True]
    holes.end()
    assert not holes.has_waited(9, 400, 100)


def test_the_head_is_told_although_the_round_fails(tmp_path: Path) -> None:
    """What is committed and not shipped is told with the failure, too."""
    store = StoreWithoutManifests(manifests_max=0)
    replica = ShippedReplica(tmp_path / "data")
    last = replica.append(3)[-1]
    told: list[RoundTold] = []
    head = CommittedHead(last.op, last.checksum)
    with replica.shipper(store) as shipper:
        ship_rounds(shipper, lambda: head, told.append, lambda _: True)
    assert (told[0].report.lag_ops, told[0].report.archived_op) == (3, 0)
