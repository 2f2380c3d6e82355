"""StepDown and RaiseFeatureLevel: calls that only the primary answers, for managers of servers.

A linearizable read checks the caller's permission, so the check adds no entry to the log.

StepDown itself adds none either, since nothing replicated changes. A cluster of one replica has
nobody to hand over to, and says so.

RaiseFeatureLevel is sequenced only once every replica supports the level. The log decides whether
the level is the next one, but cannot know which builds run. That is checked here, just before:
every configured replica must have reported recently. A replica that is down counts as one that does
not know the level, and nothing overrides that: start it. An older build that comes later ends and
says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc.aio

from coordinator.base.decoded_requests import decoded_request
from coordinator.base.refused_calls import abort
from coordinator.gateway.caller_calls import CallerCalls, Callers
from coordinator.gateway.forwarding import Forwarding
from coordinator.gateway.replica_calls import Answer
from coordinator.gateway.replies import header_of, with_header
from coordinator.gateway.routes import Routes
from coordinator.stages.catalog_codec import RAISE_FEATURE_LEVEL_CODE
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.routing import methods_of_file

SERVICE: Final = "/viewstamp.api.cluster.v1.ClusterService/"
STEP_DOWN_PATH: Final = SERVICE + "StepDown"
RAISE_PATH: Final = SERVICE + "RaiseFeatureLevel"
REASON: Final = "an operator asked it to step down"
_METHODS: Final = {method.path: method for method in methods_of_file(cluster_pb2.DESCRIPTOR)}

Context = grpc.aio.ServicerContext[Any, Any]


class PrimaryCalls:
    """Serves both, and `further` calls by path. `abdicate` gets the reason and makes the replica
    stop leading, unless `check_abdication` raises Refusal; `supported` returns the highest level of
    each replica, 0 if not heard."""

    def __init__(
        self,
        cluster_id: bytes,
        routes: Routes,
        callers: Callers,
        check_serving: Callable[[], None],
        forwarding: Forwarding | None,
        check_abdication: Callable[[], None],
        abdicate: Callable[[str], None],
        supported: Callable[[], Mapping[int, int]],
        further: Mapping[str, Answer],
    ) -> None:
        self._cluster_id = cluster_id
        self._routes = routes
        self._callers = callers
        self._check_serving = check_serving
        self._forwarding = forwarding
        self._check_abdication = check_abdication
        self._abdicate = abdicate
        self._supported = supported
        self._further = further

    def handlers(self) -> Mapping[str, Any]:
        """Return the gRPC method handlers by path."""
        answers = {
            STEP_DOWN_PATH: self._step_down,
            RAISE_PATH: self._raise,
            **self._further,
        }
        return {path: self._handler(path, answer) for path, answer in answers.items()}

    def _handler(self, path: str, answer: Answer) -> Any:
        async def serve(payload: bytes, context: Context) -> bytes:
            try:
                return await self._serve(path, answer, payload, context)
            except Refusal as refusal:
                await abort(context, refusal)

        return grpc.unary_unary_rpc_method_handler(serve)

    async def _serve(self, path: str, answer: Answer, payload: bytes, context: Context) -> bytes:
        metadata = context.invocation_metadata() or ()
        try:
            self._check_serving()
        except Refusal as refusal:
            forwarding = self._forwarding
            is_elsewhere = refusal.reason == Reason.REASON_NOT_PRIMARY
            if forwarding is None or not is_elsewhere or not forwarding.is_possible(metadata):
                raise
            # A primary of an older build would step down if this is only tried.
            self._routes.check_command(_METHODS[path], payload)
            return await forwarding.forward(path, payload, context)
        calls = self._callers.of(metadata)
        response = await answer(calls, payload)
        return with_header(header_of(calls.newest, self._cluster_id), response)

    async def _step_down(self, calls: CallerCalls, payload: bytes) -> bytes:
        request = decoded_request(cluster_pb2.StepDownRequest, payload)
        await calls.check_manages_servers()
        # As a backup does, so that it does not matter which replica is asked.
        self._routes.check_command(_METHODS[STEP_DOWN_PATH], payload)
        self._check_abdication()
        if not request.validate_only:
            self._abdicate(REASON)
        return b""

    async def _raise(self, calls: CallerCalls, payload: bytes) -> bytes:
        level = decoded_request(cluster_pb2.RaiseFeatureLevelRequest, payload).level
        # A caller who may not raise the level must not learn which builds run.
        await calls.check_manages_servers()
        check_supported(level, self._supported())
        return await calls.submit(RAISE_FEATURE_LEVEL_CODE, payload)


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
        f"not every replica supports level {level}: {said}; run a build that knows the"
        " level, with all"
        " its services, on every replica and standby, and try again",
        level=level,
        replicas=",".join(map(str, lacking)),
    )
