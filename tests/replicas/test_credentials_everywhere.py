"""A credential that ended at the primary is refused by every replica from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from coordinator.gateway.forwarding import FORWARDED_KEY
from tests.processes.credentials import OTHER_PASSWORD, PASSWORD, Door, refusal_of
from tests.replicas.trial import ReplicasTrial, lead, trial
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Endpoint
from viewstamp.client.methods import method_of
from viewstamp.client.transport import bearer

pytestmark = pytest.mark.long

REPLICAS: Final = 3
# Each asks the backups at once; they may lag by some milliseconds.
ROUNDS: Final = 20
CALL_TIMEOUT_S: Final = 20
ALICE: Final = "alice"


async def ask(made: ReplicasTrial, replica: int, request: Message, token: str = "") -> Any:
    """Call one replica, which must not forward the call."""
    method = method_of(request)
    async with Endpoint(made.replicas.addresses[replica]).open() as channel:
        stub: Any = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        metadata = (*bearer(token), (FORWARDED_KEY, "1"))
        return await stub(request, metadata=metadata, timeout=CALL_TIMEOUT_S)


async def all_refuse(made: ReplicasTrial, request: Message, reason: int, token: str = "") -> None:
    """Demand that every replica refuses a read by itself, the backups first."""
    primary = await made.primary()
    for replica in sorted(range(REPLICAS), key=lambda each: each == primary):
        refusal = await refusal_of(ask(made, replica, request, token))
        assert refusal.reason == reason, (replica, refusal)


async def none_knows(made: ReplicasTrial, token: str) -> None:
    """Demand that every replica refuses an access token."""
    await all_refuse(made, users_pb2.WhoAmIRequest(), Reason.REASON_UNAUTHENTICATED, token)


async def logged_out(made: ReplicasTrial, door: Door) -> str:
    """Log in and out; return the access token."""
    token = await door.by_password(ALICE)
    for replica in range(REPLICAS):
        assert (await ask(made, replica, users_pb2.WhoAmIRequest(), token)).user.username == ALICE
    await door.ask(users_pb2.LogoutRequest(), token)
    return token


async def test_what_has_ended_has_ended_at_every_replica(tmp_path: Path) -> None:
    """Backups refuse it as soon as the primary has answered, and the next primary does, too."""
    async with trial(tmp_path, REPLICAS, callers=0) as made:
        primary = await made.primary()
        door = Door(made.replicas.addresses[primary])
        await made.admin.users.create(ALICE, PASSWORD)
        for _ in range(ROUNDS):
            token = await logged_out(made, door)
            await none_knows(made, token)
        request = users_pb2.CreatePersonalAccessTokenRequest(name="laptop")
        personal = (await door.ask(request, await door.by_password(ALICE))).token
        minted = await door.by_token(personal)
        await made.admin.tokens.revoke(ALICE, "laptop")
        await none_knows(made, minted)
        by_token = users_pb2.LoginWithTokenRequest(token=personal)
        await all_refuse(made, by_token, Reason.REASON_INVALID_CREDENTIALS)
        await made.admin.users.change_password(OTHER_PASSWORD, user=ALICE)
        by_password = users_pb2.LoginRequest(username=ALICE, password=PASSWORD)
        await all_refuse(made, by_password, Reason.REASON_INVALID_CREDENTIALS)
        await lead(made, primary, leads=False)
        for ended in (token, minted):
            await none_knows(made, ended)
