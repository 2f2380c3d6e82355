"""Ended credentials open nothing, take no place and fence nobody."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.gateway.unary import UnaryCalls
from coordinator.mux.codec import CredentialsChanged
from coordinator.stages.codec import REGISTER_SESSION_CODE
from tests.coordinator.gateway.test_admission import ROOT, SESSION, refused
from tests.coordinator.gateway.test_stream_fences import Face, FencedWire, turns
from tests.coordinator.gateway.test_unary_deadline import Ended, UnaryCall
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.limits import TOKEN_STAMP
from viewstamp.routing import MethodKind
from viewstamp.tokens import AccessToken

BY_TOKEN = AccessToken(0, TOKEN_STAMP | 1, 2**62)
CHANGED = 9


def end(face: Face, *, minimum: int = 1, minimum_token: int = 0) -> None:
    """End credentials of root, as the applied command reports it."""
    face.world.mux.sessions.apply_effect(CredentialsChanged(0, minimum, minimum_token), CHANGED)
    for user_id in face.world.mux.sessions.take_changes().users:
        face.streams.credentials_ended(user_id)


@pytest.mark.parametrize("session_id", [0, SESSION])
async def test_streams_end_with_their_credentials(session_id: int) -> None:
    """A stream is ended with the reason, whether or not it has a session or sends anything."""
    face = Face()
    async with face.stream(session_id) as stream:
        end(face, minimum_token=CHANGED)
        await turns()
        assert stream.ended_with == ""
        end(face, minimum=CHANGED)
        await turns()
        assert stream.ended_with == "UNAUTHENTICATED"


async def test_what_has_ended_opens_no_session() -> None:
    """An older access token finds no session, and does not make it look used."""
    face = Face()
    end(face, minimum_token=CHANGED)
    refusal = await refused(lambda: face.world.commands.open_session(SESSION, BY_TOKEN))
    assert refusal.reason == Reason.REASON_UNAUTHENTICATED
    assert refusal.details == {"user": "0", "minimum": str(CHANGED)}
    refusal = await refused(lambda: face.world.commands.check_caller(SESSION, BY_TOKEN))
    assert refusal.reason == Reason.REASON_UNAUTHENTICATED
    assert face.world.used == []
    assert await face.world.commands.open_session(SESSION, ROOT) == 0


async def test_what_has_ended_fences_no_stream() -> None:
    """A stream of the owner stays open when somebody tries its session with an older token."""
    face = Face()
    async with face.stream() as stream:
        end(face, minimum_token=CHANGED)
        face.authenticator.caller = BY_TOKEN
        assert await opened(face, SESSION) == "UNAUTHENTICATED"
        assert await opened(face, 0) == "UNAUTHENTICATED"
        assert stream.ended_with == ""


async def test_what_has_ended_holds_no_place() -> None:
    """A caller with an older token who says nothing is refused before its stream is counted."""
    face, wire = Face(), FencedWire()
    end(face, minimum_token=CHANGED)
    face.authenticator.caller = BY_TOKEN
    async with asyncio.timeout(10):  # nothing arrives, and a stream would wait that long
        await face.serve(wire)
    assert wire.ended_with == "UNAUTHENTICATED"


async def test_what_has_ended_takes_no_share_of_reads() -> None:
    """A read with an older token is refused before it counts among those of the user."""
    face = Face()
    end(face, minimum_token=CHANGED)
    face.authenticator.caller = BY_TOKEN
    method: Any = SimpleNamespace(code=101, kind=MethodKind.QUERY, public=False)
    nothing: Any = SimpleNamespace()  # every question fails
    calls = UnaryCalls(
        bytes(16),
        SimpleNamespace(public=lambda path: method),  # type: ignore[arg-type]
        face.authenticator,  # type: ignore[arg-type]
        face.world.commands,
        *(nothing, nothing),
        lambda: None,
    )
    call = UnaryCall(())
    with pytest.raises(Ended):
        await calls.serve("/test.Service/Read", b"", call)  # type: ignore[arg-type]
    assert call.details["reason"] == "UNAUTHENTICATED"


async def test_what_has_ended_makes_no_room() -> None:
    """No session of the owner gives way to a registration with an older token."""
    face = Face()
    end(face, minimum=CHANGED)
    method: Any = SimpleNamespace(code=REGISTER_SESSION_CODE, kind=MethodKind.COMMAND)
    nothing: Any = SimpleNamespace()  # every question fails
    calls = UnaryCalls(
        bytes(16),
        SimpleNamespace(public=lambda path: method),  # type: ignore[arg-type]
        face.authenticator,  # type: ignore[arg-type]
        face.world.commands,
        *(nothing, nothing),
        lambda: None,
        room=nothing,
    )
    call = UnaryCall(())
    with pytest.raises(Ended):
        await calls.serve("/test.Service/RegisterSession", b"", call)  # type: ignore[arg-type]
    assert call.details["reason"] == "UNAUTHENTICATED"


async def opened(face: Face, session_id: int) -> str:
    """Open a stream that is refused; return why."""
    wire = FencedWire()
    opening = submit.SubmitRequest(open=submit.OpenStream(session_id=session_id))
    wire.arrived.put_nowait(opening.SerializeToString())
    async with asyncio.timeout(10):
        await face.serve(wire)
    return wire.ended_with
