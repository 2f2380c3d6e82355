"""A gap in the log of an archive is told, wherever the wanted end lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import ShippedReplica, manifests_of
from viewstamp.archive.archive_errors import PieceMissing
from viewstamp.archive.archive_objects import ArchiveObjects
from viewstamp.archive.packing import with_part
from viewstamp.archive.staging import Staging, WantedOfArchive, plan_of
from viewstamp.format.archive_manifest import ArchivedSnapshot, ArchiveManifest
from viewstamp.format.prepare import SealedPrepare

End = Callable[[SealedPrepare], WantedOfArchive]
ENDS: tuple[End, ...] = (
    lambda entry: WantedOfArchive(to_time_us=entry.timestamp),
    lambda entry: WantedOfArchive(to_revision=entry.last_revision),
)


@pytest.fixture
def with_gap(tmp_path: Path) -> tuple[ArchiveObjects, ArchiveManifest, list[SealedPrepare]]:
    """An archive of 11 entries, each in a piece, that lacks the entries 4 to 7."""
    store = MemoryStore()
    replica = ShippedReplica(tmp_path / "data", options={"piece_bytes": 1})
    replica.append(12)
    replica.ship(store)
    chain = manifests_of(store)
    found = chain.wanted().manifest
    parts = found.parts[:3] + found.parts[7:]
    return chain.objects, replace(found, parts=parts, gaps=((4, 7),)), replica.entries


@pytest.mark.parametrize("end_at", ENDS)
def test_a_gap_before_the_end_is_told(
    with_gap: tuple[ArchiveObjects, ArchiveManifest, list[SealedPrepare]], end_at: End
) -> None:
    """An end within the gap or behind it is refused, and one before the gap is reached."""
    objects, manifest, entries = with_gap
    for op in (6, 9):
        with pytest.raises(PieceMissing, match="has no entries 4 to 7"):
            plan_of(objects, manifest, end_at(entries[op - 1]))
    plan = plan_of(objects, manifest, replace(end_at(entries[2]), accept_gaps=True))
    assert plan.pieces[-1].last_op == 3


def test_a_revision_before_the_gap_needs_nothing_of_it(
    with_gap: tuple[ArchiveObjects, ArchiveManifest, list[SealedPrepare]],
) -> None:
    """The last revision before a gap is restored without any loss to be accepted."""
    objects, manifest, entries = with_gap
    plan = plan_of(objects, manifest, WantedOfArchive(to_revision=entries[2].last_revision))
    assert ([piece.last_op for piece in plan.pieces], plan.lost) == ([1, 2, 3], "")


def test_what_an_accepted_gap_costs_is_told(
    with_gap: tuple[ArchiveObjects, ArchiveManifest, list[SealedPrepare]], tmp_path: Path
) -> None:
    """A restore that accepts gaps says which entry the log ends before."""
    objects, manifest, entries = with_gap
    wanted = WantedOfArchive(to_time_us=entries[5].timestamp, accept_gaps=True)
    plan = plan_of(objects, manifest, wanted)
    staging = Staging(objects, tmp_path / "staged")
    staging.fetch(plan, lambda *_: None, accept_gaps=True)
    assert "has no entries 4 to 7" in staging.lost
    assert [piece.last_op for piece in plan.pieces] == [1, 2, 3]


def test_what_is_missing_behind_the_oldest_snapshot_is_a_gap(
    with_gap: tuple[ArchiveObjects, ArchiveManifest, list[SealedPrepare]],
) -> None:
    """Also where retention has left no entry, a hole between the snapshot and the log is named."""
    _, manifest, _ = with_gap
    snapshot = ArchivedSnapshot(1, 5, 5, 1, 1, 1, b"c" * 16, bytes(32))
    bare = replace(manifest, parts=(), gaps=(), snapshots=(snapshot,))
    part = manifest.parts[-1]
    assert with_part(bare, part).gaps == ((6, part.first_op - 1),)
    assert with_part(replace(bare, snapshots=()), part).gaps == ()
