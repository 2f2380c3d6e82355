"""Reads that decide what a caller may do see the newest state, and make no entry in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.gateway.caller_calls import CallerCalls
from coordinator.gateway.reads import (
    CONSISTENCY_KEY,
    LINEARIZABLE,
    STALE,
    ReadConsistency,
)
from coordinator.gateway.requested_reads import RequestedReads
from coordinator.gateway.routes import Routes
from coordinator.gateway.unary import UnaryCalls
from coordinator.mux.mux import Mux
from coordinator.mux.types import Read, ResolveItem, SendBatch
from coordinator.mux.types import ReadSpan as MuxReadSpan
from coordinator.replica.batcher import AnsweredSpan, Reply
from tests.coordinator.gateway.test_unary_deadline import UnaryCall
from tests.coordinator.mux.fakes import FakeCodec
from tests.coordinator.mux.transcript import ROUTES
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.framing import frame
from viewstamp.routing import MethodKind
from viewstamp.tokens import AccessToken


class Answering:
    """Answers every read with nothing, and remembers how it was asked."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.asked: list[tuple[RequestedReads, ReadConsistency]] = []

    def start_spans(
        self,
        spans: Sequence[RequestedReads],
        principal: AccessToken | None,
        session_id: int,
        consistency: ReadConsistency,
        address: str = "",
    ) -> asyncio.Future[Reply]:
        """Answer at once."""
        self.asked += [(span, consistency) for span in spans]
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        future.set_result(Reply(1, 2, 3, (AnsweredSpan(frame(b""), ()),)))
        return future


@pytest.mark.parametrize(("is_public", "seen"), [(True, LINEARIZABLE), (False, STALE)])
async def test_credentials_are_never_read_of_the_past(
    is_public: bool, seen: ReadConsistency
) -> None:
    """A replica that has not heard of a revocation logs nobody in with the revoked credentials,
    even if the caller accepts a stale read."""
    reads: Any = Answering()
    method: Any = SimpleNamespace(code=1, kind=MethodKind.QUERY, public=is_public)
    calls = UnaryCalls(
        bytes(16),
        SimpleNamespace(public=lambda path: method),  # type: ignore[arg-type]
        SimpleNamespace(principal=lambda metadata: AccessToken(1, 1, 0)),  # type: ignore[arg-type]
        SimpleNamespace(check_credentials=lambda principal: None),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        reads,
        lambda: None,
    )
    call: Any = UnaryCall(((CONSISTENCY_KEY, "stale"),))
    await calls.serve("/test.Service/Login", b"", call)
    assert [consistency for _, consistency in reads.asked] == [seen]


async def test_who_manages_servers_is_asked_without_an_entry_of_the_log() -> None:
    """A linearizable read demands the permission; no log entry is made for it."""
    reads: Any = Answering()
    nothing: Any = SimpleNamespace()  # every entry fails
    calls = CallerCalls(Routes(), nothing, reads, AccessToken(7, 1, 0))
    await calls.check_manages_servers()
    ((span, consistency),) = reads.asked
    assert (span.gate, consistency) == (routing_pb2.GATE_MANAGE_SERVERS, LINEARIZABLE)
    assert span.method.gate == routing_pb2.GATE_READ_SERVERS


def test_a_read_may_demand_more_than_its_route() -> None:
    """The resolving stage is told which permission to demand."""
    code = next(code for code, route in ROUTES.items() if route.is_query and route.resolve_stage)
    span = MuxReadSpan(code, 1, frame(b""), gate=99)
    effects = Mux(ROUTES, FakeCodec()).read(Read(1, (span,), 7, 0))
    (sent,) = [effect for effect in effects if isinstance(effect, SendBatch)]
    (item,) = sent.batch.items
    assert isinstance(item, ResolveItem)
    assert item.gate == 99
