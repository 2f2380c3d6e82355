"""A snapshot to restart from with no good copy: peers repair it, or only this start is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.app import snapshot_repair as mending_module
from coordinator.app.config import parse
from coordinator.app.snapshot_repair import SnapshotRepair, mend_of
from coordinator.peers.fetch import ADOPTED
from coordinator.replica.data_directory import (
    DamagedSnapshot,
    DirectoryOptions,
    open_replica,
)
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.snapshot.layout import layer_file, manifest_file
from coordinator.snapshot.provider import StoredSnapshots
from coordinator.storage import FileStorage
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
)
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES
from tests.coordinator.snapshot.files.transfer_trial import (
    NEWEST,
    FakeFetcher,
    Peer,
    layer_of_a_newer_build,
)
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatVersionError
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import encode_manifest, root_of, section_of
from viewstamp.format.superblock import SuperblockState
from viewstamp.routing import SERVICE_NAMES

SERVICES = [f"--service={name}=unix:/{name}" for name in SERVICE_NAMES]
FIRST = 1
STAGE = 2
NEWER = {STAGE: {(1, b"000100"): b"new" * 300}}
ROUNDS_MAX = 20_000


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(mending_module, "RETRY_FIRST_MS", 0)
    monkeypatch.setattr(mending_module, "RETRY_MAX_MS", 0)


class HurtFile:
    """A replica that restarts from a generation, all of whose files it wrote itself."""

    def __init__(self, directory: Path, generation: int = NEWEST) -> None:
        self.peer = Peer()
        self.fetcher = FakeFetcher(self.peer)
        self.storage = memory()
        self.files = open_files(self.storage, replica_id=2)
        sections = Sections(self.files)
        sections.write(FIRST, entities(1, 8))
        if generation == NEWEST:
            sections.write(NEWEST, NEWER)
        assert sections.manifest is not None
        self.manifest = sections.manifest
        self.state = SuperblockState(CLUSTER_ID, 2, 3, 0, 0, 10 * generation, generation, 0)
        self._directory = directory / "transfer"

    def spoil(self, *names: str) -> None:
        """Damage every copy of these files."""
        for name in names:
            for directory in COPY_DIRECTORIES:
                self.storage.flip(f"{directory}/{name}", 100)

    def repair(self) -> SnapshotRepair:
        """Return the result of a start, which is called only if no copy is intact."""
        with pytest.raises(NoIntactCopy) as caught:
            self.files.load(self.state.generation)
        self.damaged = DamagedSnapshot(self.files, self.state, caught.value)
        return SnapshotRepair(self.damaged, (0, 1), self._directory)

    async def mend(self) -> None:
        """Repair the snapshot."""
        async with asyncio.timeout(30):
            await self.repair().run(self.fetcher)

    async def mend_until(self, condition: Callable[[], bool]) -> None:
        """Try until a condition holds, and give up."""
        running = asyncio.ensure_future(self.repair().run(self.fetcher))
        for _ in range(ROUNDS_MAX):
            if condition() or running.done():
                break
            await asyncio.sleep(0.001)
        assert not running.done(), "it is whole, or failed, though nobody can help"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert condition(), "it never came to that"


def base_layer(manifest: SnapshotManifest) -> str:
    """Return the name of a section's base."""
    return layer_file(section_of(manifest, STAGE).layers[0].digest)


@pytest.mark.parametrize("spoiled", ["layer", "manifest", "both"])
async def test_bad_files_are_fetched(tmp_path: Path, spoiled: str) -> None:
    """Exactly the files without an intact copy come from a peer, and all copies are good."""
    hurt = HurtFile(tmp_path)
    names = {"layer": base_layer(hurt.manifest), "manifest": manifest_file(NEWEST)}
    hurt.spoil(*([names[spoiled]] if spoiled in names else names.values()))
    await hurt.mend()
    assert loaded_state(hurt.files, NEWEST) == hurt.peer.sections.state
    assert hurt.damaged.generation == NEWEST
    size_bytes = section_of(hurt.manifest, STAGE).layers[0].size_bytes
    assert hurt.fetcher.bytes_sent == (0 if spoiled == "manifest" else size_bytes)
    for directory in COPY_DIRECTORIES:
        data = hurt.storage.content(f"{directory}/{manifest_file(NEWEST)}")
        assert data == hurt.peer.manifests[NEWEST]


def merge_chain(peer: Peer) -> LayerReference:
    """Have the peer's manifest name one layer for a section; return the layer."""
    merged = peer.files.compact(peer.manifest, STAGE)
    changed = SnapshotManifest()
    changed.CopyFrom(peer.manifest)
    section = section_of(changed, STAGE)
    del section.layers[:]
    section.layers.append(merged)
    assert root_of(changed) == peer.manifest.root
    peer.manifests[NEWEST] = encode_manifest(changed)
    return merged


async def test_a_peer_that_has_merged_the_chain(tmp_path: Path) -> None:
    """If no peer has a layer of that name any more, the peer's layers of the same root do."""
    hurt = HurtFile(tmp_path)
    peer = hurt.peer
    merged = merge_chain(peer)
    hurt.spoil(base_layer(hurt.manifest))
    await hurt.mend()
    assert loaded_state(hurt.files, NEWEST) == peer.sections.state
    assert hurt.fetcher.bytes_sent == merged.size_bytes
    stored = hurt.files.stored_manifest(NEWEST)
    assert stored is not None
    assert [each.digest for each in section_of(stored, STAGE).layers] == [merged.digest]


async def test_a_peer_that_reads_the_manifest_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that reads gets what it has pinned, and does not take the new copies for damaged
    ones."""
    hurt = HurtFile(tmp_path)
    merge_chain(hurt.peer)
    hurt.spoil(base_layer(hurt.manifest))
    loop, rename = asyncio.get_running_loop(), hurt.storage.rename
    received: list[bytes] = []

    async with StoredSnapshots(hurt.files).pinned(NEWEST) as held:

        async def read() -> bytes:
            return b"".join([chunk async for chunk in held.read(held.files[-1], 100)])

        def renamed(source: str, target: str) -> None:
            rename(source, target)
            if target.endswith(manifest_file(NEWEST)):
                received.append(asyncio.run_coroutine_threadsafe(read(), loop).result())

        monkeypatch.setattr(hurt.storage, "rename", renamed)
        await hurt.mend()
    assert received == [encode_manifest(hurt.manifest)] * len(COPY_DIRECTORIES)
    for directory in COPY_DIRECTORIES:
        data = hurt.storage.content(f"{directory}/{manifest_file(NEWEST)}")
        assert data == hurt.peer.manifests[NEWEST]
    assert loaded_state(hurt.files, NEWEST) == hurt.peer.sections.state


async def test_a_generation_that_no_peer_has_any_more(tmp_path: Path) -> None:
    """The replica restarts from its peer's restart generation once that is whole here."""
    hurt = HurtFile(tmp_path, FIRST)
    del hurt.peer.manifests[FIRST]
    hurt.peer.manifests[ADOPTED] = hurt.peer.manifests[NEWEST]
    hurt.spoil(manifest_file(FIRST))
    await hurt.mend()
    assert hurt.damaged.generation == NEWEST
    assert loaded_state(hurt.files, NEWEST) == hurt.peer.sections.state


async def test_an_older_generation_is_no_help(tmp_path: Path) -> None:
    """An older peer would make this replica forget entries, so it waits for another peer."""
    hurt = HurtFile(tmp_path)
    wanted = hurt.peer.manifests.pop(NEWEST)
    hurt.peer.manifests[ADOPTED] = hurt.peer.manifests[FIRST]
    hurt.spoil(manifest_file(NEWEST))
    asked = hurt.fetcher.asked
    await hurt.mend_until(lambda: [each[2] for each in asked].count(ADOPTED) > 4)
    assert hurt.damaged.generation == NEWEST
    hurt.peer.manifests[NEWEST] = wanted
    await hurt.mend()
    assert loaded_state(hurt.files, NEWEST) == hurt.peer.sections.state


async def test_peers_that_cannot_be_reached_are_waited_for(tmp_path: Path) -> None:
    """Nothing here is changed until a peer answers; then the snapshot is repaired."""
    hurt = HurtFile(tmp_path)
    hurt.fetcher.gone = {0, 1}
    hurt.spoil(base_layer(hurt.manifest))
    before = hurt.storage.content(f"{COPY_DIRECTORIES[0]}/{base_layer(hurt.manifest)}")
    await hurt.mend_until(lambda: len(hurt.fetcher.asked) > 4)
    after = hurt.storage.content(f"{COPY_DIRECTORIES[0]}/{base_layer(hurt.manifest)}")
    assert after == before
    hurt.fetcher.gone = {0}
    await hurt.mend()
    assert loaded_state(hurt.files, NEWEST) == hurt.peer.sections.state


async def test_a_peer_with_another_root_of_the_same_cut(tmp_path: Path) -> None:
    """A peer's layers of another root do not replace those here, since one of the two has
    diverged."""
    hurt = HurtFile(tmp_path)
    other = SnapshotManifest()
    other.CopyFrom(hurt.peer.manifest)
    digest = section_of(other, STAGE).state_digest
    section_of(other, STAGE).state_digest = digest[::-1]
    other.root = root_of(other)
    good, hurt.peer.manifests[NEWEST] = hurt.peer.manifests[NEWEST], encode_manifest(other)
    hurt.spoil(base_layer(hurt.manifest))
    await hurt.mend_until(lambda: len(hurt.fetcher.asked) > 4)
    stored = hurt.files.stored_manifest(NEWEST)
    assert stored is not None
    assert stored.root == hurt.manifest.root
    hurt.peer.manifests[NEWEST] = good
    await hurt.mend()


async def test_a_peer_with_another_cut_of_the_generation(tmp_path: Path) -> None:
    """The superblock names the cut that is stored here, and overrides every peer."""
    hurt = HurtFile(tmp_path)
    other = SnapshotManifest()
    other.CopyFrom(hurt.peer.manifest)
    other.cut_checksum = b"o" * 16
    other.root = root_of(other)
    good, hurt.peer.manifests[NEWEST] = hurt.peer.manifests[NEWEST], encode_manifest(other)
    hurt.spoil(base_layer(hurt.manifest))
    await hurt.mend_until(lambda: len(hurt.fetcher.asked) > 4)
    assert hurt.files.stored_manifest(NEWEST) == hurt.manifest
    hurt.peer.manifests[NEWEST] = good
    await hurt.mend()


async def test_peers_of_which_each_is_too_new(tmp_path: Path) -> None:
    """The start ends instead of waiting, and says that another build is needed."""
    hurt = HurtFile(tmp_path)
    hurt.peer.manifests[ADOPTED] = hurt.peer.manifests[NEWEST]
    hurt.fetcher.too_new = {0, 1}
    hurt.spoil(manifest_file(NEWEST))
    with pytest.raises(FormatVersionError, match="newer build reads: start one here"):
        await hurt.mend()


async def test_a_peer_that_is_not_too_new_is_waited_for(tmp_path: Path) -> None:
    """A peer that could not be asked may have usable files, so the replica waits for it."""
    hurt = HurtFile(tmp_path)
    hurt.peer.manifests[ADOPTED] = hurt.peer.manifests[NEWEST]
    hurt.fetcher.too_new, hurt.fetcher.gone = {0}, {1}
    hurt.spoil(manifest_file(NEWEST))
    await hurt.mend_until(lambda: len(hurt.fetcher.asked) > 12)
    hurt.fetcher.gone = set()
    await hurt.mend()
    assert loaded_state(hurt.files, NEWEST) == hurt.peer.sections.state


def newer_layers(peer: Peer) -> bytes:
    """Return a peer's manifest with a layer that only a newer build reads."""
    changed = SnapshotManifest()
    changed.CopyFrom(peer.manifest)
    layer = section_of(changed, STAGE).layers[0]
    data = layer_of_a_newer_build(peer.layer(layer.digest))
    layer.digest = file_digest([data])
    peer.storage.replace(f"{COPY_DIRECTORIES[0]}/{layer_file(layer.digest)}", data)
    return encode_manifest(changed)


async def test_a_peer_whose_layers_are_too_new(tmp_path: Path) -> None:
    """A newer peer's layers do not replace those here, and the replica waits for the other peer."""
    hurt = HurtFile(tmp_path)
    hurt.fetcher.others, hurt.fetcher.gone = {0: newer_layers(hurt.peer)}, {1}
    hurt.spoil(base_layer(hurt.manifest))
    await hurt.mend_until(lambda: [each[0] for each in hurt.fetcher.asked].count("manifest") > 8)
    assert hurt.files.stored_manifest(NEWEST) == hurt.manifest
    hurt.fetcher.gone = set()
    await hurt.mend()
    assert loaded_state(hurt.files, NEWEST) == hurt.peer.sections.state
    assert hurt.files.stored_manifest(NEWEST) == hurt.peer.manifest


async def test_the_other_peer_is_asked_at_once(tmp_path: Path) -> None:
    """A failed fetch with one peer's manifest is not repeated with it."""
    hurt = HurtFile(tmp_path)
    hurt.fetcher.others = {0: newer_layers(hurt.peer)}
    hurt.spoil(base_layer(hurt.manifest))
    await hurt.mend()
    asked = [each[1] for each in hurt.fetcher.asked if each[0] == "manifest" and each[2] == NEWEST]
    # Behind the manifest that is followed comes the question which layers the other peer has.
    assert asked == [(0,), (1,), (1,), (0,)]


def damaged_layers(peer: Peer) -> tuple[bytes, bytes]:
    """Return a manifest that names a layer of its own, and the digest of that."""
    changed = SnapshotManifest()
    changed.CopyFrom(peer.manifest)
    layer = section_of(changed, STAGE).layers[0]
    layer.digest = b"damaged".ljust(len(layer.digest), b"!")
    return encode_manifest(changed), layer.digest


@pytest.mark.parametrize("damaged", [0, 1])
async def test_each_peer_with_a_newer_generation_is_tried(tmp_path: Path, damaged: int) -> None:
    """No peer has the generation, and of the newer one a peer has a damaged layer of its own: the
    other one's is taken, whichever it is."""
    hurt = HurtFile(tmp_path, FIRST)
    del hurt.peer.manifests[FIRST]
    hurt.peer.manifests[ADOPTED] = hurt.peer.manifests[NEWEST]
    manifest, digest = damaged_layers(hurt.peer)
    hurt.fetcher.others, hurt.fetcher.lost = {damaged: manifest}, {digest}
    hurt.spoil(manifest_file(FIRST))

    await hurt.mend()

    assert hurt.damaged.generation == NEWEST
    assert loaded_state(hurt.files, NEWEST) == hurt.peer.sections.state


async def test_newer_generations_whose_layers_are_all_too_new(tmp_path: Path) -> None:
    """The start ends there, too, once it has tried each peer."""
    hurt = HurtFile(tmp_path, FIRST)
    del hurt.peer.manifests[FIRST]
    hurt.peer.manifests[ADOPTED] = hurt.peer.manifests[NEWEST]
    hurt.fetcher.others = dict.fromkeys((0, 1), newer_layers(hurt.peer))
    hurt.spoil(manifest_file(FIRST))

    with pytest.raises(FormatVersionError, match="newer build reads: start one here"):
        await hurt.mend()


async def test_peers_of_which_the_layers_are_all_too_new(tmp_path: Path) -> None:
    """The start ends as for manifests that are too new, and the damage stays as it was."""
    hurt = HurtFile(tmp_path)
    hurt.fetcher.others = dict.fromkeys((0, 1), newer_layers(hurt.peer))
    hurt.spoil(base_layer(hurt.manifest))
    with pytest.raises(FormatVersionError, match="newer build reads: start one here"):
        await hurt.mend()
    with pytest.raises(NoIntactCopy):
        hurt.files.load(NEWEST)


def test_only_members_have_somebody_to_ask() -> None:
    """A lone replica has no peer to ask; a member has all others."""
    alone = ["--data-directory=/data", *SERVICES]
    member = [*alone, "--replica-count=2", "--peer-listen=h:1", "--peer=1=h:2"]
    assert mend_of(parse(alone)) is None
    assert mend_of(parse(member)) is not None


def test_a_start_has_it_mended_or_is_refused(tmp_path: Path) -> None:
    """The files are examined again after the repair; without peers to ask there is an error."""
    options = DirectoryOptions(tmp_path, 0, 2, CLUSTER_ID, SEGMENT_BYTES, snapshot_reserve_bytes=0)
    blank = open_replica(options, FileStorage())
    Sections(blank.snapshots).write(FIRST, entities(1, 8))
    blank.superblock.update(lambda state: replace(state, generation=FIRST, commit_max=10 * FIRST))
    blank.close()
    good = {path: path.read_bytes() for path in (tmp_path / "snapshots").glob("*/layers/*")}
    for path, data in good.items():
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    called: list[DamagedSnapshot] = []

    def mend(damaged: DamagedSnapshot) -> None:
        called.append(damaged)
        for path, data in good.items():
            path.write_bytes(data)

    with pytest.raises(NoIntactCopy, match="Ways out"):
        open_replica(options, FileStorage())
    # A repair that does nothing is noticed.
    with pytest.raises(NoIntactCopy, match="Ways out"):
        open_replica(options, FileStorage(), called.append)
    files = open_replica(options, FileStorage(), mend)
    try:
        assert files.base is not None
        assert files.base.manifest.generation == FIRST
        assert len(called) == 2
    finally:
        files.close()
