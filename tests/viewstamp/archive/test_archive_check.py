"""What a verification finds, beyond the drills of a restore."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import (
    KEY,
    ShippedReplica,
    manifests_of,
    newest_of,
    verified,
)
from viewstamp.archive.archive_check import check_archive_objects
from viewstamp.archive.archive_errors import StoreUnreachable, WrongKey
from viewstamp.format.archive_manifest import ArchivedSnapshot

PIECES = 130


@pytest.fixture
def replica(tmp_path: Path) -> ShippedReplica:
    """A replica whose entries are a piece each."""
    return ShippedReplica(tmp_path / "data", options={"piece_bytes": 1})


def test_a_snapshot_of_another_log_is_found(replica: ShippedReplica) -> None:
    """A snapshot that was cut at another entry than the log has does not belong to it."""
    store = MemoryStore()
    replica.append(5)
    replica.ship(store)
    foreign = ArchivedSnapshot(1, 3, 3, 1, 1, 1, b"x" * 16, bytes(32))
    manifest = replace(newest_of(store), snapshots=(foreign,))
    objects = manifests_of(store).objects
    verdict = check_archive_objects(objects, manifest, lambda *_: None)
    told = [problem.message for problem in verdict.problems]
    assert any("entry 3 is " in each and "a snapshot was cut at" in each for each in told)
    assert [each.first_revision for each in verdict.restorable] == [0]


def test_an_index_that_is_gone_is_named(replica: ShippedReplica) -> None:
    """Without an index the pieces below it are lost to readers; those behind it are not."""
    store = MemoryStore()
    replica.append(PIECES)
    replica.ship(store)
    manifest = newest_of(store)
    assert [part.level for part in manifest.parts] == [1, 0]
    assert verified(store).is_whole
    (index,) = store.named("indexes/")
    del store.objects_by_name[index]
    verdict = verified(store)
    assert [problem.name for problem in verdict.problems] == [index]
    assert verdict.restorable == []


def test_what_says_nothing_of_the_archive_ends_a_verification(replica: ShippedReplica) -> None:
    """A store that is away, and a key that is not there, are no damage."""
    store = MemoryStore()
    replica.append(3)
    replica.ship(store, (KEY,))
    manifest = newest_of(store, (KEY,))
    with pytest.raises(WrongKey):
        check_archive_objects(manifests_of(store).objects, manifest, lambda *_: None)
    store.fails_at = store.calls + 1
    with pytest.raises(StoreUnreachable):
        check_archive_objects(manifests_of(store, (KEY,)).objects, manifest, lambda *_: None)
