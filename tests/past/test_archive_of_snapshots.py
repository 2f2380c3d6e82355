"""Snapshots on their way to an archive: holes below them, other histories, lost objects."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from coordinator.replica.data_directory import DirectoryOptions, open_replica
from tests.past.empty_logs import empty_entries, first_entry
from tests.past.test_restored_cluster import CLUSTER_ID, restored, state_of_history
from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import Clock, ShippedReplica, manifests_of, newest_of
from viewstamp.archive.archive_errors import OtherHistory, OutOfArchive, PieceDamaged
from viewstamp.archive.committed_chain import CommittedHead
from viewstamp.archive.shipper import ShipOptions, Shipper
from viewstamp.archive.staging import Staging, WantedOfArchive, plan_of
from viewstamp.format.prepare import SealedPrepare

BEHIND_THE_CUT = 3
PAUSE_MS = 75_000


@dataclass(slots=True)
class LostDirectory:
    """A data directory with a snapshot, and three entries behind its cut."""

    path: Path
    cut: SealedPrepare
    entries: list[SealedPrepare]
    clock: Clock = field(default_factory=Clock)

    def shipper(self, store: MemoryStore) -> Shipper:
        """Return a shipper of it."""
        options = ShipOptions(self.path, piece_bytes=1, piece_age_ms=0)
        return Shipper(options, manifests_of(store), lambda: 1, self.clock)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> LostDirectory:
    """The directory, which tests do not change."""
    path = tmp_path_factory.mktemp("snapshots") / "lost"
    restored(state_of_history(6), path, 1)
    files = open_replica(DirectoryOptions(path, 0, 1, CLUSTER_ID))
    cut = files.journal.read(files.start.base_op)
    assert cut is not None
    entries = empty_entries(cut, BEHIND_THE_CUT)
    files.journal.append(entries)
    files.record_commit(cut.op + BEHIND_THE_CUT)
    files.close()
    return LostDirectory(path, cut, entries)


@pytest.fixture
def store(lost: LostDirectory) -> MemoryStore:
    """An archive of it."""
    store = MemoryStore()
    with lost.shipper(store) as shipper:
        shipper.round(is_last=True)
    return store


def other_log(path: Path, count: int) -> ShippedReplica:
    """Return a replica of the same cluster with other entries of the first ops."""
    first = first_entry(CLUSTER_ID)
    replica = ShippedReplica(path, replica_count=1, cluster_id=CLUSTER_ID)
    replica.take([first, *empty_entries(first, count - 1)])
    replica.change(commit_max=count)
    return replica


def test_a_hole_below_a_snapshot_is_a_gap_after_others_had_time(
    lost: LostDirectory, tmp_path: Path
) -> None:
    """Nobody calls an entry lost that another replica may ship within the pause."""
    store = MemoryStore()
    assert other_log(tmp_path / "early", 1).ship(store).archived_op == 1
    last = lost.entries[-1]
    head = CommittedHead(last.op, last.checksum)
    with lost.shipper(store) as shipper:
        for later_ms in (0, PAUSE_MS - 1):
            lost.clock.ms += later_ms
            assert shipper.round(head).archived_op == 1
            assert newest_of(store).gaps == ()
        lost.clock.ms += 1
        report = shipper.round(head)
    assert (report.archived_op, report.gaps, report.gaps_found) == (last.op, 1, 0)
    assert newest_of(store).gaps == ((2, lost.cut.op - 1),)


def test_a_snapshot_of_another_history_is_refused(lost: LostDirectory, tmp_path: Path) -> None:
    """An archive that has another entry at the cut of a snapshot gets no snapshot."""
    store = MemoryStore()
    count = lost.cut.op + BEHIND_THE_CUT + 9
    assert other_log(tmp_path / "other", count).ship(store).archived_op == count
    with (
        lost.shipper(store) as shipper,
        pytest.raises(OtherHistory, match=rf"entry {lost.cut.op} is {lost.cut.checksum.hex()}"),
    ):
        shipper.round(is_last=True)
    assert not store.named("snapshots/")


def test_a_snapshot_that_the_store_lost_does_not_stop_the_next_one(
    lost: LostDirectory, store: MemoryStore
) -> None:
    """Without the manifest of the snapshot before, all layers are stored once more."""
    chain = manifests_of(store)
    known = chain.wanted()
    older = replace(known.manifest.snapshots[-1], generation=1)
    following = replace(
        known.manifest,
        number=known.manifest.number + 1,
        previous=known.digest,
        snapshots=(older,),
    )
    assert chain.write(following) is not None
    with lost.shipper(store) as shipper:
        assert shipper.round(is_last=True).snapshot == known.manifest.snapshots[-1].generation


def test_a_layer_of_another_size_is_not_fetched(store: MemoryStore, tmp_path: Path) -> None:
    """What is larger than planned fills no disk: its size is looked at before its first byte."""
    name = store.named("layers/")[0]
    data, modified_us = store.objects_by_name[name]
    store.objects_by_name[name] = data + bytes(9), modified_us
    objects = manifests_of(store).objects
    plan = plan_of(objects, newest_of(store), WantedOfArchive())
    with pytest.raises(PieceDamaged, match="of another size"):
        Staging(objects, tmp_path / "staged").fetch(plan, lambda *_: None)


def test_a_directory_of_somebody_else_is_no_place_to_fetch_to(
    store: MemoryStore, tmp_path: Path
) -> None:
    """Files that no fetch made are kept, and a fetch that was cut short is gone on with."""
    objects = manifests_of(store).objects
    plan = plan_of(objects, newest_of(store), WantedOfArchive())
    (tmp_path / "log").mkdir()
    (tmp_path / "log/diary.txt").write_text("dear diary")
    with pytest.raises(OutOfArchive, match="no earlier fetch made it"):
        Staging(objects, tmp_path).fetch(plan, lambda *_: None)
    assert (tmp_path / "log/diary.txt").read_text() == "dear diary"
    for _ in range(2):
        staging = Staging(objects, tmp_path / "staged")
        staging.fetch(plan, lambda *_: None)
    assert staging.files_kept == staging.files
