"""Digests of whole states: a walk beside the batches sees the state of its request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from services.runtime import digesting, reading
from tests.services.runtime import echo
from tests.services.runtime.echo import PUT, batch, command, put_request
from tests.services.runtime.test_server import StreamClient, read, send, serving
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.machine.freezing import Frozen

WORDS = 2_000


def digest_of(query_id: int) -> pb.Batch:
    """Return a batch that asks for the digest."""
    return batch(0, pb.Item(query=pb.QueryItem(query_id=query_id)))


async def filled(client: StreamClient) -> Any:
    """Return a stream with some words."""
    stream = await client.open()
    await send(stream, batch(1, command(PUT, *[put_request(f"w{i}") for i in range(WORDS)])))
    return stream


def hold_walks(monkeypatch: pytest.MonkeyPatch, is_held: Callable[[], bool]) -> None:
    """Let walks find nothing while they are held, however slow this machine is."""

    def held(frozen: Frozen[Any], tally: SectionTally) -> Iterator[SectionEntry | None]:
        while is_held():
            yield None
        yield from reading.entries_in_slices(frozen, tally)

    monkeypatch.setattr(digesting, "entries_in_slices", held)


def put(sequence: int) -> pb.Batch:
    """Return a batch that changes one word."""
    return batch(
        sequence, command(PUT, put_request("w0", f"{sequence}"), revision=WORDS + sequence)
    )


async def test_batches_go_on_beside_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each digest is that of the state at its place, though later batches were answered before."""
    replies: list[tuple[int, int]] = []
    hold_walks(monkeypatch, lambda: len(replies) < 4)
    async with serving(echo.DOMAIN) as client:
        stream = await filled(client)
        for request in (digest_of(1), put(2), digest_of(2), put(3)):
            await stream.write(pb.ApplyRequest(batch=request))
        digests: dict[int, bytes] = {}
        while len(replies) < 4 or len(digests) < 2:
            answer = await read(stream)
            if answer.HasField("deferred"):
                digests[answer.deferred.query_id] = answer.deferred.state_digest
            else:
                replies.append((answer.batch.sequence, len(digests)))
        assert replies == [(0, 0), (2, 0), (0, 0), (3, 0)]
        assert digests[1] != digests[2]
    async with serving(echo.DOMAIN) as client:
        stream = await filled(client)
        assert await found(stream, 5) == digests[1]
        await send(stream, put(2))
        assert await found(stream, 6) == digests[2]


async def found(stream: Any, query_id: int) -> bytes:
    """Return a digest."""
    await send(stream, digest_of(query_id))
    outcome = (await read(stream)).deferred
    assert outcome.query_id == query_id
    return bytes(outcome.state_digest)


async def test_who_asks_for_the_same_state_shares_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many simultaneous and later requests share one walk until something changes."""
    walks = []
    slices = reading.entries_in_slices

    def counted(*arguments: Any) -> Any:
        walks.append(1)
        return slices(*arguments)

    monkeypatch.setattr(digesting, "entries_in_slices", counted)
    async with serving(echo.DOMAIN) as client:
        stream = await filled(client)
        await send(stream, digest_of(1), digest_of(2))
        assert {(await read(stream)).deferred.query_id for _ in range(2)} == {1, 2}
        (reply,) = await send(stream, digest_of(3))
        assert reply.outcomes[0].query.state_digest
        assert len(walks) == 1
        await send(stream, put(2))
        assert await found(stream, 4)
        assert len(walks) == 2


async def test_few_states_are_held_for_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each walk holds references to its whole state, so requests beyond some states are refused."""
    deferred: list[pb.QueryOutcome] = []
    monkeypatch.setattr(digesting, "DIGESTS_WAITING_MAX", 2)
    hold_walks(monkeypatch, lambda: not deferred)
    async with serving(echo.DOMAIN) as client:
        stream = await filled(client)
        for sequence in (2, 3, 4):
            await stream.write(pb.ApplyRequest(batch=digest_of(sequence)))
            await stream.write(pb.ApplyRequest(batch=put(sequence)))
        while len(deferred) < 3:
            answer = await read(stream)
            if answer.HasField("deferred"):
                deferred.append(answer.deferred)
    (refused,) = [each for each in deferred if each.errors]
    assert (refused.query_id, len(refused.results)) == (4, 2)
    assert refused.errors[0].error.reason == Reason.REASON_OVERLOADED
