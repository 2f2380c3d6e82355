"""What retention gives up, and that nothing goes that anybody may still read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import ShippedReplica, manifests_of, newest_of, verified
from viewstamp.archive.archive_objects import ArchiveObjects, archive_name, part_name
from viewstamp.archive.packing import packed
from viewstamp.archive.retention import (
    GRACE_MS_MIN,
    SNAPSHOTS_KEPT_MAX,
    SNAPSHOTS_THINNED,
    Retention,
    collect,
    given_up,
    kept_snapshots,
    without_old_drops,
)
from viewstamp.archive.staging import WantedOfArchive, plan_of
from viewstamp.format.archive_manifest import ArchivedSnapshot, ArchiveManifest
from viewstamp.format.archive_parts import LogPart, encode_index, index_part

MINUTE_US = 60_000_000
GRACE = Retention(keep_snapshots=1, grace_ms=GRACE_MS_MIN)


def snapshot(generation: int) -> ArchivedSnapshot:
    """Return a snapshot that was cut in this minute, at the tenth op of it."""
    op = 10 * generation
    return ArchivedSnapshot(generation, op, op, generation * MINUTE_US, 1, 1, b"c" * 16, bytes(32))


def manifest(snapshots: int, **fields: object) -> ArchiveManifest:
    """Return a manifest with snapshots of the first minutes."""
    found = tuple(map(snapshot, range(1, snapshots + 1)))
    return replace(ArchiveManifest(bytes(16), 1, 0, 0, snapshots=found), **fields)  # type: ignore[arg-type]  # of a test


def part_of(first_op: int, last_op: int) -> LogPart:
    """Return a piece of these ops, as a manifest has it."""
    digest, head = bytes(32), b"p" * 16
    return LogPart(0, first_op, last_op, first_op, last_op, 1, 1, 9, head, head, digest)


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(), [1, 2, 3, 4, 5, 6]),
        (Retention(keep_snapshots=2), [5, 6]),
        (Retention(keep_snapshots=9), [1, 2, 3, 4, 5, 6]),
        (Retention(keep_ms=1), [5, 6]),
        (Retention(keep_ms=60_000), [5, 6]),
        (Retention(keep_ms=150_000), [3, 4, 5, 6]),
        (Retention(keep_ms=99_000_000), [1, 2, 3, 4, 5, 6]),
        (Retention(keep_snapshots=3, keep_ms=240_000), [4, 5, 6]),
        (Retention(keep_snapshots=4, keep_ms=60_000), [5, 6]),
    ],
)
def test_kept_snapshots(retention: Retention, kept: list[int]) -> None:
    """So many are kept, and one from before the age, so that every moment of it can be restored."""
    found = kept_snapshots(manifest(6), retention)
    assert [each.generation for each in found] == kept


def test_a_manifest_has_its_bound() -> None:
    """Without any retention older snapshots go, and none without which something is lost."""
    found = manifest(SNAPSHOTS_KEPT_MAX + 9)
    op, gap = found.snapshots[-1].cut_op, (found.snapshots[3].cut_op - 2, found.snapshots[3].cut_op)
    found = replace(found, parts=(part_of(1, gap[0] - 1), part_of(gap[1] + 1, op)), gaps=(gap,))
    objects = manifests_of(MemoryStore()).objects
    smaller = given_up(found, Retention(), objects, now_us=1)
    assert len(smaller.snapshots) == SNAPSHOTS_KEPT_MAX + 9 - SNAPSHOTS_THINNED
    assert (smaller.parts, smaller.gaps) == (found.parts, found.gaps)
    assert smaller.snapshots[0] == found.snapshots[0]
    assert smaller.snapshots[-500:] == found.snapshots[-500:]
    assert found.snapshots[3] in smaller.snapshots
    assert given_up(smaller, Retention(), objects, now_us=2) == smaller
    assert given_up(replace(found, parts=()), Retention(), objects, now_us=3).snapshots == (
        found.snapshots
    )


def test_what_is_asked_for_is_kept_although_a_manifest_has_its_bound() -> None:
    """More snapshots than a manifest has room for are thinned, and the log behind them stays."""
    found = manifest(SNAPSHOTS_KEPT_MAX + 50)
    found = replace(found, parts=(part_of(1, 60), part_of(61, found.snapshots[-1].cut_op)))
    kept = Retention(keep_snapshots=SNAPSHOTS_KEPT_MAX + 45)
    smaller = given_up(found, kept, manifests_of(MemoryStore()).objects, now_us=1)
    assert smaller.snapshots[0] == found.snapshots[5]
    assert smaller.parts == found.parts[1:]
    assert kept_snapshots(manifest(0), Retention(1, 1)) == ()


def test_the_log_goes_with_its_snapshots(tmp_path: Path) -> None:
    """Entries up to the oldest kept cut go from the manifest, which notes it; those behind stay."""
    replica, store = ShippedReplica(tmp_path / "data", options={"piece_bytes": 200}), MemoryStore()
    replica.append(30)
    replica.ship(store)
    chain = manifests_of(store)
    found = chain.wanted().manifest
    indexed = packed(found.parts, _writer(chain.objects), fanout=4)
    found = replace(found, parts=indexed, snapshots=manifest(2).snapshots, gaps=())
    smaller = given_up(found, GRACE, chain.objects, now_us=7)
    assert [each.generation for each in smaller.snapshots] == [2]
    assert smaller.parts[0].first_op <= 21 <= smaller.parts[0].last_op + 1
    assert smaller.last_op == found.last_op
    assert smaller.drops == ((found.number, 7),)
    assert given_up(smaller, GRACE, chain.objects, now_us=8) == smaller


def _writer(objects: ArchiveObjects) -> Callable[[Sequence[LogPart]], LogPart]:
    """Return what stores indexes."""

    def write(parts: Sequence[LogPart]) -> LogPart:
        data = encode_index(parts)
        part = index_part(parts, blake3(data).digest(), len(data))
        objects.put_checked(part_name(part), data)
        return part

    return write


def test_garbage_is_collected_after_its_time(tmp_path: Path) -> None:
    """What nobody names goes when it is old by the store's clock, and not a moment earlier."""
    replica, store = ShippedReplica(tmp_path / "data", options={"retention": GRACE}), MemoryStore()
    replica.append(4)
    replica.ship(store)
    orphan = f"log/{1:020d}-{2:020d}-{'0' * 64}.piece"
    others = ("log/access-2026.gz", "layers/holidays.jpg", "manifests/app.json")
    store.put(orphan, b"left by a shipper that died")
    store.put(f"layers/.unfinished-{1:016x}", b"left by a crash")
    store.put(f"manifests/.unfinished-{2:016x}", b"left by a crash")
    for name in others:
        store.put(name, b"of somebody else")
    assert replica.ship(store).collected_objects == 0
    store.now_us += 2 * MINUTE_US
    replica.append(1)
    report = replica.ship(store)
    assert report.collected_objects == 3
    assert not store.named("manifests/.")
    assert orphan not in store.objects_by_name and not store.named("layers/.")
    assert all(name in store.objects_by_name for name in others)
    assert verified(store).is_whole


def test_readers_of_an_older_manifest_keep_what_it_names(tmp_path: Path) -> None:
    """What a manifest gave up stays until the time of grace is over, and then goes."""
    replica, store = ShippedReplica(tmp_path / "data", options={"piece_bytes": 200}), MemoryStore()
    replica.append(12)
    replica.ship(store)
    chain = manifests_of(store)
    before = chain.wanted()
    pieces = len(store.named("log/"))
    cut = replace(
        before.manifest,
        number=before.manifest.number + 1,
        previous=before.digest,
        parts=before.manifest.parts[3:],
        drops=((before.manifest.number, 1),),
    )
    store.now_us += 10 * MINUTE_US
    written = chain.write(cut)
    assert written is not None
    assert collect(chain, cut, GRACE).objects == 0
    assert without_old_drops(chain, cut, GRACE_MS_MIN).drops == cut.drops
    store.now_us += 2 * MINUTE_US
    following = replace(cut, number=cut.number + 1, previous=written.digest)
    assert chain.write(following) is not None
    assert without_old_drops(chain, following, GRACE_MS_MIN).drops == ()
    assert collect(chain, replace(following, drops=()), GRACE).objects == 3
    assert len(store.named("log/")) == pieces - 3


def test_old_manifests_go(tmp_path: Path) -> None:
    """The newest manifests stay, and of the others only those that a time of grace counts from."""
    replica, store = ShippedReplica(tmp_path / "data"), MemoryStore()
    with replica.shipper(store) as shipper:
        for _ in range(70):
            replica.append(1)
            shipper.round()
    numbers = [int(name[10:30]) for name in store.named("manifests/0")]
    assert numbers == list(range(newest_of(store).number - 63, newest_of(store).number + 1))
    store.objects_by_name[archive_name(2)] = store.objects_by_name[archive_name(70 - 1)]
    chain = manifests_of(store)
    assert collect(chain, newest_of(store), GRACE).objects == 1
    plan = plan_of(chain.objects, newest_of(store), WantedOfArchive())
    assert plan.pieces[0].first_op == 1
