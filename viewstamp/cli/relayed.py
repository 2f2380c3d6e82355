"""Calls through a replica that does not lead, for callers that cannot reach the primary.

With `kubectl port-forward service/viewstamp` a backup answers, and names a primary whose address is
unknown here. The backup passes single calls on.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from viewstamp.client import LINEARIZABLE, Client, Consistency, OutcomeUnknown
from viewstamp.client.client import CALL_TIMEOUT_S, DEFAULT_TIMEOUT
from viewstamp.client.methods import method_of
from viewstamp.client.streaming import ServerStreams
from viewstamp.client.submitter import Submitter
from viewstamp.client.transport import AccessTokenSource, Endpoints
from viewstamp.client.verdicts import ELSEWHERE, Backoff, verdict_on
from viewstamp.errors import Refusal
from viewstamp.routing import MethodKind

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

    async def call(
        self,
        request: Message,
        *,
        consistency: Consistency = LINEARIZABLE,
        timeout_s: float | None = DEFAULT_TIMEOUT,
    ) -> Any:
        """Call the method of `request`; reads are linearizable, or `at` the client's revision.

        Raises Refusal, OutcomeUnknown.
        """
        if timeout_s == DEFAULT_TIMEOUT:
            timeout_s = self._timeout_s
        deadline = time.monotonic() + (timeout_s or CALL_TIMEOUT_S)
        if method_of(request).kind is MethodKind.COMMAND:
            return await self._command(request, deadline)
        backoff = Backoff()
        at_revision = 0 if self._revision is None else self._revision.at_revision
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
        except grpc.aio.AioRpcError as error:
            if error.code() not in _UNCERTAIN:
                raise
            text = f"the replica that passed the command on gave no answer: {error.details()}"
            raise OutcomeUnknown(text, session_id=0, request_number=0) from error
