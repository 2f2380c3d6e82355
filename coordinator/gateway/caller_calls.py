"""Commands and reads that the gateway makes on behalf of one caller."""

from __future__ import annotations

import asyncio
from typing import Final

from coordinator.gateway.commands import Commands
from coordinator.gateway.reads import LINEARIZABLE, Reads, ReadSpan
from coordinator.gateway.replies import only_result
from coordinator.gateway.routes import Routes
from coordinator.replica.batcher import LooseCommand, Reply
from coordinator.snapshot.api import LocalSnapshotApi
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.framing import frame
from viewstamp.limits import GATEWAY_SESSION_ID
from viewstamp.routing import MethodKind
from viewstamp.tokens import AccessToken

# What is read to find out what a caller may do.
LIST_ALARMS_CODE: Final = 451


class CallerCalls:
    """Commands and reads on behalf of one caller; `newest` is the last answer."""

    def __init__(
        self, routes: Routes, commands: Commands, reads: Reads, principal: AccessToken
    ) -> None:
        self.newest: Reply
        self._routes = routes
        self._commands = commands
        self._reads = reads
        self._principal = principal

    async def managing_servers(self) -> LocalSnapshotApi:
        """Return the snapshots' API, once the caller is found to have manage_servers.

        A linearizable read that demands it, of what is cheap: no entry of the log. Raises Refusal.
        """
        method = self._routes.public_code(LIST_ALARMS_CODE, MethodKind.QUERY)
        await self._read(ReadSpan(method, 1, frame(b""), routing_pb2.GATE_MANAGE_SERVERS))
        return LocalSnapshotApi(self.submit, self.query)

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

    async def query(self, code: int, request: bytes) -> bytes:
        """Answer a linearizable read; return its encoded response. Raises Refusal."""
        method = self._routes.public_code(code, MethodKind.QUERY)
        return await self._read(ReadSpan(method, 1, frame(request)))

    async def _read(self, span: ReadSpan) -> bytes:
        self.newest = await self._reads.start_spans(
            [span], self._principal, GATEWAY_SESSION_ID, LINEARIZABLE
        )
        return only_result(self.newest)
