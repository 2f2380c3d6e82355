"""Snapshot files between replicas: whole, resumed, from several peers, and only for peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from coordinator.peers import fetch as fetch_module
from coordinator.peers import files as files_module
from coordinator.peers import send_shares
from coordinator.peers.fetch import ADOPTED, SnapshotFetcher
from coordinator.peers.send_shares import SendShares
from coordinator.snapshot.copies import CopyDirectories
from coordinator.snapshot.errors import PeerFileUnavailable
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.layout import layer_file
from coordinator.snapshot.ports import PinnedFiles, SnapshotFile
from coordinator.snapshot.provider import StoredSnapshots
from testkit.generation_builders import Sections, entities, memory, open_files
from tests.coordinator.peers.peer_trial import OTHER_CLUSTER, config, free_addresses, serving
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference
from viewstamp.errors import Refusal
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import decode_manifest, sections

GENERATION = 1
CHUNK_BYTES = 256


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send even a small layer in several chunks."""
    monkeypatch.setattr(files_module, "CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(send_shares, "CHUNK_BYTES", CHUNK_BYTES)


def stored() -> SnapshotFiles:
    """Return files of one generation, equal at each call."""
    files = open_files(memory())
    Sections(files).write(GENERATION, entities(GENERATION, 20))
    return files


@dataclass
class BreakingSnapshots:
    """Snapshots whose files end after some chunks."""

    files: SnapshotFiles
    chunks: int
    more_each_time: int = 0

    def pinned(self, generation: int) -> AbstractAsyncContextManager[PinnedFiles]:
        """Keep a generation's files."""
        return self._pinned(generation)

    @asynccontextmanager
    async def _pinned(self, generation: int) -> AsyncIterator[PinnedFiles]:
        allowed, self.chunks = self.chunks, self.chunks + self.more_each_time
        async with StoredSnapshots(self.files).pinned(generation) as pinned:
            yield _Breaking(pinned, allowed)  # type: ignore[misc]


@dataclass
class _Breaking:
    whole: PinnedFiles
    chunks: int

    @property
    def files(self) -> Any:
        return self.whole.files

    async def read(
        self, file: SnapshotFile, chunk_bytes: int, offset: int = 0, *, is_verified: bool = False
    ) -> AsyncGenerator[bytes]:
        left = self.chunks - offset // chunk_bytes
        whole = self.whole.read(file, chunk_bytes, offset, is_verified=is_verified)
        async for chunk in whole:
            if left <= 0:
                raise Refusal(Reason.REASON_SNAPSHOT_DAMAGED, "the disk has gone")
            left -= 1
            yield chunk


@contextlib.asynccontextmanager
async def fetching(*holders: Any, **changes: Any) -> AsyncIterator[SnapshotFetcher]:
    """Serve these snapshots as replicas 1, 2; yield replica 0's fetcher."""
    addresses = free_addresses()
    mine = replace(config(addresses, 0), **changes)
    async with contextlib.AsyncExitStack() as stack:
        for replica, holder in enumerate(holders, start=1):
            await stack.enter_async_context(serving(config(addresses, replica), snapshots=holder))
        trial = await stack.enter_async_context(serving(mine))
        yield trial.peers.fetcher


async def layers(fetcher: SnapshotFetcher, replica: int = 1) -> list[LayerReference]:
    """Return the layers that the manifest of a peer names."""
    manifest = decode_manifest(await fetcher.manifest(replica, GENERATION))
    return [layer for _, section in sections(manifest) for layer in section.layers]


async def fetched(
    fetcher: SnapshotFetcher, replicas: tuple[int, ...], layer: LayerReference, offset: int = 0
) -> list[bytes]:
    """Return the chunks of a layer."""
    found = fetcher.layer(replicas, GENERATION, layer.digest, layer.size_bytes, offset)
    return [chunk async for chunk in found]


async def test_a_whole_generation() -> None:
    """The manifest and every layer arrive as they are on disk."""
    async with fetching(StoredSnapshots(stored())) as fetcher:
        found = await layers(fetcher)
        assert len(found) >= 5
        for layer in found:
            chunks = await fetched(fetcher, (1,), layer)
            assert file_digest(chunks) == layer.digest
        assert len(chunks) > 1


async def test_a_transfer_goes_on_where_it_was() -> None:
    """A transfer from any offset sends just the rest, even from within a chunk or from the end."""
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = (await layers(fetcher))[1]
        whole = b"".join(await fetched(fetcher, (1,), layer))
        for offset in (1, CHUNK_BYTES, CHUNK_BYTES + 1, len(whole) - 1, len(whole)):
            assert b"".join(await fetched(fetcher, (1,), layer, offset)) == whole[offset:]


async def part(
    fetcher: SnapshotFetcher, replica: int, layer: LayerReference, begin: int, end: int
) -> bytes:
    """Return a part of a layer."""
    found = fetcher.part(replica, GENERATION, layer.digest, begin, end)
    return b"".join([chunk async for chunk in found])


async def test_a_part_of_a_layer() -> None:
    """A part has the bytes of its place, and no more are sent than it has."""
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = max(await layers(fetcher), key=lambda layer: layer.size_bytes)
        whole = b"".join(await fetched(fetcher, (1,), layer))
        size = len(whole)
        for begin, end in ((0, 1), (0, size), (CHUNK_BYTES, 2 * CHUNK_BYTES), (5, 600), (9, size)):
            assert await part(fetcher, 1, layer, begin, end) == whole[begin:end]
        with pytest.raises(PeerFileUnavailable, match=f"ends at {size} of {size + 5} bytes"):
            await part(fetcher, 1, layer, 0, size + 5)
        with pytest.raises(PeerFileUnavailable, match="UNAVAILABLE"):
            await part(fetcher, 2, layer, 0, 1)


async def test_a_layer_in_parts_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies are read before the first part, and again once that was long ago."""
    scrubbed, scrub = list[str](), CopyDirectories.scrub

    def scrub_noted(copies: CopyDirectories, name: str, check: Any) -> Any:
        scrubbed.append(name)
        return scrub(copies, name, check)

    monkeypatch.setattr(CopyDirectories, "scrub", scrub_noted)
    for verified_for_ms, times in ((60_000, 1), (0, 4)):
        monkeypatch.setattr(files_module, "VERIFIED_FOR_MS", verified_for_ms)
        async with fetching(StoredSnapshots(stored())) as fetcher:
            layer = max(await layers(fetcher), key=lambda layer: layer.size_bytes)
            scrubbed.clear()
            for begin in range(0, 4 * CHUNK_BYTES, CHUNK_BYTES):
                await part(fetcher, 1, layer, begin, begin + CHUNK_BYTES)
        assert scrubbed.count(layer_file(layer.digest)) == times


async def test_nothing_is_read_beyond_a_part() -> None:
    """The server ends where the part ends, whether or not its caller has left."""
    written: list[bytes] = []

    async def write(message: bytes) -> None:
        written.append(pb.ReadLayerResponse.FromString(message).data)

    async def take(_: int) -> None:
        return

    context: Any = SimpleNamespace(write=write)
    async with StoredSnapshots(stored()).pinned(GENERATION) as pinned:
        file = max(pinned.files, key=lambda file: file.size_bytes)
        sending = files_module.Sending(file, 10, CHUNK_BYTES + 5)
        await files_module.send_file(pinned, sending, CHUNK_BYTES, take, context)
    assert [len(data) for data in written] == [CHUNK_BYTES, 5]


async def test_a_part_from_an_older_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that does not know of parts sends the rest of the file, and is left in time."""
    older = files_module.Sending

    def all_of_it(file: SnapshotFile, offset: int, *_: int) -> files_module.Sending:
        return older(file, offset, 0)

    monkeypatch.setattr(files_module, "Sending", all_of_it)
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = max(await layers(fetcher), key=lambda layer: layer.size_bytes)
        whole = b"".join(await fetched(fetcher, (1,), layer))
        assert await part(fetcher, 1, layer, 10, 700) == whole[10:700]


async def test_what_was_sent_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer counts what it has sent to each replica, and sends no more than the part."""
    taken: list[tuple[int, int]] = []

    async def take(_: SendShares, replica: int, size_bytes: int) -> None:
        taken.append((replica, size_bytes))

    monkeypatch.setattr(SendShares, "take", take)
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = max(await layers(fetcher), key=lambda layer: layer.size_bytes)
        await part(fetcher, 1, layer, 10, 700)
    assert taken == [(0, CHUNK_BYTES), (0, CHUNK_BYTES), (0, 690 - 2 * CHUNK_BYTES)]


async def test_a_stall_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch of which nothing more comes ends after its time, with what was wrong."""

    async def take(_: SendShares, __: int, size_bytes: int) -> None:
        if size_bytes < CHUNK_BYTES:
            await asyncio.Event().wait()

    monkeypatch.setattr(SendShares, "take", take)
    monkeypatch.setattr(fetch_module, "CHUNK_TIMEOUT_MS", 50)
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = max(await layers(fetcher), key=lambda layer: layer.size_bytes)
        with pytest.raises(PeerFileUnavailable, match="replica 1: nothing within 50 ms"):
            await part(fetcher, 1, layer, 0, CHUNK_BYTES + 5)


async def test_another_peer_finishes_what_one_began() -> None:
    """Two peers that each break off after a few chunks still give the whole layer together."""
    broken = (BreakingSnapshots(stored(), 2), BreakingSnapshots(stored(), 3))
    whole = StoredSnapshots(stored())
    async with fetching(broken[0], whole) as fetcher:
        layer = max(await layers(fetcher, 2), key=lambda layer: layer.size_bytes)
        assert layer.size_bytes > 4 * CHUNK_BYTES
        assert file_digest(await fetched(fetcher, (1, 2), layer)) == layer.digest
    async with fetching(*broken) as fetcher:
        with pytest.raises(PeerFileUnavailable) as caught:
            await fetched(fetcher, (1, 2), layer)
    # Each sends only what it can read, so neither gets beyond the third chunk.
    assert f"from {3 * CHUNK_BYTES} of {layer.size_bytes} bytes" in str(caught.value)
    assert str(caught.value).count("the disk has gone") == 2


async def test_a_transfer_goes_on_as_long_as_something_comes() -> None:
    """A peer that breaks off at every attempt, each time later, gives the whole layer."""
    snapshots = BreakingSnapshots(stored(), 1, more_each_time=1)
    async with fetching(snapshots, StoredSnapshots(stored())) as fetcher:
        layer = max(await layers(fetcher, 2), key=lambda layer: layer.size_bytes)
        assert file_digest(await fetched(fetcher, (1,), layer)) == layer.digest


async def test_only_a_whole_round_in_vain_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures before the first chunk do not count."""
    # By replica, what each attempt yields; an empty one is a failure.
    attempts = {1: [b"", b"b", b"cd"], 2: [b"a", b""], 3: [b"", b""]}

    async def chunks(_: Any, replica: int, *__: Any) -> AsyncGenerator[bytes]:
        data = attempts[replica].pop(0)
        if data:
            yield data

    monkeypatch.setattr(SnapshotFetcher, "chunks", chunks)
    async with fetching() as fetcher:
        layer = LayerReference(digest=b"d" * 32, size_bytes=4)
        assert b"".join(await fetched(fetcher, (1, 2, 3), layer)) == b"abcd"


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (pb.ReadLayerResponse(offset=5, file_bytes=10, data=b"x"), "sends 5 where 0 was due"),
        (pb.ReadLayerResponse(offset=0, file_bytes=10), "sends nothing at 0"),
    ],
)
async def test_a_peer_that_sends_something_else(
    monkeypatch: pytest.MonkeyPatch, response: pb.ReadLayerResponse, says: str
) -> None:
    """A chunk of another place, or an empty one, is not part of the file."""

    async def send(*arguments: Any) -> None:
        context = arguments[-1]
        await context.write(response.SerializeToString())

    monkeypatch.setattr(files_module, "send_file", send)
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = (await layers(fetcher))[0]
        with pytest.raises(PeerFileUnavailable, match=says):
            await fetched(fetcher, (1,), layer)


async def test_what_is_not_there() -> None:
    """The error contains each peer's own words."""
    async with fetching(StoredSnapshots(stored()), StoredSnapshots(stored())) as fetcher:
        with pytest.raises(PeerFileUnavailable, match="does not hold the files of snapshot 7"):
            await fetcher.manifest(1, 7)
        layer = (await layers(fetcher))[0]
        unknown = LayerReference(digest=b"?" * 32, size_bytes=10)
        with pytest.raises(PeerFileUnavailable) as caught:
            await fetched(fetcher, (1, 2), unknown)
        assert "replica 1: NOT_FOUND" in str(caught.value)
        assert "replica 2: NOT_FOUND" in str(caught.value)
        longer = LayerReference(digest=layer.digest, size_bytes=layer.size_bytes + 10)
        with pytest.raises(PeerFileUnavailable, match=f"ends at {layer.size_bytes}"):
            await fetched(fetcher, (1,), longer)
        with pytest.raises(PeerFileUnavailable, match="it cannot be read from"):
            await fetched(fetcher, (1,), longer, layer.size_bytes + 1)
        shorter = LayerReference(digest=layer.digest, size_bytes=layer.size_bytes - 10)
        with pytest.raises(PeerFileUnavailable, match="sends more than"):
            await fetched(fetcher, (1,), shorter)


async def test_a_peer_that_is_not_there() -> None:
    """An absent peer is passed over for one that answers."""
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = (await layers(fetcher))[0]
        assert file_digest(await fetched(fetcher, (2, 1), layer)) == layer.digest


async def test_peers_alone_may_call() -> None:
    """A caller that would be refused on a stream gets no file either."""
    async with fetching(StoredSnapshots(stored()), cluster_id=OTHER_CLUSTER) as fetcher:
        with pytest.raises(PeerFileUnavailable, match="PERMISSION_DENIED: other_cluster"):
            await fetcher.manifest(1, GENERATION)
        layer = LayerReference(digest=b"d" * 32, size_bytes=1)
        with pytest.raises(PeerFileUnavailable, match="PERMISSION_DENIED: other_cluster"):
            await fetched(fetcher, (1,), layer)


async def test_places_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers beyond the number that the disk should bear are told to come later."""
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = max(await layers(fetcher), key=lambda layer: layer.size_bytes)
        monkeypatch.setattr(files_module, "FILES_OPEN_MAX", 0)
        with pytest.raises(PeerFileUnavailable, match="try again later") as caught:
            await part(fetcher, 1, layer, 0, 1)
        assert caught.value.is_busy


async def test_one_peer_does_not_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that reads as many files as it may is told so, and its places come back."""
    monkeypatch.setattr(files_module, "FILES_OPEN_PER_PEER_MAX", 1)
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def take(_: SendShares, __: int, ___: int) -> None:
        has_begun.set()
        await may_end.wait()

    monkeypatch.setattr(SendShares, "take", take)
    async with fetching(StoredSnapshots(stored())) as fetcher:
        layer = (await layers(fetcher))[0]
        reading = asyncio.ensure_future(part(fetcher, 1, layer, 0, 1))
        await has_begun.wait()
        with pytest.raises(PeerFileUnavailable, match="1 of them by replica 0") as caught:
            await part(fetcher, 1, layer, 0, 1)
        assert caught.value.is_busy
        may_end.set()
        await reading
        assert await part(fetcher, 1, layer, 0, 1)


async def test_malformed_requests() -> None:
    """Bytes that are not a request are refused as such."""
    addresses = free_addresses()
    snapshots = StoredSnapshots(stored())
    async with (
        serving(config(addresses, 1), snapshots=snapshots),
        grpc.aio.insecure_channel(addresses[1]) as channel,
    ):
        call: Any = channel.unary_unary(f"/{files_module.SERVICE}/ReadManifest")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "ReadManifestRequest" in (caught.value.details() or "")


async def test_the_generation_that_a_peer_would_restart_from() -> None:
    """A replica may ask a peer for the generation to restart from; before the first there is
    none."""
    addresses = free_addresses()
    holder = StoredSnapshots(stored())
    adopted = 0
    async with (
        serving(config(addresses, 1), snapshots=holder, adopted=lambda: adopted),
        serving(config(addresses, 0)) as trial,
    ):
        fetcher = trial.peers.fetcher
        with pytest.raises(PeerFileUnavailable, match="does not hold the files of snapshot 0"):
            await fetcher.manifest(1, ADOPTED)
        adopted = GENERATION
        assert await fetcher.manifest(1, ADOPTED) == await fetcher.manifest(1, GENERATION)
