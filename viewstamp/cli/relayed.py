"""Calls through a replica that does not lead, for callers that cannot reach the primary.

With `kubectl port-forward service/viewstamp` a backup answers, and names a primary whose address is
unknown here. The backup passes single calls on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import LINEARIZABLE, Client, Consistency, OutcomeUnknown, TimedOut
from viewstamp.client.cluster_calls import CALL_TIMEOUT_S, DEFAULT_TIMEOUT
from viewstamp.client.field_levels import check_in_force, has_levels
from viewstamp.client.methods import method_of
from viewstamp.client.packing import Result
from viewstamp.client.streaming import ServerStreams
from viewstamp.client.submitter import Submitter
from viewstamp.client.transport import AccessTokenSource, Endpoints
from viewstamp.client.verdicts import ELSEWHERE, Backoff, RetryVerdict, verdict_on
from viewstamp.errors import Refusal
from viewstamp.routing import Method, MethodKind

# Errors of a call that may have reached the primary.
_UNCERTAIN: Final = frozenset((grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE))


class RelayedClient(Client):
    """A client without a session. It sends each call alone, and a backup passes the call on.

    It sends a command once. It repeats a read while the replicas elect a primary.
    """

    def __init__(
        self, endpoints: Endpoints, identity: AccessTokenSource, timeout_s: float | None
    ) -> None:
        submitter = Submitter(endpoints, identity, register=False)
        super().__init__(submitter, timeout_s, ServerStreams(endpoints, identity))
        self._level_in_force = 0  # 0 until it was asked for; never lowered

    async def call(
        self,
        request: Message,
        *,
        consistency: Consistency = LINEARIZABLE,
        timeout_s: float | None = DEFAULT_TIMEOUT,
    ) -> Any:
        """Call the method of `request`; reads are linearizable, or `at` a revision.

        Raises Refusal, OutcomeUnknown.
        """
        deadline = self._ends_at(timeout_s)
        method = method_of(request)
        if method.kind is MethodKind.COMMAND:
            await self._check_fields([(method, request)])
            return await self._command(request, deadline)
        return await self._read(request, deadline, (self._revision or consistency).at_revision)

    async def batch(
        self, requests: Iterable[Message], *, timeout_s: float | None = DEFAULT_TIMEOUT
    ) -> list[Result]:
        """Send commands one after another, in order; return a response or Refusal for each.

        No request has several of them without a session, so commands of others may come in between.
        The deadline is that of all. Raises Refusal, TimedOut or AioRpcError if nothing was carried
        out, and OutcomeUnknown, which says how many commands were, if the others were not sent.
        """
        deadline = self._ends_at(timeout_s)
        commands = [(method_of(request), request) for request in requests]
        await self._check_fields(commands)
        results: list[Result] = []
        for _, request in commands:
            try:
                results.append(await self._one_of_several(request, deadline))
            except (Refusal, TimedOut, OutcomeUnknown, grpc.aio.AioRpcError) as error:
                if not results and not isinstance(error, OutcomeUnknown):
                    raise
                text = f"{len(results)} of {len(commands)} commands were answered, then: {error}"
                raise OutcomeUnknown(text, session_id=0, request_number=0) from error
        return results

    async def _one_of_several(self, request: Message, deadline: float) -> Result:
        """Return what was decided of a command. Raises Refusal if nobody could decide it now."""
        if time.monotonic() >= deadline:
            raise TimedOut("the deadline passed before the next command was sent")
        try:
            response: Message = await self._command(request, deadline)
        except Refusal as refusal:
            if verdict_on(refusal) is not RetryVerdict.FINAL:
                raise
            return refusal
        return response

    def _ends_at(self, timeout_s: float | None) -> float:
        """Return when a call ends, by the monotonic clock: no call waits for ever here."""
        if timeout_s == DEFAULT_TIMEOUT:
            timeout_s = self._timeout_s
        return time.monotonic() + (timeout_s or CALL_TIMEOUT_S)

    async def _check_fields(self, commands: Sequence[tuple[Method, Message]]) -> None:
        """Raise Refusal for fields above the level in force: any build may get what is passed on.

        No stream opens here that would tell the level, so the replica is asked for it.
        """
        if not any(has_levels(method, request) for method, request in commands):
            return
        if not self._level_in_force:
            self._level_in_force = await self._asked_level()
        for method, request in commands:
            check_in_force(method, request, self._level_in_force)

    async def _asked_level(self) -> int:
        deadline = self._ends_at(self._timeout_s)
        try:
            status = await self._read(cluster_pb2.GetStatusRequest(), deadline)
        except Refusal as refusal:
            if refusal.reason != Reason.REASON_PERMISSION_DENIED:
                raise
            raise Refusal(
                refusal.reason,
                "through a replica that does not lead, conditions and dry runs need to know the"
                " feature level: ask for the permission read_servers, or connect to the primary",
                **refusal.details,
            ) from refusal
        return int(status.feature_level)

    async def _read(self, request: Message, deadline: float, at_revision: int = 0) -> Any:
        backoff = Backoff()
        while True:
            left_s = deadline - time.monotonic()
            try:
                return await self._submitter.call_alone(request, left_s, at_revision)
            except Refusal as refusal:
                if verdict_on(refusal) not in ELSEWHERE or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(backoff.next_s())

    async def _command(self, request: Message, deadline: float) -> Any:
        try:
            return await self._submitter.call_alone(request, deadline - time.monotonic())
        except Refusal as refusal:
            if refusal.reason != Reason.REASON_OUTCOME_UNKNOWN:
                raise
            # Nobody can send it again under its number, because it has none.
            raise OutcomeUnknown(refusal.message, session_id=0, request_number=0) from refusal
        except grpc.aio.AioRpcError as error:
            if error.code() not in _UNCERTAIN:
                raise
            text = f"the replica that passed the command on gave no answer: {error.details()}"
            raise OutcomeUnknown(text, session_id=0, request_number=0) from error
