"""Manifests of two shippers at once, and a store that deletes and lists as it likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import (
    ShippedReplica,
    archived,
    manifests_of,
    newest_of,
    verified,
)
from viewstamp.archive.archive_errors import StoreUnreachable
from viewstamp.archive.archive_objects import archive_name, part_name
from viewstamp.archive.object_store import StoredObject

DAY_US = 24 * 3_600_000_000


@dataclass(slots=True)
class StoreWithOther(MemoryStore):
    """A store in which another shipper acts as soon as a certain name was written."""

    awaited: str = ""
    act: Callable[[], object] = lambda: None

    def create(self, name: str, data: bytes) -> bool:
        """Store an object, and let the other one act."""
        is_free = MemoryStore.create(self, name, data)
        if name == self.awaited:
            self.awaited = ""
            self.act()
        return is_free


@dataclass(slots=True)
class StoreThatKeeps(MemoryStore):
    """A store whose credentials may delete nothing."""

    def delete(self, name: str) -> None:
        """Refuse."""
        raise StoreUnreachable(f"{name} is not deleted: AccessDenied", "allow it")


@dataclass(slots=True)
class StoreThatListsBackwards(MemoryStore):
    """A store whose listings are in another order."""

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the last name first."""
        yield from reversed(list(MemoryStore.objects(self, prefix)))


def test_what_another_one_went_on_from_is_not_taken_back(tmp_path: Path) -> None:
    """A manifest stays that another shipper has built upon, and readers keep their time."""
    store = StoreWithOther()
    first = ShippedReplica(tmp_path / "first", options={"piece_bytes": 1})
    other = ShippedReplica(tmp_path / "other", replica_id=1, view=1)
    other.take(first.append(10))
    first.ship(store)
    chain = manifests_of(store)
    before = chain.wanted()
    store.now_us += 2 * DAY_US
    smaller = replace(
        before.manifest,
        number=before.manifest.number + 1,
        previous=before.digest,
        parts=before.manifest.parts[5:],
        drops=((before.manifest.number, 7),),
    )

    def ship_two() -> None:
        other.append(2)
        with other.shipper(store) as shipper:
            shipper.round()

    store.awaited, store.act = archive_name(smaller.number), ship_two
    assert chain.write(smaller) is not None
    assert newest_of(store).number == smaller.number + 1
    assert archive_name(smaller.number) in store.objects_by_name
    store.now_us += 1_000_000
    other.append(1)
    assert other.ship(store).collected_objects == 0
    assert all(part_name(part) in store.objects_by_name for part in before.manifest.parts)


def test_a_refused_deletion_does_not_stop_shipping(tmp_path: Path) -> None:
    """With credentials that only add objects the log is shipped, and old manifests stay."""
    store, replica = StoreThatKeeps(), ShippedReplica(tmp_path / "data")
    with replica.shipper(store) as shipper:
        for _ in range(68):
            replica.append(1)
            report = shipper.round()
    assert report.archived_op == 67
    assert len(store.named("manifests/0")) == 67
    assert archived(store) == replica.entries[:67]


def test_a_listing_in_another_order_deletes_nothing(tmp_path: Path) -> None:
    """What nobody names is found by the order of names, so a store without it keeps all."""
    store = StoreThatListsBackwards()
    replica = ShippedReplica(tmp_path / "data", options={"piece_bytes": 1})
    replica.append(6)
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match=r"lists .* behind .*"):
            replica.ship(store)
        store.now_us += 2 * DAY_US
        replica.append(1)
    assert verified(store).problems == []
