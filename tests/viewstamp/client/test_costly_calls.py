"""Calls whose secrets are prepared before the log: small requests, and patience."""

from __future__ import annotations

import asyncio
from collections import deque

from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.commands import ClientCommands
from viewstamp.client.methods import method_of
from viewstamp.client.packing import (
    CALLS_PER_REQUEST_MAX,
    COSTLY_CALLS_PER_REQUEST_MAX,
    PackedBatch,
    PendingCall,
    encode,
    take_parcel,
)
from viewstamp.framing import frame

TIMEOUT_S = 30.0


def call(request: users_pb2.CreateUserRequest | streams_pb2.CreateStreamRequest) -> PendingCall:
    """Return a waiting call whose deadline is the event loop's time 1."""
    method = method_of(request)
    future = asyncio.get_running_loop().create_future()
    return PendingCall(method, encode(method, request), future, deadline=1.0, timeout_s=TIMEOUT_S)


def users(count: int) -> list[PendingCall | PackedBatch]:
    """Return waiting calls that create users."""
    return [call(users_pb2.CreateUserRequest(username=f"user {n}")) for n in range(count)]


async def test_a_request_has_few_costly_calls() -> None:
    """Calls with passwords travel in small requests, cheap ones beside them in large ones."""
    waiting = deque(users(40))
    sizes = []
    while (parcel := take_parcel(waiting, CALLS_PER_REQUEST_MAX)) is not None:
        sizes.append(parcel.count)
    assert sizes == [16, 16, 8] and max(sizes) == COSTLY_CALLS_PER_REQUEST_MAX
    waiting = deque(
        call(streams_pb2.CreateStreamRequest(name=str(n))) for n in range(CALLS_PER_REQUEST_MAX)
    )
    parcel = take_parcel(waiting, CALLS_PER_REQUEST_MAX)
    assert parcel is not None and parcel.count == CALLS_PER_REQUEST_MAX


async def test_costly_calls_wait_as_long_as_others_get_on() -> None:
    """An answer to some calls restarts the others' deadline, sent or not: none is given up."""
    commands = ClientCommands()
    commands.start_session(1)
    cheap = call(streams_pb2.CreateStreamRequest(name="s"))
    calls = users(20 * COSTLY_CALLS_PER_REQUEST_MAX)
    commands.waiting.extend([*calls, cheap])
    first, *_ = (message.command for message in commands.next_requests())
    now = asyncio.get_running_loop().time()
    spans = [submit_pb2.SpanReply(results=frame(b"") * span.count) for span in first.spans]

    commands.on_reply(submit_pb2.CommandReply(number=first.number, spans=spans), can_renew=False)

    left = [owner for owner in calls if not owner.future.done()]
    assert 0 < len(left) < len(calls)
    assert all(owner.deadline >= now + TIMEOUT_S for owner in left)
    assert cheap.deadline == 1.0
