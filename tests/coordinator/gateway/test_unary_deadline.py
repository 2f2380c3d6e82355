"""Unary commands that are refused at once, and those without an answer: every caller is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from coordinator.gateway import unary
from coordinator.gateway.shares import Taken
from coordinator.gateway.unary import REQUEST_KEY, SESSION_KEY, UnaryCalls
from coordinator.replica.batcher import Reply
from viewstamp.limits import COMMAND_BYTES_MAX
from viewstamp.routing import MethodKind
from viewstamp.tokens import AccessToken

DEADLINE_MS = 20
OF_A_SESSION = ((SESSION_KEY, "7"), (REQUEST_KEY, "1"))


class Ended(Exception):  # noqa: N818 - what gRPC raises has no name of its own
    """The call was aborted."""


class UnaryCall:
    """One call, and the status with which it ended."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Come with metadata."""
        self.code: grpc.StatusCode | None = None
        self.status = status_pb2.Status()
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what the caller sent."""
        return self._metadata

    def peer(self) -> str:
        """Return the caller's address."""
        return "ipv4:127.0.0.1:1"

    async def abort(
        self, code: grpc.StatusCode, _: str, trailing_metadata: tuple[tuple[str, bytes], ...]
    ) -> NoReturn:
        """Remember how the call ended."""
        self.code = code
        self.status = status_pb2.Status.FromString(trailing_metadata[0][1])
        raise Ended

    @property
    def details(self) -> dict[str, str]:
        """The details of the status beside its message."""
        info = error_details_pb2.ErrorInfo()
        assert self.status.details[0].Unpack(info)
        return {"reason": info.reason, **info.metadata}


class Nothing:
    """A log in which nothing is ever committed."""

    def __init__(self) -> None:
        """Hold nobody yet."""
        self.futures: list[asyncio.Future[Reply]] = []
        self.under_way: list[Taken] = []

    def submit_loose(self, command: Any) -> Taken:
        """Take a command, and never answer."""
        self.futures.append(command.future)
        self.under_way.append((command.user_id, 1, 0, 0))
        return self.under_way[-1]

    def settle_loose(self, taken: Taken) -> None:
        """Nobody waits for the reply any more."""
        self.under_way.remove(taken)

    def check_credentials(self, principal: AccessToken) -> None:
        """Believe everybody."""

    async def check_caller(self, session_id: int, principal: AccessToken) -> None:
        """Know every session."""

    async def admit(self, *_: object) -> Any:
        """Take a request, and never answer."""
        self.futures.append(asyncio.get_running_loop().create_future())
        return SimpleNamespace(future=self.futures[0], suffixes=({},))


def unary_calls(log: Nothing) -> UnaryCalls:
    """Return what serves one method over a log."""
    method = SimpleNamespace(code=1, kind=MethodKind.COMMAND)
    return UnaryCalls(
        bytes(16),
        SimpleNamespace(  # type: ignore[arg-type]
            public=lambda path: method, check_command=lambda method, payload: None
        ),
        SimpleNamespace(principal=lambda metadata: AccessToken(1, 1, 0)),  # type: ignore[arg-type]
        log,  # type: ignore[arg-type]
        SimpleNamespace(needed=lambda method: False),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        lambda: None,
    )


@pytest.mark.parametrize("metadata", [(), OF_A_SESSION])
async def test_a_command_that_is_too_large_is_refused(
    metadata: tuple[tuple[str, str], ...],
) -> None:
    """No caller logs more than a command may have, whatever library makes the call."""
    log, call = Nothing(), UnaryCall(metadata)
    with pytest.raises(Ended):
        await unary_calls(log).serve("/test.Service/Method", bytes(COMMAND_BYTES_MAX + 1), call)  # type: ignore[arg-type]
    assert call.code is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details["reason"] == "COMMAND_TOO_LARGE"
    assert log.futures == []


@pytest.mark.parametrize("metadata", [(), OF_A_SESSION])
async def test_a_command_without_an_answer_has_an_unknown_outcome(
    metadata: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller waits for ever; a session's request stays in flight for a retry."""
    monkeypatch.setattr(unary, "COMMAND_DEADLINE_MS", DEADLINE_MS)
    log, call = Nothing(), UnaryCall(metadata)
    with pytest.raises(Ended):
        await unary_calls(log).serve("/test.Service/Method", b"", call)  # type: ignore[arg-type]
    assert call.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert call.details["reason"] == "OUTCOME_UNKNOWN"
    assert (call.details["outcome"], call.details["deadline_ms"]) == ("unknown", str(DEADLINE_MS))
    (future,) = log.futures
    assert future.cancelled() is (not metadata)
    assert log.under_way == []  # its caller's share was given back
