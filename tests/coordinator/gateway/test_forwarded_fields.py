"""A backup does not pass fields on that are above the level in force: its primary may be older."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.gateway.primary_calls import STEP_DOWN_PATH, PrimaryCalls
from coordinator.gateway.routes import Routes
from coordinator.gateway.unary import Elsewhere, UnaryCalls
from coordinator.replica.batcher import Reply
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
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

    async def forward(
        self, path: str, payload: bytes, context: Any, *, changes: bool = True
    ) -> bytes:
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


class Manager:
    """A caller who may manage servers, at a replica that leads."""

    newest = Reply(1, 1, 1, ())

    async def check_manages_servers(self) -> None:
        """Allow it."""


TRIAL = cluster_pb2.StepDownRequest(validate_only=True).SerializeToString()


@pytest.mark.parametrize(
    ("level", "payload", "passes"),
    [
        (FEATURE_LEVEL_GUARDS - 1, TRIAL, False),
        (FEATURE_LEVEL_GUARDS, TRIAL, True),
        (FEATURE_LEVEL_GUARDS - 1, b"", True),
    ],
)
@pytest.mark.parametrize("leads", [False, True])
async def test_a_trial_of_step_down_needs_its_level(
    leads: bool, level: int, payload: bytes, passes: bool
) -> None:
    """An older primary would step down when that is only tried: no backup asks it to.

    The primary says the same, so that it does not matter which replica is asked.
    """
    primary: Any = NotedPrimary()
    callers: Any = SimpleNamespace(of=lambda metadata: Manager())
    stepped_down: list[str] = []
    calls = PrimaryCalls(
        bytes(16),
        Routes(lambda: level),
        callers,
        (lambda: None) if leads else not_primary,
        primary,
        lambda: None,
        stepped_down.append,
        dict,
        {},
    )
    serve = calls.handlers()[STEP_DOWN_PATH].unary_unary
    if passes:
        await serve(payload, BackupCaller())
    else:
        with pytest.raises(AbortedError, match="`validate_only` of StepDown needs feature level 8"):
            await serve(payload, BackupCaller())
    assert primary.heard == [payload] * (passes and not leads)
    assert len(stepped_down) == (leads and payload == b"")
