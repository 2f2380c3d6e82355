"""ReadSection over gRPC: whole, repeated, overtaken, fenced, and beside applies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

import grpc
import pytest

from services.runtime import reading as reading_module
from tests.services.runtime import echo
from tests.services.runtime.echo import PUT, batch, command, put_request
from tests.services.runtime.snapshot_trial import merged
from tests.services.runtime.test_server import StreamClient, failed, read, send, serving
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.format.section import SectionTally
from viewstamp.limits import ENCODE_SLICE_US
from viewstamp.machine.freezing import SORTED_AT_ONCE, Freezer, RowKind
from viewstamp.machine.tables import Table, UndoLog

WORDS = 6000
TEXT_BYTES = 150


@pytest.fixture
async def client() -> AsyncIterator[StreamClient]:
    """A coordinator of the echo domain."""
    async with serving(echo.DOMAIN) as client:
        yield client


def cut(generation: int) -> pb.Item:
    """Return a cut."""
    return pb.Item(cut=pb.CutItem(generation=generation))


async def fill(stream: Any, sequence: int, first: int, count: int = WORDS) -> None:
    """Put words, enough for several blocks, in one batch."""
    requests = [put_request(f"w{n:06}", f"{n:0{TEXT_BYTES}}") for n in range(first, first + count)]
    await send(stream, batch(sequence, command(PUT, *requests, revision=sequence)))


def section(client: StreamClient, generation: int, sequence: int = 1) -> Any:
    """Ask for a section."""
    request = pb.ReadSectionRequest(generation=generation, coordinator_sequence=sequence)
    return client.service.ReadSection(request)


async def whole(client: StreamClient, generation: int) -> tuple[list[bytes], pb.SectionSummary]:
    """Return the blocks and the summary of a section."""
    *blocks, last = [response async for response in section(client, generation)]
    return [response.block.data for response in blocks], last.summary


async def first_of(client: StreamClient, generation: int, sequence: int = 1) -> Any:
    """Return the first message of a section. Raises AioRpcError."""
    return await anext(aiter(section(client, generation, sequence)))


async def digest(stream: Any) -> bytes:
    """Return the digest of the state."""
    (reply,) = await send(stream, batch(0, pb.Item(query=pb.QueryItem())))
    answer = reply.outcomes[0].query
    if answer.deferred:
        answer = (await read(stream)).deferred
    return bytes(answer.state_digest)


async def test_section_is_the_state_at_the_cut(client: StreamClient) -> None:
    """Many blocks and a summary give the state at the cut, whatever came later."""
    stream = await client.open()
    await fill(stream, 1, 0)
    expected = await digest(stream)
    await send(stream, batch(2, cut(1), command(PUT, put_request("later"), revision=9)))
    blocks, summary = await whole(client, 1)
    assert len(blocks) > reading_module.BLOCKS_IN_FLIGHT_MAX
    assert (summary.generation, summary.base_generation, summary.applied_revision) == (1, 0, WORDS)
    assert (summary.state_digest, summary.section_version) == (expected, 7)
    assert {kind.kind: kind.entities for kind in summary.kinds} == {1: WORDS, 2: 1}
    entities = merged([blocks])
    assert len(entities) == WORDS + 1
    word = echo.Word(1, "0" * TEXT_BYTES, "w000000")
    assert entities[0] == (1, b"w000000", echo.encode_word(word))


async def test_reading_again_gives_the_same_bytes(client: StreamClient) -> None:
    """An interrupted reading begins again with the same blocks."""
    stream = await client.open()
    await fill(stream, 1, 0)
    await send(stream, batch(2, cut(1)))
    cut_off = section(client, 1)
    first = await anext(aiter(cut_off))
    cut_off.cancel()
    await fill(stream, 3, WORDS, 10)
    blocks, summary = await whole(client, 1)
    assert blocks[0] == first.block.data
    again, same = await whole(client, 1)
    assert (again, same.SerializeToString()) == (blocks, summary.SerializeToString())


async def test_delta_is_against_what_was_released(client: StreamClient) -> None:
    """After a release the next section has the changes, and the digest of everything."""
    stream = await client.open()
    await fill(stream, 1, 0)
    await send(stream, batch(2, cut(1)))
    base, _ = await whole(client, 1)
    await stream.write(pb.ApplyRequest(release=pb.ReleaseCut(generation=1)))
    await fill(stream, 3, WORDS, 3)
    await send(stream, batch(4, cut(2)))
    delta, summary = await whole(client, 2)
    assert summary.base_generation == 1
    assert len(merged([delta])) == 3 + 1
    assert summary.state_digest == await digest(stream)
    assert len(merged([base, delta])) == WORDS + 3 + 1


async def test_sections_that_are_not_frozen(client: StreamClient) -> None:
    """Before a cut, after its release, and for another coordinator there is nothing to read."""
    status, said = await failed(first_of(client, 1))
    assert (status, "not served here" in said) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    stream = await client.open(3)
    status, said = await failed(first_of(client, 1, 3))
    assert (status, "none is" in said) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    await send(stream, batch(1, cut(4)))
    for generation, sequence, message in ((4, 2, "coordinator 2"), (3, 3, "4 is"), (5, 3, "4 is")):
        status, said = await failed(first_of(client, generation, sequence))
        assert (status, message in said) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    await stream.write(pb.ApplyRequest(release=pb.ReleaseCut(generation=4)))
    await send(stream, batch(2))
    assert (await failed(first_of(client, 4, 3)))[0] is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("overtaking", ["cut", "release", "asked again", "coordinator"])
async def test_overtaken_reading_ends_aborted(
    client: StreamClient, overtaking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading whose cut is gone says so, and the service lives on."""
    held, freed = asyncio.Event(), asyncio.Event()

    class Held(reading_module.SectionReading):
        """A reading that stands still before it looks whether it may go on."""

        async def pause(self) -> None:
            held.set()
            await freed.wait()
            await super().pause()

    monkeypatch.setattr("services.runtime.server.SectionReading", Held)
    stream = await client.open()
    await fill(stream, 1, 0)
    await send(stream, batch(2, cut(1)))
    call = asyncio.create_task(failed(whole(client, 1)))
    await held.wait()
    if overtaking == "cut":
        await send(stream, batch(3, cut(2)))
    elif overtaking == "release":
        await stream.write(pb.ApplyRequest(release=pb.ReleaseCut(generation=1)))
        await send(stream, batch(3))
    elif overtaking == "asked again":
        held.clear()
        again = asyncio.create_task(whole(client, 1))
        await held.wait()
    else:
        stream = await client.open(2)
    freed.set()
    status, said = await call
    assert (status, "cut 1 was released" in said) == (grpc.StatusCode.ABORTED, True)
    if overtaking == "asked again":
        assert (await again)[1].generation == 1
    assert not client.server.failure.done()


async def test_applies_go_on_while_a_section_is_read(client: StreamClient) -> None:
    """Batches are answered between the slices of a reading, which yields before it ends."""
    stream = await client.open()
    for number in range(4):
        await fill(stream, number + 1, number * WORDS)
    await send(stream, batch(5, cut(1)))
    reading = asyncio.create_task(whole(client, 1))
    applied = 0
    while not reading.done():
        await send(stream, batch(6 + applied, command(PUT, put_request("z"), revision=9)))
        applied += 1
    assert applied > 1
    assert (await reading)[1].kinds[0].entities == 4 * WORDS


def test_sorting_ends_slices_as_encoding_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of keys that is sorted may be the last of a slice."""
    now_ns = 0

    def clock_ns() -> int:
        nonlocal now_ns
        now_ns += ENCODE_SLICE_US * 1000 + 1
        return now_ns

    monkeypatch.setattr(time, "perf_counter_ns", clock_ns)
    table: Table[int, bytes] = Table(UndoLog())
    kind: RowKind[None] = RowKind(1, lambda _: table, bytes, lambda key, _: b"%05d" % key)
    freezer = Freezer((kind,), None, 0)
    for key in range(4 * SORTED_AT_ONCE):
        table.put(key, b"v")
    found = reading_module.entries_in_slices(freezer.freeze(1, 1), SectionTally())
    assert list(islice(found, 3)) == [None] * 3, "nothing is encoded before all is sorted"
