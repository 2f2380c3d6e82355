"""Sections as streams: of services over gRPC, and of the mux's frozen rows, a slice at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest

from coordinator.mux.catalog_types import CutTaken
from coordinator.mux.stage import Stage
from coordinator.snapshot.sections import (
    ENTITIES_PER_LOOK,
    CutSections,
    GenerationFailed,
    SectionBase,
    SectionHead,
    SectionUnavailable,
)
from coordinator.snapshot.work import in_thread
from tests.coordinator.snapshot.orchestration.orchestra import Frozen
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.format.block import Block, decode_block
from viewstamp.format.digest import entity_digest
from viewstamp.limits import ENTITY_BYTES_MAX
from viewstamp.machine.freezing import Change

BLOCK = pb.ReadSectionResponse(block=pb.SectionBlock(entries=1))


@dataclass
class SectionService:
    """A service that sends a block and then fails, or waits."""

    error: Exception | None = None
    is_closed: bool = field(default=False)

    async def read_section(self, generation: int) -> AsyncGenerator[pb.ReadSectionResponse]:
        """Yield a block."""
        try:
            yield BLOCK
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.is_closed = True


def _error(code: grpc.StatusCode) -> Exception:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "details")


def _cut(generation: int, sessions: Frozen, catalog: Frozen | None = None) -> CutTaken:
    return CutTaken(generation, 5, 2, 77, 5_000, 1, sessions, catalog or Frozen(generation))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, SectionUnavailable),
        (grpc.StatusCode.ABORTED, SectionUnavailable),
        (grpc.StatusCode.FAILED_PRECONDITION, SectionUnavailable),
        (grpc.StatusCode.CANCELLED, SectionUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, SectionUnavailable),
        (grpc.StatusCode.INTERNAL, GenerationFailed),
        (grpc.StatusCode.UNIMPLEMENTED, GenerationFailed),
    ],
)
async def test_errors_of_a_service(code: grpc.StatusCode, expected: type[Exception]) -> None:
    """A service that is away is asked again; one that refuses for good fails the generation."""
    sections = CutSections({Stage.USERS: SectionService(_error(code))}, lambda _: 4)
    with pytest.raises(expected, match=code.name):
        [each async for each in sections.read(Stage.USERS, _cut(1, Frozen(1)))]


async def test_an_entry_that_no_block_holds_fails_the_generation() -> None:
    """An entity too large for a snapshot ends the generation, and not the coordinator."""
    large = Frozen(1, frozen=((4, b"key", None, bytes(ENTITY_BYTES_MAX)),))
    with pytest.raises(GenerationFailed, match="cannot be written: an entry has"):
        [each async for each in CutSections({}, lambda _: 1).read(Stage.SESSIONS, _cut(1, large))]


async def test_whoever_stops_reading_ends_the_call() -> None:
    """A section that is not read to its end leaves no call behind."""
    service = SectionService()
    stream = CutSections({Stage.USERS: service}, lambda _: 4).read(Stage.USERS, _cut(1, Frozen(1)))
    assert await anext(stream) == Block(b"", 1, 0, 0, (0, b""), (0, b""))
    await stream.aclose()
    assert service.is_closed


def test_expected_heads() -> None:
    """Services' sections must be counted from the same head as the mux's own."""
    sections = CutSections({}, lambda stage: 4)
    cut = _cut(9, Frozen(9, 7), Frozen(9, 7))
    assert sections.expected(Stage.STREAMS, cut) == SectionHead(4, 7)
    assert sections.expected(Stage.CATALOG, cut) == SectionHead(1, 7)


async def _read(
    sections: CutSections, stage: Stage, cut: CutTaken
) -> tuple[list[tuple[int, bytes, bytes | None]], pb.SectionSummary]:
    *blocks, last = [each async for each in sections.read(stage, cut)]
    assert isinstance(last, pb.SectionSummary)
    entries = [
        tuple(entry)
        for each in blocks
        if isinstance(each, Block)
        for entry in decode_block(each.data)
    ]
    return entries, last  # type: ignore[return-value]


A, B, C = (entity_digest(1, key, key * 2) for key in (b"a", b"b", b"c"))
PUT: tuple[Change, ...] = ((1, b"a", None, b"aa"), (1, b"b", None, b"bb"))
CHANGED: tuple[Change, ...] = (
    (1, b"a", b"aa", None),
    (1, b"b", b"bb", b"bb"),
    (1, b"c", None, b"cc"),
)


async def test_digest_goes_on_from_its_base() -> None:
    """A delta's digest and counts are its base's, less the removed entities, plus the added."""
    sections = CutSections({}, lambda _: 1)
    entries, summary = await _read(sections, Stage.CATALOG, _cut(1, Frozen(1), Frozen(1, 0, PUT)))
    assert entries == [(1, b"a", b"aa"), (1, b"b", b"bb")]
    assert int.from_bytes(summary.state_digest, "big") == (A + B) % 2**256
    cut = _cut(2, Frozen(2), Frozen(2, 1, CHANGED))
    for _ in range(2):  # it can be read again
        entries, summary = await _read(sections, Stage.CATALOG, cut)
        assert entries == [(1, b"a", None), (1, b"c", b"cc")]
        assert int.from_bytes(summary.state_digest, "big") == (B + C) % 2**256
        assert [(k.kind, k.entities) for k in summary.kinds] == [(1, 2)]
        assert (summary.base_generation, summary.applied_revision) == (1, 77)


async def test_restored_base() -> None:
    """After a restart counting goes on from the manifest's values."""
    restored = {(Stage.SESSIONS, 5): SectionBase((A + B) % 2**256, ((1, 2),))}
    sections = CutSections({}, lambda _: 1, restored)
    cut = _cut(6, Frozen(6, 5, CHANGED))
    _, summary = await _read(sections, Stage.SESSIONS, cut)
    assert int.from_bytes(summary.state_digest, "big") == (B + C) % 2**256
    sections.forget_before(6)
    with pytest.raises(GenerationFailed, match="not known here"):
        await _read(sections, Stage.SESSIONS, cut)


@pytest.mark.parametrize("sorted_first", [0, 80], ids=["encoding", "sorting"])
async def test_encoding_lets_others_go_first(sorted_first: int) -> None:
    """Other due work on the event loop runs between two slices of sorting and encoding."""
    now = 0

    def clock_ns() -> int:
        nonlocal now
        now += 100_000  # half of a slice for each call
        return now

    turns = 0
    encoded_in: Counter[int] = Counter()

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    class Watched(Frozen):
        def walk(self) -> Iterator[Change | None]:
            for _ in range(sorted_first):
                encoded_in[turns] += ENTITIES_PER_LOOK  # what lies between two looks at the clock
                yield None
            for n in range(800):
                encoded_in[turns] += 1
                yield 1, b"%05d" % n, None, b"v"

    sections = CutSections({}, lambda _: 1, clock_ns=clock_ns)
    turn()
    entries, _ = await _read(sections, Stage.SESSIONS, _cut(1, Watched(1)))
    assert len(entries) == 800
    assert max(encoded_in.values()) <= 2 * ENTITIES_PER_LOOK + 1


async def test_thread_is_outlived() -> None:
    """A cancelled task waits for its thread, so nothing writes after it."""
    started, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def work() -> None:
        started.set()
        go_on.wait()
        done.append(1)

    async def caller() -> None:
        try:
            await in_thread(work)
        finally:
            done.append(2)

    running: asyncio.Task[None] = asyncio.ensure_future(caller())
    await asyncio.to_thread(started.wait)
    running.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert done == [1, 2]
