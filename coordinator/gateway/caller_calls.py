"""Commands and reads that the gateway makes on behalf of one caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import Message

from coordinator.gateway.commands import CommandAdmission
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.reads import LINEARIZABLE, ReadStarter
from coordinator.gateway.replies import only_result
from coordinator.gateway.requested_reads import RequestedReads
from coordinator.gateway.routes import Routes
from coordinator.replica.batcher import LooseCommand, Reply
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.client.consistency import Consistency
from viewstamp.client.methods import method_of
from viewstamp.framing import frame
from viewstamp.limits import GATEWAY_SESSION_ID
from viewstamp.routing import MethodKind
from viewstamp.tokens import AccessToken

# What is read to find out what a caller may do.
LIST_ALARMS_CODE: Final = 451


class CallerCalls:
    """Commands and reads on behalf of one caller; `newest` is the last answer.

    `call` makes this a client for the facades of the client library, without gRPC.
    """

    def __init__(
        self, routes: Routes, commands: CommandAdmission, reads: ReadStarter, principal: AccessToken
    ) -> None:
        self.newest: Reply
        self._routes = routes
        self._commands = commands
        self._reads = reads
        self.user_id = principal.user_id
        self._principal = principal

    async def check_manages_servers(self) -> None:
        """Raise Refusal unless the caller has manage_servers: found by a read of what is cheap."""
        await self._managing(LIST_ALARMS_CODE, b"")

    async def call(self, request: Message, *, consistency: Consistency | None = None) -> Any:
        """Call the method of `request` and return its response. Raises Refusal.

        Every read is linearizable, which satisfies each `consistency`, and demands manage_servers.
        """
        method = method_of(request)
        payload = request.SerializeToString(deterministic=True)
        call = self.submit if method.kind is MethodKind.COMMAND else self._managing
        return method.response.FromString(await call(method.code, payload))

    async def submit(self, code: int, request: bytes) -> bytes:
        """Sequence a command; return its encoded response. Raises Refusal."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        principal = self._principal
        taken = self._commands.submit_loose(
            LooseCommand(
                code, request, principal.user_id, principal.credential_revision, "", future
            )
        )
        try:
            self.newest = await future
        finally:
            self._commands.settle_loose(taken)
        return only_result(self.newest)

    async def _managing(self, code: int, request: bytes) -> bytes:
        """Answer a linearizable read, no entry of the log, to a caller who has manage_servers.

        Permission and answer are of one revision. Raises Refusal.
        """
        method = self._routes.public_code(code, MethodKind.QUERY)
        span = RequestedReads(method, 1, frame(request), routing_pb2.GATE_MANAGE_SERVERS)
        self.newest = await self._reads.start_spans(
            [span], self._principal, GATEWAY_SESSION_ID, LINEARIZABLE
        )
        return only_result(self.newest)


class Callers:
    """Knows callers by the metadata of their calls."""

    def __init__(
        self,
        routes: Routes,
        authenticator: Authenticator,
        commands: CommandAdmission,
        reads: ReadStarter,
    ) -> None:
        self._routes = routes
        self._authenticator = authenticator
        self._commands = commands
        self._reads = reads

    def of(self, metadata: Iterable[tuple[str, str | bytes]]) -> CallerCalls:
        """Return the calls of who is named there. Raises Refusal UNAUTHENTICATED."""
        principal = self._authenticator.principal(metadata)
        return CallerCalls(self._routes, self._commands, self._reads, principal)
