"""The scrubber reads the files of snapshots: copies are repaired, and files come from peers."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path

import pytest

from coordinator.scrub.ports import ScrubAlarm
from coordinator.scrub.remedies import DamagedPart
from coordinator.snapshot.errors import (
    CopiesFailed,
    CopyNotWritten,
    PeerFileUnavailable,
    TransferFailed,
)
from coordinator.snapshot.file_mending import DecidedManifests, FileMending
from coordinator.snapshot.layout import layer_file
from testkit.generation_builders import COPY_DIRECTORIES, entities, loaded_state
from testkit.journal_builders import CLUSTER_ID
from tests.coordinator.scrub.scrub_trial import NEWEST, ScrubTrial
from tests.coordinator.snapshot.files.transfer_trial import FakeFetcher, Peer
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.manifest import section_of

COPY, FILE = DamagedPart.COPY, DamagedPart.FILE


def copy_of(name: str, copy: int) -> str:
    """Return the path of a copy."""
    return f"{COPY_DIRECTORIES[copy]}/{name}"


@pytest.mark.parametrize("copy", [0, 1, 2])
@pytest.mark.parametrize("how", ["rotten", "short", "missing", "unreadable"])
async def test_a_copy_is_made_anew(copy: int, how: str) -> None:
    """Whatever is wrong with a copy, it is whole after a pass, by the way that other repairs
    take."""
    trial = ScrubTrial()
    name = trial.names()[0]
    path = copy_of(name, copy)
    if how == "rotten":
        trial.rot(name, copy)
    elif how == "short":
        trial.storage.replace(path, trial.storage.content(path)[:-1])
    elif how == "missing":
        trial.storage.remove(path)
    else:
        trial.storage.unreadable.add(path)
        trial.storage.before_read = lambda read: (
            trial.storage.unreadable.discard(path) if f"rename {path}" in _last(trial) else None
        )
    await trial.until(lambda: trial.tally.found[COPY] == 1)
    if how != "unreadable":
        assert trial.is_whole(name)
        assert trial.tally.mended[COPY] == 1
    assert trial.reported.names == [name]


def _last(trial: ScrubTrial) -> str:
    renames = [step for step in trial.storage.log if step.startswith("rename")]
    return f"rename {renames[-1].split()[-1]}" if renames else ""


async def test_bad_manifests_are_made_anew() -> None:
    """A manifest is repaired from its other copies, as a layer is."""
    trial = ScrubTrial()
    trial.rot(trial.manifest(), 2)
    await trial.passes()
    assert trial.is_whole(trial.manifest())


async def test_an_alarm_ends_once_the_file_was_read_again() -> None:
    """What others have told of a file stays until all of its copies were read and are whole."""
    trial = ScrubTrial()
    name = trial.names()[0]
    trial.alarms.tell(ScrubAlarm.COPY_BAD, "repaired at the start", name)
    trial.alarms.tell(ScrubAlarm.COPY_BAD, "of a file that is gone", "layers/gone.layer")
    await trial.passes()
    assert not trial.alarms.raised


async def test_what_is_collected_while_it_is_read_is_no_damage() -> None:
    """A collection between the first look and the second one leaves nothing to tell."""
    trial = ScrubTrial()
    old = [each for each in trial.names() if trial.is_whole(each)]

    def collect(path: str) -> None:
        if "/layers/" in path:
            trial.storage.before_read = lambda path: None
            trial.sections.write(3, entities(3, 2))
            trial.files.delete(1)
            trial.files.delete(NEWEST)
            trial.files.collect_garbage((), 3)

    trial.storage.before_read = collect
    await trial.passes(2)
    assert old
    assert trial.tally.found.total() == 0
    assert not trial.alarms.ever


async def test_a_file_replaced_while_it_is_read_is_no_damage() -> None:
    """A copy that is good at the second look, with its generation pinned, was never bad."""
    trial = ScrubTrial()
    path = copy_of(trial.names()[0], 0)
    good = trial.storage.content(path)
    trial.storage.replace(path, good[:-1])

    def replaced(read: str) -> None:
        if read == copy_of(trial.names()[0], 1):
            trial.storage.replace(path, good)

    trial.storage.before_read = replaced
    await trial.passes()
    assert trial.tally.found.total() == 0
    assert not trial.reported.names


async def test_a_directory_that_is_not_mounted_is_told() -> None:
    """The replica goes on, tells which directory it is, and what each file lacks."""
    trial = ScrubTrial()
    directory = COPY_DIRECTORIES[1]
    trial.storage.open_errors[f"{directory}/manifests"] = errno.ENOENT
    await trial.passes()
    assert any(directory in each for each in trial.alarms.texts(ScrubAlarm.COPY_BAD))
    trial.storage.open_errors.clear()
    await trial.passes()
    assert not trial.alarms.raised


async def test_a_full_disk_leaves_a_copy_bad_and_counted() -> None:
    """A copy that cannot be rewritten stays known as bad, and is mended once there is room."""
    trial = ScrubTrial()
    name = trial.names()[0]
    trial.storage.remove(copy_of(name, 1))
    trial.storage.capacity_bytes -= trial.storage.free_bytes("")
    await trial.until(lambda: trial.tally.standing[COPY] == 1)
    assert trial.tally.mended[COPY] == 0
    trial.storage.capacity_bytes += 1 << 30
    await trial.until(lambda: trial.tally.mended[COPY] == 1)
    assert trial.is_whole(name)
    assert trial.tally.found[COPY] == 1


async def test_a_failed_sync_of_a_repair_ends_the_process() -> None:
    """What is durable is unknown then."""
    trial = ScrubTrial()
    trial.storage.remove(copy_of(trial.names()[0], 1))
    trial.storage.failing_syncs.add(trial.storage.syncs)
    with pytest.raises(CopiesFailed):
        await trial.passes()


async def test_nothing_is_built_on_a_layer_without_a_copy() -> None:
    """A lone replica tells people, and refuses to go on from the layer until it is back."""
    trial = ScrubTrial(replica_count=1)
    reference = section_of(_stored(trial, NEWEST), 2).layers[0]
    name = layer_file(reference.digest)
    good = trial.storage.content(copy_of(name, 0))
    trial.rot(name)
    await trial.passes()
    (text,) = trial.alarms.texts(ScrubAlarm.COPY_BAD)
    assert "no copy of" in text
    assert "Bring the file back" in text
    assert trial.tally.standing[FILE] == 1
    with pytest.raises(CopyNotWritten, match="bring the file back first"):
        trial.sections.write(3, entities(3, 2))
    trial.storage.replace(copy_of(name, 0), good)
    await trial.until(lambda: not trial.alarms.raised)
    trial.files.unsound.check(3, [reference.digest])
    assert trial.is_whole(name)


@pytest.mark.parametrize("replica_count", [1, 3])
async def test_a_manifest_in_memory_needs_no_peers(replica_count: int) -> None:
    """The manifest from which the replica would restart is written anew as it was."""
    trial = ScrubTrial(replica_count=replica_count)
    trial.in_memory[NEWEST] = _stored(trial, NEWEST)
    good = trial.storage.content(copy_of(trial.manifest(), 0))
    trial.rot(trial.manifest())
    await trial.until(lambda: trial.tally.mended[FILE] == 1)
    for copy in range(len(COPY_DIRECTORIES)):
        assert trial.storage.content(copy_of(trial.manifest(), copy)) == good
    await trial.until(lambda: not trial.alarms.raised)
    assert trial.tally.standing[FILE] == 0


async def test_a_manifest_in_memory_waits_for_room() -> None:
    """On a full disk it stays damaged and told, until there is room."""
    trial = ScrubTrial(replica_count=1)
    trial.in_memory[NEWEST] = _stored(trial, NEWEST)
    trial.rot(trial.manifest())
    trial.storage.capacity_bytes -= trial.storage.free_bytes("")
    await trial.until(lambda: trial.tally.standing[FILE] == 1)
    trial.storage.capacity_bytes += 1 << 30
    await trial.until(lambda: trial.tally.mended[FILE] == 1)


async def test_no_manifest_of_another_root_is_taken(tmp_path: Path) -> None:
    """Whoever has diverged sends nothing: the root must be the one that the cluster decided."""
    fetcher = FakeFetcher(Peer())
    decided = fetcher.peer.manifest.root
    for root, is_taken in ((decided, True), (b"", True), (b"other", False)):
        checked = DecidedManifests(fetcher, lambda generation: root)  # noqa: B023
        with nullcontext() if is_taken else pytest.raises(PeerFileUnavailable, match="agreed on"):
            assert await checked.manifest(1, NEWEST) == fetcher.peer.manifests[NEWEST]


class MendingTrial:
    """A replica whose file has no intact copy, and peers that have the same snapshots."""

    def __init__(self, directory: Path) -> None:
        self.fetcher = FakeFetcher(Peer())
        self.exchanged: list[int] = []
        self.trial = ScrubTrial(bring=self._bring)
        self.others: tuple[int, ...] = (1, 2)
        self.mending = FileMending(
            self.trial.files,
            self.fetcher,
            lambda: self.others,
            CLUSTER_ID,
            lambda: NEWEST,
            self._exchanged,
            directory / "mending",
            self.trial.storage,
        )
        self.trial.storage.make_directory(str(directory))

    async def _bring(self, generation: int, name: str) -> None:
        await self.mending.bring(generation, name)

    async def _exchanged(self, generation: int) -> None:
        self.exchanged.append(generation)


async def test_a_layer_comes_from_peers(tmp_path: Path) -> None:
    """The same layer is put in its place, in all copies, and nothing else is changed."""
    mending = MendingTrial(tmp_path)
    trial = mending.trial
    before = loaded_state(trial.files, NEWEST)
    for name in trial.names():
        trial.rot(name)
    await trial.passes()
    assert loaded_state(trial.files, NEWEST) == before
    assert all(trial.is_whole(name) for name in trial.names())
    assert trial.tally.mended[FILE] == trial.tally.found[FILE] == len(trial.names())
    assert not mending.exchanged
    await trial.until(lambda: not trial.alarms.raised)


async def test_a_manifest_comes_from_peers(tmp_path: Path) -> None:
    """Whoever continues from the generation is told that its manifest was replaced."""
    mending = MendingTrial(tmp_path)
    trial = mending.trial
    trial.rot(trial.manifest())
    await trial.passes()
    assert trial.is_whole(trial.manifest())
    assert mending.exchanged == [NEWEST]
    assert trial.files.problems(NEWEST) == []


async def test_a_snapshot_layered_otherwise_comes_from_peers(tmp_path: Path) -> None:
    """If no peer has the layer, its snapshot comes with the peers' own layers of the same state."""
    mending = MendingTrial(tmp_path)
    trial, peer = mending.trial, mending.fetcher.peer
    manifest = trial.sections.manifest
    assert manifest is not None
    merged = trial.files.compact(manifest, 2)
    for sections in (trial.sections, peer.sections):
        sections.write(3, {2: {(1, b"000200"): b"new"}})
    peer.add_manifest(3)
    assert layer_file(merged.digest) in trial.names()
    before = loaded_state(trial.files, 3)
    mending.fetcher.lost.add(merged.digest)
    trial.rot(layer_file(merged.digest))
    await trial.until(lambda: trial.tally.mended[FILE] == 1)
    assert mending.exchanged == [3]
    assert loaded_state(trial.files, 3) == before
    assert merged.digest not in {layer.digest for layer in section_of(_stored(trial, 3), 2).layers}


async def test_a_snapshot_that_nobody_else_has_is_told(tmp_path: Path) -> None:
    """A generation that peers have deleted stays damaged, and the alarm says what can be done."""
    mending = MendingTrial(tmp_path)
    trial = mending.trial
    trial.sections.write(3, {2: {(1, b"000200"): b"new"}})
    own = section_of(_stored(trial, 3), 2).layers[-1].digest
    mending.fetcher.lost.add(own)
    trial.rot(layer_file(own))
    await trial.until(lambda: trial.tally.standing[FILE] == 1)
    (text,) = trial.alarms.texts(ScrubAlarm.COPY_BAD)
    assert "delete snapshot 3" in text


def _stored(trial: ScrubTrial, generation: int) -> SnapshotManifest:
    manifest = trial.files.stored_manifest(generation)
    assert manifest is not None
    return manifest


async def test_a_layer_that_comes_damaged_is_not_taken(tmp_path: Path) -> None:
    """What peers send is compared with its name, and fetched anew as a whole."""
    mending = MendingTrial(tmp_path)
    trial = mending.trial
    reference = section_of(_stored(trial, NEWEST), 2).layers[0]
    name = layer_file(reference.digest)
    mending.fetcher.flipped.add(reference.digest)
    trial.rot(name)
    await trial.until(lambda: trial.tally.mended[FILE] == 1)
    assert trial.is_whole(name)
    assert "manifest" in {what for what, *_ in mending.fetcher.asked}
    assert not [text for text in trial.alarms.ever if "does not read back" in text]


async def test_peers_without_the_file_are_asked_again(tmp_path: Path) -> None:
    """Nobody has it: an alarm says so, the replica goes on, and a later look brings it."""
    mending = MendingTrial(tmp_path)
    trial = mending.trial
    reference = section_of(_stored(trial, NEWEST), 2).layers[0]
    mending.fetcher.lost.add(reference.digest)
    trial.rot(layer_file(reference.digest))
    await trial.until(lambda: trial.tally.standing[FILE] == 1)
    assert "restart this replica" in trial.alarms.texts(ScrubAlarm.COPY_BAD)[0]
    with pytest.raises(TransferFailed):
        await mending.mending.bring(NEWEST, layer_file(reference.digest))
    mending.fetcher.lost.clear()
    await trial.until(lambda: trial.tally.mended[FILE] == 1)
    assert trial.is_whole(layer_file(reference.digest))
