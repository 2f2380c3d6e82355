"""A replica that gets a snapshot from a peer whose faults the test chooses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from blake3 import blake3

from coordinator.snapshot.errors import PeerFileUnavailable
from coordinator.snapshot.files import SnapshotFiles
from coordinator.snapshot.layout import layer_file, manifest_file
from coordinator.snapshot.transfer import RestartNeeded, StateTransfer
from coordinator.snapshot.transfer_ports import TransferPorts
from coordinator.vsr import SnapshotNeeded
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
)
from testkit.journal_builders import CLUSTER_ID
from testkit.memory_storage import MemoryStorage
from viewstamp.format import CHECKSUM_BYTES
from viewstamp.format.digest import DIGEST_BYTES
from viewstamp.format.layer_parts import HEADER_BYTES, LAYER_VERSION
from viewstamp.format.manifest import (
    MANIFEST_VERSION,
    sections,
)
from viewstamp.format.prepare import checksum_of

CHUNK_BYTES = 700
NEWEST = 2
ROUNDS_MAX = 20_000


class Peer:
    """A replica with two generations, and its faults."""

    def __init__(self) -> None:
        """Write them."""
        self.storage = memory()
        self.files = open_files(self.storage)
        self.sections = Sections(self.files)
        self.sections.write(1, entities(1, 8))
        self.manifest = self.sections.write(NEWEST, {2: {(1, b"000100"): b"new" * 300}})
        self.manifests = {g: self._manifest(g) for g in (1, NEWEST)}

    def _manifest(self, generation: int) -> bytes:
        return self.storage.content(f"{COPY_DIRECTORIES[0]}/{manifest_file(generation)}")

    def add_manifest(self, generation: int) -> None:
        """Send a generation that was written since, too."""
        self.manifests[generation] = self._manifest(generation)

    def layer(self, digest: bytes) -> bytes:
        """Return the bytes of a layer."""
        return self.storage.content(f"{COPY_DIRECTORIES[0]}/{layer_file(digest)}")

    @property
    def references(self) -> dict[bytes, int]:
        """The layers of the newest generation, with their sizes."""
        return {
            each.digest: each.size_bytes
            for _, section in sections(self.manifest)
            for each in section.layers
        }


def of_a_newer_build(data: bytes) -> bytes:
    """Return a manifest file with the next version of the format."""
    version = MANIFEST_VERSION + 1
    framed = data[DIGEST_BYTES:][:4] + version.to_bytes(2, "little") + data[DIGEST_BYTES + 6 :]
    return blake3(framed).digest() + framed


def layer_of_a_newer_build(data: bytes) -> bytes:
    """Return a layer file whose header has the next version of the format."""
    place = CHECKSUM_BYTES + 4
    version = (LAYER_VERSION + 1).to_bytes(2, "little")
    header = data[CHECKSUM_BYTES:place] + version + data[place + 2 : HEADER_BYTES]
    return checksum_of(header) + header + data[HEADER_BYTES:]


@dataclass
class FakeFetcher:
    """Reads from one peer's disk, whichever peer is asked; after `chunks_left` all fail, until the
    next manifest is asked for."""

    peer: Peer
    asked: list[tuple[str, tuple[int, ...], int, int]] = field(default_factory=list)
    bytes_sent: int = 0
    chunks_left: int = 1_000_000
    gone: set[int] = field(default_factory=set)  # replicas without a manifest
    too_new: set[int] = field(default_factory=set)  # replicas whose builds write other manifests
    others: dict[int, bytes] = field(default_factory=dict)  # replicas with another newest manifest
    flipped: set[bytes] = field(default_factory=set)  # layers that come damaged, once
    lost: set[bytes] = field(default_factory=set)  # layers that nobody has intact
    stalled: set[int] = field(default_factory=set)  # replicas from which nothing comes, for ever
    dead: set[int] = field(default_factory=set)  # replicas that refuse every layer
    busy: dict[int, int] = field(default_factory=dict)  # how many fetches a replica has place for
    stalls: int = 0
    is_over: bool = False
    sent_by: Counter[int] = field(default_factory=Counter)
    under_way: Counter[int] = field(default_factory=Counter)
    most_under_way: Counter[int] = field(default_factory=Counter)
    most_at_once: int = 0
    liars: set[int] = field(default_factory=set)  # replicas that send other bytes
    asked_for: list[tuple[int, bytes]] = field(default_factory=list)
    before_layer: Callable[[], None] = lambda: None

    async def manifest(self, replica: int, generation: int) -> bytes:
        """Return a manifest."""
        self.is_over = False
        self.asked.append(("manifest", (replica,), generation, 0))
        if replica in self.gone or generation not in self.peer.manifests:
            raise PeerFileUnavailable(f"replica {replica}: SNAPSHOT_NOT_FOUND")
        data = self.peer.manifests[generation]
        if generation == NEWEST:
            data = self.others.get(replica, data)
        return of_a_newer_build(data) if replica in self.too_new else data

    async def part(
        self, replica: int, generation: int, digest: bytes, begin: int, end: int
    ) -> AsyncGenerator[bytes]:
        """Yield a part of a layer."""
        self.asked.append(("layer", (replica,), generation, begin))
        self.asked_for.append((replica, digest))
        self.before_layer()
        self._refuse(replica, digest)
        self.under_way[replica] += 1
        self.most_under_way[replica] = max(self.most_under_way[replica], self.under_way[replica])
        self.most_at_once = max(self.most_at_once, self.under_way.total())
        try:
            data = self._content(digest)
            if replica in self.liars:
                data = bytes(len(data))
            async for chunk in self._chunks(replica, data[begin:end]):
                yield chunk
        finally:
            self.under_way[replica] -= 1

    def _refuse(self, replica: int, digest: bytes) -> None:
        if digest in self.lost or replica in self.dead:
            raise PeerFileUnavailable(f"replica {replica}: DATA_LOSS, or NOT_FOUND")
        if self.under_way[replica] >= self.busy.get(replica, 100):
            raise PeerFileUnavailable(f"replica {replica}: OVERLOADED", is_busy=True)

    def _content(self, digest: bytes) -> bytes:
        data = self.peer.layer(digest)
        if digest not in self.flipped:
            return data
        self.flipped.remove(digest)
        return data[:-1] + bytes([data[-1] ^ 1])

    async def _chunks(self, replica: int, data: bytes) -> AsyncGenerator[bytes]:
        for begin in range(0, len(data), CHUNK_BYTES):
            if replica in self.stalled:
                self.stalls += 1
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if not self.chunks_left:
                self.is_over, self.chunks_left = True, 1_000_000
            if self.is_over:
                raise PeerFileUnavailable(f"replica {replica}: nobody sends it")
            self.chunks_left -= 1
            chunk = data[begin : begin + CHUNK_BYTES]
            self.bytes_sent += len(chunk)
            self.sent_by[replica] += len(chunk)
            yield chunk

    @property
    def digests_asked(self) -> dict[int, set[bytes]]:
        """The layers of which each replica was asked for something."""
        found: dict[int, set[bytes]] = {}
        for replica, digest in self.asked_for:
            found.setdefault(replica, set()).add(digest)
        return found

    def last_asked(self, digest: bytes, parts: int) -> set[int]:
        """Return who was asked for a layer when its parts were asked for last."""
        return set([replica for replica, each in self.asked_for if each == digest][-parts:])

    async def layer(
        self,
        replicas: Sequence[int],
        generation: int,
        digest: bytes,
        size_bytes: int,
        offset: int = 0,
    ) -> AsyncGenerator[bytes]:
        """Yield a layer as a whole, from whichever peer."""
        self.asked.append(("layer", tuple(replicas), generation, offset))
        self.before_layer()
        if digest in self.lost:
            raise PeerFileUnavailable(f"layer {digest.hex()}: DATA_LOSS, and NOT_FOUND elsewhere")
        data = self._content(digest)
        assert len(data) == size_bytes
        async for chunk in self._chunks(replicas[0], data[offset:]):
            yield chunk


class TransferTrial:
    """A replica that is behind, with a peer that is ahead."""

    def __init__(self, directory: Path, storage: MemoryStorage | None = None) -> None:
        """Begin empty, or with the content of a disk."""
        self.peer = Peer()
        self.fetcher = FakeFetcher(self.peer)
        self.storage = storage or memory()
        self.files: SnapshotFiles = open_files(self.storage, replica_id=2)
        self.directory = directory / "transfer"
        self.held_op = 5
        self.others: tuple[int, ...] = (0, 1)
        self.own_cut_op = self.adopted = 0
        self.recorded: list[tuple[int, int]] = []
        self.refusing: list[Exception] = []
        self.before_record: Callable[[], None] = lambda: None
        self.said: list[str] = []
        self.ended = 0
        self.transfer = self.begin()

    def begin(self) -> StateTransfer:
        """Return the state of a new process."""
        ports = TransferPorts(
            fetcher=self.fetcher,
            replicas=lambda: self.others,
            cluster_id=CLUSTER_ID,
            held_op=lambda: self.held_op,
            own_cut_op=lambda: self.own_cut_op,
            adopted=lambda: self.adopted,
            record=self._record,
            say=self.said.append,
            ended=self._end,
        )
        return StateTransfer(ports, self.files, self.directory)

    def _record(self, generation: int, cut_op: int) -> None:
        if self.refusing:
            raise self.refusing.pop()
        self.before_record()
        assert loaded_state(self.files, generation), "recorded before it was durable"
        self.recorded.append((generation, cut_op))

    def _end(self) -> None:
        self.ended += 1

    async def run(self, generation: int = NEWEST) -> None:
        """Need a generation, and go on until it is here."""
        self.transfer.needed(SnapshotNeeded(1, generation, 10 * generation))
        with pytest.raises(RestartNeeded):
            async with asyncio.timeout(30):
                await self.transfer.run()

    def leftovers(self) -> list[str]:
        """Return the names of a transfer's leftovers."""
        return sorted(path.name for path in self.directory.glob("*"))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the transfer until a condition holds."""
        running = asyncio.ensure_future(self.transfer.run())
        for _ in range(ROUNDS_MAX):
            if condition():
                break
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert condition(), "it never came to that"
