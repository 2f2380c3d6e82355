"""A peer's snapshot fetched here: only missing files, resumed, verified, and recorded at the
end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from opentelemetry.trace import StatusCode

from coordinator.snapshot import transfer as transfer_module
from coordinator.snapshot.errors import CopiesFailed, TransferFailed
from coordinator.snapshot.layout import layer_file, manifest_file
from coordinator.snapshot.partial_files import PartialFiles
from coordinator.vsr import SnapshotNeeded
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
    reserves,
)
from testkit.journal_builders import OTHER_CLUSTER_ID
from tests.coordinator.snapshot.files.transfer_trial import NEWEST, TransferTrial
from tests.viewstamp.telemetry.spans_for_tests import SdkSpans
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.manifest import (
    encode_manifest,
    root_of,
    section_of,
)
from viewstamp.telemetry import work


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(transfer_module, "RETRY_FIRST_MS", 0)
    monkeypatch.setattr(transfer_module, "RETRY_MAX_MS", 0)


async def test_everything_is_fetched(tmp_path: Path) -> None:
    """An empty replica gets all layers and the manifest in three copies, and records it once."""
    trial = TransferTrial(tmp_path)
    await trial.run()
    assert trial.recorded == [(NEWEST, 10 * NEWEST)]
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state
    assert trial.files.problems(NEWEST) == []
    assert trial.fetcher.bytes_sent == sum(trial.peer.references.values())
    for directory in COPY_DIRECTORIES:
        name = f"{directory}/{manifest_file(NEWEST)}"
        assert trial.storage.content(name) == trial.peer.manifests[NEWEST]
    assert not trial.leftovers()
    assert set(trial.fetcher.sent_by) == {0, 1}, "one peer sent everything"


async def test_attempts_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt has a trace, which is an error unless it ends in the restart.

    The names of peers' files, which errors contain, are in no span.
    """
    kept = SdkSpans()
    monkeypatch.setattr(work, "tracer", kept.tracer)
    trial = TransferTrial(tmp_path)
    trial.fetcher.chunks_left = 1
    await trial.run()
    broken, done = [span for span in kept.spans if span.parent is None]
    below = [(span.name, span.parent) for span in kept.spans if span.parent is not None]
    parts = ("fetch manifest", "fetch layers")
    assert below == [(name, root.context) for root in (broken, done) for name in parts]
    assert {broken.name, done.name} == {"transfer"}
    assert broken.status.status_code is StatusCode.ERROR
    assert (broken.attributes or {})["error.type"] == "PeerFileUnavailable"
    assert done.status.status_code is StatusCode.UNSET
    told = [dict(span.attributes or {}) for span in (broken, done)]
    assert told[1].keys() == {"viewstamp.generation", "viewstamp.bytes"}
    assert {one["viewstamp.generation"] for one in told} == {NEWEST}
    fetched = trial.fetcher.bytes_sent + 2 * len(trial.peer.manifests[NEWEST])
    assert sum(cast(int, one["viewstamp.bytes"]) for one in told) == fetched
    assert not any(span.events or span.status.description for span in kept.spans)


async def test_only_what_lacks_is_fetched(tmp_path: Path) -> None:
    """Existing layers are not fetched; bad copies of them are repaired."""
    trial = TransferTrial(tmp_path)
    Sections(trial.files).write(1, entities(1, 8))  # the same state: the same layers
    (base, delta) = section_of(trial.peer.manifest, 2).layers
    damaged = f"{COPY_DIRECTORIES[1]}/{layer_file(base.digest)}"
    trial.storage.unlink(damaged)
    await trial.run()
    assert trial.fetcher.bytes_sent == delta.size_bytes
    assert trial.storage.content(damaged) == trial.peer.layer(base.digest)


async def test_what_is_damaged_in_every_copy_is_fetched_anew(tmp_path: Path) -> None:
    """A damaged layer or manifest here does not prevent fetching the peers' one."""
    trial = TransferTrial(tmp_path)
    mine = Sections(trial.files)
    mine.write(1, entities(1, 8))
    mine.write(NEWEST, {2: {(1, b"000100"): b"new" * 300}})
    (base, _) = section_of(trial.peer.manifest, 2).layers
    for directory in COPY_DIRECTORIES:
        trial.storage.flip(f"{directory}/{layer_file(base.digest)}", 100)
        trial.storage.flip(f"{directory}/{manifest_file(NEWEST)}", 100)
    await trial.run()
    assert trial.fetcher.bytes_sent == base.size_bytes
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_goes_on_where_it_was(tmp_path: Path) -> None:
    """An interrupted fetch, and a process that dies, transfer no byte twice."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.chunks_left = 1
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: len(trial.fetcher.asked) >= 2 and bool(trial.said))
    trial.files.close()
    trial.files = open_files(trial.storage, replica_id=2)
    trial.transfer = trial.begin()
    await trial.run()
    assert trial.fetcher.bytes_sent == sum(trial.peer.references.values())
    offsets = [offset for what, _, _, offset in trial.fetcher.asked if what == "layer"]
    assert any(offsets)


async def test_damaged_layer_is_fetched_anew(tmp_path: Path) -> None:
    """A layer whose bytes do not match its digest never gets its name, and is fetched again."""
    trial = TransferTrial(tmp_path)
    digest = next(iter(trial.peer.references))
    trial.fetcher.flipped.add(digest)
    await trial.run()
    assert any("came with the digest" in each for each in trial.said)
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state
    assert (
        trial.fetcher.bytes_sent
        == sum(trial.peer.references.values()) + (trial.peer.references[digest])
    )


async def test_next_peer_has_the_manifest(tmp_path: Path) -> None:
    """If the named peer no longer has the manifest, the others are asked."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.gone = {1}
    await trial.run()
    asked = [peers for what, peers, _, _ in trial.fetcher.asked if what == "manifest"]
    assert asked == [(1,), (0,), (1,)], "replica 1 is asked again which layers it has"


def other_cluster(manifest: SnapshotManifest) -> None:
    """Turn the manifest into one of another cluster."""
    manifest.cluster_id = OTHER_CLUSTER_ID


def other_generation(manifest: SnapshotManifest) -> None:
    """Turn the manifest into one of another generation."""
    manifest.generation = 7
    manifest.root = root_of(manifest)


def other_cut(manifest: SnapshotManifest) -> None:
    """Turn the manifest into one of another entry than the peer said."""
    manifest.cut_op += 1
    manifest.root = root_of(manifest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_cut, "was cut at op 21, not at 20"),
        (other_cluster, "is of cluster"),
        (other_generation, "is of generation 7"),
        (None, "checksum"),
    ],
)
async def test_wrong_manifest(
    tmp_path: Path, change: Callable[[SnapshotManifest], None] | None, words: str
) -> None:
    """A manifest that is damaged or of something else is refused by name; nothing is fetched."""
    trial = TransferTrial(tmp_path)
    good = trial.peer.manifests[NEWEST]
    if change is None:
        trial.peer.manifests[NEWEST] = good[:-1] + bytes([good[-1] ^ 1])
    else:
        changed = SnapshotManifest()
        changed.CopyFrom(trial.peer.manifest)
        change(changed)
        trial.peer.manifests[NEWEST] = encode_manifest(changed)
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: bool(trial.said))
    assert words in trial.said[0]
    assert trial.fetcher.bytes_sent == 0
    assert trial.recorded == []
    trial.peer.manifests[NEWEST] = good
    await trial.run()


async def test_newer_generation_replaces_one_that_is_gone(tmp_path: Path) -> None:
    """Once peers have deleted a generation and name a newer one, the newer is fetched."""
    trial = TransferTrial(tmp_path)
    del trial.peer.manifests[1]
    trial.transfer.needed(SnapshotNeeded(1, 1, 10))
    await trial.until(lambda: bool(trial.said))
    assert "snapshot 1 cannot be fetched" in trial.said[0]
    await trial.run(NEWEST)
    assert trial.recorded == [(NEWEST, 20)]


async def test_older_generation_is_ignored(tmp_path: Path) -> None:
    """A peer that is behind others does not set a transfer back."""
    trial = TransferTrial(tmp_path)
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    trial.transfer.needed(SnapshotNeeded(1, 1, 10))
    await trial.run()
    assert trial.recorded == [(NEWEST, 20)]


async def test_log_that_catches_up_needs_no_snapshot(tmp_path: Path) -> None:
    """If a peer still had the entries, the transfer ends, and nothing is recorded."""
    trial = TransferTrial(tmp_path)

    def caught_up() -> None:
        trial.held_op = 20

    trial.fetcher.before_layer = caught_up
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: trial.ended == 1)
    assert trial.recorded == []
    assert not trial.leftovers()
    # The layers fetched so far are garbage like any other.
    Sections(trial.files).write(9, entities(9, 1))
    trial.files.collect_garbage([], 9)
    assert trial.files.generations() == [9]


async def test_a_generation_that_was_given_up_is_brought_once_it_is_needed_again(
    tmp_path: Path,
) -> None:
    """Damage that shows later lies below a cut that the log had reached without the snapshot."""
    trial = TransferTrial(tmp_path)
    trial.held_op = 20
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: trial.ended == 1)
    trial.held_op = 7

    await trial.run(NEWEST)

    assert trial.recorded == [(NEWEST, 20)]


async def test_log_that_catches_up_behind_damage_needs_the_snapshot(tmp_path: Path) -> None:
    """The transfer goes on when only entries behind a damaged one arrive."""
    trial = TransferTrial(tmp_path)

    def caught_up() -> None:
        trial.held_op = 19  # the damaged entry is the last one before the cut

    trial.fetcher.before_layer = caught_up
    await trial.run()
    assert trial.recorded == [(NEWEST, 20)]


async def test_damage_that_peers_have_truncated(tmp_path: Path) -> None:
    """Entries that are damaged here do not end the transfer, even if they were applied."""
    trial = TransferTrial(tmp_path)
    trial.held_op, trial.own_cut_op = 15, 10
    await trial.run()
    assert trial.recorded == [(NEWEST, 20)]


async def test_own_snapshot_covers_the_damage(tmp_path: Path) -> None:
    """A restart suffices where the own snapshot reaches as far as the peer's."""
    trial = TransferTrial(tmp_path)
    trial.held_op, trial.own_cut_op = 15, 20
    await trial.run()
    assert trial.recorded == []
    assert trial.fetcher.asked == []


async def test_leftovers_of_no_use_are_removed(tmp_path: Path) -> None:
    """Files that an earlier process fetched are removed once the log has caught up by itself."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.chunks_left = 1
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: any("nobody sends" in each for each in trial.said))
    trial.directory.mkdir(exist_ok=True)
    (trial.directory / "manifest").write_bytes(trial.peer.manifests[NEWEST])
    trial.held_op = 20
    trial.transfer = trial.begin()
    await trial.until(lambda: not trial.leftovers())


async def test_garbage_and_deletions_leave_it_alone(tmp_path: Path) -> None:
    """Neither garbage collection nor an abandoned cut of that number takes the files in
    transfer."""
    trial = TransferTrial(tmp_path)
    Sections(trial.files).write(1, entities(7, 2))

    def collect() -> None:
        trial.files.collect_garbage([1], 1)
        trial.files.delete(NEWEST)

    trial.fetcher.before_layer = trial.before_record = collect
    await trial.run()
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_generation_of_a_cut_that_was_never_committed(tmp_path: Path) -> None:
    """A local generation that was cut at another entry makes way for the peers' one."""
    trial = TransferTrial(tmp_path)
    mine = Sections(trial.files)
    mine.write(1, entities(7, 2))
    manifest = trial.files.written_manifest(1)
    assert manifest is not None
    # Another entry at the same op, as an uncommitted suffix may have had.
    trial.files.delete(1)
    other = SnapshotManifest()
    other.CopyFrom(manifest)
    other.generation, other.cut_checksum = NEWEST, b"o" * 16
    other.root = root_of(other)
    trial.files.write_manifest(other)
    await trial.run()
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_another_cut_of_the_generation_to_restart_from(tmp_path: Path) -> None:
    """The superblock never names a cut at an uncommitted entry, so it overrides every peer."""
    trial = TransferTrial(tmp_path)
    mine = Sections(trial.files)
    mine.write(1, entities(1, 8))
    mine.write(NEWEST, {2: {(1, b"000100"): b"other" * 100}})
    assert mine.manifest is not None
    trial.adopted = NEWEST
    other = SnapshotManifest()
    other.CopyFrom(trial.peer.manifest)
    other.cut_checksum = b"o" * 16
    other.root = root_of(other)
    trial.peer.manifests[NEWEST] = encode_manifest(other)
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: bool(trial.said))
    assert "which this replica restarts from" in trial.said[0]
    assert loaded_state(trial.files, NEWEST) == mine.state


async def test_a_damaged_manifest_to_restart_from_stays(tmp_path: Path) -> None:
    """No file of the generation that the superblock names is deleted: a restart repairs it."""
    trial = TransferTrial(tmp_path)
    Sections(trial.files).write(NEWEST, entities(1, 8))
    name = manifest_file(NEWEST)
    for directory in COPY_DIRECTORIES:
        trial.storage.flip(f"{directory}/{name}", 100)
    trial.adopted = NEWEST
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: bool(trial.said))
    assert trial.files.generations() == [NEWEST]


async def test_peers_whose_manifests_are_too_new(tmp_path: Path) -> None:
    """The next peer is asked; if no peer has a readable manifest, the operator is told."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.too_new = {0, 1}
    trial.transfer.needed(SnapshotNeeded(1, NEWEST, 20))
    await trial.until(lambda: bool(trial.said))
    assert "start one here" in trial.said[0]
    trial.fetcher.too_new = {1}
    await trial.run()
    assert trial.recorded == [(NEWEST, 20)]


async def test_same_cut_with_another_root_is_divergence(tmp_path: Path) -> None:
    """This replica's own files of the same cut are not thrown away; the operator is told."""
    trial = TransferTrial(tmp_path)
    mine = Sections(trial.files)
    mine.write(1, entities(1, 8))
    mine.write(NEWEST, {2: {(1, b"000100"): b"other" * 100}})
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: bool(trial.said))
    assert "has diverged" in trial.said[0]
    assert trial.recorded == []
    assert loaded_state(trial.files, NEWEST) == mine.state


async def test_superblock_that_cannot_be_written_yet(tmp_path: Path) -> None:
    """If recording is refused, the refusal is reported and recording retried; no layer comes
    twice."""
    trial = TransferTrial(tmp_path)
    trial.refusing = [TransferFailed("no superblock yet")]
    await trial.run()
    assert any("no superblock yet" in each for each in trial.said)
    assert trial.fetcher.bytes_sent == sum(trial.peer.references.values())


async def test_full_disk(tmp_path: Path) -> None:
    """A full disk is named, existing files stay, and the transfer goes on once there is room."""
    storage = memory()
    trial = TransferTrial(tmp_path, storage)
    mine = Sections(trial.files)
    mine.write(1, entities(7, 2))
    storage.capacity_bytes -= storage.free_bytes("")
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: any("free space" in each for each in trial.said))
    assert loaded_state(trial.files, 1) == mine.state
    storage.capacity_bytes = 1 << 40
    await trial.run()
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_what_is_fetched_may_use_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk a fetched snapshot may use the space reserved for snapshots."""
    trial = TransferTrial(tmp_path)
    mine = Sections(trial.files)
    trial.files.rebuild_reserve(mine.write(1, entities(7, 2)))
    assert all(reserves(trial.files))
    append = PartialFiles.append

    def append_if_there_is_room(files: PartialFiles, name: str, data: bytes) -> None:
        if any(reserves(trial.files)):
            raise OSError(errno.ENOSPC, "planted: no space left on device")
        append(files, name, data)

    monkeypatch.setattr(PartialFiles, "append", append_if_there_is_room)
    await trial.run()
    assert any("planted" in each for each in trial.said)
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_failed_sync_ends_the_process(tmp_path: Path) -> None:
    """After a failed sync the durable state is unknown, so the transfer is not tried again."""
    storage = memory()
    trial = TransferTrial(tmp_path, storage)
    storage.failing_syncs.add(storage.syncs)
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    with pytest.raises(CopiesFailed):
        async with asyncio.timeout(30):
            await trial.transfer.run()
    assert trial.recorded == []
