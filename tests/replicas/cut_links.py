"""Scenarios of cut links, run in network namespaces and behind proxies.

`python -m tests.replicas.cut_links SCENARIO DIRECTORY` runs one in namespaces: start it in a new
network namespace (`tests.replicas.links.in_new_namespace`). It exits with 0 if all promises were
kept; otherwise a traceback says which one was not.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import grpc
import grpc.aio
import pytest

from testkit.links import LinkedReplicas, Links
from tests.replicas.links import in_namespaces
from tests.replicas.trial import (
    SETTLE_TIMEOUT_S,
    ReplicasTrial,
    agree,
    token_of,
    trial_of,
    unary,
    under_load,
)
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import Endpoint
from viewstamp.client import unary as client_unary
from viewstamp.client.identifiers import identifier
from viewstamp.client.link import open_stream
from viewstamp.client.verdicts import RetryVerdict, verdict_on
from viewstamp.errors import Refusal
from viewstamp.limits import SESSION_NONCE_BYTES
from viewstamp.status import refusal_of

REPLICAS: Final = 3
OPERATIONS: Final = 150
NEW: Final = "created-meanwhile"
# Time for the first try. It doubles with each try: on a slow machine a login takes longer.
PATIENCE_FIRST_S: Final = 0.5

Scenario = Callable[[ReplicasTrial, Links], Awaitable[None]]
Linked = AbstractAsyncContextManager[tuple[LinkedReplicas, Links]]


async def primary_is_cut_off(made: ReplicasTrial, links: Links) -> None:
    """The others elect a new primary; the old one does not notice, and answers no outdated read."""
    primary, others = await _sides(made)
    cut_ns = time.monotonic_ns()
    for other in others:
        links.cut(primary, other)
        links.cut(other, primary)
    await _ends_no_session(made, primary, others[0])
    await _created(made, others[0], NEW)
    await _is_not_behind(made, primary, NEW)
    await made.until_answered(2 * OPERATIONS)
    print(f"the longest that each caller waited then: {_waits_s(made, cut_ns)} s")
    assert await made.primary() != primary
    links.heal()
    await made.until_answered(OPERATIONS)


async def primary_hears_nobody(made: ReplicasTrial, links: Links) -> None:
    """The primary sends, but gets no acknowledgement: the others elect a new one."""
    primary, others = await _sides(made)
    for other in others:
        links.cut(other, primary)
    await made.until_answered(2 * OPERATIONS)
    links.heal()
    await made.until_answered(OPERATIONS)


async def nobody_hears_the_primary(made: ReplicasTrial, links: Links) -> None:
    """The primary hears all, but nothing that it sends arrives: the others elect a new one."""
    primary, others = await _sides(made)
    for other in others:
        links.cut(primary, other)
    await made.until_answered(2 * OPERATIONS)
    assert await made.primary() != primary
    links.heal()
    await made.until_answered(OPERATIONS)


async def two_cannot_see_each_other(made: ReplicasTrial, links: Links) -> None:
    """Primary and one backup are apart, and the third sees both: a primary reaches a majority."""
    primary, others = await _sides(made)
    links.cut(primary, others[0])
    links.cut(others[0], primary)
    await made.until_answered(4 * OPERATIONS)
    links.heal()
    await made.until_answered(OPERATIONS)


async def backup_is_cut_off(made: ReplicasTrial, links: Links) -> None:
    """The cluster serves without the backup, which catches up later; the primary stays."""
    primary, others = await _sides(made)
    for other in {0, 1, 2} - {others[0]}:
        links.cut(others[0], other)
        links.cut(other, others[0])
    await made.until_answered(4 * OPERATIONS)
    assert await made.primary() == primary
    links.heal()
    await made.until_answered(OPERATIONS)


SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        scenario.__name__: scenario
        for scenario in (
            primary_is_cut_off,
            primary_hears_nobody,
            nobody_hears_the_primary,
            two_cannot_see_each_other,
            backup_is_cut_off,
        )
    }
)


async def run(scenario: Scenario, linked: Linked) -> None:
    """Cut links of loaded replicas, heal them, and check what callers saw."""
    async with linked as (replicas, links), trial_of(replicas) as made:
        async with under_load(made):
            await made.until_answered(OPERATIONS)
            await scenario(made, links)
        links.heal()
        await agree(made)


async def _sides(made: ReplicasTrial) -> tuple[int, list[int]]:
    primary = await made.primary()
    return primary, [replica for replica in range(REPLICAS) if replica != primary]


def _waits_s(made: ReplicasTrial, since_ns: int) -> list[float]:
    """Return the longest wait of each caller for an answer after the given time."""
    longest: dict[int, float] = {}
    for _, operation in made.history:
        if operation.returned_at is not None and operation.returned_at > since_ns:
            wait_s = (operation.returned_at - operation.called_at) / 1e9
            longest[operation.client] = max(wait_s, longest.get(operation.client, 0.0))
    return sorted(round(wait_s, 2) for wait_s in longest.values())


async def _created(made: ReplicasTrial, replica: int, name: str) -> None:
    """Create a stream, through a replica that can find a primary."""
    request = streams_pb2.CreateStreamRequest(name=name)
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while True:
            try:
                await unary(made.replicas, made.replicas.addresses[replica], request)
            except grpc.aio.AioRpcError as error:
                # The call was first forwarded to the old primary, which does not answer.
                if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                    return
            except Refusal:
                pass  # of the login: there is no primary at the moment
            else:
                return


async def _ends_no_session(made: ReplicasTrial, replica: int, informed: int) -> None:
    """A replica that is cut off must not claim that a session has ended, since it cannot know."""
    token, session_id = await _registered(made, informed)
    async with Endpoint(made.replicas.addresses[replica]).open() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await open_stream(channel, token, session_id)
    refusal = refusal_of(caught.value)
    assert refusal is not None
    assert verdict_on(refusal) in (RetryVerdict.RETRY, RetryVerdict.RECONNECT), refusal


async def _registered(made: ReplicasTrial, replica: int) -> tuple[str, int]:
    """Register a session through a replica that finds a primary; return a token and the session."""
    request = sessions_pb2.RegisterSessionRequest(nonce=secrets.token_bytes(SESSION_NONCE_BYTES))
    async with (
        asyncio.timeout(SETTLE_TIMEOUT_S),
        Endpoint(made.replicas.addresses[replica]).open() as channel,
    ):
        for tries in itertools.count():
            # The first tries are forwarded to the old primary, which does not answer.
            with suppress(TimeoutError, grpc.aio.AioRpcError, Refusal):
                async with asyncio.timeout(PATIENCE_FIRST_S * 2**tries):
                    token = await token_of(made.replicas, channel)
                    answer = await client_unary(channel, request, access_token=token)
                    return token, answer.session_id
    raise AssertionError("the last try succeeds, or time is up")


async def _is_not_behind(made: ReplicasTrial, replica: int, name: str) -> None:
    """A read that must not be stale finds the stream, is refused otherwise, or times out."""
    request = streams_pb2.GetStreamRequest(stream=identifier(name))
    try:
        await unary(made.replicas, made.replicas.addresses[replica], request)
    except grpc.aio.AioRpcError as error:
        what = f"replica {replica} is cut off, and answers from the past: {error.details()}"
        assert error.code() is not grpc.StatusCode.NOT_FOUND, what
    except Refusal:
        pass  # of the login


if __name__ == "__main__":
    asyncio.run(run(SCENARIOS[sys.argv[1]], in_namespaces(Path(sys.argv[2]), REPLICAS)))
