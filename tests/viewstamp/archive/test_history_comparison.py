"""An archive of another history gets neither a snapshot nor parts behind a hole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testkit.journal_builders import chain
from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import ShippedReplica, manifests_of
from viewstamp.archive.archive_errors import OtherHistory
from viewstamp.archive.archive_objects import part_name
from viewstamp.archive.committed_chain import CommittedChain, CommittedHead, EntryPlace
from viewstamp.archive.history_comparison import check_same_history, checksum_at
from viewstamp.archive.manifest_chain import ManifestChain
from viewstamp.format.archive_manifest import ArchivedSnapshot
from viewstamp.format.prepare import SealedPrepare

ARCHIVED = 10
OTHER = b"o" * 16


@pytest.fixture
def shipped(tmp_path: Path) -> tuple[MemoryStore, ShippedReplica]:
    """An archive of ten entries in pieces of about three, and their replica."""
    store = MemoryStore()
    replica = ShippedReplica(tmp_path / "data", options={"piece_bytes": 700})
    replica.append(ARCHIVED)
    last = replica.entries[-1]
    assert replica.ship(store, told=CommittedHead(last.op, last.checksum)).archived_op == ARCHIVED
    return store, replica


def check(
    chain_of: ManifestChain,
    found: frozenset[bytes] = frozenset(),
    *committed: CommittedHead,
    told: CommittedHead | None = None,
) -> None:
    """Compare with the newest manifest."""
    manifest = chain_of.wanted().manifest
    check_same_history(chain_of.objects, manifest, found, committed, told)


def test_entries_of_the_same_ops_are_compared(
    shipped: tuple[MemoryStore, ShippedReplica],
) -> None:
    """An entry of any archived op decides; without one the archive must not go further."""
    store, replica = shipped
    chain_of = manifests_of(store)
    heads = [CommittedHead(entry.op, entry.checksum) for entry in replica.entries]
    check(chain_of, frozenset((heads[-1].checksum, OTHER)), told=CommittedHead(3, OTHER))
    for head in heads:
        check(chain_of, frozenset(), head, told=head)
        with pytest.raises(OtherHistory, match=rf"entry {head.op} is {OTHER.hex()} here"):
            check(chain_of, frozenset(), replace(head, checksum=OTHER), told=head)
    with pytest.raises(OtherHistory, match=r"entry 10 is .* here and .* in the archive"):
        check(chain_of, frozenset((OTHER,)))
    check(chain_of, frozenset(), CommittedHead(11, OTHER), told=CommittedHead(11, OTHER))


def test_what_the_archive_cannot_compare_must_not_lie_below_it(
    shipped: tuple[MemoryStore, ShippedReplica],
) -> None:
    """A replica whose newest committed entry is in a lost piece of the archive is refused."""
    store, replica = shipped
    chain_of = manifests_of(store)
    manifest = chain_of.wanted().manifest
    lost = manifest.parts[1]
    del store.objects_by_name[part_name(lost)]
    entry = replica.entries[lost.first_op - 1]
    told = CommittedHead(entry.op, entry.checksum)
    with pytest.raises(OtherHistory, match=f"committed to {entry.op} only"):
        check(chain_of, frozenset(), told, told=told)
    snapshot = ArchivedSnapshot(1, entry.op, 1, 1, 1, 1, OTHER, bytes(32))
    with_snapshot = replace(manifest, snapshots=(snapshot,))
    assert checksum_at(chain_of.objects, with_snapshot, entry.op) == OTHER
    assert checksum_at(chain_of.objects, replace(manifest, parts=manifest.parts[2:]), 1) is None


def test_a_disk_that_was_put_back_is_refused(
    shipped: tuple[MemoryStore, ShippedReplica], tmp_path: Path
) -> None:
    """A replica that wrote other entries for archived ops is refused before it comes further."""
    store, replica = shipped
    forked = ShippedReplica(tmp_path / "forked", replica_count=1)
    forked.take(replica.entries[:5])
    forked.take(chain(3, after=forked.entries[-1], commit=5, view=3))
    last = forked.entries[-1]
    before = dict(store.objects_by_name)
    with (
        forked.shipper(store) as shipper,
        pytest.raises(OtherHistory, match=rf"entry 8 is {last.checksum.hex()} here"),
    ):
        shipper.round(CommittedHead(last.op, last.checksum))
    assert store.named("log/") == sorted(name for name in before if name.startswith("log/"))


def test_a_journal_remembers_what_it_has_at_the_end_of_the_archive() -> None:
    """The checksums at the last archived op are known whether they are read before it or after."""
    entries: list[SealedPrepare] = chain(3, after=None, commit=0)
    places = [EntryPlace(e.op, e.checksum, e.parent, 0, 1, 1, 1, 1) for e in entries]
    found = CommittedChain()
    found.add(places[0])
    found.ship(CommittedHead(1, places[0].checksum))
    assert found.found_at_shipped() == {places[0].checksum}
    found.ship(CommittedHead(2, OTHER))
    assert found.found_at_shipped() == frozenset()
    found.add(places[1])
    found.add(places[2])
    assert found.found_at_shipped() == {places[1].checksum}
    found.forget()
    assert (len(found), found.found_at_shipped()) == (0, frozenset())
