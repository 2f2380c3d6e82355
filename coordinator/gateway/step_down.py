"""StepDown: the primary hands over. No entry of the log, since nothing that is replicated changes.

Who may ask is decided as for every other method, at log order. A cluster of one replica has nobody
to hand over to, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc.aio

from coordinator.gateway.caller_calls import CallerCalls
from coordinator.gateway.commands import Commands
from coordinator.gateway.forwarding import Forwarding
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.reads import Reads
from coordinator.gateway.replies import abort, header_of, with_header
from coordinator.gateway.routes import Routes
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

STEP_DOWN_PATH: Final = "/viewstamp.api.cluster.v1.ClusterService/StepDown"
REASON: Final = "an operator asked it to step down"

Context = grpc.aio.ServicerContext[Any, Any]


class StepDown:
    """Serves StepDown; `abdicate` is given the reason, and the replica stops to lead."""

    def __init__(
        self,
        cluster_id: bytes,
        routes: Routes,
        authenticator: Authenticator,
        commands: Commands,
        reads: Reads,
        check_serving: Callable[[], None],
        forwarding: Forwarding | None,
        abdicate: Callable[[str], None],
    ) -> None:
        self._cluster_id = cluster_id
        self._routes = routes
        self._authenticator = authenticator
        self._commands = commands
        self._reads = reads
        self._check_serving = check_serving
        self._forwarding = forwarding
        self._abdicate = abdicate

    def handlers(self) -> Mapping[str, Any]:
        """Return the gRPC method handler by its path."""
        return {STEP_DOWN_PATH: grpc.unary_unary_rpc_method_handler(self._serve)}

    async def _serve(self, payload: bytes, context: Context) -> bytes:
        try:
            return await self._answer(payload, context)
        except Refusal as refusal:
            await abort(context, refusal)

    async def _answer(self, payload: bytes, context: Context) -> bytes:
        metadata = context.invocation_metadata() or ()
        try:
            self._check_serving()
        except Refusal as refusal:
            forwarding = self._forwarding
            is_elsewhere = refusal.reason == Reason.REASON_NOT_PRIMARY
            if forwarding is None or not is_elsewhere or not forwarding.is_possible(metadata):
                raise
            return await forwarding.forward(STEP_DOWN_PATH, payload, context)
        principal = self._authenticator.principal(metadata)
        calls = CallerCalls(self._routes, self._commands, self._reads, principal)
        await calls.managing_servers()
        self._abdicate(REASON)
        return with_header(header_of(calls.newest, self._cluster_id), b"")
