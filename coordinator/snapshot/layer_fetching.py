"""Layers from several peers at once, in parts, until all of them are here.

A part that a peer does not send goes to another one, with what was fetched of it. What a slow peer
has not sent yet is taken over once another peer has nothing left to do, so neither a peer that
stands still nor a slow one holds up the whole. Each peer is asked for its own manifest first, since
peers layer one state differently.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from coordinator.snapshot.errors import PeerFileUnavailable
from coordinator.snapshot.layer_parts import FetchedLayer, LayerPart, parts_of
from coordinator.snapshot.layer_sources import LayerSources
from coordinator.snapshot.partial_files import PartialFiles
from coordinator.snapshot.transfer_ports import TransferPorts
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatError
from viewstamp.format.manifest import decode_manifest, sections
from viewstamp.telemetry import fields

# Longer than any part takes that comes as fast as it may.
TAKE_OVER_MS: Final = 3_000
LOOK_MS: Final = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """What one attempt fetches, and from whom.

    `peers` are all that are asked, in order; `source` is the one whose `manifest` is followed, None
    if that is not known any more. `mistaken` counts how often a layer came with another digest:
    such a layer comes from one peer alone, another one each time. `is_moot` says that nothing is
    needed any more, `place` takes a layer in whose parts are all here, `left` is told how many
    bytes lack.
    """

    generation: int
    peers: Sequence[int]
    source: int | None
    manifest: SnapshotManifest
    mistaken: Mapping[bytes, int]
    is_moot: Callable[[], bool]
    place: Callable[[FetchedLayer], Awaitable[None]]
    left: Callable[[int], None]


@dataclass(eq=False, slots=True)
class _Fetch:
    part: LayerPart
    replica: int
    begun_s: float
    fetched_bytes: int = 0
    heir: int | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    replica: int


@dataclass(frozen=True, slots=True)
class _Placing:
    layer: FetchedLayer


_Work: TypeAlias = _Fetch | _Question | _Placing


@dataclass(slots=True)
class _LayerState:
    """How many parts of a layer lack."""

    layer: LayerReference
    lacking: set[LayerPart] = field(default_factory=set)


class LayerFetching:
    """Fetches the layers of one attempt; `run` is called once."""

    def __init__(self, ports: TransferPorts, files: PartialFiles, order: FetchOrder) -> None:
        self._ports = ports
        self._files = files
        self._order = order
        self._sources = LayerSources(order.peers)
        self._pending: deque[LayerPart] = deque()
        self._states: dict[bytes, _LayerState] = {}
        self._whole: deque[FetchedLayer] = deque()
        self._work: dict[asyncio.Task[None], _Work] = {}
        # What each peer said last when nothing came from it.
        self._words: dict[int, str] = {}
        self.fetched_bytes: Counter[int] = Counter()
        """What came from each peer."""

    async def run(self, layers: Sequence[LayerReference]) -> bool:
        """Return whether all layers are here; if not they are not needed any more.

        Raises PeerFileUnavailable if some part comes from nobody, what `place` raises, OSError.
        """
        await self._plan(layers)
        try:
            self._ask_for_manifests()
            while self._states:
                if self._order.is_moot():
                    return False
                self._begin()
                if not self._work:
                    raise self._nobody_sends()
                await asyncio.wait(
                    self._work, timeout=LOOK_MS / 1000, return_when=asyncio.FIRST_COMPLETED
                )
                for task in [each for each in self._work if each.done()]:
                    self._ended(task, self._work.pop(task))
            return True
        finally:
            await self._end_all()

    # --- Beginning ---

    async def _plan(self, layers: Sequence[LayerReference]) -> None:
        for layer in layers:
            state = self._states[layer.digest] = _LayerState(layer)
            for part in parts_of(layer):
                part.only_from = self._only_source(layer)
                part.is_alone = part.only_from is not None
                opened = await self._ports.in_thread(_opened_bytes, self._files, part)
                if opened < part.size_bytes:
                    state.lacking.add(part)
                    self._pending.append(part)
            self._look_at(state)
        self._tell_left()

    def _only_source(self, layer: LayerReference) -> int | None:
        mistakes = self._order.mistaken.get(layer.digest, 0)
        if not mistakes:
            return None
        return self._order.peers[(mistakes - 1) % len(self._order.peers)]

    def _ask_for_manifests(self) -> None:
        for replica in self._order.peers:
            if replica == self._order.source:
                self._sources.has_layers(replica, _digests(self._order.manifest))
            else:
                self._start(self._ask(replica), _Question(replica))

    def _begin(self) -> None:
        """Start whatever can be started."""
        is_placing = any(isinstance(each, _Placing) for each in self._work.values())
        if self._whole and not is_placing:  # one at a time: they share the disk
            layer = self._whole.popleft()
            self._start(self._order.place(layer), _Placing(layer))
        while (next_fetch := self._sources.next_fetch(self._pending)) is not None:
            part, replica = next_fetch
            self._pending.remove(part)
            self._sources.begun(replica)
            fetch = _Fetch(part, replica, asyncio.get_running_loop().time())
            self._start(self._fetch(fetch), fetch)
        self._take_over()

    def _take_over(self) -> None:
        """End slow fetches for which another peer has time."""
        before_s = asyncio.get_running_loop().time() - TAKE_OVER_MS / 1000
        heirs: set[int] = set()
        for task, fetch in self._work.items():
            if not isinstance(fetch, _Fetch) or fetch.heir is not None or fetch.begun_s > before_s:
                continue
            heir = self._sources.heir_of(fetch.part, fetch.replica, self._pending)
            if heir is not None and heir not in heirs:
                heirs.add(heir)
                fetch.heir = heir
                fetch.part.taken_over.add(heir)
                task.cancel()
                _log.info(
                    "a peer is slow: another one goes on with its part of a layer",
                    extra=fields(
                        slow=fetch.replica, heir=heir, layer=fetch.part.layer.digest.hex()
                    ),
                )

    def _start(self, coroutine: Awaitable[None], work: _Work) -> None:
        self._work[asyncio.ensure_future(coroutine)] = work

    # --- What runs at the same time ---

    async def _ask(self, replica: int) -> None:
        data = await self._ports.fetcher.manifest(replica, self._order.generation)
        self._sources.has_layers(replica, _digests(decode_manifest(data)))

    async def _fetch(self, fetch: _Fetch) -> None:
        part = fetch.part
        opened = await self._ports.in_thread(_opened_bytes, self._files, part)
        chunks = self._ports.fetcher.part(
            fetch.replica,
            self._order.generation,
            part.layer.digest,
            part.begin + opened,
            part.end,
        )
        async with aclosing(chunks):
            async for data in chunks:
                await self._ports.in_thread(self._files.append, part.name, data)
                fetch.fetched_bytes += len(data)
                self.fetched_bytes[fetch.replica] += len(data)

    # --- Ending ---

    def _ended(self, task: asyncio.Task[None], work: _Work) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(work, _Fetch):
            self._fetch_ended(work, error, is_whole=not task.cancelled() and error is None)
        elif error is None:
            if isinstance(work, _Placing):
                del self._states[work.layer.layer.digest]
        elif isinstance(work, _Question) and isinstance(error, PeerFileUnavailable | FormatError):
            self._words[work.replica] = str(error)
        else:
            raise error

    def _fetch_ended(self, fetch: _Fetch, error: BaseException | None, *, is_whole: bool) -> None:
        part, replica = fetch.part, fetch.replica
        self._sources.ended(replica, has_come=is_whole or fetch.fetched_bytes > 0)
        if is_whole:
            state = self._states[part.layer.digest]
            state.lacking.discard(part)
            self._look_at(state)
            self._tell_left()
            return
        if error is not None and not isinstance(error, PeerFileUnavailable):
            raise error
        self._pending.appendleft(part)
        if fetch.fetched_bytes:
            part.failures.clear()
        if error is None:
            part.only_from = fetch.heir
        elif not fetch.fetched_bytes and not self._is_passing(error, replica):
            part.failures[replica] = self._words[replica] = str(error)

    def _is_passing(self, error: PeerFileUnavailable, replica: int) -> bool:
        return error.is_busy and self._sources.is_refused_beside_others(replica)

    def _look_at(self, state: _LayerState) -> None:
        if not state.lacking:
            self._whole.append(FetchedLayer(self._files, state.layer))

    def _tell_left(self) -> None:
        lacking = (part for state in self._states.values() for part in state.lacking)
        self._order.left(sum(part.size_bytes for part in lacking))

    def _nobody_sends(self) -> PeerFileUnavailable:
        part = self._pending[0]
        said = self._words | part.failures
        words = [
            said.get(each, f"replica {each}: its snapshot has no such layer")
            for each in self._order.peers
        ]
        return PeerFileUnavailable(
            f"layer {part.layer.digest.hex()}, bytes {part.begin} to {part.end} of"
            f" {part.layer.size_bytes}: " + "; ".join(words)
        )

    async def _end_all(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)


def _digests(manifest: SnapshotManifest) -> frozenset[bytes]:
    return frozenset(layer.digest for _, section in sections(manifest) for layer in section.layers)


def _opened_bytes(files: PartialFiles, part: LayerPart) -> int:
    """Return the bytes of a partial file; one that is too long is begun anew."""
    found = files.size(part.name)
    if found > part.size_bytes:
        files.remove(part.name)
        return 0
    return found
