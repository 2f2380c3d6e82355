"""RaiseFeatureLevel: sequenced once every replica supports the level, and by nobody's leave sooner.

The log decides who may ask, and whether the level is the next one; what it cannot know is which
builds run. That is looked at here, just before: every configured replica must have reported a
moment ago. One that is down counts as one that does not know the level, and nothing overrides that:
the way out is to start it. Should an older build come all the same, it ends and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.gateway.caller_calls import CallerCalls
from coordinator.gateway.commands import Commands
from coordinator.gateway.forwarding import Forwarding
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.reads import Reads
from coordinator.gateway.replies import abort, header_of, with_header
from coordinator.gateway.routes import Routes
from coordinator.stages.catalog_codec import RAISE_FEATURE_LEVEL_CODE
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

RAISE_PATH: Final = "/viewstamp.api.cluster.v1.ClusterService/RaiseFeatureLevel"

Context = grpc.aio.ServicerContext[Any, Any]


class LevelRaising:
    """Serves RaiseFeatureLevel. `supported` are the highest levels by replica, 0 if not heard."""

    def __init__(
        self,
        cluster_id: bytes,
        routes: Routes,
        authenticator: Authenticator,
        commands: Commands,
        reads: Reads,
        check_serving: Callable[[], None],
        forwarding: Forwarding | None,
        supported: Callable[[], Mapping[int, int]],
    ) -> None:
        self._cluster_id = cluster_id
        self._routes = routes
        self._authenticator = authenticator
        self._commands = commands
        self._reads = reads
        self._check_serving = check_serving
        self._forwarding = forwarding
        self._supported = supported

    def handlers(self) -> Mapping[str, Any]:
        """Return the gRPC method handler by its path."""
        return {RAISE_PATH: grpc.unary_unary_rpc_method_handler(self._serve)}

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
            return await forwarding.forward(RAISE_PATH, payload, context)
        principal = self._authenticator.principal(metadata)
        level = _parsed(payload).level
        calls = CallerCalls(self._routes, self._commands, self._reads, principal)
        # Who may not raise the level is told that, and not what runs where.
        await calls.managing_servers()
        check_supported(level, self._supported())
        response = await calls.submit(RAISE_FEATURE_LEVEL_CODE, payload)
        return with_header(header_of(calls.newest, self._cluster_id), response)


def check_supported(level: int, supported: Mapping[int, int]) -> None:
    """Raise Refusal FEATURE_LEVEL_UNSUPPORTED unless every replica supports a level."""
    lacking = {replica: most for replica, most in sorted(supported.items()) if most < level}
    if not lacking:
        return
    said = ", ".join(
        f"replica {replica} up to {most}" if most else f"replica {replica} was not heard"
        for replica, most in lacking.items()
    )
    raise Refusal(
        Reason.REASON_FEATURE_LEVEL_UNSUPPORTED,
        f"level {level} is not supported by all: {said}; have every replica, standbys included, run"
        " a build that knows the level, with all its services, and try again",
        level=level,
        replicas=",".join(map(str, lacking)),
    )


def _parsed(payload: bytes) -> cluster_pb2.RaiseFeatureLevelRequest:
    try:
        return cluster_pb2.RaiseFeatureLevelRequest.FromString(payload)
    except DecodeError as error:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            "its bytes are not a RaiseFeatureLevelRequest: send its protobuf encoding",
        ) from error
