"""Installing a section over the Apply stream: the results, and the refusals."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from services.runtime.domain import Domain
from services.runtime.machine import Machine
from services.runtime.section import Section
from tests.services.runtime import echo
from tests.services.runtime.echo import GET, PUT, batch, command, message, put_request, query
from tests.services.runtime.test_server import (
    StreamClient,
    ended,
    failed,
    read,
    send,
    serving,
    text_of,
)
from tests.viewstamp.telemetry.spans_for_tests import SdkSpans
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.format import CHECKSUM_BYTES
from viewstamp.format.block import compress, raw_blocks
from viewstamp.format.digest import StateDigest
from viewstamp.format.prepare import checksum_of
from viewstamp.format.section import SectionEntry
from viewstamp.machine.freezing import Entity
from viewstamp.telemetry import work

WORDS: list[Entity] = [
    (1, b"a", b"a\x001\x00alpha"),
    (1, b"b", b"b\x002\x00beta"),
    (2, b"", b"4"),
]
DELTA = [
    SectionEntry(1, b"b", None),
    SectionEntry(1, b"c", b"c\x003\x00gamma"),
    SectionEntry(2, b"", b"4"),
]
RESULT: list[Entity] = [WORDS[0], (1, b"c", b"c\x003\x00gamma"), WORDS[2]]


@pytest.fixture
async def client() -> AsyncIterator[StreamClient]:
    """A coordinator of the echo domain."""
    async with serving(echo.DOMAIN) as client:
        yield client


def blocks(entries: list[Any]) -> list[bytes]:
    """Return entries as blocks."""
    return [compress(raw).data for raw in raw_blocks(SectionEntry(*entry) for entry in entries)]


def begin(entities: list[Entity], layers: int = 1, **fields: Any) -> pb.Install:
    """Return the announcement of a section."""
    digest = StateDigest()
    for entity in entities:
        digest.add(*entity)
    known: dict[str, Any] = {
        "generation": 3,
        "revision": 70,
        "sequence": 40,
        "section_version": 7,
        "state_digest": digest.to_bytes(),
        "entities": len(entities),
        "layers": layers,
    }
    return pb.Install(begin=pb.InstallBegin(**(known | fields)))


def block(data: bytes, layer: int = 0) -> pb.Install:
    """Return a block."""
    return pb.Install(block=pb.InstallBlock(layer=layer, data=data))


END = pb.Install(end=pb.InstallEnd())
ACTIVATE = pb.Install(activate=pb.InstallActivate())


async def say(stream: Any, *messages: pb.Install | pb.Batch) -> None:
    """Send messages."""
    for each in messages:
        field = "batch" if isinstance(each, pb.Batch) else "install"
        await stream.write(pb.ApplyRequest(**{field: each}))  # type: ignore[arg-type]


async def test_installed_section_is_served(client: StreamClient) -> None:
    """Interleaved layers are merged, answered with projections, and served once activated."""
    stream = await client.open()
    await say(stream, begin(RESULT, layers=2))
    await say(stream, block(blocks(list(DELTA))[0], 1), block(blocks(WORDS)[0], 0), END)
    installed = (await read(stream)).installed
    assert installed.generation == 3
    assert [projection.name for projection in installed.projections] == ["words"]
    await say(stream, ACTIVATE)
    assert [await text_of(stream, name) for name in "abc"] == ["alpha", None, "gamma"]
    (reply,) = await send(stream, batch(0, query(GET, message("GetRequest", name="a"))))
    answer = echo.parse("GetResponse", reply.outcomes[0].query.results[2:])
    assert answer.revision == 70
    (reply,) = await send(stream, batch(41, command(PUT, put_request("d"), revision=71)))
    assert reply.sequence == 41


async def test_installation_is_traced(
    client: StreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A section has a span from its beginning until it is served, whichever call was served
    then."""
    kept = SdkSpans()
    monkeypatch.setattr(work, "tracer", kept.tracer)
    stream = await client.open()
    await say(stream, begin(WORDS), block(blocks(WORDS)[0]), END)
    assert (await read(stream)).installed.generation == 3
    assert not kept.spans
    await say(stream, ACTIVATE)
    assert await text_of(stream, "a") == "alpha"
    (span,) = kept.spans
    assert (span.name, span.parent) == ("install", None)
    assert dict(span.attributes or {}) == {
        "viewstamp.generation": 3,
        "viewstamp.entities": len(WORDS),
    }


async def test_delta_after_an_installation(client: StreamClient) -> None:
    """The next section is a delta against the installed one."""
    stream = await client.open()
    await say(stream, begin(WORDS), block(blocks(WORDS)[0]), END, ACTIVATE)
    await read(stream)
    cut = pb.Item(cut=pb.CutItem(generation=4))
    await send(stream, batch(41, command(PUT, put_request("d"), revision=71), cut))
    request = pb.ReadSectionRequest(generation=4, coordinator_sequence=1)
    first, last = [response async for response in client.service.ReadSection(request)]
    assert (first.block.entries, last.summary.base_generation) == (2, 3)
    assert {kind.kind: kind.entities for kind in last.summary.kinds} == {1: 3, 2: 1}


async def test_empty_section(client: StreamClient) -> None:
    """A section without entities is installed like any other."""
    stream = await client.open()
    await say(stream, begin([], layers=0), END)
    assert (await read(stream)).installed.generation == 3
    await say(stream, ACTIVATE)
    assert await text_of(stream, "a") is None


def refused(*messages: pb.Install | pb.Batch) -> tuple[pb.Install | pb.Batch, ...]:
    """Return messages of which the last one is refused."""
    return messages


def lines(entities: list[Entity], *changes: Entity) -> tuple[pb.Install, ...]:
    """Return a section that was announced as `entities`, with changed ones among its blocks."""
    return (begin(entities), *map(block, blocks([*changes])), END)


LATER = bytearray(blocks(WORDS)[0])
LATER[20] = 2  # the version of the block format, under its checksum
LATER[:CHECKSUM_BYTES] = checksum_of(bytes(LATER[CHECKSUM_BYTES:]))
DAMAGED = bytearray(blocks(WORDS)[0])
DAMAGED[-1] ^= 1
UNORDERED: list[Entity] = [(1, b"b", b"a\x001\x00alpha"), WORDS[2]]
CLASH: list[Entity] = [(1, b"clash", b"clash\x001\x00x"), WORDS[2]]
WITHOUT_COUNTER = WORDS[:2]
ORDER, CONTENTS, VERSION = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.FAILED_PRECONDITION,
)
REFUSED: dict[str, tuple[tuple[pb.Install | pb.Batch, ...], grpc.StatusCode, str]] = {
    "end first": ((END,), ORDER, "end comes where begin is due"),
    "activate first": ((ACTIVATE,), ORDER, "activate comes where begin is due"),
    "nothing": ((pb.Install(),), ORDER, "None comes where begin is due"),
    "begin twice": ((begin(WORDS), begin(WORDS)), ORDER, "begin comes where block or end is due"),
    "activate too early": ((begin([]), ACTIVATE), ORDER, "where block or end is due"),
    "batch too early": ((begin(WORDS), batch(41)), ORDER, "activate it before a batch comes"),
    "read too early": ((begin(WORDS), batch(0)), ORDER, "activate it before a batch comes"),
    "after a batch": ((batch(1), begin(WORDS)), ORDER, "before the first batch"),
    "twice": ((begin([]), END, ACTIVATE, begin([])), ORDER, "before the first batch, once"),
    "layer": ((begin(WORDS), block(b"", 1)), ORDER, "layer 1 of a section of 1 layers"),
    "layers": ((begin(WORDS, layers=5000),), ORDER, "at most 1024 layers, not 5000"),
    "generation": ((begin(WORDS, generation=0),), ORDER, "generation 0 is the empty state"),
    "digest size": ((begin(WORDS, state_digest=b"x"),), ORDER, "has 32 bytes, not 1"),
    "newer": ((begin(WORDS, section_version=8),), VERSION, "versions up to 7: upgrade it"),
    "too old": ((begin(WORDS, section_version=6),), VERSION, "cannot migrate to 7"),
    "damaged": ((begin(WORDS), block(bytes(DAMAGED)), END), CONTENTS, "does not match its bytes"),
    "later format": ((begin(WORDS), block(bytes(LATER)), END), VERSION, "version 2 is unknown"),
    "no block": ((begin(WORDS), END), CONTENTS, "has 0 entities; 3 were announced"),
    "block twice": (
        (begin(WORDS), block(blocks(WORDS)[0]), block(blocks(WORDS)[0]), END),
        CONTENTS,
        "does not come after",
    ),
    "digest": (lines(WORDS, WORDS[0], (1, b"b", b"b\x002\x00x"), WORDS[2]), CONTENTS, "the digest"),
    "count": (lines(WORDS, WORDS[0], WORDS[2]), CONTENTS, "has 2 entities; 3 were announced"),
    "key": (lines(UNORDERED, *UNORDERED), CONTENTS, "under a wrong key"),
    "kind": (lines([(9, b"", b"")], (9, b"", b"")), CONTENTS, "kind 9 is unknown"),
    "domain's own": (lines(CLASH, *CLASH), CONTENTS, "this word clashes"),
    "at odds": (lines(WITHOUT_COUNTER, *WITHOUT_COUNTER), CONTENTS, "an id that is not below 1"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_not_installed(client: StreamClient, name: str) -> None:
    """A section that is wrong ends the stream and says why; the next stream starts empty."""
    messages, code, said = REFUSED[name]
    stream = await client.open()
    await say(stream, *messages)
    status, details = await ended(stream)
    assert (status, said in details) == (code, True), details
    assert not client.server.failure.done()
    assert await text_of(await client.open(), "a") is None


async def test_nothing_is_normalized_before_the_section_is_there(client: StreamClient) -> None:
    """While a section is installed there is no state to check a payload against."""
    stream = await client.open()
    await say(stream, begin([]), END)
    await read(stream)
    hide = pb.NormalizeRequest(code=echo.HIDE, count=1, items=echo.frames(b""))
    assert (await failed(client.service.Normalize(hide)))[0] is grpc.StatusCode.UNAVAILABLE


def spoken(version: int) -> Domain[echo.EchoState]:
    """Return the echo domain at a later version; version 8 says "!" behind texts, 9 once more."""

    def louder(entities: Iterator[Entity]) -> Iterator[Entity]:
        for kind, key, canonical in entities:
            yield kind, key, canonical + b"!" if kind == 1 else canonical

    migrations = dict.fromkeys(range(7, version), louder)
    section: Section[echo.EchoState] = replace(echo.SECTION, version=version, migrations=migrations)
    return replace(echo.DOMAIN, section=section)


async def test_older_section_is_migrated_step_by_step() -> None:
    """Two versions later every entity was rewritten twice, and the next section is whole."""
    async with serving(spoken(9)) as client:
        stream = await client.open()
        await say(stream, begin(WORDS), block(blocks(WORDS)[0]), END, ACTIVATE)
        await read(stream)
        assert await text_of(stream, "b") == "beta!!"
        await send(stream, batch(41, pb.Item(cut=pb.CutItem(generation=4))))
        request = pb.ReadSectionRequest(generation=4, coordinator_sequence=1)
        first, last = [response async for response in client.service.ReadSection(request)]
        assert (first.block.entries, last.summary.base_generation) == (len(WORDS), 0)
        assert last.summary.section_version == 9


@pytest.mark.parametrize("kinds", [(1, 1), (2, 1)])
def test_section_that_is_not_whole(kinds: tuple[int, int]) -> None:
    """Kinds that do not ascend would make unreadable layers."""
    chosen = [replace(echo.SECTION.kinds[0], number=number) for number in kinds]
    with pytest.raises(ValueError, match="must ascend"):
        Section(version=1, kinds=chosen)
    with pytest.raises(ValueError, match=r"versions \[1\] lead beyond 1"):
        Section(version=1, kinds=(), migrations={1: lambda entities: entities})


def test_dropped_machine_goes_at_once() -> None:
    """An unreferenced machine frees its state without the collector, which may never run."""
    gc.disable()
    try:
        machine: Machine[echo.EchoState] = Machine(echo.DOMAIN)
        machine.apply(batch(1, command(PUT, put_request("a"))))
        held = weakref.ref(machine), weakref.ref(machine.state)
        del machine
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()
