"""A backup does not pass fields on that are above the level in force: its primary may be older."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.gateway.routes import Routes
from coordinator.gateway.unary import Elsewhere, UnaryCalls
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_GUARDS
from viewstamp.routing import methods_of_file

DELETE = "/viewstamp.api.users.v1.UsersService/DeletePersonalAccessToken"
GUARDED = users_service_pb2.DeletePersonalAccessTokenRequest(name="a", expected_revision=7)
PLAIN = users_service_pb2.DeletePersonalAccessTokenRequest(name="a")


class NotedPrimary:
    """What was passed on to it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def is_possible(self, metadata: Any) -> bool:
        """Say that calls can be passed on."""
        return True

    async def forward(self, path: str, payload: bytes, context: Any, *, changes: bool) -> bytes:
        """Note a call."""
        self.heard.append(payload)
        return b""


class AbortedError(Exception):
    """The call was refused."""


class BackupCaller:
    """A call at a backup."""

    def invocation_metadata(self) -> tuple[()]:
        """Return none."""
        return ()

    def peer(self) -> str:
        """Return an address."""
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: Any, details: str, trailing_metadata: Any) -> None:
        """End the call."""
        raise AbortedError(details)


def not_primary() -> None:
    """Refuse as a backup does."""
    raise Refusal(Reason.REASON_NOT_PRIMARY, "ask the primary")


@pytest.mark.parametrize(
    ("level", "request_", "passes"),
    [
        (FEATURE_LEVEL_GUARDS - 1, GUARDED, False),
        (FEATURE_LEVEL_GUARDS, GUARDED, True),
        (FEATURE_LEVEL_GUARDS - 1, PLAIN, True),
    ],
)
async def test_guards_are_passed_on_from_their_level_on(
    level: int, request_: Any, passes: bool
) -> None:
    """Below its level a guard is refused by the backup, and a call without one is passed on."""
    routes = Routes(lambda: level)
    primary: Any = NotedPrimary()
    unused: Any = SimpleNamespace()
    for method in methods_of_file(users_service_pb2.DESCRIPTOR):
        routes.add(method)
    elsewhere = Elsewhere(lambda: None, primary, unused)
    calls = UnaryCalls(
        bytes(16), routes, unused, unused, unused, unused, not_primary, elsewhere=elsewhere
    )
    caller: Any = BackupCaller()
    payload = request_.SerializeToString()
    if passes:
        await calls.serve(DELETE, payload, caller)
    else:
        with pytest.raises(AbortedError, match="level"):
            await calls.serve(DELETE, payload, caller)
    assert primary.heard == [payload] * passes
